//! A client whose caller never has to handle an error: a server that is away or slow is a `NO_HINT` that says why.
//!
//! ```no_run
//! # async fn route(request: inferencecache_wire::pb::LookupRouteRequest) -> Result<(), Box<dyn std::error::Error>> {
//! use inferencecache_wire::grpc::client::{ClientOptions, HintClient};
//!
//! let client = HintClient::new("inference-cache-server:9090", &ClientOptions::default())?;
//! let hint = client.lookup(request).await;
//! match hint.replica() {
//!     Some(replica) => println!("route to {replica}"),
//!     None => println!("route as you would without a hint ({:?})", hint.degraded),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! The connection is made when first needed and made again when it breaks; pings notice a peer that has silently gone,
//! also while nothing is asked.

use std::fmt;
use std::time::Duration;

use tonic::Code;
use tonic::transport::{Channel, Endpoint};

use crate::chain::said;
use crate::pb;
use crate::pb::inference_cache_client::InferenceCacheClient;

/// Time limits of a client. Start from [`ClientOptions::default`].
#[derive(Debug, Clone)]
pub struct ClientOptions {
    /// For making a connection. Default 5 s.
    pub connect_timeout: Duration,
    /// For one call, connecting included. Default 20 ms: a later hint is worth less than the wait.
    pub call_timeout: Duration,
    /// Between HTTP/2 pings, also while idle. Default 20 s.
    pub keepalive_interval: Duration,
    /// For the answer to a ping, after which the connection counts as broken. Default 10 s.
    pub keepalive_timeout: Duration,
    /// TLS, with the protocol [`ALPN_H2`](crate::tls::ALPN_H2). Default none: plaintext.
    #[cfg(feature = "tls")]
    pub tls: Option<crate::tls::ClientTls>,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(5),
            call_timeout: Duration::from_millis(20),
            keepalive_interval: Duration::from_secs(20),
            keepalive_timeout: Duration::from_secs(10),
            #[cfg(feature = "tls")]
            tls: None,
        }
    }
}

impl ClientOptions {
    /// The scheme that a URL must have if it has one.
    #[cfg(feature = "tls")]
    fn scheme(&self) -> &'static str {
        if self.tls.is_some() { "https" } else { "http" }
    }

    /// The scheme that a URL must have if it has one.
    #[cfg(not(feature = "tls"))]
    #[expect(clippy::unused_self, reason = "the one with TLS looks at itself")]
    fn scheme(&self) -> &'static str {
        "http"
    }
}

/// The address cannot be dialled, whoever listens there.
#[derive(Debug, thiserror::Error)]
#[error("invalid server address {address:?}; write host:port")]
pub struct InvalidAddress {
    /// As it was given.
    pub address: String,
    #[source]
    source: Option<tonic::transport::Error>,
}

/// A channel to `server` (`host:port`, or a URL whose scheme says whether it is TLS) that connects when first used and pings its peer.
///
/// The piece under [`HintClient`], for callers of the other RPCs. It limits connecting, but no call: see
/// [`tonic::Request::set_timeout`].
///
/// # Errors
/// [`InvalidAddress`] when no connection can ever be tried.
pub fn channel(server: &str, options: &ClientOptions) -> Result<Channel, InvalidAddress> {
    let invalid = |source| InvalidAddress { address: server.to_owned(), source };
    let target = match (server.split_once("://"), options.scheme()) {
        (None, _) => server,
        (Some((scheme, target)), wanted) if scheme.eq_ignore_ascii_case(wanted) => target,
        (Some(_), _) => return Err(invalid(None)),
    };
    let endpoint = Endpoint::from_shared(format!("http://{target}")).map_err(|why| invalid(Some(why)))?;
    if endpoint.uri().port().is_none() || endpoint.uri().host().is_none_or(str::is_empty) {
        return Err(invalid(None));
    }
    let endpoint = endpoint
        .connect_timeout(options.connect_timeout)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(options.keepalive_interval)
        .keep_alive_timeout(options.keepalive_timeout)
        .keep_alive_while_idle(true);
    #[cfg(feature = "tls")]
    if let Some(tls) = &options.tls {
        // What is dialled is `http` to tonic, because TLS is the connector's; what requests say is the truth.
        let authority = endpoint.uri().authority().map_or(target, |authority| authority.as_str());
        let origin =
            tonic::codegen::http::Uri::builder().scheme("https").authority(authority).path_and_query("/").build();
        let origin = origin.map_err(|_| invalid(None))?;
        return Ok(endpoint.origin(origin).connect_with_connector_lazy(tls.connector()));
    }
    Ok(endpoint.connect_lazy())
}

/// Asks a server for hints. Cheap to clone; clones share one connection.
#[derive(Debug, Clone)]
pub struct HintClient {
    stub: InferenceCacheClient<Channel>,
    call_timeout: Duration,
}

/// What a caller gets, whatever happened.
#[derive(Debug, Clone)]
pub struct Hint {
    /// The server's answer, or `NO_HINT` without anything.
    pub response: pb::LookupRouteResponse,
    /// Why there is no answer of the server's; `None` when there is one.
    pub degraded: Option<Cause>,
}

/// Why a server could not be heard.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// No connection, or it broke.
    Unreachable(String),
    /// No answer within the call's time limit.
    Slow(Duration),
    /// A gRPC error, e.g. `RESOURCE_EXHAUSTED` for a request above the server's message limit.
    Refused(Code, String),
}

impl HintClient {
    /// A client of `server` (`host:port`). Connects when first asked. Call it inside a tokio runtime.
    ///
    /// # Errors
    /// [`InvalidAddress`] when no connection can ever be tried.
    pub fn new(server: &str, options: &ClientOptions) -> Result<Self, InvalidAddress> {
        Ok(Self::over(channel(server, options)?, options))
    }

    /// A client over a channel of the caller's own making.
    #[must_use]
    pub fn over(channel: Channel, options: &ClientOptions) -> Self {
        Self { stub: InferenceCacheClient::new(channel), call_timeout: options.call_timeout }
    }

    /// Asks for a hint. Returns within the call's time limit.
    pub async fn lookup(&self, request: pb::LookupRouteRequest) -> Hint {
        let mut stub = self.stub.clone();
        let mut request = tonic::Request::new(request);
        request.set_timeout(self.call_timeout);
        match tokio::time::timeout(self.call_timeout, stub.lookup_route(request)).await {
            Ok(Ok(response)) => Hint { response: response.into_inner(), degraded: None },
            Ok(Err(status)) => Hint::without(match status.code() {
                Code::Unavailable | Code::Unknown => Cause::Unreachable(said(&status)),
                Code::DeadlineExceeded | Code::Cancelled => Cause::Slow(self.call_timeout),
                code => Cause::Refused(code, status.message().to_owned()),
            }),
            Err(_) => Hint::without(Cause::Slow(self.call_timeout)),
        }
    }
}

impl Hint {
    fn without(cause: Cause) -> Self {
        let response = pb::LookupRouteResponse { reason_code: "NO_HINT".to_owned(), ..Default::default() };
        Self { response, degraded: Some(cause) }
    }

    /// The best replica, if the answer is a hint. Codes that this version does not know are none.
    #[must_use]
    pub fn replica(&self) -> Option<&str> {
        let is_hint = matches!(self.response.reason_code.as_str(), "PREFIX_MATCH" | "TENANT_HOT" | "AFFINITY_HINT");
        self.response.replica_scores.first().filter(|_| is_hint).map(|best| best.replica_id.as_str())
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreachable(why) => write!(f, "server unreachable: {why}"),
            Self::Slow(limit) => write!(f, "no answer within {limit:?}"),
            Self::Refused(code, why) => write!(f, "server refused: {code:?}: {why}"),
        }
    }
}
