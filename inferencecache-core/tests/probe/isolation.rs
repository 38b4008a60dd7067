//! What real tenants notice of a probe, and what their policies can do to it: nothing.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use inferencecache_core::index::{Aggregate, IndexApi, Snapshot};
use inferencecache_core::policy::{Policy, PolicySet, TenantQuota};
use inferencecache_core::probe::{ProbeTarget, Prober};
use inferencecache_core::testkit::{Hooked, RecordingSink};
use inferencecache_core::{
    Entry, IndexOptions, Lookup, ManualClock, PolicyStore, Query, RESERVED_TENANT, Resolvers, Stats, Strategy, Update,
};

use super::doubles::Watch;
use super::{EVERY_INDEX, PASSED, TARGET, shape};

fn report(index: &dyn IndexApi, tenant: &str, hash: &[u8]) {
    let entries = [Entry { prefix_hash: hash, token_count: 16, ..Entry::default() }];
    index.ingest(&Update {
        replica: "r1",
        model: "m",
        tenant,
        scheme: "vllm",
        entries: &entries,
        stats: Some(Stats { hit_rate: 0.5, ..Stats::default() }),
        ..Update::default()
    });
}

fn route(index: &dyn IndexApi, tenant: &str, hash: &[u8]) -> (Strategy, usize) {
    let mut out = Lookup::new();
    let query = Query { tenant, model: "m", scheme: "vllm", prefix_hash: hash, ..Query::default() };
    index.lookup_route(&query, &mut out);
    (out.strategy, out.rows.len())
}

#[test]
fn nothing_shows_while_a_probe_is_under_way() {
    for make in EVERY_INDEX {
        let sink = Arc::new(RecordingSink::default());
        let index: Arc<dyn IndexApi> = make(IndexOptions { sink: sink.clone(), ..IndexOptions::default() });
        let looks = Arc::new(AtomicUsize::new(0));
        let count = looks.clone();
        let watch = Watch(Box::new(move |index| {
            assert!(index.has_any_tenant(RESERVED_TENANT), "the probe is under way");
            assert_eq!(index.snapshot(), Snapshot::default());
            assert_eq!(index.aggregate(), Aggregate::default());
            assert_eq!(index.entry_counts_by_model(), BTreeMap::new());
            assert_eq!(index.affinity_hint("t", "m", "vllm", b"seed"), None);
            // An index with nothing but a probe in it is empty to everybody else.
            assert_eq!(route(index, "t", TARGET.hash().as_bytes()), (Strategy::None, 0));
            count.fetch_add(1, Ordering::SeqCst);
        }));
        let prober = Prober::new(Arc::new(Hooked { index, hooks: watch }));
        assert_eq!(shape(&prober.run(&TARGET)), PASSED);
        assert_eq!(looks.load(Ordering::SeqCst), 2, "after the ingest, and after the route");
        assert_eq!(sink.take_calls(), [], "no gauge, no eviction");
    }
}

#[test]
fn an_index_in_use_is_the_same_before_and_after() {
    for make in EVERY_INDEX {
        let index = make(IndexOptions { max_stats: 1, ..IndexOptions::default() });
        report(&*index, "t", b"p");
        let (before, snapshot) = (index.dump(), index.snapshot());
        let prober = Prober::new(index.clone());
        for backend_type in ["", "Memory"] {
            assert_eq!(shape(&prober.run(&ProbeTarget { backend_type, ..TARGET })), PASSED);
        }
        assert_eq!(before.diff(&index.dump()), "");
        assert_eq!(snapshot, index.snapshot());
        assert_eq!(route(&*index, "t", b"p"), (Strategy::PrefixMatch, 1));
    }
}

// server:146
#[test]
fn probes_never_push_out_what_is_real() {
    for make in EVERY_INDEX {
        let index = make(IndexOptions { max_entries: 1, ..IndexOptions::default() });
        report(&*index, "t", b"p");
        let prober = Prober::new(index.clone());
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let refreshing = scope.spawn(|| {
                let mut rounds = 0_u64;
                while !done.load(Ordering::SeqCst) || rounds == 0 {
                    report(&*index, "t", b"p");
                    assert_eq!(route(&*index, "t", b"p"), (Strategy::PrefixMatch, 1), "round {rounds}");
                    rounds += 1;
                }
            });
            let prober = &prober;
            let probes: Vec<_> = (0..16)
                .map(|n| {
                    scope.spawn(move || {
                        let backend = format!("cb-{n}");
                        for _ in 0..20 {
                            let outcome = prober.run(&ProbeTarget { backend: &backend, ..TARGET });
                            assert_eq!(shape(&outcome), PASSED);
                        }
                    })
                })
                .collect();
            for probe in probes {
                probe.join().expect("every probe passes");
            }
            done.store(true, Ordering::SeqCst);
            refreshing.join().expect("the entry is there all the time");
        });
        assert_eq!(index.storage_entries(), (1, 0));
        assert_eq!(route(&*index, "t", b"p"), (Strategy::PrefixMatch, 1));
    }
}

// server:147, policy:95,96
#[test]
fn no_policy_applies_to_a_probe() {
    let hostile = || Policy {
        namespace: RESERVED_TENANT.to_owned(),
        eviction_ttl_ns: 1,
        minimum_prefix_tokens: i32::MAX,
        minimum_matched_tokens: i32::MAX,
        routing_floor_score: Some(f32::MAX),
        lookup_timeout_ms: 1,
        eviction: "lfu".to_owned(),
        ..Policy::default()
    };
    let nothing = || TenantQuota { tenant: RESERVED_TENANT.to_owned(), max_index_entries: 0, ..TenantQuota::default() };
    for make in EVERY_INDEX {
        let policies = Arc::new(PolicyStore::new());
        let resolvers = Resolvers::all(&policies);
        let prober =
            Prober::new(make(IndexOptions { resolvers, max_entries: 1, max_stats: 1, ..IndexOptions::default() }));
        for set in [
            PolicySet::new([], [nothing()]),
            PolicySet::new([hostile()], []),
            PolicySet::new([hostile()], [nothing()]),
            PolicySet::default(),
        ] {
            policies.replace(set);
            prober.index.sweep();
            assert_eq!(shape(&prober.run(&TARGET)), PASSED);
        }
    }
}

/// What a probe leaves behind when it cannot clean up is swept like anything else.
#[test]
fn what_is_left_behind_grows_old() {
    for make in EVERY_INDEX {
        let clock = ManualClock::at(1_700_000_000_000_000);
        let index = make(IndexOptions { clock: Arc::new(clock.clone()), ..IndexOptions::default() });
        report(&*index, RESERVED_TENANT, b"left behind");
        // A probe of another backend takes nothing of it away.
        assert_eq!(shape(&Prober::new(index.clone()).run(&TARGET)), PASSED);
        assert_eq!(index.storage_entries(), (1, 1));
        clock.advance(Duration::from_secs(30 * 60));
        index.sweep();
        assert_eq!(index.storage_entries(), (0, 0));
        assert!(!index.has_any_tenant(RESERVED_TENANT));
    }
}
