//! Many threads on one index: what a reader may see, and what is left when all is quiet.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use inferencecache_core::query::HashList;
use inferencecache_core::testkit::generate::{Ask, EPOCH, Hash, MINUTE, Names, Op, Shape};
use inferencecache_core::testkit::subject::{ingest, notify};
use inferencecache_core::testkit::{Inspect, Knobs, Model, PolicyTable, RecordingSink, TestIndex, check};
use inferencecache_core::{
    Entry, Event, EventKind, Eviction, Index, IndexApi, IndexOptions, Lookup, ManualClock, Query, RESERVED_TENANT,
    Resolvers, Strategy, Update,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// How often each thread does what it does. `make soak` raises it.
const ROUNDS: usize = 2_000;
const SOAK: usize = 20;

struct Ground {
    clock: ManualClock,
    policy: Arc<PolicyTable>,
    sink: Arc<RecordingSink>,
}

impl Ground {
    fn new() -> Self {
        Self {
            clock: ManualClock::at(EPOCH),
            policy: Arc::new(PolicyTable::default()),
            sink: Arc::new(RecordingSink::default()),
        }
    }

    fn options(&self, max_entries: u64) -> IndexOptions {
        IndexOptions {
            max_entries,
            clock: Arc::new(self.clock.clone()),
            resolvers: Resolvers::all(&self.policy),
            sink: self.sink.clone(),
            ..IndexOptions::default()
        }
    }

    fn apply(&self, index: &dyn IndexApi, op: &Op) {
        match op {
            Op::Ingest(report) => drop(ingest(index, report, &self.clock)),
            Op::Event(notice) => notify(index, notice, &self.clock),
            Op::Sweep => index.sweep(),
            _ => {}
        }
    }

    /// What must hold when nobody writes: the structure, and gauges that show what is stored.
    fn check_quiet(&self, index: &impl TestIndex) {
        check::structure(index, &[RESERVED_TENANT.to_owned()]).unwrap();
        let live = index.entry_counts_by_model();
        for (model, shown) in self.sink.totals().gauges {
            assert_eq!(shown, live.get(&*model).copied().unwrap_or(0), "gauge of {model}");
        }
    }
}

fn chain<'a>(hashes: &'a HashList<'a>, counts: &'a [i32], tier: i32) -> Entry<'a> {
    Entry { block_hashes: *hashes, block_token_counts: counts, tier, ..Entry::default() }
}

fn query<'a>(hashes: &HashList<'a>, counts: &'a [i32]) -> Query<'a> {
    Query {
        tenant: "t",
        model: "m",
        scheme: "s",
        block_hashes: *hashes,
        block_token_counts: counts,
        ..Query::default()
    }
}

// === one chain, written whole ===

/// A chain of `blocks` blocks, every third hash of another length than eight bytes.
fn hashes(blocks: usize) -> Vec<Vec<u8>> {
    (0..blocks as u64)
        .map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes().repeat(1 + usize::from(n % 3 == 2)))
        .collect()
}

/// A refresh is seen whole or not at all: the tier of a run is that of its coldest block and its freshness that of its
/// oldest one, so of two states (warm, old) and (cold, new) any mixture shows as (cold, old).
fn refreshes_are_never_torn(index: &dyn IndexApi, rounds: usize) {
    let words = hashes(256);
    let (list, counts) = (HashList::Vecs(&words), vec![16; words.len()]);
    let stop = AtomicBool::new(false);
    let write = |replica: &str, tier: i32| {
        let timestamp = EPOCH - if tier == 1 { 10 } else { 5 } * MINUTE;
        let entries = [chain(&list, &counts, tier)];
        index.ingest(&Update {
            replica,
            tenant: "t",
            model: "m",
            scheme: "s",
            timestamp,
            entries: &entries,
            ..Update::default()
        });
    };
    write("a", 1);
    write("b", 2);
    thread::scope(|scope| {
        for replica in ["a", "b"] {
            let (write, stop) = (&write, &stop);
            scope.spawn(move || {
                for round in 0..rounds / 10 {
                    write(replica, 1 + round as i32 % 2);
                }
                stop.store(true, Ordering::SeqCst);
            });
        }
        for _ in 0..2 {
            scope.spawn(|| {
                let mut found = Lookup::new();
                while !stop.load(Ordering::SeqCst) {
                    index.lookup_route(&query(&list, &counts), &mut found);
                    assert_eq!(found.rows.len(), 2);
                    for row in &found.rows {
                        let minutes = if row.tier == 1 { 10.0 } else { 5.0 };
                        assert_eq!(row.matched_tokens, 256 * 16, "torn: {row:?}");
                        assert_eq!(row.hit_prob, (1.0_f64 - minutes / 30.0) as f32, "torn: {row:?}");
                    }
                }
            });
        }
    });
}

/// A chain that comes with one update and goes with one clear is there whole or not at all.
fn stores_and_clears_are_never_torn(index: &dyn IndexApi, rounds: usize) {
    let words = hashes(200);
    let (list, counts) = (HashList::Vecs(&words), vec![16; words.len()]);
    let (stop, hits, misses) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let identity = Update { replica: "a", tenant: "t", model: "m", scheme: "s", ..Update::default() };
    thread::scope(|scope| {
        scope.spawn(|| {
            let met = || hits.load(Ordering::SeqCst).min(misses.load(Ordering::SeqCst)) > 10;
            let mut round = 0;
            let started = Instant::now();
            while round < rounds / 10 || !met() && started.elapsed() < Duration::from_secs(20) {
                round += 1;
                index.ingest(&Update { entries: &[chain(&list, &counts, 1)], ..identity });
                linger();
                // Something stays, so that the partition does not go with the chain in every round.
                let entries = [Entry { prefix_hash: b"other", token_count: 1, ..Entry::default() }];
                if round % 3 > 0 {
                    index.ingest(&Update { entries: &entries, replica: "b", ..identity });
                }
                let kind = EventKind::AllCleared;
                index.apply_event(&Event { kind, replica: "a", tenant: "t", model: "m", ..Event::default() });
                index.apply_event(&Event { kind, replica: "b", tenant: "t", model: "m", ..Event::default() });
                linger();
            }
            stop.store(true, Ordering::SeqCst);
        });
        for _ in 0..2 {
            scope.spawn(|| {
                let mut found = Lookup::new();
                while !stop.load(Ordering::SeqCst) {
                    index.lookup(&query(&list, &counts), &mut found);
                    match &found.rows[..] {
                        [] => misses.fetch_add(1, Ordering::SeqCst),
                        [row] if row.matched_tokens == 200 * 16 => hits.fetch_add(1, Ordering::SeqCst),
                        rows => panic!("torn: {rows:?}"),
                    };
                }
            });
        }
    });
    assert_eq!(index.storage_entries(), (0, 0));
}

/// Long enough for a reader to get through.
fn linger() {
    for _ in 0..5 {
        thread::yield_now();
    }
}

// === one writer whose every state is known ===

/// Rows without what spans partitions: who matched how much, how fresh and how cold.
type Rows = Vec<(Arc<str>, i32, u32, i32)>;

fn answer(index: &dyn IndexApi, ask: &Ask, found: &mut Lookup) -> Rows {
    let blocks: Vec<&[u8]> = ask.blocks.iter().map(|hash: &Hash| &*hash.0).collect();
    let query = Query {
        tenant: &ask.tenant,
        model: &ask.model,
        scheme: &ask.scheme,
        adapter: &ask.adapter,
        prefix_hash: &ask.key.0,
        block_hashes: HashList::Slices(&blocks),
        block_token_counts: &ask.counts,
        ttft_ms: 0,
    };
    index.lookup(&query, found);
    let mut rows: Rows = found
        .rows
        .iter()
        .map(|row| (row.replica.clone(), row.matched_tokens, row.hit_prob.to_bits(), row.tier))
        .collect();
    rows.sort();
    rows
}

/// Every answer is that of some state between the last write finished before and the last one begun after the lookup.
fn readers_see_only_states_that_were(shape: Shape, seed: u64, repeats: usize) {
    let writes = if shape == Shape::Small { 2_000 } else { 300 };
    let (ground, names) = (Ground::new(), Names::new(shape));
    let mut rng = SmallRng::seed_from_u64(seed);
    let next = |rng: &mut SmallRng, wanted: &dyn Fn(&Op) -> bool| loop {
        let op = Op::random(rng, &names);
        if wanted(&op) {
            break op;
        }
    };
    let asks: Vec<Ask> = (0..16)
        .map(|_| match next(&mut rng, &|op| matches!(op, Op::Lookup(ask) if *ask.tenant == *"t")) {
            Op::Lookup(ask) => ask,
            _ => unreachable!(),
        })
        .collect();
    let ops: Vec<Op> = (0..writes)
        .map(|_| {
            next(&mut rng, &|op| match op {
                Op::Ingest(report) => *report.tenant == *"t",
                Op::Event(notice) => *notice.tenant == *"t",
                Op::Sweep => true,
                _ => false,
            })
        })
        .collect();
    let model = Model::new(Ground { clock: ground.clock.clone(), ..Ground::new() }.options(0));
    let mut found = Lookup::new();
    let mut states = vec![asks.iter().map(|ask| answer(&model, ask, &mut found)).collect::<Vec<_>>()];
    for op in &ops {
        ground.apply(&model, op);
        states.push(asks.iter().map(|ask| answer(&model, ask, &mut found)).collect());
    }

    for _ in 0..repeats {
        let index = Index::new(ground.options(0));
        watch(&index, &ground, &ops, &asks, &states);
        assert_eq!(model.dump().diff(&index.dump()), "", "seed {seed}");
        check::structure(&index, &[RESERVED_TENANT.to_owned()]).unwrap();
    }
}

/// Plays `ops` while others ask. `states` are the right answers before the first write and after each.
fn watch(index: &Index, ground: &Ground, ops: &[Op], asks: &[Ask], states: &[Vec<Rows>]) {
    let (begun, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            for (step, op) in ops.iter().enumerate() {
                begun.store(step + 1, Ordering::SeqCst);
                ground.apply(index, op);
                done.store(step + 1, Ordering::SeqCst);
            }
        });
        for reader in 0..3 {
            let (begun, done) = (&begun, &done);
            scope.spawn(move || {
                let mut found = Lookup::new();
                let mut rng = SmallRng::seed_from_u64(reader);
                while done.load(Ordering::SeqCst) < ops.len() {
                    let which = rng.random_range(0..asks.len());
                    let earliest = done.load(Ordering::SeqCst);
                    let got = answer(index, &asks[which], &mut found);
                    let latest = begun.load(Ordering::SeqCst);
                    assert!(
                        states[earliest..=latest].iter().any(|state| state[which] == got),
                        "between writes {earliest} and {latest}: {:?}\nanswered {got:?}\nstates {:?}",
                        asks[which],
                        states[earliest..=latest].iter().map(|state| &state[which]).collect::<Vec<_>>(),
                    );
                }
            });
        }
    });
}

// === many writers ===

/// Writers that touch different replicas leave what they would have left one after the other.
fn disjoint_writers_leave_what_each_wrote(seed: u64, rounds: usize) {
    const WRITERS: u64 = 4;
    let (ground, names) = (Ground::new(), Names::new(Shape::Chains));
    let index = Index::new(ground.options(0));
    let model = Model::new(Ground { clock: ground.clock.clone(), ..Ground::new() }.options(0));
    let script = |writer: u64| {
        let mut rng = SmallRng::seed_from_u64(seed ^ writer << 32);
        let replica: Arc<str> = Arc::from(format!("w{writer}"));
        let mut script = Vec::new();
        while script.len() < rounds {
            let mut op = Op::random(&mut rng, &names);
            match &mut op {
                Op::Ingest(report) if !report.replica.is_empty() => report.replica = replica.clone(),
                Op::Event(notice) => notice.replica = replica.clone(),
                _ => continue,
            }
            script.push(op);
        }
        script
    };
    thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (script, ground, index) = (script(writer), &ground, &index);
            scope.spawn(move || script.iter().for_each(|op| ground.apply(index, op)));
        }
        scope.spawn(|| {
            for _ in 0..rounds / 4 {
                let _ = (index.snapshot(), index.aggregate(), index.cache_state("t", "m"));
                let _ = index.affinity_hint("t", "m", "vllm", b"seed");
            }
        });
    });
    for writer in 0..WRITERS {
        script(writer).iter().for_each(|op| ground.apply(&model, op));
    }
    assert_eq!(model.dump().diff(&index.dump()), "", "seed {seed}");
    ground.check_quiet(&index);
}

/// Everything at once, bounded by a cap and budgets: the bounds hold when the last call has returned.
fn bounds_hold_at_the_end(seed: u64, rounds: usize) {
    let (ground, names) = (Ground::new(), Names::new(Shape::Small));
    let index = Index::new(ground.options(40));
    ground.policy.set("t", Knobs { quota: Some(12), eviction: Some(Eviction::Lfu), ttl: None });
    thread::scope(|scope| {
        for writer in 0..5 {
            let (ground, names, index) = (&ground, &names, &index);
            scope.spawn(move || {
                let mut rng = SmallRng::seed_from_u64(seed ^ writer << 32);
                let mut found = Lookup::new();
                for _ in 0..rounds {
                    match Op::random(&mut rng, names) {
                        Op::Lookup(ask) => {
                            answer(index, &ask, &mut found);
                            found.credit_hits();
                        }
                        Op::Policy(tenant, knobs) if *tenant != *"t" => ground.policy.set(&tenant, knobs),
                        op => ground.apply(index, &op),
                    }
                }
            });
        }
    });
    // The bounds are enforced by the calls that exceed them; budgets of other tenants may have been lowered since.
    let (total, reserved) = index.storage_entries();
    assert!(total - reserved <= 40, "{total} entries, {reserved} reserved");
    assert!(index.aggregate().by_tenant.get("t").is_none_or(|&keys| keys <= 12));
    ground.check_quiet(&index);
}

/// Concurrent credits add up exactly, refreshes and churn around them notwithstanding.
fn credits_are_never_lost(index: &impl TestIndex, rounds: usize) {
    const READERS: usize = 3;
    let words = hashes(60);
    let (list, counts) = (HashList::Vecs(&words), vec![16; words.len()]);
    let identity = Update { replica: "a", tenant: "t", model: "m", scheme: "s", ..Update::default() };
    index.ingest(&Update { entries: &[chain(&list, &counts, 1)], ..identity });
    let readers = AtomicUsize::new(READERS);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0_u64;
            while readers.load(Ordering::SeqCst) > 0 {
                round += 1;
                index.ingest(&Update { entries: &[chain(&list, &counts, 1)], ..identity });
                let word = round.to_be_bytes();
                let entries = [Entry { prefix_hash: &word, token_count: 1, ..Entry::default() }];
                index.ingest(&Update { replica: "b", entries: &entries, ..identity });
                if round.is_multiple_of(16) {
                    let kind = EventKind::AllCleared;
                    index.apply_event(&Event { kind, replica: "b", tenant: "t", model: "m", ..Event::default() });
                }
            }
        });
        for _ in 0..READERS {
            scope.spawn(|| {
                let _leaves = Leaves(&readers);
                let mut found = Lookup::new();
                for _ in 0..rounds {
                    index.lookup_route(&query(&list, &counts), &mut found);
                    assert_eq!((found.strategy, found.captures.len()), (Strategy::PrefixMatch, words.len()));
                    found.credit_hits();
                }
            });
        }
    });
    let dump = index.dump();
    let kept: Vec<u64> = dump.entries.iter().filter(|e| &*e.replica == "a").map(|e| e.access_count).collect();
    assert_eq!(kept, vec![(READERS * rounds) as u64; words.len()]);
}

/// Counts a thread out, however it ends.
struct Leaves<'a>(&'a AtomicUsize);

impl Drop for Leaves<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

// === tests ===

fn lfu_index(ground: &Ground) -> Index {
    ground.policy.set("t", Knobs { eviction: Some(Eviction::Lfu), ..Knobs::default() });
    Index::new(ground.options(0))
}

fn everything(factor: usize) {
    for round in 0..factor as u64 {
        refreshes_are_never_torn(&Index::new(Ground::new().options(0)), ROUNDS);
        stores_and_clears_are_never_torn(&Index::new(Ground::new().options(0)), ROUNDS);
        for shape in [Shape::Small, Shape::Chains, Shape::Crowd] {
            readers_see_only_states_that_were(shape, round, 20);
        }
        disjoint_writers_leave_what_each_wrote(round, ROUNDS / 4);
        bounds_hold_at_the_end(round, ROUNDS);
        credits_are_never_lost(&lfu_index(&Ground::new()), ROUNDS);
    }
}

#[test]
fn refreshes_are_seen_whole() {
    refreshes_are_never_torn(&Index::new(Ground::new().options(0)), ROUNDS);
}

#[test]
fn stores_and_clears_are_seen_whole() {
    stores_and_clears_are_never_torn(&Index::new(Ground::new().options(0)), ROUNDS);
}

#[test]
fn answers_are_those_of_states_that_were() {
    for shape in [Shape::Small, Shape::Chains, Shape::Crowd] {
        readers_see_only_states_that_were(shape, 1, 20);
    }
}

#[test]
fn writers_do_not_disturb_each_other() {
    disjoint_writers_leave_what_each_wrote(1, ROUNDS / 4);
}

#[test]
fn bounds_hold_after_a_race() {
    bounds_hold_at_the_end(1, ROUNDS);
}

#[test]
fn credits_add_up() {
    credits_are_never_lost(&lfu_index(&Ground::new()), ROUNDS);
}

#[test]
fn the_witnesses_hold_for_the_oracle() {
    let ground = Ground::new();
    ground.policy.set("t", Knobs { eviction: Some(Eviction::Lfu), ..Knobs::default() });
    let model = || Model::new(ground.options(0));
    refreshes_are_never_torn(&model(), 100);
    stores_and_clears_are_never_torn(&model(), 100);
    credits_are_never_lost(&model(), 20);
}

#[test]
#[ignore = "long: make soak"]
fn everything_for_long() {
    everything(SOAK);
}
