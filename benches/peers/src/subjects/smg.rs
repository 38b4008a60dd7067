//! `smg-radix-tree`: contiguous chains and interned holder sets; one writer, no readers beside it.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use radix_tree::{Config, HolderId, Overlap, OverlapScratch, RadixTree};

use super::{Best, Reader, Subject, nanos};
use crate::workload::{Op, Workload};

enum Native {
    Store { holder: HolderId, parent: Option<u64>, blocks: Vec<(u64, u64)> },
    Remove { holder: HolderId, hashes: Vec<u64> },
}

pub(super) struct Smg {
    // Locked once a run or once a question, outside the clock where it can be.
    tree: Arc<Mutex<RadixTree>>,
    holders: Vec<HolderId>,
    prepared: Vec<Native>,
}

impl Smg {
    pub(super) fn new(replicas: u32) -> Self {
        let mut tree = RadixTree::new(Config::default());
        let holders = (0..replicas).map(|i| tree.create_holder(&format!("replica-{i}"))).collect();
        Self { tree: Arc::new(Mutex::new(tree)), holders, prepared: Vec::new() }
    }
}

fn apply(tree: &mut RadixTree, native: &Native) {
    match native {
        Native::Store { holder, parent, blocks } => {
            tree.store(*holder, *parent, blocks).expect("parents are stored first");
        }
        Native::Remove { holder, hashes } => {
            tree.remove(*holder, hashes);
        }
    }
}

impl Subject for Smg {
    fn name(&self) -> &'static str {
        "smg-radix-tree"
    }

    fn prepare(&mut self, workload: &Workload, ops: &[Op]) {
        let each = ops.iter().map(|op| match *op {
            Op::Store { replica, chain, from, to, .. } => {
                let hashes = &workload.chains[chain as usize];
                Native::Store {
                    holder: self.holders[replica as usize],
                    parent: from.checked_sub(1).map(|i| hashes[i as usize]),
                    blocks: hashes[from as usize..to as usize].iter().map(|&hash| (hash, hash)).collect(),
                }
            }
            Op::Remove { replica, chain, from, to } => {
                let hashes = &workload.chains[chain as usize][from as usize..to as usize];
                Native::Remove {
                    holder: self.holders[replica as usize],
                    hashes: hashes.iter().rev().copied().collect(),
                }
            }
        });
        self.prepared = each.collect();
    }

    fn run(&mut self) -> u64 {
        let prepared = std::mem::take(&mut self.prepared);
        let mut tree = self.tree.lock().expect("no holder of the lock panics");
        let start = Instant::now();
        prepared.iter().for_each(|native| apply(&mut tree, native));
        nanos(start)
    }

    fn reader(&self) -> Box<dyn Reader> {
        let tree = self.tree.clone();
        Box::new(Asking { tree, queries: Vec::new(), scratch: OverlapScratch::default(), out: Vec::new() })
    }

    fn concurrent(&self) -> bool {
        false
    }
}

struct Asking {
    tree: Arc<Mutex<RadixTree>>,
    queries: Vec<Vec<u64>>,
    scratch: OverlapScratch,
    out: Vec<Overlap>,
}

impl Reader for Asking {
    fn prepare(&mut self, queries: &[&[u64]]) {
        self.queries = queries.iter().map(|hashes| hashes.to_vec()).collect();
    }

    fn touch(&self, query: usize) -> u64 {
        self.queries[query].iter().fold(0, |sum, hash| sum ^ hash)
    }

    fn ask(&mut self, query: usize) -> Best {
        // An uncontended lock: some 10 ns that the tree itself does not need.
        let tree = self.tree.lock().expect("no holder of the lock panics");
        tree.overlap(&self.queries[query], &mut self.scratch, &mut self.out);
        let depth = self.out.iter().map(|row| row.depth).max().unwrap_or(0);
        Best { depth, scored: self.out.len() as u32 }
    }
}
