//! `dynamo-kv-router`'s positional indexer, and what both of that crate's subjects share: its worker thread, its events.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use dynamo_kv_router::indexer::positional::{PositionalIndexer, SearchMode};
use dynamo_kv_router::indexer::{SyncIndexer, WorkerTask};
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData, LocalBlockHash, RouterEvent, compute_seq_hash_for_block,
};
use tokio::sync::oneshot;

use super::{Best, Reader, Subject, nanos};
use crate::workload::{Op, Workload};

/// An indexer with the thread that applies its events.
pub(super) struct Fed<T: SyncIndexer> {
    pub(super) index: Arc<T>,
    tasks: flume::Sender<WorkerTask>,
    prepared: Vec<WorkerTask>,
    thread: Option<JoinHandle<()>>,
}

impl<T: SyncIndexer> Fed<T> {
    pub(super) fn start(index: Arc<T>) -> Self {
        let (tasks, receiver) = flume::unbounded();
        let worker = index.clone();
        let thread = std::thread::spawn(move || worker.worker(receiver, None).expect("the worker runs"));
        Self { index, tasks, prepared: Vec::new(), thread: Some(thread) }
    }

    pub(super) fn prepare(&mut self, workload: &Workload, ops: &[Op]) {
        let mut named: Vec<Option<Vec<u64>>> = vec![None; workload.chains.len()];
        let each = ops.iter().enumerate().map(|(id, op)| {
            let (Op::Store { chain, .. } | Op::Remove { chain, .. }) = *op;
            let locals = &workload.chains[chain as usize];
            let names = named[chain as usize].get_or_insert_with(|| names(locals));
            let (replica, data) = match *op {
                Op::Store { replica, from, to, .. } => (replica, store(locals, names, from, to)),
                Op::Remove { replica, from, to, .. } => {
                    let names = &names[from as usize..to as usize];
                    let block_hashes = names.iter().rev().map(|&name| ExternalSequenceBlockHash(name)).collect();
                    (replica, KvCacheEventData::Removed(KvCacheRemoveData { block_hashes }))
                }
            };
            let event = KvCacheEvent { event_id: id as u64, data, dp_rank: 0 };
            WorkerTask::Event(RouterEvent::new(u64::from(replica), event))
        });
        self.prepared = each.collect();
    }

    pub(super) fn run(&mut self) -> u64 {
        let prepared = std::mem::take(&mut self.prepared);
        let (done, flushed) = oneshot::channel();
        let start = Instant::now();
        for task in prepared {
            self.tasks.send(task).expect("the worker runs");
        }
        self.tasks.send(WorkerTask::Flush(done)).expect("the worker runs");
        flushed.blocking_recv().expect("the worker answers");
        nanos(start)
    }
}

impl<T: SyncIndexer> Drop for Fed<T> {
    fn drop(&mut self) {
        let _ = self.tasks.send(WorkerTask::Terminate);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What that crate calls the blocks of a chain: its lookups work these names out anew.
fn names(locals: &[u64]) -> Vec<u64> {
    let locals: Vec<LocalBlockHash> = locals.iter().map(|&hash| LocalBlockHash(hash)).collect();
    compute_seq_hash_for_block(&locals)
}

fn store(locals: &[u64], names: &[u64], from: u32, to: u32) -> KvCacheEventData {
    let (from, to) = (from as usize, to as usize);
    let block = |(&local, &name): (&u64, &u64)| KvCacheStoredBlockData {
        block_hash: ExternalSequenceBlockHash(name),
        tokens_hash: LocalBlockHash(local),
        mm_extra_info: None,
    };
    KvCacheEventData::Stored(KvCacheStoreData {
        parent_hash: from.checked_sub(1).map(|i| ExternalSequenceBlockHash(names[i])),
        start_position: None,
        blocks: locals[from..to].iter().zip(&names[from..to]).map(block).collect(),
    })
}

/// A reader of either indexer.
pub(super) struct Asking<T> {
    index: Arc<T>,
    queries: Vec<Vec<LocalBlockHash>>,
}

impl<T> Asking<T> {
    pub(super) fn new(index: Arc<T>) -> Self {
        Self { index, queries: Vec::new() }
    }
}

impl<T: SyncIndexer> Reader for Asking<T> {
    fn prepare(&mut self, queries: &[&[u64]]) {
        self.queries = queries.iter().map(|hashes| hashes.iter().map(|&hash| LocalBlockHash(hash)).collect()).collect();
    }

    fn touch(&self, query: usize) -> u64 {
        self.queries[query].iter().fold(0, |sum, hash| sum ^ hash.0)
    }

    fn ask(&mut self, query: usize) -> Best {
        let scores = self.index.find_matches(&self.queries[query], false).scores;
        let depth = scores.values().copied().max().unwrap_or(0);
        Best { depth, scored: scores.len() as u32 }
    }
}

pub(super) struct Positional(Fed<PositionalIndexer>);

impl Positional {
    pub(super) fn new() -> Self {
        // The stride its documentation names.
        Self(Fed::start(Arc::new(PositionalIndexer::new_with_mode(32, SearchMode::Strided))))
    }
}

impl Subject for Positional {
    fn name(&self) -> &'static str {
        "positional"
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
