//! I and O: doing it again changes nothing, and the order of unrelated things does not matter.

use std::sync::Arc;

use inferencecache_core::testkit::generate::{Op, Report, Stamp};
use inferencecache_core::testkit::{Dump, Knobs};
use inferencecache_core::{Clock, IndexApi, Update};
use rand::Rng;
use rand::seq::SliceRandom;

use super::{World, draw, is_lookup, rngs};

/// A stamp that does not move with the clock.
fn pin(stamp: &mut Stamp, world: &World) {
    *stamp = Stamp::At(match stamp.at(world.clock.now()) {
        0 => world.clock.now(),
        instant => instant,
    });
}

#[test]
fn i1_writes_are_idempotent() {
    for (seed, mut rng) in rngs(200) {
        let world = World::with(|options| options.max_entries = [0, 3, 12][rng.random_range(0..3)]);
        let bounded = world.policy.clone();
        for _ in 0..40 {
            let mut op = Op::random(&mut rng, &world.names);
            match &mut op {
                Op::Ingest(report) => pin(&mut report.stamp, &world),
                Op::Event(notice) => pin(&mut notice.stamp, &world),
                // With a budget and a cap that bind at once the victims of one bring back those of the other.
                Op::Policy(tenant, knobs) => {
                    bounded.set(tenant, Knobs { quota: None, ..*knobs });
                    continue;
                }
                Op::Sweep => {}
                _ => {
                    world.apply(&op);
                    continue;
                }
            }
            world.apply(&op);
            let once = world.dump();
            world.apply(&op);
            assert_eq!(once.diff(&world.dump()), "", "seed {seed}: {op:?} twice");
        }
    }
}

#[test]
fn i1_retain_is_idempotent() {
    for (seed, mut rng) in rngs(200) {
        let world = World::new();
        world.policy.set("t", Knobs { eviction: Some(inferencecache_core::Eviction::Lfu), ..Knobs::default() });
        world.play(&mut rng, 60);
        let mut found = world.lookup(&draw(&mut rng, &world.names, is_lookup));
        let keep = |row: &inferencecache_core::Row| row.replica.ends_with(['8', '9']);
        found.retain(keep);
        let once = (found.rows.clone(), found.captures.clone());
        found.retain(keep);
        assert_eq!(once, (found.rows.clone(), found.captures.clone()), "seed {seed}");
        assert!(found.captures.iter().all(|capture| (capture.row as usize) < found.rows.len()), "seed {seed}");
    }
}

/// Reports that touch neither the same (key, replica) nor the same stats row: each of a replica of its own.
fn disjoint_reports(rng: &mut rand::rngs::SmallRng, world: &World) -> Vec<Report> {
    let mut reports = Vec::new();
    while reports.len() < 12 {
        if let Op::Ingest(mut report) = Op::random(rng, &world.names) {
            pin(&mut report.stamp, world);
            report.replica = Arc::from(format!("r{}", reports.len()));
            reports.push(report);
        }
    }
    reports
}

fn after(reports: &[Report], last: impl FnOnce(&World)) -> Dump {
    let world = World::new();
    for report in reports {
        world.apply(&Op::Ingest(report.clone()));
    }
    last(&world);
    world.dump()
}

#[test]
fn o1_disjoint_updates_commute() {
    for (seed, mut rng) in rngs(200) {
        let mut reports = disjoint_reports(&mut rng, &World::new());
        let want = after(&reports, |_| {});
        reports.shuffle(&mut rng);
        assert_eq!(want.diff(&after(&reports, |_| {})), "", "seed {seed}");
    }
}

#[test]
fn o2_survivors_of_one_enforcement_do_not_depend_on_arrival() {
    let enforce = |world: &World| {
        world.policy.set("t", Knobs { quota: Some(3), ..Knobs::default() });
        world.index.ingest(&Update { replica: "r", tenant: "t", model: "m", ..Update::default() });
    };
    for (seed, mut rng) in rngs(200) {
        let mut reports = disjoint_reports(&mut rng, &World::new());
        let want = after(&reports, enforce);
        reports.shuffle(&mut rng);
        assert_eq!(want.diff(&after(&reports, enforce)), "", "seed {seed}");
    }
}

#[test]
fn o2_survivors_of_the_cap_do_not_depend_on_the_order_of_entries() {
    for (seed, mut rng) in rngs(200) {
        let capped = |report: &Report| {
            let world = World::with(|options| options.max_entries = 3);
            world.apply(&Op::Ingest(report.clone()));
            world.dump()
        };
        let world = World::new();
        let op = draw(&mut rng, &world.names, |op| matches!(op, Op::Ingest(report) if report.entries.len() > 2));
        let Op::Ingest(mut report) = op else { continue };
        pin(&mut report.stamp, &world);
        // The same key twice in one update is not disjoint: the later one counts.
        report.entries.iter_mut().for_each(|entry| (entry.tier, entry.tokens) = (1, 16));
        report.entries.retain(|entry| entry.blocks.is_empty() && entry.counts.is_empty());
        let want = capped(&report);
        report.entries.shuffle(&mut rng);
        assert_eq!(want.diff(&capped(&report)), "", "seed {seed}");
    }
}
