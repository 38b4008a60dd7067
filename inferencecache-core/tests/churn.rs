//! field:38: what comes and goes leaves nothing behind, neither counts nor memory.

use std::sync::Arc;

use inferencecache_core::query::HashList;
use inferencecache_core::testkit::{Dump, Inspect, check};
use inferencecache_core::{
    Entry, Event, EventKind, Index, IndexApi, IndexOptions, ManualClock, RESERVED_TENANT, Update,
};

const BLOCKS: usize = 50_000;

fn event(kind: EventKind, hash: &[u8]) -> Event<'_> {
    Event { kind, replica: "r1", model: "m", tenant: "t", prefix_hash: hash, ..Event::default() }
}

/// New keys every round, some of them evicted from the middle of their chain, then everything cleared.
fn round(index: &Index, round: usize) {
    let words: Vec<[u8; 8]> =
        (0..BLOCKS).map(|n| ((round * BLOCKS + n) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()).collect();
    let counts = [16; 4];
    for chains in words.chunks(4 * 64) {
        let entries: Vec<Entry<'_>> = chains
            .chunks(4)
            .map(|blocks| Entry {
                block_hashes: HashList::Words(blocks),
                block_token_counts: &counts[..blocks.len()],
                ..Entry::default()
            })
            .collect();
        let identity = Update { replica: "r1", tenant: "t", model: "m", scheme: "vllm", ..Update::default() };
        index.ingest(&Update { entries: &entries, ..identity });
    }
    assert_eq!(index.storage_entries(), (BLOCKS as u64, 0));
    for chain in words.chunks(4).take(10) {
        for block in [1, 3, 0, 2] {
            index.apply_event(&event(EventKind::PrefixEvicted, &chain[block]));
        }
    }
    assert_eq!(index.storage_entries(), (BLOCKS as u64 - 40, 0));
    index.apply_event(&event(EventKind::AllCleared, b""));

    assert_eq!(index.storage_entries(), (0, 0));
    assert_eq!(index.dump(), Dump::default());
    assert!(!index.has_any_tenant("t") && index.snapshot().replicas.is_empty());
    check::structure(index, &[RESERVED_TENANT.to_owned()]).unwrap();
}

#[test]
fn churn_costs_no_memory() {
    let clock = Arc::new(ManualClock::at(1_700_000_000_000_000));
    let index = Index::new(IndexOptions { clock, ..IndexOptions::default() });
    let early = allocation_counter::measure(|| (0..3).for_each(|n| round(&index, n)));
    let late = allocation_counter::measure(|| (3..20).for_each(|n| round(&index, n)));
    // A fifth more than what is left after three rounds, and some for what is freed a little later than removed.
    let allowed = early.bytes_current.max(0) / 5 + 256 * 1024;
    assert!(
        late.bytes_current <= allowed,
        "after 3 rounds {} bytes, then {} more",
        early.bytes_current,
        late.bytes_current
    );
}
