//! The index after a restart from its image: nothing it answers has changed, and no damaged image is taken.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock};

use inferencecache_core::index::{Aggregate, CacheState, RestoreError, Snapshot};
use inferencecache_core::testkit::differential::{Coverage, Episode};
use inferencecache_core::testkit::generate::{Credit, Op};
use inferencecache_core::testkit::{Dump, Inspect, Model, Subject, check};
use inferencecache_core::update::Dropped;
use inferencecache_core::{
    Entry, Event, EventKind, HashList, Index, IndexApi, IndexOptions, Lookup, Query, Strategy, Update,
};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::{World, rngs};

fn saved(index: &Index) -> Vec<u8> {
    let mut image = Vec::new();
    let size = index.save(&mut image).expect("memory takes everything");
    assert_eq!(size.bytes, image.len() as u64);
    image
}

/// An index that restarts from its image after each sweep.
#[derive(Debug)]
struct Restarting {
    options: IndexOptions,
    index: RwLock<Arc<Index>>,
}

impl Restarting {
    fn new(options: IndexOptions) -> Self {
        let index = RwLock::new(Arc::new(Index::new(options.clone())));
        Self { options, index }
    }

    fn index(&self) -> Arc<Index> {
        self.index.read().expect("unpoisoned").clone()
    }
}

impl IndexApi for Restarting {
    fn ingest(&self, update: &Update<'_>) -> Dropped {
        self.index().ingest(update)
    }
    fn apply_event(&self, event: &Event<'_>) {
        self.index().apply_event(event);
    }
    fn lookup(&self, query: &Query<'_>, out: &mut Lookup) {
        self.index().lookup(query, out);
    }
    fn lookup_route(&self, query: &Query<'_>, out: &mut Lookup) {
        self.index().lookup_route(query, out);
    }
    fn affinity_hint(&self, tenant: &str, model: &str, scheme: &str, seed: &[u8]) -> Option<Arc<str>> {
        self.index().affinity_hint(tenant, model, scheme, seed)
    }
    fn has_any_tenant(&self, tenant: &str) -> bool {
        self.index().has_any_tenant(tenant)
    }
    fn has_any_tenant_model(&self, tenant: &str, model: &str) -> bool {
        self.index().has_any_tenant_model(tenant, model)
    }
    fn has_any_tenant_model_scheme(&self, tenant: &str, model: &str, scheme: &str) -> bool {
        self.index().has_any_tenant_model_scheme(tenant, model, scheme)
    }
    fn cache_state(&self, tenant: &str, model: &str) -> CacheState {
        self.index().cache_state(tenant, model)
    }
    fn aggregate(&self) -> Aggregate {
        self.index().aggregate()
    }
    fn snapshot(&self) -> Snapshot {
        self.index().snapshot()
    }
    fn entry_counts_by_model(&self) -> BTreeMap<Arc<str>, u64> {
        self.index().entry_counts_by_model()
    }
    fn storage_entries(&self) -> (u64, u64) {
        self.index().storage_entries()
    }
    fn sweep(&self) {
        let index = self.index();
        index.sweep();
        let image = saved(&index);
        let (restored, size) = Index::restore(self.options.clone(), &*image).expect("a whole image");
        assert_eq!((size.bytes, size.entries), (image.len() as u64, index.storage_entries().0));
        restored.check().expect("sound");
        *self.index.write().expect("unpoisoned") = Arc::new(restored);
    }
}

impl Inspect for Restarting {
    fn dump(&self) -> Dump {
        self.index().dump()
    }
}

/// What was looked up before a restart credits nothing after it, so all credit is given at once.
fn without_late_credit(mut episode: Episode) -> Episode {
    episode.ops.retain(|op| !matches!(op, Op::CreditLate));
    for op in &mut episode.ops {
        if let Op::Lookup(ask) = op
            && let Credit::Late(mask) = ask.credit
        {
            ask.credit = Credit::Now(mask);
        }
    }
    episode
}

#[test]
fn the_index_answers_as_the_oracle_does_over_restarts() {
    let model = |options| Subject::open(Model::new(options));
    let restarting = |options| Subject::open(Restarting::new(options));
    let mut coverage = Coverage::default();
    let mut rng = SmallRng::seed_from_u64(17);
    for _ in 0..60 {
        let episode = without_late_credit(Episode::random(rng.random(), 2_000));
        if let Err(first) = episode.play(&model, &restarting, 8, &mut coverage) {
            panic!("{}", episode.report(&first, &model, &restarting));
        }
    }
    println!("{coverage:?}");
    let Coverage { strategies, rows, captures, over_quota, evicted, .. } = coverage;
    assert!(strategies.iter().chain(&evicted).chain([&rows, &captures, &over_quota]).all(|&count| count > 10));
}

/// A few entries of every kind: single and chained, of two lengths of hash, counted and not, with stats.
fn small_world() -> World {
    let world = World::new();
    let blocks: Vec<[u8; 8]> = (0..3u64).map(u64::to_be_bytes).collect();
    let blocks: Vec<&[u8]> = blocks.iter().map(|block| &block[..]).collect();
    for replica in ["a", "b"] {
        let chain =
            Entry { block_hashes: HashList::Slices(&blocks), block_token_counts: &[16, 16, 16], ..Entry::default() };
        let single = Entry { prefix_hash: b"longer than eight bytes", token_count: 5, tier: 2, ..Entry::default() };
        let entries = [chain, single];
        let stats = Some(inferencecache_core::Stats { pressure: 0.5, ..Default::default() });
        let update =
            Update { replica, model: "m", tenant: "t", scheme: "s", entries: &entries, stats, ..Update::default() };
        assert_eq!(world.index.ingest(&update).total(), 0);
    }
    world.policy.edit("t", |knobs| knobs.eviction = Some(inferencecache_core::Eviction::Lfu));
    assert_eq!(ask(&world.index, &blocks).strategy, Strategy::PrefixMatch);
    world
}

fn ask(index: &Index, blocks: &[&[u8]]) -> Lookup {
    let mut found = Lookup::new();
    let counts = vec![16; blocks.len()];
    let query = Query {
        tenant: "t",
        model: "m",
        scheme: "s",
        block_hashes: HashList::Slices(blocks),
        block_token_counts: &counts,
        ..Query::default()
    };
    index.lookup_route(&query, &mut found);
    found.credit_hits();
    found
}

fn options(world: &World) -> IndexOptions {
    IndexOptions { clock: Arc::new(world.clock.clone()), max_entries: 0, ..IndexOptions::default() }
}

#[test]
fn an_image_that_is_cut_or_changed_anywhere_is_refused() {
    let world = small_world();
    let image = saved(&world.index);
    let (whole, _) = Index::restore(options(&world), &*image).expect("whole");
    assert_eq!(whole.dump(), world.dump());
    for length in 0..image.len() {
        Index::restore(options(&world), &image[..length]).expect_err("cut");
    }
    for at in 0..image.len() {
        for flip in [1, 0x80, 0xff] {
            let mut bad = image.clone();
            bad[at] ^= flip;
            Index::restore(options(&world), &*bad).expect_err("changed");
        }
    }
    let mut more = image.clone();
    more.push(0);
    assert!(matches!(Index::restore(options(&world), &*more), Err(RestoreError::Damaged(_))));
    let mut newer = image;
    newer[8] += 1;
    assert!(matches!(Index::restore(options(&world), &*newer), Err(RestoreError::Version(2))));
    assert!(matches!(Index::restore(options(&world), &b"no image at all"[..]), Err(RestoreError::NotAnImage)));
}

/// The checksums of these images are right, what they say is not.
#[test]
fn whatever_an_image_says_nothing_breaks() {
    let world = small_world();
    let image = saved(&world.index);
    for (_, mut rng) in rngs(3_000) {
        let mut forged = image.clone();
        for _ in 0..rng.random_range(1..4) {
            let at = rng.random_range(12..forged.len());
            forged[at] = if rng.random() { rng.random() } else { [0, 1, 0x7f, 0xff][rng.random_range(0..4)] };
        }
        seal(&mut forged);
        if let Ok((index, _)) = Index::restore(options(&world), &*forged) {
            index.check().expect("sound");
            check::structure(&index, &[]).expect("sound");
            index.sweep();
        }
    }
}

/// Puts the right checksums behind the frames, as far as their lengths lead.
fn seal(image: &mut [u8]) {
    use xxhash_rust::xxh3::xxh3_64_with_seed;
    let mut chain = xxh3_64_with_seed(&image[..12], 0);
    let mut at = 12;
    while let Some(head) = image.get(at..at + 5) {
        let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let seed = chain ^ u64::from_le_bytes([head[0], head[1], head[2], head[3], head[4], 0, 0, 0]);
        let Some(payload) = image.get(at + 5..at + 5 + length) else { return };
        chain = xxh3_64_with_seed(payload, seed);
        let end = at + 5 + length;
        let Some(sum) = image.get_mut(end..end + 8) else { return };
        sum.copy_from_slice(&chain.to_le_bytes());
        at = end + 8;
    }
}

#[test]
fn what_expired_meanwhile_does_not_come_back() {
    let world = small_world();
    let image = saved(&world.index);
    world.clock.advance(std::time::Duration::from_secs(29 * 60));
    let (index, size) = Index::restore(options(&world), &*image).expect("whole");
    assert_eq!((size.entries, index.dump()), (8, world.dump()));
    world.clock.advance(std::time::Duration::from_secs(60));
    let (index, size) = Index::restore(options(&world), &*image).expect("whole");
    assert_eq!((size.entries, index.dump()), (0, Dump::default()));
    assert!(!index.has_any_tenant("t"));
}

#[test]
fn a_smaller_cap_holds_at_once() {
    let world = small_world();
    let image = saved(&world.index);
    let options = IndexOptions { max_entries: 3, max_stats: 1, ..options(&world) };
    let (index, size) = Index::restore(options, &*image).expect("whole");
    assert_eq!((size.entries, index.dump().entries.len(), index.dump().stats.len()), (3, 3, 1));
    index.check().expect("sound");
}

#[test]
fn a_writer_that_fails_is_told() {
    struct Full(usize);
    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let world = small_world();
    for room in 0..saved(&world.index).len() {
        assert_eq!(world.index.save(Full(room)).expect_err("full").kind(), io::ErrorKind::StorageFull);
    }
}

/// While others store, move and clear blocks, each image is whole, and what nobody touches is in all of them.
#[test]
fn images_taken_while_others_write_are_sound() {
    let world = World::new();
    let hash = |number: u64| number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes();
    let store = |replica: &str, numbers: std::ops::Range<u64>| {
        let hashes: Vec<[u8; 8]> = numbers.map(hash).collect();
        let entry = |hash| Entry { prefix_hash: hash, token_count: 16, ..Entry::default() };
        let entries: Vec<Entry<'_>> = hashes.iter().map(|hash| entry(&hash[..])).collect();
        let update = Update { replica, model: "m", tenant: "t", scheme: "s", entries: &entries, ..Update::default() };
        world.index.ingest(&update);
    };
    store("still", 0..20_000);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = SmallRng::seed_from_u64(1);
            for _ in 0..1_000_000 {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                let from = rng.random_range(10_000..30_000);
                store("busy", from..from + 100);
                let (kind, gone) = (EventKind::PrefixEvicted, hash(rng.random_range(10_000..30_000)));
                let event =
                    Event { kind, replica: "busy", model: "m", tenant: "t", prefix_hash: &gone, ..Event::default() };
                world.index.apply_event(&event);
                if rng.random_range(0..50) == 0 {
                    world.index.apply_event(&Event { kind: EventKind::AllCleared, ..event });
                }
            }
        });
        for _ in 0..20 {
            let (index, _) = Index::restore(options(&world), &*saved(&world.index)).expect("whole");
            index.check().expect("sound");
            let still = index.dump().entries.iter().filter(|entry| &*entry.replica == "still").count();
            assert_eq!(still, 20_000);
        }
        done.store(true, Ordering::Relaxed);
    });
}
