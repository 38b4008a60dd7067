//! One LookupRoute call: from the decoded request to the response, whatever happens in between.
//!
//! ```text
//! begin ──> Done ─────────────────────────────────────────┐
//!   ├────> Lookup ───> in this thread, or on the blocking pool ─┤──> one observation ──> response
//!   └────> Tokenise ─> one of 64 permits, blocking pool ──┘
//! ```
//!
//! 1. It answers with a response on every path; a panic below becomes `NO_HINT` and is counted.
//! 2. Exactly one observation on both lookup metrics, also when the caller goes away.
//! 3. No log line, at any level.
//! 4. The usual call never leaves its thread: the embedded index answers in microseconds, less than a hand-over costs.
//!    An index that may block is asked on the blocking pool instead ([`Lookups::isolated`]), so that deadlines hold.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use inferencecache_core::route::{FailOpen, Pending, ReasonCode, Step};
use inferencecache_core::{Answer, Clock, IndexApi, Router};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::untaken::{Charge, Spent, Untaken};
use crate::hot::{LookupReply, LookupRequest, Pooled};
use crate::metrics::Metrics;

/// Most prompts tokenised at a time.
const TOKENISE_PERMITS: usize = 64;
/// Most text tokenised at a time, in KiB: an encoder needs several hundred bytes for each of text. At least one of the longest.
const TOKENISE_KIB: usize = 4 * 1024;
/// Most lookups at a time on the blocking pool.
const ISOLATED_PERMITS: usize = 256;

const RPC: &str = "LookupRoute";

/// Answers lookups.
#[derive(Debug)]
pub(super) struct Lookups<I: ?Sized> {
    pub(super) router: Router<I>,
    pub(super) metrics: Arc<Metrics>,
    /// Whether the index is asked on the blocking pool.
    pub(super) isolated: bool,
    tokenising: Arc<Semaphore>,
    tokenising_kib: Arc<Semaphore>,
    isolating: Arc<Semaphore>,
    untaken: Arc<Untaken>,
}

/// A call under way. Observes itself as `TIMEOUT` if it is dropped: then its caller is gone.
struct Call<'a, I: IndexApi + ?Sized> {
    lookups: &'a Lookups<I>,
    request: Arc<Pooled<LookupRequest>>,
    start: u64,
    observed: bool,
}

impl<I: IndexApi + ?Sized> Lookups<I> {
    pub(super) fn new(router: Router<I>, metrics: Arc<Metrics>, untaken: Arc<Untaken>, isolated: bool) -> Self {
        let [tokenising, tokenising_kib, isolating] =
            [TOKENISE_PERMITS, TOKENISE_KIB, ISOLATED_PERMITS].map(|n| Arc::new(Semaphore::new(n)));
        Self { router, metrics, isolated, tokenising, tokenising_kib, isolating, untaken }
    }

    /// Answers one call. `limit` is the caller's, from now on.
    pub(super) async fn answer(
        &self,
        request: Pooled<LookupRequest>,
        limit: Option<Duration>,
    ) -> (LookupReply, Charge) {
        let start = self.router.clock.monotonic();
        let deadline = limit.map(|limit| start.saturating_add(u64::try_from(limit.as_micros()).unwrap_or(u64::MAX)));
        let mut answer = LookupReply::scratch();
        let question = request.question();
        let step = self.guarded(&mut answer, Step::Done, |answer| self.router.begin(&question, deadline, answer));
        match step {
            Step::Done => {}
            Step::Lookup(pending) if !self.isolated => {
                self.guarded(&mut answer, (), |answer| self.router.finish(&question, &pending, answer));
            }
            Step::Lookup(_) | Step::Tokenise(_) => {
                let mut call = Call { lookups: self, request: Arc::new(request), start, observed: false };
                return call.wait(step, answer).await;
            }
        }
        self.respond(&request, start, answer)
    }

    /// Runs `work` on `answer`; after a panic the answer is `NO_HINT` and the result `otherwise`.
    fn guarded<T>(&self, answer: &mut Box<Answer>, otherwise: T, work: impl FnOnce(&mut Answer) -> T) -> T {
        match catch_unwind(AssertUnwindSafe(|| work(answer))) {
            Ok(value) => value,
            Err(_) => {
                self.metrics.handler_panic(RPC);
                **answer = Answer::new(); // the old one may be half written
                otherwise
            }
        }
    }

    /// Counts the call and builds its response. One that there is no room for becomes `NO_HINT`.
    fn respond(&self, request: &LookupRequest, start: u64, answer: Box<Answer>) -> (LookupReply, Charge) {
        // The reserved tenant's calls took no time, by contract.
        let reserved = request.question().is_reserved();
        let latency = if reserved { Duration::ZERO } else { self.since(start) };
        let mut reply = LookupReply { answer, adapter: String::new(), latency };
        let charge = self.untaken.charge(reply.room()).unwrap_or_else(|Spent| {
            *reply.answer = Answer::new(); // with its memory, which is what there is too much of
            reply.answer.fail_open = Some(FailOpen::Saturated);
            Charge::default()
        });
        let answer = &reply.answer;
        self.metrics.lookup(request.model(), answer.reason, !answer.rows().is_empty(), latency);
        if let Some(cause) = answer.fail_open {
            self.metrics.fail_open(cause.label());
        }
        if answer.consulted {
            request.adapter().clone_into(&mut reply.adapter);
        }
        (reply, charge)
    }

    fn since(&self, start: u64) -> Duration {
        Duration::from_micros(self.router.clock.monotonic().saturating_sub(start))
    }
}

impl<I: IndexApi + ?Sized> Call<'_, I> {
    /// The rest of a call that has to wait for another thread.
    async fn wait(&mut self, step: Step, mut answer: Box<Answer>) -> (LookupReply, Charge) {
        let mut step = step;
        if let Step::Tokenise(pending) = step {
            step = self.tokenise(&pending, &mut answer).await;
        }
        if let Step::Lookup(pending) = step {
            answer = self.look_up(pending, answer).await;
        }
        self.observed = true;
        self.lookups.respond(&self.request, self.start, answer)
    }

    async fn tokenise(&self, pending: &Pending, answer: &mut Box<Answer>) -> Step {
        let router = &self.lookups.router;
        let tokens = match (router.tokenizer.clone(), Slot::take(self.lookups, self.request.prompt().len())) {
            (None, _) => Err(FailOpen::Disabled),
            (_, None) => Err(FailOpen::Saturated),
            (Some(tokenizer), Some(slot)) => {
                let request = self.request.clone();
                let encode = move || tokenizer.encode_chat(request.model(), request.prompt());
                match self.in_time(pending, slot, encode).await {
                    Some(Ok(tokens)) => tokens.map_err(FailOpen::from),
                    Some(Err(Panicked)) => Err(FailOpen::EncodeError),
                    None => {
                        answer.time_out();
                        return Step::Done;
                    }
                }
            }
        };
        self.lookups.guarded(answer, Step::Done, |answer| router.tokenised(pending, tokens, answer))
    }

    async fn look_up(&self, pending: Pending, mut answer: Box<Answer>) -> Box<Answer> {
        let question = self.request.question();
        if !self.lookups.isolated {
            self.lookups.guarded(&mut answer, (), |a| self.lookups.router.finish(&question, &pending, a));
            return answer;
        }
        let Ok(permit) = self.lookups.isolating.clone().try_acquire_owned() else {
            answer.fail_open = Some(FailOpen::Saturated);
            return answer;
        };
        // The caller's tokens stay here, to be echoed even if the index does not return.
        let tokens = std::mem::take(&mut answer.tokens);
        let (router, request) = (self.lookups.router.clone(), self.request.clone());
        let finish = move || {
            router.finish(&request.question(), &pending, &mut answer);
            answer
        };
        let mut answer = match self.in_time(&pending, permit, finish).await {
            Some(Ok(answer)) => answer,
            Some(Err(Panicked)) => Box::default(),
            None => {
                let mut late = Box::<Answer>::default();
                late.time_out();
                late
            }
        };
        answer.tokens = tokens;
        answer
    }

    /// Runs `work` on the blocking pool; `None` once the deadline has passed. `held` is dropped when `work` returns.
    async fn in_time<T: Send + 'static>(
        &self,
        pending: &Pending,
        held: impl Send + 'static,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<Result<T, Panicked>> {
        let work = tokio::task::spawn_blocking(move || {
            let _held = held;
            catch_unwind(AssertUnwindSafe(work)).map_err(|_| Panicked)
        });
        let done = match pending.deadline() {
            None => work.await,
            Some(deadline) => {
                let left = deadline.saturating_sub(self.lookups.router.clock.monotonic());
                tokio::time::timeout(Duration::from_micros(left), work).await.ok()?
            }
        };
        let done = done.unwrap_or(Err(Panicked)); // the pool was shut down
        if done.is_err() {
            self.lookups.metrics.handler_panic(RPC);
        }
        Some(done)
    }
}

/// Something below a handler panicked.
struct Panicked;

/// One of the permits for tokenising, and one for each KiB of text, counted and timed for as long as they are held.
struct Slot {
    _permits: [OwnedSemaphorePermit; 2],
    metrics: Arc<Metrics>,
    clock: Arc<dyn Clock>,
    start: u64,
}

impl Slot {
    /// A slot for a text of so many bytes, if one is free now.
    fn take<I: ?Sized>(lookups: &Lookups<I>, bytes: usize) -> Option<Self> {
        let kib = u32::try_from(bytes.div_ceil(1024)).ok()?;
        let permit = lookups.tokenising.clone().try_acquire_owned().ok()?;
        let text = lookups.tokenising_kib.clone().try_acquire_many_owned(kib).ok()?;
        lookups.metrics.tokenise_began();
        let clock = lookups.router.clock.clone();
        Some(Self { _permits: [permit, text], metrics: lookups.metrics.clone(), start: clock.monotonic(), clock })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.metrics.tokenise_ended(Duration::from_micros(self.clock.monotonic().saturating_sub(self.start)));
    }
}

impl<I: IndexApi + ?Sized> Drop for Call<'_, I> {
    fn drop(&mut self) {
        if !self.observed {
            let latency = self.lookups.since(self.start);
            self.lookups.metrics.lookup(self.request.model(), ReasonCode::Timeout, false, latency);
        }
    }
}
