//! M: more of one thing never means more (or less) of another, everything else fixed.

use std::collections::BTreeMap;

use inferencecache_core::testkit::generate::{Hash, MINUTE, Names, Op};
use inferencecache_core::testkit::{Knobs, PolicyTable};
use inferencecache_core::{Clock, Entry, HashList, IndexApi, IndexOptions, Lookup, Stats, Strategy, Update};

use super::{Shape, World, draw, is_lookup, rngs, with_target};

/// Score by (replica, matched tokens).
fn scores(found: &Lookup) -> BTreeMap<(String, i32), f32> {
    found.rows.iter().map(|row| ((row.replica.to_string(), row.matched_tokens), row.score)).collect()
}

/// A world after some history, and a lookup that matches a prefix there.
fn hit(rng: &mut rand::rngs::SmallRng) -> (World, Op) {
    hit_with(rng, |_| {})
}

fn hit_with(rng: &mut rand::rngs::SmallRng, change: impl Fn(&mut IndexOptions)) -> (World, Op) {
    loop {
        let world = World::with(&change);
        world.play(rng, 60);
        world.lift_budgets();
        for _ in 0..60 {
            let op = draw(rng, &world.names, is_lookup);
            if world.lookup(&op).strategy == Strategy::PrefixMatch {
                return (world, op);
            }
        }
    }
}

#[test]
fn m1_a_score_never_rises_with_age() {
    for (seed, mut rng) in rngs(300) {
        // Pressure ages too, and then it no longer weighs.
        let (world, op) = hit_with(&mut rng, |options| options.rank.pressure_weight = 0.0);
        let before = scores(&world.lookup(&op));
        world.clock.set(world.clock.now() + 3 * MINUTE + 7);
        let after = scores(&world.lookup(&op));
        // Somebody's run ended or got shorter: that changes the crowd.
        if before.keys().eq(after.keys()) {
            assert!(before.iter().all(|(row, score)| after[row] <= *score), "seed {seed}: {before:?} {after:?}");
        }
    }
}

#[test]
fn m1_a_score_never_rises_with_pressure_nor_falls_with_a_tight_target() {
    for (seed, mut rng) in rngs(300) {
        let (world, op) = hit(&mut rng);
        let Op::Lookup(ask) = &op else { continue };
        let replica = world.lookup(&op).rows[0].replica.clone();
        let mut last = BTreeMap::new();
        for pressure in [-1.0, 0.0, 0.3, 0.9, 2.0] {
            let stats = Some(Stats { pressure, ..Stats::default() });
            let (tenant, model, scheme) = (&ask.tenant, &ask.model, &ask.scheme);
            world.index.ingest(&Update { replica: &replica, tenant, model, scheme, stats, ..Update::default() });
            let now = scores(&world.lookup(&op));
            assert!(last.iter().all(|(row, score)| now[row] <= *score), "seed {seed}: {last:?} {now:?}");
            last = now;
        }
        let loose = scores(&world.lookup(&with_target(ask, 0)));
        let tight = scores(&world.lookup(&with_target(ask, 100)));
        assert!(loose.iter().all(|(row, score)| tight[row] >= *score), "seed {seed}: {loose:?} {tight:?}");
    }
}

#[test]
fn m2_company_never_raises_a_score_and_onlookers_never_lower_it() {
    for (seed, mut rng) in rngs(300) {
        let (world, op) = hit(&mut rng);
        let Op::Lookup(ask) = &op else { continue };
        let identity = Update {
            tenant: &ask.tenant,
            model: &ask.model,
            scheme: &ask.scheme,
            adapter: &ask.adapter,
            ..Update::default()
        };
        let serving = |world: &World| {
            let dump = world.dump();
            dump.serving()[&(&*ask.tenant, &*ask.model, &*ask.scheme)].len()
        };

        // Somebody who serves the scope without holding any of it.
        let before = (serving(&world), scores(&world.lookup(&op)));
        let other = [Entry { prefix_hash: b"something else", token_count: 1, ..Entry::default() }];
        world.index.ingest(&Update { replica: "onlooker", entries: &other, ..identity });
        let watched = scores(&world.lookup(&op));
        if before.0 == 1 {
            assert!(
                before.1.iter().all(|(row, score)| watched[row] == score * 0.5),
                "seed {seed}: {before:?} {watched:?}"
            );
        } else {
            assert!(before.1.iter().all(|(row, score)| watched[row] >= *score), "seed {seed}: {before:?} {watched:?}");
        }

        // The onlooker joins, at full depth.
        let hashes: Vec<&[u8]> = ask.blocks.iter().map(|hash: &Hash| &*hash.0).collect();
        let blocks = HashList::Slices(&hashes);
        let entry = Entry {
            prefix_hash: &ask.key.0,
            token_count: 1,
            block_hashes: blocks,
            block_token_counts: &ask.counts,
            ..Entry::default()
        };
        world.index.ingest(&Update { replica: "onlooker", entries: &[entry], ..identity });
        let joined = scores(&world.lookup(&op));
        assert!(watched.iter().all(|(row, score)| joined[row] <= *score), "seed {seed}: {watched:?} {joined:?}");
    }
}

#[test]
fn m3_a_longer_chain_never_matches_less() {
    for (seed, mut rng) in rngs(300) {
        let (world, op) = hit(&mut rng);
        let Op::Lookup(mut ask) = op else { continue };
        let mut last: BTreeMap<String, i32> = BTreeMap::new();
        let (blocks, counts) = (std::mem::take(&mut ask.blocks), std::mem::take(&mut ask.counts));
        for length in 1..=blocks.len() {
            ask.blocks = blocks[..length].to_vec();
            ask.counts = counts[..length].to_vec();
            let found = world.lookup(&Op::Lookup(ask.clone()));
            let now: BTreeMap<_, _> =
                found.rows.iter().map(|row| (row.replica.to_string(), row.matched_tokens)).collect();
            assert!(last.iter().all(|(replica, tokens)| now[replica] >= *tokens), "seed {seed}: {last:?} {now:?}");
            last = now;
        }
    }
}

#[test]
fn m4_a_longer_life_never_matches_less() {
    for (seed, mut rng) in rngs(300) {
        let (world, op) = hit(&mut rng);
        let Op::Lookup(ask) = &op else { continue };
        let mut last: BTreeMap<String, (i32, f32)> = BTreeMap::new();
        for minutes in [5, 20, 30, 50] {
            world.policy.set(&ask.tenant, Knobs { ttl: Some(minutes * MINUTE), ..Knobs::default() });
            let found = world.lookup(&op);
            if found.strategy != Strategy::PrefixMatch {
                assert!(last.is_empty(), "seed {seed}");
                continue;
            }
            let now: BTreeMap<_, _> =
                found.rows.iter().map(|row| (row.replica.to_string(), (row.matched_tokens, row.hit_prob))).collect();
            let exact = ask.blocks.is_empty();
            let grows = |replica: &String, (tokens, prob): &(i32, f32)| {
                now.get(replica).is_some_and(|row| row.0 >= *tokens && (!exact || row.1 >= *prob))
            };
            assert!(last.iter().all(|(replica, row)| grows(replica, row)), "seed {seed}: {last:?} {now:?}");
            last = now;
        }
    }
}

#[test]
fn m4_a_larger_cap_or_budget_never_evicts_more() {
    for (seed, mut rng) in rngs(100) {
        let names = Names::new(Shape::Small);
        let report = draw(&mut rng, &names, |op| matches!(op, Op::Ingest(_)));
        let Op::Ingest(report) = report else { continue };
        let before = rng.clone();
        let survivors = |cap: u64, budget: Option<i64>| {
            // The same history without bounds, moved under the bound by one last report.
            let mut rng = before.clone();
            let world = World::with(|options| options.max_entries = cap);
            let same = |policy: &PolicyTable| policy.set("t", Knobs { quota: budget, ..Knobs::default() });
            let entries = draw(&mut rng, &names, |op| matches!(op, Op::Ingest(report) if report.entries.len() > 2));
            same(&world.policy);
            world.apply(&entries);
            world.apply(&Op::Ingest(report.clone()));
            world.dump().entries.len()
        };
        let by_cap: Vec<usize> = [1, 2, 5, 9, 0].map(|cap| survivors(cap, None)).to_vec();
        let by_budget: Vec<usize> =
            [Some(0), Some(1), Some(3), Some(8), None].map(|budget| survivors(0, budget)).to_vec();
        assert!(by_cap.is_sorted() && by_budget.is_sorted(), "seed {seed}: {by_cap:?} {by_budget:?}");
    }
}

#[test]
fn m5_use_counts_never_fall_while_an_entry_lives() {
    for (seed, mut rng) in rngs(60) {
        let world = World::with(|options| options.max_entries = 20);
        let mut last = world.dump();
        for _ in 0..300 {
            let op = Op::random(&mut rng, &world.names);
            world.apply(&op);
            let now = world.dump();
            for entry in &last.entries {
                let later =
                    now.entries.iter().find(|other| other.key() == entry.key() && other.replica == entry.replica);
                assert!(later.is_none_or(|later| later.access_count >= entry.access_count), "seed {seed}: {op:?}");
            }
            last = now;
        }
    }
}
