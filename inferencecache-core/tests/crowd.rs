//! Prefixes with many holders, each with its own stamp: the index keeps a record for each, and must not differ for it.

use std::sync::Arc;

use inferencecache_core::testkit::{Inspect, Model};
use inferencecache_core::update::{Entry, Event, EventKind, Update};
use inferencecache_core::{Index, IndexApi, IndexOptions, Lookup, ManualClock, Query, Resolvers};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const NOW: i64 = 1_000_000_000_000;

#[derive(Debug)]
struct Budget;

impl inferencecache_core::resolve::QuotaResolver for Budget {
    fn quota(&self, _tenant: &str) -> Option<i64> {
        Some(9)
    }
}

fn worlds(quota: bool, max_entries: u64) -> (Model, Index) {
    let resolvers = Resolvers { quota: quota.then(|| Arc::new(Budget) as _), ..Resolvers::default() };
    let clock = Arc::new(ManualClock::at(NOW));
    let options = IndexOptions { clock, max_entries, resolvers, ..IndexOptions::default() };
    (Model::new(options.clone()), Index::new(options))
}

/// index:3, index:61, index:134 with dozens of holders.
#[test]
fn many_holders_are_kept_like_few() {
    for (seed, quota, cap) in [(1, false, 0), (2, true, 0), (3, false, 150), (4, true, 150)] {
        let (slow, fast) = worlds(quota, cap);
        let mut rng = SmallRng::seed_from_u64(seed);
        for step in 0..6_000 {
            let replica = format!("r{}", rng.random_range(0..40));
            let hash = [rng.random_range(0..12u8); 8];
            if rng.random_bool(0.7) {
                let entries = [Entry { prefix_hash: &hash, token_count: 16, ..Entry::default() }];
                let timestamp = NOW - rng.random_range(0..50) * 1_000_000;
                let (tenant, model, scheme) = ("t", "m", "vllm");
                let entries = &entries[..];
                let update =
                    Update { replica: &replica, tenant, model, scheme, timestamp, entries, ..Update::default() };
                assert_eq!(slow.ingest(&update), fast.ingest(&update));
            } else {
                let kind = if rng.random_bool(0.05) { EventKind::AllCleared } else { EventKind::PrefixEvicted };
                let (tenant, model) = ("t", "m");
                let event = Event { kind, replica: &replica, tenant, model, prefix_hash: &hash, ..Event::default() };
                slow.apply_event(&event);
                fast.apply_event(&event);
            }
            let query = Query { tenant: "t", model: "m", scheme: "vllm", prefix_hash: &hash, ..Query::default() };
            let (mut a, mut b) = (Lookup::new(), Lookup::new());
            slow.lookup_route(&query, &mut a);
            fast.lookup_route(&query, &mut b);
            assert_eq!((a.strategy, a.rows), (b.strategy, b.rows), "seed {seed}, step {step}");
            if step % 16 == 0 {
                let (a, b) = (slow.dump(), fast.dump());
                assert!(a == b, "seed {seed}, step {step}:\n{}", a.diff(&b));
                fast.check().unwrap_or_else(|rule| panic!("seed {seed}, step {step}: {rule}"));
            }
        }
    }
}
