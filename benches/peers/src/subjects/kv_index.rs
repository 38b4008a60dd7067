//! `kv-index`: an arena trie of chain segments with seqlock readers.

use std::sync::Arc;
use std::time::Instant;

use kv_index::{ChainBlockMap, ContentHash, SequenceHash, ShardedChainIndex, StoredBlock};

use super::{Best, Reader, Subject, nanos};
use crate::workload::{Op, Workload};

enum Native {
    Store { replica: usize, parent: Option<SequenceHash>, blocks: Vec<StoredBlock> },
    Remove { replica: usize, hashes: Vec<SequenceHash> },
}

pub(super) struct KvIndex {
    index: Arc<ShardedChainIndex>,
    workers: Vec<(u32, ChainBlockMap)>,
    prepared: Vec<Native>,
}

impl KvIndex {
    pub(super) fn new(replicas: u32) -> Self {
        let index = ShardedChainIndex::new(1, (replicas as usize).max(64));
        let workers = (0..replicas)
            .map(|i| {
                let id = index.intern_worker(&format!("replica-{i}")).expect("there are slots for every replica");
                (id, ChainBlockMap::default())
            })
            .collect();
        Self { index: Arc::new(index), workers, prepared: Vec::new() }
    }

    fn apply(&mut self, native: &Native) {
        match native {
            Native::Store { replica, parent, blocks } => {
                let (id, map) = &mut self.workers[*replica];
                self.index.apply_stored(*id, blocks, *parent, map).expect("parents are stored first");
            }
            Native::Remove { replica, hashes } => {
                let (id, map) = &mut self.workers[*replica];
                self.index.apply_removed(*id, hashes, map);
            }
        }
    }
}

impl Subject for KvIndex {
    fn name(&self) -> &'static str {
        "kv-index"
    }

    fn prepare(&mut self, workload: &Workload, ops: &[Op]) {
        let each = ops.iter().map(|op| match *op {
            Op::Store { replica, chain, from, to, .. } => {
                let hashes = &workload.chains[chain as usize];
                let block = |&hash: &u64| StoredBlock { seq_hash: SequenceHash(hash), content_hash: ContentHash(hash) };
                Native::Store {
                    replica: replica as usize,
                    parent: from.checked_sub(1).map(|i| SequenceHash(hashes[i as usize])),
                    blocks: hashes[from as usize..to as usize].iter().map(block).collect(),
                }
            }
            Op::Remove { replica, chain, from, to } => {
                let hashes = &workload.chains[chain as usize][from as usize..to as usize];
                let hashes = hashes.iter().rev().map(|&hash| SequenceHash(hash)).collect();
                Native::Remove { replica: replica as usize, hashes }
            }
        });
        self.prepared = each.collect();
    }

    fn run(&mut self) -> u64 {
        let prepared = std::mem::take(&mut self.prepared);
        let start = Instant::now();
        prepared.iter().for_each(|native| self.apply(native));
        nanos(start)
    }

    fn run_each(&mut self) -> Option<Vec<u64>> {
        let prepared = std::mem::take(&mut self.prepared);
        let timed = prepared.iter().map(|native| {
            let start = Instant::now();
            self.apply(native);
            nanos(start)
        });
        Some(timed.collect())
    }

    fn reader(&self) -> Box<dyn Reader> {
        Box::new(Asking { index: self.index.clone(), queries: Vec::new() })
    }
}

struct Asking {
    index: Arc<ShardedChainIndex>,
    queries: Vec<Vec<ContentHash>>,
}

impl Reader for Asking {
    fn prepare(&mut self, queries: &[&[u64]]) {
        self.queries = queries.iter().map(|hashes| hashes.iter().map(|&hash| ContentHash(hash)).collect()).collect();
    }

    fn touch(&self, query: usize) -> u64 {
        self.queries[query].iter().fold(0, |sum, hash| sum ^ hash.0)
    }

    fn ask(&mut self, query: usize) -> Best {
        let mut best = Best::default();
        self.index.score_into(
            &self.queries[query],
            |hash| hash.0,
            false,
            |_, depth| {
                best.depth = best.depth.max(depth);
                best.scored += 1;
            },
        );
        best
    }
}
