//! The pusher: every policy and every budget, in one body, to the server.
//!
//! ```text
//!  watches ── wake ─▶ ┌ 50 ms for more ┐
//!  tick, start ─────▶ └ list ─▶ flatten ─▶ same as accepted? ─▶ POST
//! ```
//!
//! 1. One push at a time, listing included: an older list never lands after a newer one.
//! 2. What woke us and changed nothing that is sent, such as a status, sends nothing. Ticks always send: the server forgets when
//!    it restarts.
//! 3. A failure is tried again with a backoff, whoever caused the push.

mod flatten;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use inferencecache_wire::policy::MAX_BODY;
use kube::Client;
use kube::api::{Api, PartialObjectMeta};
use prometheus::{IntGauge, Registry};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

pub use self::flatten::flatten;
use super::bridge::{Bridge, BridgeError, Endpoint};
use super::pages::{self, ListError};
use super::watch::{Scope, Seen, follow};
use crate::api::{CachePolicy, CacheTenant};

/// How long a push waits for more that is to be sent.
pub const COALESCE: Duration = Duration::from_millis(50);
/// First wait after a failure; it doubles up to the interval of ticks.
const FIRST_RETRY: Duration = Duration::from_millis(500);
/// Longest time that a failure holds up what a watch saw.
const DAMPING: Duration = Duration::from_secs(1);
/// From this size on, a body is worth a warning: it cannot be split.
const LARGE: usize = MAX_BODY / 10 * 9;

/// Why nothing was pushed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PushError {
    /// The objects could not be listed.
    #[error("cannot list {0}: {1}")]
    List(&'static str, ListError),
    /// There is no body.
    #[error("cannot write the body: {0}")]
    Body(#[from] serde_json::Error),
    /// The server did not take it.
    #[error("{0}")]
    Server(#[from] BridgeError),
}

/// Pushes to the server.
pub struct Pusher {
    client: Client,
    bridge: Bridge,
    server: Endpoint,
    every: Duration,
    size: IntGauge,
    accepted: Option<Bytes>,
}

impl std::fmt::Debug for Pusher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pusher").field("server", &self.server).field("every", &self.every).finish_non_exhaustive()
    }
}

impl Pusher {
    /// Pushes to `server`, at that pace at least.
    ///
    /// # Errors
    /// The metric's name is taken.
    pub fn new(
        client: Client,
        bridge: Bridge,
        server: Endpoint,
        every: Duration,
        registry: &Registry,
    ) -> Result<Self, prometheus::Error> {
        let size = IntGauge::new(
            "inferencecache_controller_policy_body_bytes",
            "Size of the last /policy body; the server takes 1048576.",
        )?;
        registry.register(Box::new(size.clone()))?;
        Ok(Self { client, bridge, server, every, size, accepted: None })
    }

    /// Pushes until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let (wake, everything) = (Arc::new(Notify::new()), Scope::default());
        let client = self.client.clone();
        let policies =
            follow(Api::<PartialObjectMeta<CachePolicy>>::all(client.clone()), &everything, &stop, waker(&wake));
        let tenants = follow(Api::<PartialObjectMeta<CacheTenant>>::all(client), &everything, &stop, waker(&wake));
        tokio::join!(policies, tenants, self.work(&wake, &stop));
    }

    async fn work(mut self, wake: &Notify, stop: &CancellationToken) {
        let mut tick = Instant::now();
        let mut failures = 0_u32;
        let mut retry: Option<Instant> = None;
        let mut damped = tick;
        loop {
            let due = retry.map_or(tick, |retry| retry.min(tick));
            let unconditional = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = sleep_until(due) => true,
                () = async { wake.notified().await; sleep(COALESCE).await; sleep_until(damped).await } => false,
            };
            let push = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                push = self.push(unconditional) => push,
            };
            let now = Instant::now();
            if tick <= now {
                tick = now + self.every;
            }
            match push {
                Ok(()) => {
                    if failures > 0 {
                        tracing::info!("policies pushed again");
                    }
                    (failures, retry) = (0, None);
                }
                Err(why) => {
                    if failures == 0 {
                        tracing::warn!(error = %why, "policies not pushed");
                    } else {
                        tracing::debug!(error = %why, failures, "policies not pushed");
                    }
                    let wait = FIRST_RETRY.saturating_mul(1_u32 << failures.min(10)).min(self.every);
                    failures = failures.saturating_add(1);
                    (retry, damped) = (Some(now + wait), now + wait.min(DAMPING));
                }
            }
        }
    }

    /// One push; unless it is unconditional, only of something new.
    async fn push(&mut self, unconditional: bool) -> Result<(), PushError> {
        let policies = match pages::all(&Api::<CachePolicy>::all(self.client.clone())).await {
            // Half an installation: there is nothing to say.
            Err(why) if why.is_missing() => return Ok(()),
            policies => policies.map_err(|why| PushError::List("cachepolicies", why))?,
        };
        let tenants = match pages::all(&Api::<CacheTenant>::all(self.client.clone())).await {
            Err(why) if why.is_missing() => Vec::new(),
            tenants => tenants.map_err(|why| PushError::List("cachetenants", why))?,
        };
        let body = Bytes::from(serde_json::to_vec(&flatten(&policies, &tenants))?);
        self.size.set(i64::try_from(body.len()).unwrap_or(i64::MAX));
        if !unconditional && self.accepted.as_ref() == Some(&body) {
            return Ok(());
        }
        if body.len() > LARGE {
            tracing::warn!(
                bytes = body.len(),
                limit = MAX_BODY,
                "the policies are close to what the server takes, or beyond"
            );
        }
        let pushed = self.bridge.policy(&self.server, body.clone()).await;
        // Whether a body that failed has arrived is not known.
        self.accepted = pushed.is_ok().then_some(body);
        Ok(pushed?)
    }
}

fn waker<K>(wake: &Arc<Notify>) -> impl FnMut(Seen<'_, K>) + use<K> {
    let wake = Arc::clone(wake);
    move |_| wake.notify_one()
}
