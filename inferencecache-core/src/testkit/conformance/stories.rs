//! The stories: one promise each.

use std::sync::Arc;

use super::Make;
use crate::RESERVED_TENANT;
use crate::index::{IndexApi, IndexOptions};
use crate::query::{HashList, Lookup, Query, Strategy};
use crate::resolve::{Eviction, Resolvers};
use crate::testkit::doubles::{Call, Knobs, PolicyTable, RecordingSink};
use crate::testkit::generate::{EPOCH, MINUTE};
use crate::time::{Clock, ManualClock, Micros};
use crate::update::{Entry, Event, EventKind, Stats, Update};

type Story = (&'static str, fn(&Stage<'_>));

/// Every story, by its name.
const STORIES: &[Story] = &[
    ("an exact key is found until it is as old as the TTL", exact_key_lives_as_long_as_its_ttl),
    ("a chain is matched from its root and no further than it is held", chain_is_matched_from_its_root),
    ("a dropped replica does not come back into a run", hole_ends_the_run),
    ("rows go by score, then by id", rows_go_by_score_then_id),
    ("adapters and schemes are apart", partitions_are_apart),
    ("a removal by event removes what it names and no more", removal_is_exact),
    ("a miss is classified outermost first", misses_are_classified),
    ("a warm replica answers an exact miss only", warmth_answers_exact_misses),
    ("a refused entry harms no other", refusals_are_single),
    ("the cap holds exactly", cap_is_exact),
    ("the quota takes whole prefixes, the oldest first", quota_takes_whole_prefixes),
    ("used entries outlive unused ones in an LFU namespace", use_protects),
    ("only delivered rows are credited", only_delivered_rows_are_credited),
    ("a late credit never reaches a successor", late_credit_is_lost),
    ("reserved tenants are served and never shown", reserved_is_hidden),
    ("the sink hears every change once", sink_hears_changes_once),
    ("the pick is stable", pick_is_stable),
    ("extremes do no harm", extremes_do_no_harm),
];

/// An index and what a story moves around it.
struct Stage<'a> {
    make: &'a Make<'a>,
    clock: ManualClock,
    policy: Arc<PolicyTable>,
    sink: Arc<RecordingSink>,
}

/// The scope of all stories.
const QUERY: Query<'static> = Query {
    tenant: "t",
    model: "m",
    scheme: "s",
    adapter: "",
    prefix_hash: b"",
    block_hashes: HashList::Slices(&[]),
    block_token_counts: &[],
    ttft_ms: 0,
};

pub(super) fn all(make: &Make<'_>) {
    for (name, story) in STORIES {
        let stage = Stage {
            make,
            clock: ManualClock::at(EPOCH),
            policy: Arc::new(PolicyTable::default()),
            sink: Arc::new(RecordingSink::default()),
        };
        let told = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| story(&stage)));
        assert!(told.is_ok(), "not so: {name}");
    }
}

// === impl Stage ===

impl Stage<'_> {
    fn index(&self) -> Arc<dyn IndexApi> {
        self.capped(0)
    }

    fn capped(&self, max_entries: u64) -> Arc<dyn IndexApi> {
        (self.make)(IndexOptions {
            max_entries,
            clock: Arc::new(self.clock.clone()),
            resolvers: Resolvers::all(&self.policy),
            sink: self.sink.clone(),
            ..IndexOptions::default()
        })
    }

    fn ago(&self, minutes: Micros) -> Micros {
        self.clock.now() - minutes * MINUTE
    }
}

fn update<'a>(replica: &'a str, entries: &'a [Entry<'a>]) -> Update<'a> {
    Update { replica, model: "m", tenant: "t", scheme: "s", entries, ..Update::default() }
}

fn single(hash: &[u8], token_count: i32) -> Entry<'_> {
    Entry { prefix_hash: hash, token_count, ..Entry::default() }
}

fn chain<'a>(hashes: &'a [&'a [u8]], counts: &'a [i32]) -> Entry<'a> {
    Entry { block_hashes: HashList::Slices(hashes), block_token_counts: counts, ..Entry::default() }
}

fn store(index: &dyn IndexApi, replica: &str, hash: &[u8], timestamp: Micros) {
    index.ingest(&Update { timestamp, ..update(replica, &[single(hash, 10)]) });
}

fn exact(hash: &[u8]) -> Query<'_> {
    Query { prefix_hash: hash, ..QUERY }
}

fn ask(index: &dyn IndexApi, query: &Query<'_>) -> Lookup {
    let mut found = Lookup::new();
    index.lookup_route(query, &mut found);
    found
}

/// Replicas and matched tokens of an answer.
fn matched(index: &dyn IndexApi, query: &Query<'_>) -> Vec<(String, i32)> {
    ask(index, query).rows.iter().map(|row| (row.replica.to_string(), row.matched_tokens)).collect()
}

fn pairs(list: &[(&str, i32)]) -> Vec<(String, i32)> {
    list.iter().map(|&(replica, tokens)| (replica.to_owned(), tokens)).collect()
}

// === stories ===

fn exact_key_lives_as_long_as_its_ttl(stage: &Stage<'_>) {
    let index = stage.index();
    store(&*index, "r", b"young", stage.ago(29));
    store(&*index, "r", b"old", stage.ago(30));
    assert_eq!(ask(&*index, &exact(b"young")).strategy, Strategy::PrefixMatch);
    assert_eq!(ask(&*index, &exact(b"old")).strategy, Strategy::None);
    assert_eq!(index.storage_entries(), (2, 0));
    index.sweep();
    assert_eq!(index.storage_entries(), (1, 0));
}

fn chain_is_matched_from_its_root(stage: &Stage<'_>) {
    let index = stage.index();
    let hashes: [&[u8]; 4] = [b"h1", b"h2", b"h3", b"other"];
    index.ingest(&update("deep", &[chain(&hashes[..3], &[16, 16, 16])]));
    index.ingest(&update("flat", &[chain(&hashes[..1], &[16])]));
    index.ingest(&update("tail", &[chain(&hashes[1..], &[16, 16, 16])]));
    let query = Query { block_hashes: HashList::Slices(&hashes), block_token_counts: &[64, 64, 64, 64], ..QUERY };
    assert_eq!(matched(&*index, &query), pairs(&[("deep", 192), ("flat", 64)]));
    // A block alone counts what was stored with it.
    assert_eq!(ask(&*index, &exact(b"h3")).rows.iter().map(|row| row.matched_tokens).max(), Some(48));
}

fn hole_ends_the_run(stage: &Stage<'_>) {
    let index = stage.index();
    let hashes: [&[u8]; 3] = [b"h1", b"h2", b"h3"];
    index.ingest(&update("r", &[chain(&hashes, &[16, 16, 16])]));
    let kind = EventKind::PrefixEvicted;
    index.apply_event(&Event { kind, replica: "r", model: "m", tenant: "t", prefix_hash: b"h2", ..Event::default() });
    let query = Query { block_hashes: HashList::Slices(&hashes), block_token_counts: &[16, 16, 16], ..QUERY };
    assert_eq!(matched(&*index, &query), pairs(&[("r", 16)]));
}

fn rows_go_by_score_then_id(stage: &Stage<'_>) {
    let index = stage.index();
    for replica in ["r2", "r10", "r1"] {
        index.ingest(&update(replica, &[single(b"p", 10)]));
    }
    index.ingest(&update("best", &[single(b"p", 20)]));
    index.ingest(&update("none", &[single(b"q", 20)]));
    assert_eq!(matched(&*index, &exact(b"p")), pairs(&[("best", 20), ("r1", 10), ("r10", 10), ("r2", 10)]));
    let scores: Vec<f32> = ask(&*index, &exact(b"p")).rows.iter().map(|row| row.score).collect();
    let power = (1.0_f64 - 4.0 / 5.0) as f32;
    assert_eq!(scores, [20.0 * power, 10.0 * power, 10.0 * power, 10.0 * power]);
}

fn partitions_are_apart(stage: &Stage<'_>) {
    let index = stage.index();
    index.ingest(&Update { adapter: "sql", ..update("r", &[single(b"p", 10)]) });
    assert_eq!(matched(&*index, &exact(b"p")), []);
    assert_eq!(matched(&*index, &Query { adapter: "sql", ..exact(b"p") }), pairs(&[("r", 10)]));
    assert_eq!(ask(&*index, &Query { scheme: "x", ..exact(b"p") }).strategy, Strategy::UnknownHashScheme);
    assert_eq!(ask(&*index, &Query { adapter: "new", ..exact(b"p") }).strategy, Strategy::None);
}

fn removal_is_exact(stage: &Stage<'_>) {
    let index = stage.index();
    for (replica, adapter) in [("r", ""), ("r", "sql"), ("other", "")] {
        index.ingest(&Update { adapter, ..update(replica, &[single(b"p", 10), single(b"q", 10)]) });
    }
    let event = Event { replica: "r", model: "m", tenant: "t", prefix_hash: b"p", ..Event::default() };
    index.apply_event(&Event { kind: EventKind::PrefixAdded, ..event });
    assert_eq!(index.storage_entries(), (6, 0));
    index.apply_event(&Event { kind: EventKind::PrefixEvicted, adapter: "sql", ..event });
    assert_eq!(index.storage_entries(), (5, 0));
    assert_eq!(matched(&*index, &exact(b"p")).len(), 2);
    index.apply_event(&Event { kind: EventKind::PrefixEvicted, ..event });
    assert_eq!(matched(&*index, &exact(b"p")), pairs(&[("other", 10)]));
    index.apply_event(&Event { kind: EventKind::AllCleared, ..event });
    assert_eq!(index.storage_entries(), (2, 0));
    assert_eq!(index.aggregate().total, 2);
}

fn misses_are_classified(stage: &Stage<'_>) {
    let index = stage.index();
    assert_eq!(ask(&*index, &exact(b"p")).strategy, Strategy::None);
    index.ingest(&Update { tenant: RESERVED_TENANT, ..update("r", &[single(b"p", 10)]) });
    assert_eq!(ask(&*index, &exact(b"p")).strategy, Strategy::None);
    store(&*index, "r", b"p", 0);
    assert_eq!(ask(&*index, &Query { tenant: "x", model: "x", ..exact(b"p") }).strategy, Strategy::UnknownTenant);
    assert_eq!(ask(&*index, &Query { model: "x", scheme: "x", ..exact(b"p") }).strategy, Strategy::UnknownModel);
    assert_eq!(ask(&*index, &Query { scheme: "x", ..exact(b"p") }).strategy, Strategy::UnknownHashScheme);
    assert_eq!(ask(&*index, &exact(b"new")).strategy, Strategy::None);
    let malformed = Query { tenant: "x", block_token_counts: &[16], ..QUERY };
    assert_eq!(ask(&*index, &malformed).strategy, Strategy::None);
}

fn warmth_answers_exact_misses(stage: &Stage<'_>) {
    let index = stage.index();
    let stats = Some(Stats { hit_rate: 0.5, ..Stats::default() });
    index.ingest(&Update { stats, ..update("r", &[single(b"p", 10)]) });
    index.ingest(&Update { stats, ..update("serves nothing", &[]) });
    let found = ask(&*index, &exact(b"new"));
    assert_eq!(found.strategy, Strategy::TenantHot);
    let rows: Vec<_> = found.rows.iter().map(|row| (&*row.replica, row.score, row.hit_prob, row.tier)).collect();
    assert_eq!(rows, [("r", 0.5, 0.5, 0)]);
    let hashes: [&[u8]; 1] = [b"new"];
    let query = Query { block_hashes: HashList::Slices(&hashes), block_token_counts: &[16], ..QUERY };
    assert_eq!(ask(&*index, &query).strategy, Strategy::None);
}

fn refusals_are_single(stage: &Stage<'_>) {
    let index = stage.index();
    let hashes: [&[u8]; 2] = [b"a", b"b"];
    let with_hole: [&[u8]; 2] = [b"a", b""];
    let bad = [
        chain(&hashes, &[16]),
        chain(&with_hole, &[16, 16]),
        chain(&hashes, &[16, -1]),
        single(b"", 1),
        single(b"n", -1),
        single(b"ok", 1),
    ];
    let dropped = index.ingest(&update("r", &bad));
    assert_eq!(dropped.total(), 5);
    assert_eq!(index.storage_entries(), (1, 0));
    assert_eq!(index.ingest(&Update { scheme: "", ..update("r", &[single(b"x", 1)]) }).no_scheme, 1);
    assert_eq!(index.ingest(&update("", &[single(b"x", 1)])).no_replica, 1);
    assert_eq!(index.storage_entries(), (1, 0));
}

fn cap_is_exact(stage: &Stage<'_>) {
    let index = stage.capped(3);
    for (age, hash) in [(5, b"a"), (4, b"b"), (3, b"c"), (2, b"d"), (1, b"e")] {
        store(&*index, "r", hash, stage.ago(age));
    }
    assert_eq!(index.storage_entries(), (3, 0));
    assert_eq!(matched(&*index, &exact(b"b")), []);
    assert_eq!(matched(&*index, &exact(b"c")), pairs(&[("r", 10)]));
    assert_eq!(stage.sink.totals().evicted, [(("lru", "cap"), 2)].into());
}

fn quota_takes_whole_prefixes(stage: &Stage<'_>) {
    let index = stage.index();
    stage.policy.set("t", Knobs { quota: Some(2), ..Knobs::default() });
    for (replica, age, hash) in [("r1", 9, b"a"), ("r2", 8, b"a"), ("r1", 7, b"b"), ("r1", 6, b"c")] {
        store(&*index, replica, hash, stage.ago(age));
    }
    assert_eq!(matched(&*index, &exact(b"a")), []);
    assert_eq!(index.storage_entries(), (2, 0));
    assert_eq!(stage.sink.totals().over_quota, [("t".to_owned(), 1)].into());
    stage.policy.set("t", Knobs { quota: Some(0), ..Knobs::default() });
    index.ingest(&update("r1", &[]));
    assert_eq!(index.storage_entries(), (0, 0));
}

fn use_protects(stage: &Stage<'_>) {
    let index = stage.capped(2);
    stage.policy.set("t", Knobs { eviction: Some(Eviction::Lfu), ..Knobs::default() });
    store(&*index, "r", b"used", stage.ago(9));
    ask(&*index, &exact(b"used")).credit_hits();
    store(&*index, "r", b"idle", stage.ago(8));
    store(&*index, "r", b"new", stage.ago(1));
    assert_eq!(matched(&*index, &exact(b"used")), pairs(&[("r", 10)]));
    assert_eq!(matched(&*index, &exact(b"idle")), []);
}

fn only_delivered_rows_are_credited(stage: &Stage<'_>) {
    let index = stage.capped(2);
    stage.policy.set("t", Knobs { eviction: Some(Eviction::Lfu), ..Knobs::default() });
    store(&*index, "kept", b"p", stage.ago(9));
    store(&*index, "refused", b"p", stage.ago(8));
    let mut found = ask(&*index, &exact(b"p"));
    found.retain(|row| &*row.replica == "kept");
    found.credit_hits();
    store(&*index, "kept", b"new", stage.ago(1));
    assert_eq!(matched(&*index, &exact(b"p")), pairs(&[("kept", 10)]));
}

fn late_credit_is_lost(stage: &Stage<'_>) {
    let index = stage.capped(2);
    stage.policy.set("t", Knobs { eviction: Some(Eviction::Lfu), ..Knobs::default() });
    store(&*index, "r", b"p", stage.ago(9));
    let found = ask(&*index, &exact(b"p"));
    let event = Event { replica: "r", model: "m", tenant: "t", ..Event::default() };
    index.apply_event(&Event { kind: EventKind::AllCleared, ..event });
    store(&*index, "r", b"p", stage.ago(9));
    found.credit_hits();
    store(&*index, "r", b"q", stage.ago(8));
    store(&*index, "r", b"z", stage.ago(7));
    assert_eq!(matched(&*index, &exact(b"p")), []);
}

fn reserved_is_hidden(stage: &Stage<'_>) {
    let index = stage.capped(1);
    let stats = Some(Stats { hit_rate: 0.5, ..Stats::default() });
    let probe = Update { tenant: RESERVED_TENANT, stats, ..update("r", &[]) };
    let entries = [single(b"p", 10), single(b"q", 10)];
    index.ingest(&Update { entries: &entries, ..probe });
    assert_eq!(matched(&*index, &Query { tenant: RESERVED_TENANT, ..exact(b"p") }), pairs(&[("r", 10)]));
    store(&*index, "r", b"p", 0);
    assert_eq!(index.storage_entries(), (3, 2));
    assert_eq!(index.aggregate().total, 1);
    let snapshot = index.snapshot();
    assert_eq!((snapshot.total_prefixes, snapshot.replicas.len(), snapshot.tenants.len()), (1, 1, 1));
    assert_eq!(stage.sink.totals().gauges, [("m".to_owned(), 1)].into());
}

fn sink_hears_changes_once(stage: &Stage<'_>) {
    let index = stage.index();
    store(&*index, "r", b"p", 0);
    stage.clock.set(stage.clock.now() + 31 * MINUTE);
    index.sweep();
    index.sweep();
    let calls: Vec<String> = stage.sink.take_calls().iter().map(|call: &Call| format!("{call:?}")).collect();
    let changes: Vec<&str> = calls.iter().map(String::as_str).collect();
    assert_eq!(changes.first(), Some(&"set(m,1)"));
    assert_eq!(changes.iter().filter(|call| **call == "set(m,0)").count(), 1);
    assert_eq!(changes.iter().filter(|call| **call == "idx(lru,ttl,1)").count(), 1);
}

fn pick_is_stable(stage: &Stage<'_>) {
    let index = stage.index();
    assert_eq!(index.affinity_hint("t", "m", "s", b"any-seed"), None);
    for replica in ["r-3", "r-1", "r-2"] {
        store(&*index, replica, b"p", 0);
    }
    assert_eq!(index.affinity_hint("t", "m", "s", b"any-seed").as_deref(), Some("r-2"));
    assert_eq!(index.affinity_hint("t", "m", "s", b"abcd").as_deref(), Some("r-1"));
    assert_eq!(index.affinity_hint("t", "m", "s", b""), None);
    assert_eq!(index.affinity_hint("t", "m", "", b"abcd"), None);
}

fn extremes_do_no_harm(stage: &Stage<'_>) {
    let index = stage.index();
    let words: Vec<[u8; 8]> = (0..100_000_u64).map(u64::to_be_bytes).collect();
    let counts = vec![i32::MAX; words.len()];
    let long = Entry {
        block_hashes: HashList::Words(&words),
        block_token_counts: &counts,
        tier: i32::MIN,
        ..Entry::default()
    };
    let few = [Entry { block_hashes: HashList::Words(&words[..100]), block_token_counts: &counts[..100], ..long }];
    let stats = Some(Stats {
        cache_memory_bytes: i64::MIN,
        hit_rate: f32::MAX,
        pressure: f32::MIN,
        t2_hit_tokens: i64::MAX,
        t2_query_tokens: i64::MIN,
    });
    for (replica, timestamp) in [("first", i64::MIN), ("last", i64::MAX), ("minus", -1)] {
        index.ingest(&Update { timestamp, stats, ..update(replica, &few) });
    }
    let query =
        Query { block_hashes: HashList::Words(&words), block_token_counts: &counts, ttft_ms: i32::MIN, ..QUERY };
    let found = ask(&*index, &query);
    assert_eq!(found.rows.iter().map(|row| row.matched_tokens).collect::<Vec<_>>(), [i32::MAX]);
    assert!(found.rows.iter().all(|row| row.score.is_finite()));
    assert!(ask(&*index, &exact(b"new")).rows.iter().all(|row| !row.score.is_nan()));
    index.sweep();
    assert_eq!(index.storage_entries(), (100, 0));
    let dropped = index.ingest(&Update { replica: "", ..update("", std::slice::from_ref(&long)) });
    assert_eq!(dropped.no_replica, 1);
}
