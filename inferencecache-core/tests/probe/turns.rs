//! Who waits for whom.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use inferencecache_core::probe::{ProbeStage, ProbeTarget, Prober};
use inferencecache_core::{Index, IndexApi, IndexOptions, RESERVED_TENANT};

use super::doubles::{Meeting, until};
use super::{TARGET, shape};

const ALL_PASSED: [&str; 3] = ["ok", "ok", "ok"];

fn prober(t2: &Arc<Meeting>) -> Prober<Index> {
    let mut prober = Prober::new(Arc::new(Index::new(IndexOptions::default())));
    prober.t2 = Some(t2.clone());
    prober.patience = Duration::from_secs(60);
    prober
}

// server:145
#[test]
fn probes_of_one_backend_run_one_at_a_time() {
    let meeting = Meeting::of(1);
    let prober = prober(&meeting);
    std::thread::scope(|scope| {
        for n in 0..8 {
            let prober = &prober;
            scope.spawn(move || {
                let target = ProbeTarget { model: ["m1", "m2"][n % 2], ..TARGET };
                for _ in 0..50 {
                    assert_eq!(shape(&prober.run(&target)), (ALL_PASSED, None));
                }
            });
        }
    });
    assert_eq!(meeting.most.load(Ordering::SeqCst), 1);
    assert_eq!(prober.index.storage_entries(), (0, 0));
    assert!(!prober.index.has_any_tenant(RESERVED_TENANT));
}

#[test]
fn probes_of_different_backends_run_together() {
    // Nobody leaves the second tier before all are in it.
    let meeting = Meeting::of(4);
    let prober = prober(&meeting);
    std::thread::scope(|scope| {
        for backend in ["a", "b", "c", "d"] {
            let prober = &prober;
            scope.spawn(move || {
                assert_eq!(shape(&prober.run(&ProbeTarget { backend, ..TARGET })), (ALL_PASSED, None));
            });
        }
    });
    assert_eq!(meeting.most.load(Ordering::SeqCst), 4);
}

#[test]
fn waiting_has_an_end_and_says_so() {
    let meeting = Meeting::of(2);
    let mut prober = prober(&meeting);
    prober.patience = Duration::from_millis(20);
    std::thread::scope(|scope| {
        let prober = &prober;
        let slow = scope.spawn(move || prober.run(&TARGET));
        until("one is inside", || meeting.inside.load(Ordering::SeqCst) >= 1);
        // Another model and scheme is the same backend.
        let outcome = prober.run(&ProbeTarget { model: "m2", scheme: "sglang", ..TARGET });
        let (results, fault) = shape(&outcome);
        assert_eq!(results, ["failed", "skipped", "skipped"], "what was not run has not passed");
        let (stage, message) = fault.expect("a message");
        assert_eq!(stage, ProbeStage::Ingest);
        assert!(message.starts_with("not run: ") && message.contains("20ms"), "{message}");
        // Another backend is let in, and sets the slow one free.
        assert_eq!(shape(&prober.run(&ProbeTarget { backend: "cb-2", ..TARGET })), (ALL_PASSED, None));
        assert_eq!(shape(&slow.join().expect("it does not panic")), (ALL_PASSED, None));
    });
}
