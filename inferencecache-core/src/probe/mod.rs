//! The self-test: does what is written into the index come out of it again, and does the second tier keep what it is given?
//!
//! ```text
//! turn for the backend ──> ingest ──> routing ──> cleanup ──> t2 ──> ProbeOutcome
//!                            │ fails     │ fails     ▲
//!                            └───────────┴───────────┘   what follows is skipped
//! ```
//!
//! It works on the index that serves everybody, under the reserved tenant, with a replica of its own per backend. It asks
//! the index directly: neither policies nor the router see it.
//!
//! 1. One probe at a time per backend, whatever its model and scheme; others run beside it.
//! 2. However a probe ends, nothing of it stays in the index. A stage that panics has failed.
//! 3. The second tier is asked after the cleanup, so a slow one keeps nothing in the index.
//! 4. Waiting, and the number of those who wait, are bounded.
//!
//! Not here: the `/probe` endpoint, its JSON, and clients of any store.

mod outcome;
mod t2;
mod target;
mod trace;
mod turns;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::index::IndexApi;

use self::trace::Trace;
use self::turns::Turns;

pub use self::outcome::{MAX_FOREIGN_TEXT, ProbeFault, ProbeOutcome, ProbeStage, StageResult};
pub use self::t2::{T2Client, T2Error};
pub use self::target::{PAYLOAD_BYTES, ProbeHash, ProbeTarget};
pub use self::turns::MAX_PROBES;

/// How long a probe waits for an earlier one of its backend, unless set otherwise: 2.5 s.
pub const DEFAULT_PATIENCE: Duration = Duration::from_millis(2500);

/// Runs self-tests. Share one among all callers: it is what keeps probes of one backend apart.
///
/// ```
/// use std::sync::Arc;
/// use inferencecache_core::probe::{ProbeTarget, Prober, StageResult};
/// use inferencecache_core::{Index, IndexOptions};
///
/// let prober = Prober::new(Arc::new(Index::new(IndexOptions::default())));
/// let outcome = prober.run(&ProbeTarget { backend: "blue/cache", model: "m", scheme: "vllm", backend_type: "" });
/// assert_eq!((outcome.ingest, outcome.routing), (StageResult::Ok, StageResult::Ok));
/// assert_eq!(outcome.t2, StageResult::Skipped, "there is no second tier");
/// ```
pub struct Prober<I: ?Sized> {
    /// The index under test.
    pub index: Arc<I>,
    /// The second tier. Default none: then its stage is skipped.
    pub t2: Option<Arc<dyn T2Client>>,
    /// How long to wait for an earlier probe of the same backend. Default [`DEFAULT_PATIENCE`].
    pub patience: Duration,
    turns: Turns,
}

// === impl Prober ===

impl<I: ?Sized> Prober<I> {
    /// A prober without a second tier.
    #[must_use]
    pub fn new(index: Arc<I>) -> Self {
        Self { index, t2: None, patience: DEFAULT_PATIENCE, turns: Turns::default() }
    }
}

impl<I: IndexApi + ?Sized> Prober<I> {
    /// Tests the path of `target`. Blocks: for an earlier probe of the same backend, then for the second tier.
    ///
    /// A probe that does not get its turn has not shown that anything works: its ingest counts as failed, and the message
    /// says that it was not run.
    pub fn run(&self, target: &ProbeTarget<'_>) -> ProbeOutcome {
        let mut outcome = ProbeOutcome::default();
        let _turn = match self.turns.take(target.backend, self.patience) {
            Ok(turn) => turn,
            Err(why) => {
                outcome.record(ProbeStage::Ingest, Err(format!("not run: {why}")));
                return outcome;
            }
        };
        if self.run_inside(target, &mut outcome)
            && target.has_second_tier()
            && let Some(t2) = &self.t2
        {
            let payload = target.hash().payload();
            outcome.attempt(ProbeStage::T2, || {
                t2.round_trip(target, &payload).map_err(|why| outcome::shorten(why.to_string()))
            });
        }
        outcome
    }

    /// The stages inside this process, and their cleanup.
    fn run_inside(&self, target: &ProbeTarget<'_>, outcome: &mut ProbeOutcome) -> bool {
        let (replica, hash) = (target.replica(), target.hash());
        let hashes: [&[u8]; 1] = [hash.as_bytes()];
        let trace = Trace { target, replica: &replica, hashes: &hashes };
        let _cleanup = trace.cleanup(&*self.index);
        outcome.attempt(ProbeStage::Ingest, || trace.ingest(&*self.index))
            && outcome.attempt(ProbeStage::Routing, || trace.route(&*self.index))
    }
}

impl<I: fmt::Debug + ?Sized> fmt::Debug for Prober<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prober").field("index", &&*self.index).field("t2", &self.t2).finish_non_exhaustive()
    }
}
