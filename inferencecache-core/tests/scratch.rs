//! A scratch remembers where its last answers came from: no answer may tell.

use std::sync::Arc;

use inferencecache_core::query::HashList;
use inferencecache_core::{
    Entry, Event, EventKind, Index, IndexApi, IndexOptions, Lookup, ManualClock, Query, Strategy, Update,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const NOW: i64 = 1_000_000_000_000;

fn index() -> Index {
    Index::new(IndexOptions { clock: Arc::new(ManualClock::at(NOW)), ..IndexOptions::default() })
}

/// Chain `chain`: the first `shared` blocks are those of every chain.
fn chain(chain: u64, blocks: u64, shared: u64) -> Vec<[u8; 8]> {
    let word = |block: u64| (if block < shared { block } else { (chain + 1) << 32 | block }).wrapping_mul(0x9e37_79b9);
    (0..blocks).map(|block| word(block).to_be_bytes()).collect()
}

/// One scratch for two indexes, several tenants and partitions that come and go answers as a new one.
#[test]
fn a_used_scratch_answers_as_a_new_one() {
    let worlds = [index(), index()];
    let mut rng = SmallRng::seed_from_u64(5);
    let mut used = Lookup::new();
    let mut seen = [0u32; 3];
    for step in 0..30_000 {
        let index = &worlds[rng.random_range(0..2)];
        let tenant = ["t", "u", "tu"][rng.random_range(0..3)];
        let adapter = ["", "a"][rng.random_range(0..2)];
        let blocks = [1, 5, 64, 65, 300][rng.random_range(0..5)];
        let hashes = chain(rng.random_range(0..3), blocks, 3);
        // Some blocks without tokens: longer runs that are no better.
        let counts: Vec<i32> = (0..blocks).map(|block| if block % 5 == 4 { 0 } else { 16 }).collect();
        let replica = format!("r{}", rng.random_range(0..40));
        match rng.random_range(0..10) {
            0..4 => {
                let entry = Entry {
                    block_hashes: HashList::Words(&hashes),
                    block_token_counts: &counts,
                    tier: rng.random_range(0..3),
                    ..Entry::default()
                };
                index.ingest(&Update {
                    replica: &replica,
                    tenant,
                    model: "m",
                    scheme: "s",
                    adapter,
                    timestamp: NOW - rng.random_range(0..40) * 60_000_000,
                    entries: &[entry],
                    ..Update::default()
                });
            }
            4 => {
                let kind = EventKind::PrefixEvicted;
                let prefix_hash = &hashes[rng.random_range(0..hashes.len())];
                let event = Event { kind, replica: &replica, tenant, model: "m", prefix_hash, ..Event::default() };
                index.apply_event(&event);
            }
            5 => {
                // Now and then all of them, so that partitions go and come back.
                let all = rng.random_ratio(1, 20);
                for other in 0..if all { 40 } else { 1 } {
                    let other = if all { format!("r{other}") } else { replica.clone() };
                    let kind = EventKind::AllCleared;
                    index.apply_event(&Event { kind, replica: &other, tenant, model: "m", ..Event::default() });
                }
            }
            _ => {
                let query = Query {
                    tenant,
                    model: "m",
                    scheme: "s",
                    adapter,
                    block_hashes: HashList::Words(&hashes),
                    block_token_counts: &counts,
                    ..Query::default()
                };
                let mut fresh = Lookup::new();
                index.lookup_route(&query, &mut fresh);
                index.lookup_route(&query, &mut used);
                assert_eq!((used.strategy, &used.rows), (fresh.strategy, &fresh.rows), "step {step}");
                let ids = fresh.rows.windows(2).filter(|pair| pair[0].score == pair[1].score);
                assert!(ids.into_iter().all(|pair| pair[0].replica < pair[1].replica), "step {step}");
                seen[0] += u32::from(fresh.rows.len() > 16);
                seen[1] += u32::from(fresh.strategy == Strategy::None);
                seen[2] += u32::from(matches!(fresh.strategy, Strategy::UnknownTenant | Strategy::UnknownHashScheme));
                if rng.random_ratio(1, 8) {
                    used.retain(|row| row.matched_tokens > 64);
                }
            }
        }
    }
    assert!(seen[0] > 1_000 && seen[1] > 20 && seen[2] > 20, "{seen:?}");
    worlds.iter().for_each(|index| assert_eq!(index.check(), Ok(())));
}
