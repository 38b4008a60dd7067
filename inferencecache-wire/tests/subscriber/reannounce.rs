//! What is held stays known to a server that forgets, and what may be gone does not. Time is injected.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use inferencecache_wire::kvevents::MsgpackDecoder;
use inferencecache_wire::subscriber::blockmap::Tier;
use inferencecache_wire::subscriber::config::Rules;
use inferencecache_wire::subscriber::dispatch::{Call, Dispatcher, Ended, Now};
use inferencecache_wire::subscriber::ingest::{Ingest, Message};
use inferencecache_wire::testkit::msgpack::Writer;

const MINUTE: Duration = Duration::from_secs(60);

/// A subscriber without sockets, and a server that forgets what is not reported for a while.
struct World {
    ingest: Ingest<MsgpackDecoder>,
    dispatcher: Dispatcher,
    start: Instant,
    now: Duration,
    sequence: u64,
    ttl: Duration,
    /// When each digest was last reported.
    server: BTreeMap<u64, Duration>,
    /// Every report: when, what, and in which tier.
    reports: Vec<(Duration, u64, Tier)>,
}

impl World {
    fn new(interval: Duration, ttl: Duration) -> Self {
        Self {
            ingest: Ingest::new(MsgpackDecoder::default(), Rules::default(), true, 100),
            dispatcher: Dispatcher::reannouncing(interval),
            start: Instant::now(),
            now: Duration::ZERO,
            sequence: 0,
            ttl,
            server: BTreeMap::new(),
            reports: Vec::new(),
        }
    }

    fn moment(&self) -> Now {
        let ticks = u32::try_from(self.now.as_millis() / 100).expect("short");
        Now { instant: self.start + self.now, wall: i64::try_from(self.now.as_micros()).expect("short") + 1, ticks }
    }

    fn apply(&mut self, payload: &[u8]) {
        let (mut out, mut notices) = (Vec::new(), Vec::new());
        let message = Message { connection: 0, sequence: Some(self.sequence), payload };
        self.sequence += 1;
        let now = self.moment();
        let _ = self.ingest.apply(message, now.ticks, &mut out, &mut notices);
        self.ingest.flush(&mut out);
        for outgoing in out {
            self.dispatcher.offer(outgoing, self.ingest.map(), now);
        }
        self.deliver();
    }

    /// Makes every call that may start; each is accepted at once.
    fn deliver(&mut self) {
        let now = self.moment();
        while let Some((id, call)) = self.dispatcher.next_call(self.ingest.map(), now) {
            match call {
                Call::Report { entries, .. } => {
                    for entry in entries.iter() {
                        self.server.insert(entry.digest, self.now);
                        self.reports.push((self.now, entry.digest, entry.tier));
                    }
                }
                Call::Evict { digest, .. } => drop(self.server.remove(&digest)),
                Call::Clear { .. } => self.server.clear(),
            }
            self.dispatcher.ended(id, Ended::Accepted, self.ingest.map(), now);
        }
    }

    /// Lets time pass; `see` is shown what the server knows whenever something may have changed.
    fn pass(&mut self, time: Duration, mut see: impl FnMut(&BTreeSet<u64>)) {
        let end = self.now + time;
        while self.now < end {
            let wake = self.dispatcher.wake_at().map_or(end, |at| at.duration_since(self.start));
            // The server looks at its clock more often than we do.
            self.now = wake.max(self.now).min(self.now + Duration::from_secs(1)).min(end);
            self.deliver();
            see(&self.known());
        }
    }

    fn known(&self) -> BTreeSet<u64> {
        let fresh = self.server.iter().filter(|&(_, &at)| self.now - at < self.ttl);
        fresh.map(|(&digest, _)| digest).collect()
    }

    fn held(&mut self) -> BTreeSet<u64> {
        self.ingest.map().all_held().iter().map(|report| report.digest).collect()
    }

    /// What was reported behind the first so many reports.
    fn since(&self, reports: usize) -> BTreeSet<u64> {
        self.reports[reports..].iter().map(|report| report.1).collect()
    }
}

/// `[1.0, [BlockStored [hash] nil [token, token + 1] 2 nil medium]]` for each hash; its first token is the hash.
fn store(hashes: impl IntoIterator<Item = u64>, medium: &str) -> Vec<u8> {
    let hashes: Vec<u64> = hashes.into_iter().collect();
    let mut writer = Writer::new();
    writer.array(2).float64(1.0).array(hashes.len());
    for hash in hashes {
        writer.array(7).str("BlockStored").array(1).uint(hash).nil().array(2).uint(hash).uint(hash + 1).uint(2).nil();
        writer.str(medium);
    }
    writer.into_bytes()
}

fn remove(hash: u64) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.array(2).float64(1.0).array(1).array(2).str("BlockRemoved").array(1).uint(hash);
    writer.into_bytes()
}

// subscriber:109
#[test]
fn a_block_that_is_held_is_never_missing_from_a_server_that_forgets() {
    for blocks in [1, 10, 1000, 20_000] {
        let mut world = World::new(5 * MINUTE, 10 * MINUTE);
        world.apply(&store(1..=blocks, "GPU"));
        let held = world.held();
        assert_eq!(held.len() as u64, blocks);
        world.pass(20 * MINUTE, |known| assert_eq!(known.len() as u64, blocks));
        // Evenly: no second has much more than its share.
        let mut seconds: BTreeMap<u64, u64> = BTreeMap::new();
        world
            .reports
            .iter()
            .filter(|report| report.0 > Duration::ZERO)
            .for_each(|r| *seconds.entry(r.0.as_secs()).or_default() += 1);
        assert!(seconds.values().all(|&count| count <= 2 * (blocks / 300 + 2)), "{seconds:?}");
    }
    // The test can fail: without repetition they are forgotten.
    let mut world = World::new(Duration::ZERO, 10 * MINUTE);
    world.apply(&store([1], "GPU"));
    world.pass(20 * MINUTE, |_| {});
    assert_eq!(world.known().len(), 0);
}

// subscriber:110 field:3
#[test]
fn after_a_loss_only_what_was_stored_since_is_repeated() {
    let mut world = World::new(5 * MINUTE, 10 * MINUTE);
    world.apply(&store(1..=50, "GPU"));
    let before = world.held();
    world.pass(6 * MINUTE, |_| {});
    // A batch that cannot be decoded may have been anything.
    world.apply(&[0x92, 0x07, 0x91, 0x86]);
    let lost = world.reports.len();
    world.apply(&store(101..=150, "GPU"));
    // One of the old ones is stored again, which confirms it.
    world.apply(&store([7], "GPU"));
    let after: BTreeSet<u64> = world.held().difference(&before).copied().collect();
    let start = world.reports.len();
    world.pass(10 * MINUTE, |_| {});
    let confirmed: BTreeSet<u64> = world.since(lost).intersection(&before).copied().collect();
    assert_eq!(confirmed.len(), 1, "the one that was stored again");
    assert_eq!(world.since(start), after.union(&confirmed).copied().collect());
    // Nor is it when the server comes back empty.
    world.server.clear();
    world.dispatcher.connected(false);
    world.pass(MINUTE, |_| {});
    assert_eq!(world.known(), after.union(&confirmed).copied().collect());
}

// subscriber:111
#[test]
fn a_block_of_which_a_copy_went_is_repeated_only_after_it_is_stored_again() {
    let mut world = World::new(5 * MINUTE, 10 * MINUTE);
    for payload in [store([1], "GPU"), store([1], "GPU"), store([2], "GPU"), remove(1)] {
        world.apply(&payload);
    }
    let all = world.held();
    let start = world.reports.len();
    world.pass(10 * MINUTE, |_| {});
    assert_eq!(world.since(start).len(), 1);
    world.apply(&store([1], "GPU"));
    let start = world.reports.len();
    world.pass(10 * MINUTE, |_| {});
    assert_eq!(world.since(start), all);
}

#[test]
fn a_new_connection_brings_back_what_is_held_even_if_a_copy_went() {
    let mut world = World::new(5 * MINUTE, 10 * MINUTE);
    for payload in [store([1], "GPU"), store([1], "GPU"), store([2], "CPU"), remove(1)] {
        world.apply(&payload);
    }
    let all = world.held();
    world.server.clear();
    world.dispatcher.connected(false);
    world.pass(Duration::from_secs(15), |_| {});
    assert_eq!(world.known(), all);
}

#[test]
fn a_pair_of_several_blocks_is_repeated_once_a_round_in_its_warmest_tier() {
    let mut world = World::new(5 * MINUTE, 10 * MINUTE);
    // The same tokens under two hashes, and once in host memory.
    let mut twin = store([1], "GPU");
    world.apply(&twin);
    let at = twin.iter().position(|&byte| byte == 1).expect("the hash");
    twin[at] = 99;
    world.apply(&twin);
    let host: Vec<u8> = store([1], "CPU");
    world.apply(&host);
    assert_eq!(world.held().len(), 1);
    let start = world.reports.len();
    world.pass(30 * MINUTE + Duration::from_secs(1), |_| {});
    let later = &world.reports[start..];
    assert_eq!(later.len(), 6, "{later:?}");
    assert!(later.iter().all(|report| report.2 == Tier::T1));
}

// field:13
#[test]
fn what_device_memory_cannot_hold_is_no_longer_repeated() {
    let mut world = World::new(Duration::from_secs(5), MINUTE);
    for hash in 1..=6 {
        world.apply(&store([2 * hash], "GPU"));
    }
    world.apply(&store([100], "CPU"));
    world.ingest.map().bound(Some(4));
    assert_eq!(world.ingest.map().tally().over_capacity, 2);
    let start = world.reports.len();
    world.pass(Duration::from_secs(10), |_| {});
    let first: Vec<u64> = world.reports[..6].iter().map(|report| report.1).collect();
    let host = world.reports[6].1;
    let mut expected: BTreeSet<u64> = first[2..].iter().copied().collect();
    expected.insert(host);
    assert_eq!(world.since(start), expected);
    // A store confirms again; then another one is in excess.
    world.apply(&store([2], "GPU"));
    world.ingest.map().bound(Some(4));
    let start = world.reports.len();
    world.pass(Duration::from_secs(10), |_| {});
    expected.remove(&first[2]);
    expected.insert(first[0]);
    assert_eq!(world.since(start), expected);
    // No figure, no bound; what is doubted stays so.
    world.ingest.map().bound(None);
    assert_eq!(world.ingest.map().tally().over_capacity, 3);
}

#[test]
fn a_belief_ages_where_nothing_else_bounds_it() {
    const STEPS: u64 = inferencecache_wire::subscriber::blockmap::AGE_STEPS as u64;
    for (capacity, aged) in [(None, 3), (Some(1000), 1)] {
        let mut world = World::new(MINUTE, 10 * MINUTE);
        world.apply(&store([2, 4], "GPU"));
        world.apply(&store([6], "CPU"));
        world.ingest.map().bound(capacity);
        for step in 1..=STEPS {
            world.ingest.map().age(step);
        }
        assert_eq!(world.ingest.map().tally().aged, 0, "not older than the longest age");
        world.ingest.map().age(STEPS + 1);
        assert_eq!(world.ingest.map().tally().aged, aged);
        // However long it lasts, an age does not start anew; a store starts it anew.
        world.apply(&store([2], "GPU"));
        world.ingest.map().bound(None);
        world.ingest.map().age(2 * STEPS);
        let all_but_one = if capacity.is_none() { 3 } else { 2 };
        assert_eq!(world.ingest.map().tally().aged, all_but_one);
        let start = world.reports.len();
        world.pass(2 * MINUTE, |_| {});
        assert_eq!(world.since(start).len(), 1);
        world.ingest.map().age(1_000_000);
        assert_eq!(world.ingest.map().tally().aged, all_but_one + 1);
        assert_eq!(world.held().len(), 3, "what is doubted is still removed by its removal");
    }
}

#[test]
fn an_engine_that_drops_its_cache_is_forgotten_alone() {
    let mut world = World::new(MINUTE, 10 * MINUTE);
    let ranked = |rank: u64, hash: u64| {
        let mut writer = Writer::new();
        writer.array(3).float64(1.0).array(1).array(6).str("BlockStored").array(1).uint(hash).nil().array(2);
        writer.uint(hash).uint(hash + 1).uint(2).nil().uint(rank);
        writer.into_bytes()
    };
    world.apply(&ranked(0, 2));
    world.apply(&ranked(1, 4));
    let held = world.held();
    let mut ops = Vec::new();
    assert!(!world.ingest.map().dropped(Some(7), &mut ops), "nobody is meant");
    assert!(world.ingest.map().dropped(Some(1), &mut ops));
    assert_eq!((ops.len(), world.held().len()), (1, 1));
    assert!(world.held().is_subset(&held));
    ops.clear();
    assert!(world.ingest.map().dropped(Some(0), &mut ops));
    assert_eq!((format!("{ops:?}"), world.held().len()), ("[Clear]".to_owned(), 0));
}
