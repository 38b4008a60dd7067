//! The bridge to the cache server: `GET /snapshot`, `POST /policy`, `POST /probe`.
//!
//! ```text
//!  poller ── snapshot ─┐            ┌─ token file, read for every call
//!  pusher ── policy ───┼─▶ Bridge ──┤
//!  probing ─ probe ────┘   fence    └─▶ http or https, 5 s, bounded answers
//! ```
//!
//! 1. A call takes [`TIMEOUT`] at most, body included, after a second at most for the token. Answers are read up to a limit; what is
//!    longer is an error.
//! 2. No token is kept, and none is logged. Redirects are not followed.
//! 3. Every call is counted by channel and result.
//! 4. A process that does not lead makes no call.

mod error;
mod http;
mod metrics;
mod probe;
mod steady;
#[cfg(test)]
mod tests;
mod token;

use std::path::PathBuf;

use bytes::Bytes;
use hyper::{Method, StatusCode};

pub use self::error::BridgeError;
use self::http::Http;
pub use self::http::{Endpoint, InvalidEndpoint, TIMEOUT};
pub use self::metrics::{Channel, Metrics};
pub use self::probe::Probe;
pub use self::token::TokenFile;
use super::fence::Fence;
use super::index::snapshot::Snapshot;

/// Largest `/snapshot` that is read, in bytes: about a hundred thousand rows.
pub const MAX_SNAPSHOT: usize = 32 * 1024 * 1024;
/// Largest `/probe` answer that is read, in bytes.
pub const MAX_PROBE: usize = 64 * 1024;
/// Most of a refusal that is quoted, in bytes.
pub const MAX_QUOTED: usize = 1024;

/// Where the tokens are mounted in a default installation.
const TOKENS: &str = "/var/run/secrets/inferencecache.io";

/// Files with the tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// For `/snapshot` and `/probe`.
    pub controller: PathBuf,
    /// For `/policy`.
    pub policy: PathBuf,
}

impl Default for Tokens {
    fn default() -> Self {
        let token = |name: &str| PathBuf::from(TOKENS).join(name).join("token");
        Self { controller: token("controller-token"), policy: token("policy-token") }
    }
}

/// Calls the cache server.
#[derive(Clone, Debug)]
pub struct Bridge {
    http: Http,
    controller: TokenFile,
    policy: TokenFile,
    fence: Fence,
    metrics: Metrics,
}

impl Bridge {
    /// For `http` addresses, and `https` ones whose certificates come from the authorities in `ca`.
    ///
    /// # Errors
    /// The authorities cannot be used.
    pub async fn new(
        ca: Option<PathBuf>,
        tokens: Tokens,
        fence: Fence,
        metrics: Metrics,
    ) -> Result<Self, inferencecache_wire::tls::TlsError> {
        Ok(Self {
            http: Http::new(ca).await?,
            controller: TokenFile::new(tokens.controller),
            policy: TokenFile::new(tokens.policy),
            fence,
            metrics,
        })
    }

    /// What the server holds.
    ///
    /// # Errors
    /// Anything but a 200 with a snapshot in it.
    pub async fn snapshot(&self, from: &Endpoint) -> Result<Snapshot, BridgeError> {
        self.metrics
            .counted(Channel::Snapshot, async {
                let token = self.controller.lenient().await;
                let answer = self.http.call(Method::GET, from, token, None, MAX_SNAPSHOT);
                let (status, body) = self.led(answer).await?;
                if status != StatusCode::OK {
                    return Err(BridgeError::refused(status, &body));
                }
                // Tens of megabytes take a while.
                let parsed = tokio::task::spawn_blocking(move || serde_json::from_slice(&body)).await;
                parsed
                    .map_err(|why| BridgeError::Unreadable(why.to_string()))?
                    .map_err(|why| BridgeError::Unreadable(why.to_string()))
            })
            .await
    }

    /// Replaces what the server holds of policies and budgets.
    ///
    /// # Errors
    /// Anything but a 2xx.
    pub async fn policy(&self, to: &Endpoint, body: Bytes) -> Result<(), BridgeError> {
        self.metrics
            .counted(Channel::Policy, async {
                let token = self.policy.lenient().await;
                let answer = self.http.call(Method::POST, to, token, Some(body), MAX_PROBE);
                let (status, body) = self.led(answer).await?;
                if status.is_success() { Ok(()) } else { Err(BridgeError::refused(status, &body)) }
            })
            .await
    }

    /// The bytes that `/probe` answers with.
    pub(super) async fn probe(&self, at: &Endpoint, body: Bytes) -> Result<Bytes, BridgeError> {
        let token = self.controller.strict().await?;
        let (status, body) = self.led(self.http.call(Method::POST, at, token, Some(body), MAX_PROBE)).await?;
        if status.is_success() { Ok(body) } else { Err(BridgeError::refused(status, &body)) }
    }

    async fn led<T>(&self, call: impl Future<Output = Result<T, BridgeError>>) -> Result<T, BridgeError> {
        self.fence.pass()?;
        call.await
    }
}
