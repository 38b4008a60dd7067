//! The conformance suite, proven: right indexes pass it, and every known fault fails it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use inferencecache_core::Index;
use inferencecache_core::testkit::{Broken, Fault, Model, conformance};

#[test]
fn the_oracle_conforms() {
    conformance::index_api(&|options| Arc::new(Model::new(options)));
}

#[test]
fn the_index_conforms() {
    conformance::index_api(&|options| Arc::new(Index::new(options)));
}

#[test]
fn every_fault_is_noticed() {
    for fault in Fault::ALL {
        let suite = || conformance::index_api(&|options| Arc::new(Broken::new(options, fault)));
        assert!(catch_unwind(AssertUnwindSafe(suite)).is_err(), "{fault:?} went unnoticed");
    }
}
