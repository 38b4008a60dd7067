//! What is wrong with an index, and what a probe says about it.

use std::sync::Arc;

use inferencecache_core::probe::{ProbeOutcome, ProbeStage, Prober};
use inferencecache_core::testkit::Hooked;
use inferencecache_core::{IndexApi, IndexOptions, RESERVED_TENANT};

use super::doubles::{Fault, Store};
use super::{EVERY_INDEX, PASSED, TARGET, shape};

/// Probes every index with this fault; the second tier must not hear of it, and nothing may stay.
fn probe(fault: Fault, mut check: impl FnMut(&ProbeOutcome)) {
    for make in EVERY_INDEX {
        let index: Arc<dyn IndexApi> = make(IndexOptions::default());
        let store = Arc::new(Store::default());
        let mut prober = Prober::new(Arc::new(Hooked { index: index.clone(), hooks: fault }));
        prober.t2 = Some(store.clone());
        let outcome = prober.run(&TARGET);
        check(&outcome);
        assert_eq!(store.seen.lock().len(), 0, "{fault:?}");
        assert_eq!(index.storage_entries(), (0, 0), "{fault:?}");
        assert!(!index.has_any_tenant(RESERVED_TENANT), "{fault:?}");
        assert_eq!(index.cache_state(RESERVED_TENANT, "m").replicas, [], "{fault:?}");
    }
}

// server:130
#[test]
fn a_sound_index_passes_again_and_again() {
    for make in EVERY_INDEX {
        let prober = Prober::new(make(IndexOptions::default()));
        for _ in 0..100 {
            let outcome = prober.run(&TARGET);
            assert_eq!(shape(&outcome), PASSED);
            assert!(!outcome.panicked);
        }
        assert_eq!(prober.index.storage_entries(), (0, 0));
    }
}

// server:139
#[test]
fn lost_writes_fail_the_ingest() {
    probe(Fault::LosesWrites, |outcome| {
        let (results, fault) = shape(outcome);
        assert_eq!(results, ["failed", "skipped", "skipped"]);
        let (stage, message) = fault.expect("a message");
        assert_eq!(stage, ProbeStage::Ingest);
        assert!(message.contains("__probe-cb-1"), "{message}");
    });
}

// server:140
#[test]
fn any_other_answer_fails_the_routing() {
    for (fault, code) in [(Fault::AnswersNothing, "NO_HINT"), (Fault::AnswersWarm, "TENANT_HOT")] {
        probe(fault, |outcome| {
            let (results, fault) = shape(outcome);
            assert_eq!(results, ["ok", "failed", "skipped"]);
            let (stage, message) = fault.expect("a message");
            assert_eq!(stage, ProbeStage::Routing);
            assert!(message.contains(code), "{message}");
        });
    }
}

// server:141
#[test]
fn an_answer_without_the_replica_fails_the_routing() {
    probe(Fault::AnswersAnother, |outcome| {
        let (results, fault) = shape(outcome);
        assert_eq!(results, ["ok", "failed", "skipped"]);
        let (stage, message) = fault.expect("a message");
        assert_eq!(stage, ProbeStage::Routing);
        assert!(message.contains("__probe-cb-1") && message.contains("not among the scored replicas"), "{message}");
    });
}

#[test]
fn a_panic_fails_its_stage_and_leaves_nothing() {
    for (fault, stage, want) in [
        (Fault::PanicsOnIngest, ProbeStage::Ingest, ["failed", "skipped", "skipped"]),
        (Fault::PanicsOnLookup, ProbeStage::Ingest, ["failed", "skipped", "skipped"]),
        (Fault::PanicsOnRoute, ProbeStage::Routing, ["ok", "failed", "skipped"]),
    ] {
        probe(fault, |outcome| {
            assert_eq!(shape(outcome), (want, Some((stage, "panicked"))), "{fault:?}");
            assert!(outcome.panicked);
        });
    }
}

#[test]
fn a_cleanup_that_panics_does_not_reach_the_caller() {
    for make in EVERY_INDEX {
        let index: Arc<dyn IndexApi> = make(IndexOptions::default());
        let prober = Prober::new(Arc::new(Hooked { index, hooks: Fault::PanicsOnClear }));
        for _ in 0..2 {
            assert_eq!(shape(&prober.run(&TARGET)), PASSED, "the turn was given back");
        }
    }
}
