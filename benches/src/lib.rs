//! Workloads that the benchmarks share: seeded, and the same for every question.
//!
//! *private*: each replica holds chains of its own. *shared*: a root of 32 blocks held by several replicas, then private
//! tails. Hashes are 8 bytes; entries are single, in chain order, 32 a report, as the subscriber sends them.

use std::sync::Arc;

use inferencecache_core::testkit::Model;
use inferencecache_core::{Entry, HashList, Index, IndexApi, IndexOptions, Lookup, ManualClock, Query, Update};

/// Tokens of one block.
pub const BLOCK: i32 = 16;
/// Blocks of one chain unless said otherwise.
pub const CHAIN: usize = 64;
/// Entries of one report.
pub const REPORT: usize = 32;

/// The hash at `position` of chain `chain`; a stirred number, so that neighbours are not neighbours in any table.
#[must_use]
pub fn hash(chain: u64, position: u64) -> [u8; 8] {
    let mut x = (chain << 20 | position).wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x ^ (x >> 31)).to_be_bytes()
}

/// A chain of `len` blocks; the first `shared` of them are the same for every chain.
#[must_use]
pub fn chain(id: u64, len: usize, shared: usize) -> Vec<[u8; 8]> {
    (0..len).map(|i| hash(if i < shared { u64::MAX >> 20 } else { id }, i as u64)).collect()
}

/// An index whose clock stands still, without a cap.
#[must_use]
pub fn options() -> IndexOptions {
    IndexOptions { clock: Arc::new(ManualClock::at(1_000_000_000_000)), max_entries: 0, ..IndexOptions::default() }
}

/// Reports a chain as single entries, 32 a report.
pub fn report(index: &dyn IndexApi, replica: &str, chain: &[[u8; 8]]) {
    let mut tokens = 0;
    let entries: Vec<Entry<'_>> = chain
        .iter()
        .map(|hash| {
            tokens += BLOCK;
            Entry { prefix_hash: hash, token_count: tokens, ..Entry::default() }
        })
        .collect();
    for entries in entries.chunks(REPORT) {
        index.ingest(&Update { replica, model: "m", tenant: "t", scheme: "vllm", entries, ..Update::default() });
    }
}

/// An index with about `blocks` distinct blocks over `replicas` replicas, and the chains of the first few.
#[must_use]
pub fn filled(blocks: usize, replicas: usize, shared: usize, len: usize) -> (Index, Vec<Vec<[u8; 8]>>) {
    let index = Index::new(options());
    let mut chains = Vec::new();
    for id in 0..blocks.div_ceil(len) {
        let blocks = chain(id as u64, len, shared);
        report(&index, &format!("replica-{}", id % replicas), &blocks);
        if id < 1024 {
            chains.push(blocks);
        }
    }
    (index, chains)
}

/// Looks a chain up and returns the best row's matched tokens.
pub fn look(index: &dyn IndexApi, chain: &[[u8; 8]], counts: &[i32], out: &mut Lookup) -> i32 {
    let query = Query {
        tenant: "t",
        model: "m",
        scheme: "vllm",
        block_hashes: HashList::Words(chain),
        block_token_counts: counts,
        ..Query::default()
    };
    index.lookup_route(&query, out);
    out.rows.first().map_or(0, |row| row.matched_tokens)
}

/// Fails unless the index answers as the naive one does, on a small instance of the workload.
///
/// # Panics
/// When an answer differs: then no figure of the benchmark means anything.
pub fn check_against_the_oracle() {
    let (fast, slow) = (Index::new(options()), Model::new(options()));
    for id in 0..8 {
        let blocks = chain(id, CHAIN, 32);
        report(&fast, &format!("replica-{id}"), &blocks);
        report(&slow, &format!("replica-{id}"), &blocks);
    }
    let counts = [BLOCK; CHAIN];
    for id in 0..9 {
        let blocks = chain(id, CHAIN, 32);
        let (mut a, mut b) = (Lookup::new(), Lookup::new());
        look(&fast, &blocks, &counts, &mut a);
        look(&slow, &blocks, &counts, &mut b);
        assert_eq!((a.strategy, a.rows), (b.strategy, b.rows), "chain {id}");
    }
}
