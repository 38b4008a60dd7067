//! When the second tier is asked, with what, and what becomes of its answer.

use std::sync::Arc;

use inferencecache_core::probe::{
    MAX_FOREIGN_TEXT, PAYLOAD_BYTES, ProbeOutcome, ProbeStage, ProbeTarget, Prober, T2Client, T2Error,
};
use inferencecache_core::{Index, IndexApi, IndexOptions, RESERVED_TENANT};

use super::doubles::Store;
use super::{PASSED, TARGET, shape};

fn probe(store: Arc<dyn T2Client>, target: &ProbeTarget<'_>) -> ProbeOutcome {
    let mut prober = Prober::new(Arc::new(Index::new(IndexOptions::default())));
    prober.t2 = Some(store);
    let outcome = prober.run(target);
    assert_eq!(prober.index.storage_entries(), (0, 0));
    outcome
}

// server:142
#[test]
fn it_is_asked_once_with_the_published_payload() {
    for backend_type in ["", "LMCache"] {
        let store = Arc::new(Store::default());
        let outcome = probe(store.clone(), &ProbeTarget { backend_type, ..TARGET });
        assert_eq!(shape(&outcome), (["ok", "ok", "ok"], None));
        let seen = store.seen.lock();
        let [(backend, payload)] = &seen[..] else { panic!("one call: {seen:?}") };
        assert_eq!(backend, "cb-1");
        assert_eq!(payload.len(), 49);
        assert_eq!(payload[..], TARGET.hash().payload());
    }
}

// server:143
#[test]
fn other_kinds_of_backend_have_none() {
    for backend_type in ["Memory", "External", "SGLangHiCache", "lmcache", "LMCache "] {
        let store = Arc::new(Store::default());
        assert_eq!(shape(&probe(store.clone(), &ProbeTarget { backend_type, ..TARGET })), PASSED);
        assert_eq!(store.seen.lock().len(), 0, "{backend_type}");
    }
}

// server:144
#[test]
fn its_error_names_the_half_that_failed() {
    let text = "connection refused".to_owned();
    for (fault, want) in [
        (T2Error::Put(text.clone()), "put failed: connection refused"),
        (T2Error::Get(text.clone()), "get failed: connection refused"),
        (T2Error::Other(text), "connection refused"),
    ] {
        let outcome = probe(Arc::new(Store { fault: Some(fault), ..Store::default() }), &TARGET);
        assert_eq!(shape(&outcome), (["ok", "ok", "failed"], Some((ProbeStage::T2, want))));
    }
}

#[test]
fn its_error_is_cut_to_a_bearable_length() {
    let fault = Some(T2Error::Get("ü".repeat(10_000)));
    let outcome = probe(Arc::new(Store { fault, ..Store::default() }), &TARGET);
    let (_, message) = shape(&outcome).1.expect("a message");
    assert!(message.starts_with("get failed: ü") && message.len() <= MAX_FOREIGN_TEXT, "{message}");
}

/// Panics, after it has seen that the probe has already left the index.
#[derive(Debug)]
struct Explosive(Arc<Index>);

impl T2Client for Explosive {
    fn round_trip(&self, _target: &ProbeTarget<'_>, _payload: &[u8; PAYLOAD_BYTES]) -> Result<(), T2Error> {
        if self.0.has_any_tenant(RESERVED_TENANT) {
            return Err(T2Error::Other("the index is not clean yet".to_owned()));
        }
        panic!("in the middle of a round trip");
    }
}

#[test]
fn its_panic_is_its_failure() {
    let index = Arc::new(Index::new(IndexOptions::default()));
    let mut prober = Prober::new(index.clone());
    prober.t2 = Some(Arc::new(Explosive(index)));
    for _ in 0..2 {
        let outcome = prober.run(&TARGET);
        assert_eq!(shape(&outcome), (["ok", "ok", "failed"], Some((ProbeStage::T2, "panicked"))));
        assert!(outcome.panicked);
    }
}
