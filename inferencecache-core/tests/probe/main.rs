//! The self-test, on every index there is: what it finds, what it leaves, and whom it keeps waiting.

mod doubles;
mod faults;
mod isolation;
mod second_tier;
mod turns;

use std::sync::Arc;

use inferencecache_core::probe::{ProbeOutcome, ProbeStage, ProbeTarget, StageResult};
use inferencecache_core::testkit::{Model, TestIndex};
use inferencecache_core::{Index, IndexOptions};

/// Makes an index.
type MakeIndex = fn(IndexOptions) -> Arc<dyn TestIndex>;

const EVERY_INDEX: [MakeIndex; 2] = [|options| Arc::new(Index::new(options)), |options| Arc::new(Model::new(options))];

const TARGET: ProbeTarget<'static> = ProbeTarget { backend: "cb-1", model: "m", scheme: "vllm", backend_type: "" };

/// The three results as they are published, and the stage and message of the error, if there is one.
#[track_caller]
fn shape(outcome: &ProbeOutcome) -> ([&'static str; 3], Option<(ProbeStage, &str)>) {
    assert!(outcome.errors.len() <= 1, "what follows a failure is skipped: {outcome:?}");
    let results = [outcome.ingest, outcome.routing, outcome.t2];
    let failed = results.iter().filter(|&&result| result == StageResult::Failed).count();
    assert_eq!(failed, outcome.errors.len(), "each failure has its message: {outcome:?}");
    (results.map(StageResult::as_str), outcome.errors.first().map(|fault| (fault.stage, &*fault.message)))
}

const PASSED: ([&str; 3], Option<(ProbeStage, &str)>) = (["ok", "ok", "skipped"], None);
