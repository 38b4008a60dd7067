//! S: tenants, schemes, adapters and the reserved tenant do not see each other.

use inferencecache_core::testkit::generate::{Op, Report};
use inferencecache_core::{IndexApi, Lookup, RESERVED_TENANT, Row, Strategy};

use super::{World, draw, is_lookup, rngs};

fn tenant(op: &Op) -> Option<&str> {
    match op {
        Op::Ingest(report) => Some(&report.tenant),
        Op::Event(notice) => Some(&notice.tenant),
        Op::Lookup(ask) => Some(&ask.tenant),
        Op::Policy(tenant, _) => Some(tenant),
        _ => None,
    }
}

/// Rows and strategy; the miss classes of a tenant without keys depend on whether anybody has some.
fn answer(found: &Lookup) -> (Strategy, Vec<Row>) {
    let strategy = if found.strategy == Strategy::UnknownTenant { Strategy::None } else { found.strategy };
    (strategy, found.rows.clone())
}

#[test]
fn s1_tenants_do_not_see_each_other() {
    for (seed, mut rng) in rngs(200) {
        let world = World::new();
        world.play(&mut rng, 80);
        let asks: Vec<Op> =
            (0..10).map(|_| draw(&mut rng, &world.names, |op| is_lookup(op) && tenant(op) == Some("t"))).collect();
        let before: Vec<_> = asks.iter().map(|ask| answer(&world.lookup(ask))).collect();
        for _ in 0..60 {
            let op = draw(&mut rng, &world.names, |op| tenant(op).is_some_and(|tenant| tenant != "t"));
            world.apply(&op);
        }
        let after: Vec<_> = asks.iter().map(|ask| answer(&world.lookup(ask))).collect();
        assert_eq!(before, after, "seed {seed}");
    }
}

#[test]
fn s2_schemes_and_adapters_do_not_share_prefixes() {
    for (seed, mut rng) in rngs(200) {
        let world = World::new();
        world.play(&mut rng, 80);
        world.lift_budgets();
        let op = draw(&mut rng, &world.names, is_lookup);
        let Op::Lookup(ask) = &op else { continue };
        let before = world.lookup(&op);
        let elsewhere = |report: &Report| {
            let same = |adapter: &str| *adapter == *ask.adapter;
            let own = |entry: &str| if entry.is_empty() { same(&report.adapter) } else { same(entry) };
            report.scheme != ask.scheme || !report.entries.iter().any(|entry| own(&entry.adapter))
        };
        let mut schemes_only = true;
        for _ in 0..40 {
            let op = draw(&mut rng, &world.names, |op| matches!(op, Op::Ingest(report) if elsewhere(report)));
            let Op::Ingest(mut report) = op else { continue };
            report.stats = None;
            schemes_only &= report.scheme != ask.scheme;
            world.apply(&Op::Ingest(report));
        }
        let after = world.lookup(&op);
        let pairs = |found: &Lookup| -> Vec<(String, i32)> {
            let rows = found.rows.iter().filter(|_| found.strategy == Strategy::PrefixMatch);
            let mut pairs: Vec<_> = rows.map(|row| (row.replica.to_string(), row.matched_tokens)).collect();
            pairs.sort();
            pairs
        };
        assert_eq!(pairs(&before), pairs(&after), "seed {seed}");
        if schemes_only {
            assert_eq!(before.rows, after.rows, "seed {seed}");
        }
    }
}

#[test]
fn s3_reserved_tenants_leave_no_trace() {
    for (seed, mut rng) in rngs(100) {
        let bounds = |options: &mut inferencecache_core::IndexOptions| {
            options.max_entries = 12;
            options.max_stats = 3;
        };
        let (with, without) = (World::with(bounds), World::with(bounds));
        for _ in 0..200 {
            let op = Op::random(&mut rng, &with.names);
            with.apply(&op);
            if tenant(&op) == Some(RESERVED_TENANT) {
                continue;
            }
            without.apply(&op);
            if is_lookup(&op) {
                let (a, b) = (with.lookup(&op), without.lookup(&op));
                assert_eq!((a.strategy, &a.rows), (b.strategy, &b.rows), "seed {seed}: {op:?}");
            }
        }
        assert_eq!(with.index.aggregate(), without.index.aggregate(), "seed {seed}");
        assert_eq!(with.index.snapshot(), without.index.snapshot(), "seed {seed}");
        assert_eq!(with.sink.totals().gauges, without.sink.totals().gauges, "seed {seed}");
        let visible = |world: &World| {
            let mut dump = world.dump();
            dump.entries.retain(|entry| &*entry.tenant != RESERVED_TENANT);
            dump.stats.retain(|row| &*row.tenant != RESERVED_TENANT);
            dump
        };
        assert_eq!(visible(&with).diff(&visible(&without)), "", "seed {seed}");
    }
}
