//! `dynamo-kv-router`'s default: the concurrent compressed radix tree, fed through its worker thread.

use std::sync::Arc;

use dynamo_kv_router::indexer::concurrent_radix_tree_compressed::ConcurrentRadixTreeCompressed;

use super::{Reader, Subject};
use crate::subjects::positional::{Asking, Fed};
use crate::workload::{Op, Workload};

pub(super) struct Crtc(Fed<ConcurrentRadixTreeCompressed>);

impl Crtc {
    pub(super) fn new() -> Self {
        Self(Fed::start(Arc::new(ConcurrentRadixTreeCompressed::new())))
    }
}

impl Subject for Crtc {
    fn name(&self) -> &'static str {
        "crtc"
    }

    fn prepare(&mut self, workload: &Workload, ops: &[Op]) {
        self.0.prepare(workload, ops);
    }

    fn run(&mut self) -> u64 {
        self.0.run()
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(Asking::new(self.0.index.clone()))
    }
}
