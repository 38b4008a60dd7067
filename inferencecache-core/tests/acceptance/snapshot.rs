//! index:164: one state with everything in it, and every read of it.

use std::sync::Arc;

use inferencecache_core::Stats;
use inferencecache_core::index::{ReplicaRow, Snapshot, TenantRow};
use inferencecache_core::time::Micros;

use crate::play::{Factory, START, World};

const STATE: &str = "
update r1 @10m : p, stats mem=100 hr=.8 pr=.5 t2=600/1000
scope <t1,m2>
update r1 @5m : p, stats mem=120 hr=.4 pr=.1 t2=10/20
scope <t1,m1>
report r2:p@1m, <t1,m1,sglang>r2:p@2m, r2:p/lora@3m, <t2,m1>r1:p@4m
scope <t3,m1>
stats r9 hr=0 @6m
scope <t1,m1>
report <'',m1>r3:q@7m
event REPLICA_UPDATED r1 @2m
";

fn ago(minutes: Micros) -> Micros {
    START - minutes * 60_000_000
}

fn row(tenant: &str, replica: &str, prefix_count: u64, last_event: Option<Micros>) -> ReplicaRow {
    let last_event_at = last_event.map(ago);
    ReplicaRow { tenant: tenant.into(), replica: replica.into(), stats: None, prefix_count, last_event_at }
}

fn tenant(tenant: &str, index_entries: u64, hit_rate: Option<f32>) -> TenantRow {
    TenantRow { tenant: tenant.into(), index_entries, hit_rate }
}

pub(crate) fn check(factory: &Factory) {
    let mut world = World::new(factory, &[]);
    world.play("scope <t1,m1>").expect("a scope");
    for step in STATE.lines().filter(|line| !line.is_empty()) {
        world.play(step).unwrap_or_else(|why| panic!("index:164 `{step}`: {why}"));
    }
    // The liveness of m1's row is the newer one, though its figures are the older ones.
    let figures =
        Stats { cache_memory_bytes: 100, hit_rate: 0.8, pressure: 0.5, t2_hit_tokens: 600, t2_query_tokens: 1000 };
    let want = Snapshot {
        replicas: vec![
            row("", "r3", 1, Some(7)),
            ReplicaRow { stats: Some((figures, ago(2))), ..row("t1", "r1", 2, Some(5)) },
            row("t1", "r2", 3, Some(1)),
            row("t2", "r1", 1, Some(4)),
            ReplicaRow { stats: Some((Stats::default(), ago(6))), ..row("t3", "r9", 0, None) },
        ],
        tenants: vec![
            tenant("", 1, None),
            tenant("t1", 4, Some(0.8)),
            tenant("t2", 1, None),
            tenant("t3", 0, Some(0.0)),
        ],
        total_prefixes: 6,
    };
    assert_eq!(world.index.snapshot(), want, "index:164");
    world.play("total 7 reserved 0").expect("index:164");
    world.play("gauges m1=5 m2=1").expect("index:164");

    let state = world.index.cache_state("t1", "m1");
    assert_eq!(state.total_prefixes, 3, "index:164");
    assert_eq!(state.replicas, [(Arc::from("r1"), figures)], "index:164");
}
