//! The index of this project, in both forms that the wire carries.

use std::sync::Arc;
use std::time::Instant;

use inferencecache_core::{
    Entry, Event, EventKind, HashList, Index, IndexApi, IndexOptions, Lookup, ManualClock, Query, Update,
};

use super::{Best, Reader, Subject, nanos};
use crate::workload::{Op, Workload};

const TOKENS: i32 = 16;
const START: i64 = 1_000_000_000_000;

/// How stores are spelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// One entry a block with its cumulative tokens, in chain order.
    Single,
    /// One entry a chain.
    Chain,
}

enum Native {
    Store { replica: usize, entries: Vec<Entry<'static>> },
    Remove { replica: usize, hashes: Vec<[u8; 8]> },
}

pub(super) struct Ours {
    index: Arc<Index>,
    form: Form,
    names: Vec<String>,
    prepared: Vec<Native>,
    at: i64,
}

impl Ours {
    pub(super) fn new(replicas: u32, form: Form, cap: u64) -> Self {
        let clock = Arc::new(ManualClock::at(START));
        let options = IndexOptions { clock, max_entries: cap, ..IndexOptions::default() };
        Self {
            index: Arc::new(Index::new(options)),
            form,
            names: (0..replicas).map(|i| format!("replica-{i}")).collect(),
            prepared: Vec::new(),
            at: START - 1_000_000_000,
        }
    }

    fn apply(&mut self, native: &Native) {
        match native {
            Native::Store { replica, entries } => {
                self.at += 1;
                let replica = self.names[*replica].as_str();
                let timestamp = self.at;
                let update = Update {
                    replica,
                    model: "m",
                    tenant: "t",
                    scheme: "vllm",
                    timestamp,
                    entries,
                    ..Update::default()
                };
                self.index.ingest(&update);
            }
            Native::Remove { replica, hashes } => {
                let replica = self.names[*replica].as_str();
                for hash in hashes {
                    let kind = EventKind::PrefixEvicted;
                    let event = Event { kind, replica, model: "m", tenant: "t", prefix_hash: hash, ..Event::default() };
                    self.index.apply_event(&event);
                }
            }
        }
    }

    fn store(&self, hashes: &[u64], from: usize, to: usize) -> Vec<Entry<'static>> {
        // Leaked: an entry borrows what a decoder would own.
        let tokens = |blocks: usize| i32::try_from(blocks).unwrap_or(i32::MAX) * TOKENS;
        match self.form {
            Form::Single => {
                let words: Vec<[u8; 8]> = hashes[from..to].iter().map(|hash| hash.to_be_bytes()).collect();
                let words: &'static [[u8; 8]] = Box::leak(words.into_boxed_slice());
                let each = words.iter().enumerate();
                each.map(|(i, word)| Entry { prefix_hash: word, token_count: tokens(from + i + 1), ..Entry::default() })
                    .collect()
            }
            Form::Chain => {
                let words: Vec<[u8; 8]> = hashes[..to].iter().map(|hash| hash.to_be_bytes()).collect();
                let words: &'static [[u8; 8]] = Box::leak(words.into_boxed_slice());
                let counts: &'static [i32] = Box::leak(vec![TOKENS; to].into_boxed_slice());
                vec![Entry { block_hashes: HashList::Words(words), block_token_counts: counts, ..Entry::default() }]
            }
        }
    }
}

impl Subject for Ours {
    fn name(&self) -> &'static str {
        match self.form {
            Form::Single => "ours, single",
            Form::Chain => "ours, chain",
        }
    }

    fn prepare(&mut self, workload: &Workload, ops: &[Op]) {
        self.prepared = Vec::with_capacity(ops.len());
        for op in ops {
            let native = match *op {
                Op::Store { replica, chain, from, to, last } => {
                    let hashes = &workload.chains[chain as usize];
                    // A chain names itself from its root: what a peer is told in pieces is told once, with the last.
                    if self.form == Form::Chain && !last {
                        continue;
                    }
                    Native::Store { replica: replica as usize, entries: self.store(hashes, from as usize, to as usize) }
                }
                Op::Remove { replica, chain, from, to } => Native::Remove {
                    replica: replica as usize,
                    hashes: workload.chains[chain as usize][from as usize..to as usize]
                        .iter()
                        .rev()
                        .map(|hash| hash.to_be_bytes())
                        .collect(),
                },
            };
            self.prepared.push(native);
        }
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
        Box::new(Asking { index: self.index.clone(), queries: Vec::new(), counts: Vec::new(), out: Lookup::new() })
    }
}

struct Asking {
    index: Arc<Index>,
    queries: Vec<Vec<[u8; 8]>>,
    counts: Vec<i32>,
    out: Lookup,
}

impl Reader for Asking {
    fn prepare(&mut self, queries: &[&[u64]]) {
        self.queries = queries.iter().map(|hashes| hashes.iter().map(|hash| hash.to_be_bytes()).collect()).collect();
        self.counts = vec![TOKENS; self.queries.iter().map(Vec::len).max().unwrap_or(0)];
    }

    fn touch(&self, query: usize) -> u64 {
        self.queries[query].iter().map(|word| u64::from(word[0])).sum::<u64>()
            + self.counts.iter().map(|&count| count as u64).sum::<u64>()
    }

    fn ask(&mut self, query: usize) -> Best {
        let hashes = &self.queries[query];
        let query = Query {
            tenant: "t",
            model: "m",
            scheme: "vllm",
            block_hashes: HashList::Words(hashes),
            block_token_counts: &self.counts[..hashes.len()],
            ..Query::default()
        };
        self.index.lookup_route(&query, &mut self.out);
        let depth = self.out.rows.first().map_or(0, |row| row.matched_tokens / TOKENS);
        Best { depth: depth.cast_unsigned(), scored: self.out.rows.len() as u32 }
    }
}
