//! The fence around everything that a leader does to others.
//!
//! ```text
//!  lease ── renewed ──▶ Fence ◀── asked before each write ── fenced client, bridge
//! ```
//!
//! 1. A write passes only while the last renewal is younger than the renew deadline. Nobody has to notice a loss first: a
//!    process that slept through its lease wakes up shut out.
//! 2. The age is the larger one of two clocks: one that cannot be set back, and the wall clock, which goes on while a machine
//!    is suspended.
//! 3. Shut is shut: there is no second term for one process.
//! 4. Reads pass always. Without leader election the fence stands open.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use hyper::{Method, Request};
use inferencecache_core::time::{Clock, SystemClock};
use kube::Client;
use kube::client::{Body, ClientBuilder};
use tokio::time::timeout;
use tower::{BoxError, Layer, Service};

/// Longest wait for the head of an answer; a watch has its own limits.
pub const ANSWER: Duration = Duration::from_secs(30);

/// This process does not lead, or no longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not sent: this process does not lead")]
pub struct Deposed;

/// The API server did not begin to answer in time.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("no answer within {ANSWER:?}")]
struct Silent;

#[derive(Clone, Copy, Debug)]
enum State {
    Open,
    Shut,
    /// Times of the last renewal, in microseconds: monotonic, wall.
    Held(u64, i64),
}

/// Says whether this process may write. Clones are one fence.
#[derive(Clone, Debug)]
pub struct Fence {
    state: Arc<Mutex<State>>,
    clock: Arc<dyn Clock>,
    patience: Duration,
}

impl Fence {
    /// One that lets everything through, for a process that leads because it is told to.
    #[must_use]
    pub fn open() -> Self {
        Self::new(State::Open, Arc::new(SystemClock::default()), Duration::MAX)
    }

    /// One that is closed until the first renewal, and again once the last one is older than `patience`.
    #[must_use]
    pub fn closed(clock: Arc<dyn Clock>, patience: Duration) -> Self {
        // Before the first renewal there is nothing that could be young enough.
        Self::new(State::Held(0, i64::MIN), clock, patience)
    }

    fn new(state: State, clock: Arc<dyn Clock>, patience: Duration) -> Self {
        Self { state: Arc::new(Mutex::new(state)), clock, patience }
    }

    /// Time, to be taken before a renewal is asked for.
    #[must_use]
    pub fn now(&self) -> (u64, i64) {
        (self.clock.monotonic(), self.clock.now())
    }

    /// A renewal that was asked for at that time has succeeded.
    pub fn renewed(&self, asked: (u64, i64)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !matches!(*state, State::Shut) {
            *state = State::Held(asked.0, asked.1);
        }
    }

    /// Ends the term for good.
    pub fn shut(&self) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = State::Shut;
    }

    /// How long writes may still pass; nothing once they may not.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let (steady, wall) = match *self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Open => return Duration::MAX,
            State::Shut => return Duration::ZERO,
            State::Held(steady, wall) => (steady, wall),
        };
        let now = self.now();
        let elapsed = now.0.saturating_sub(steady).max(u64::try_from(now.1.saturating_sub(wall)).unwrap_or(0));
        self.patience.saturating_sub(Duration::from_micros(elapsed))
    }

    /// Lets a write through, or not.
    ///
    /// # Errors
    /// [`Deposed`].
    pub fn pass(&self) -> Result<(), Deposed> {
        if self.remaining().is_zero() { Err(Deposed) } else { Ok(()) }
    }

    /// A client whose writes pass this fence, and whose answers begin within [`ANSWER`].
    ///
    /// # Errors
    /// The configuration makes no client.
    pub fn client(&self, config: kube::Config) -> Result<Client, kube::Error> {
        Ok(ClientBuilder::try_from(config)?.with_layer(&Guard(self.clone())).build())
    }
}

/// Puts the fence before a client's connection.
struct Guard(Fence);

impl<S> Layer<S> for Guard {
    type Service = Guarded<S>;

    fn layer(&self, inner: S) -> Guarded<S> {
        Guarded { inner, fence: self.0.clone() }
    }
}

struct Guarded<S> {
    inner: S,
    fence: Fence,
}

impl<S> Service<Request<Body>> for Guarded<S>
where
    S: Service<Request<Body>, Error = BoxError>,
    S::Future: Send + 'static,
    S::Response: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        if *request.method() != Method::GET
            && let Err(why) = self.fence.pass()
        {
            return std::future::ready(Err(why.into())).boxed();
        }
        let watches = request.uri().query().is_some_and(|query| query.contains("watch=true"));
        let answer = self.inner.call(request);
        if watches {
            return answer.boxed();
        }
        async move { timeout(ANSWER, answer).await.unwrap_or_else(|_| Err(Silent.into())) }.boxed()
    }
}

#[cfg(test)]
mod tests {
    use inferencecache_core::time::ManualClock;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(10);

    fn fence() -> (Fence, Arc<ManualClock>) {
        let clock = Arc::new(ManualClock::at(1_700_000_000_000_000));
        (Fence::closed(clock.clone(), PATIENCE), clock)
    }

    /// field:46
    #[test]
    fn a_renewal_opens_it_for_as_long_as_it_is_young() {
        let (fence, clock) = fence();
        assert_eq!(fence.pass(), Err(Deposed), "nobody has renewed");
        fence.renewed(fence.now());
        assert_eq!(fence.remaining(), PATIENCE);
        clock.advance(Duration::from_millis(9_999));
        assert_eq!(fence.pass(), Ok(()));
        clock.advance(Duration::from_millis(1));
        assert_eq!(fence.pass(), Err(Deposed), "as after a pause that nobody noticed");
    }

    #[test]
    fn it_does_not_open_a_second_time() {
        let (fence, _clock) = fence();
        fence.renewed(fence.now());
        fence.shut();
        fence.renewed(fence.now());
        assert_eq!(fence.pass(), Err(Deposed));
        assert_eq!(Fence::open().pass(), Ok(()));
    }
}
