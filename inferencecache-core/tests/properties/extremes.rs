//! E1: no input causes an error, a panic, an overflow or an endless loop. And index:132 at full size.

use std::time::Duration;

use inferencecache_core::query::HashList;
use inferencecache_core::testkit::{Inspect, check};
use inferencecache_core::{Entry, Event, EventKind, IndexApi, Lookup, ManualClock, Query, Stats, Update};

use super::World;

#[test]
fn chains_of_a_hundred_thousand_blocks() {
    let world = World::new();
    let words: Vec<[u8; 8]> = (0..100_000_u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()).collect();
    let counts = vec![16; words.len()];
    let chain = Entry { block_hashes: HashList::Words(&words), block_token_counts: &counts, ..Entry::default() };
    let identity = Update { tenant: "t", model: "m", scheme: "s", ..Update::default() };
    for replica in ["a", "b", "c"] {
        world.index.ingest(&Update { replica, entries: std::slice::from_ref(&chain), ..identity });
    }
    assert_eq!(world.index.storage_entries(), (300_000, 0));
    let kind = EventKind::PrefixEvicted;
    let hole = &words[77_777][..];
    world.index.apply_event(&Event {
        kind,
        replica: "a",
        tenant: "t",
        model: "m",
        prefix_hash: hole,
        ..Event::default()
    });

    let query = Query {
        tenant: "t",
        model: "m",
        scheme: "s",
        block_hashes: HashList::Words(&words),
        block_token_counts: &counts,
        ..Query::default()
    };
    let mut found = Lookup::new();
    world.index.lookup_route(&query, &mut found);
    let rows: Vec<_> = found.rows.iter().map(|row| (&*row.replica, row.matched_tokens)).collect();
    assert_eq!(rows, [("b", 1_600_000), ("c", 1_600_000), ("a", 77_777 * 16)]);
    for replica in ["a", "b", "c"] {
        world.index.apply_event(&Event {
            kind: EventKind::AllCleared,
            replica,
            tenant: "t",
            model: "m",
            ..Event::default()
        });
    }
    assert_eq!(world.index.storage_entries(), (0, 0));
}

/// index:132
#[test]
fn a_million_entries_without_a_cap() {
    let world = World::new();
    let words: Vec<[u8; 8]> = (0..1_000_000_u64).map(u64::to_be_bytes).collect();
    for part in words.chunks(1_000) {
        let entries: Vec<Entry<'_>> =
            part.iter().map(|word| Entry { prefix_hash: word, token_count: 16, ..Entry::default() }).collect();
        let update =
            Update { replica: "r", tenant: "t", model: "m", scheme: "s", entries: &entries, ..Update::default() };
        world.index.ingest(&update);
    }
    assert_eq!(world.index.storage_entries(), (1_000_000, 0));
    assert_eq!(world.index.aggregate().total, 1_000_000);
    assert!(world.sink.totals().evicted.is_empty());
    world.clock.advance(Duration::from_secs(1800));
    world.index.sweep();
    assert_eq!(world.index.storage_entries(), (0, 0));
    assert_eq!(world.sink.totals().evicted, [(("lru", "ttl"), 1_000_000)].into());
}

#[test]
fn every_combination_of_extreme_values() {
    let stamps = [i64::MIN, i64::MIN + 1, -1, 0, 1, i64::MAX - 1, i64::MAX];
    let numbers = [i32::MIN, -1, 0, 1, i32::MAX];
    let rates = [f32::NAN, f32::NEG_INFINITY, f32::MIN, -0.0, f32::MIN_POSITIVE, 1.0, f32::MAX, f32::INFINITY];
    let long = vec![0xff; 70_000];
    let hashes: [&[u8]; 6] = [b"", b"\0", b"\0\0\0\0\0\0\0\0", &[0xff; 8], &[0xff; 64], &long];
    let names = ["", "\0", "t", "\u{10ffff}"];
    for now in stamps {
        let world = World::with(|options| {
            options.max_entries = 40;
            options.clock = std::sync::Arc::new(ManualClock::at(now));
        });
        let mut found = Lookup::new();
        for (i, timestamp) in stamps.into_iter().enumerate() {
            for (j, number) in numbers.into_iter().enumerate() {
                let tenant = names[(i + j) % names.len()];
                let stats = Stats {
                    cache_memory_bytes: timestamp,
                    hit_rate: rates[(i + j) % rates.len()],
                    pressure: rates[(i * 3 + j) % rates.len()],
                    t2_hit_tokens: timestamp,
                    t2_query_tokens: timestamp,
                };
                let counts = vec![number; hashes.len() - 1];
                let blocks = HashList::Slices(&hashes[1..]);
                let entries = [
                    Entry { block_hashes: blocks, block_token_counts: &counts, tier: number, ..Entry::default() },
                    Entry { prefix_hash: hashes[j + 1], token_count: number, tier: number, ..Entry::default() },
                    Entry { prefix_hash: hashes[j], token_count: 5, adapter: names[j % 4], ..Entry::default() },
                ];
                let (replica, model, scheme) = (names[(i + 1) % 4], names[j % 4], names[(i + 2) % 4]);
                let identity = Update { replica, tenant, model, scheme, timestamp, ..Update::default() };
                world.index.ingest(&Update { entries: &entries, stats: Some(stats), ..identity });
                for query in [
                    Query { tenant, model, scheme, prefix_hash: hashes[j], ttft_ms: number, ..Query::default() },
                    Query {
                        tenant,
                        model,
                        scheme,
                        block_hashes: blocks,
                        block_token_counts: &counts,
                        ..Query::default()
                    },
                ] {
                    world.index.lookup(&query, &mut found);
                    world.index.lookup_route(&query, &mut found);
                    assert!(found.rows.iter().all(|row| !row.score.is_nan() && !row.hit_prob.is_nan()), "{found:?}");
                    found.credit_hits();
                }
                for kind in [EventKind::ReplicaUpdated, EventKind::PrefixAdded, EventKind::PrefixEvicted] {
                    let prefix_hash = hashes[(i + j) % hashes.len()];
                    world.index.apply_event(&Event {
                        kind,
                        replica,
                        model,
                        tenant,
                        prefix_hash,
                        adapter: "",
                        timestamp,
                    });
                }
                world.index.sweep();
                let _ = world.index.snapshot();
                check::structure(&*world.index, &[]).expect("sound");
            }
        }
        assert!(world.index.dump().entries.len() <= 40);
    }
}
