//! Random lives of an engine and a server: whatever fails, restarts or lags in between, in the end the server holds exactly
//! what the engine holds, and on the way it never sees two operations on one digest at once.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use inferencecache_wire::kvevents::MsgpackDecoder;
use inferencecache_wire::subscriber::blockmap::{AdapterId, Tier};
use inferencecache_wire::subscriber::config::Rules;
use inferencecache_wire::subscriber::dispatch::{Call, CallId, Dispatcher, Ended, MAX_EVICTIONS, Now};
use inferencecache_wire::subscriber::ingest::{Ingest, Message};
use proptest::prelude::*;

#[derive(Debug, Clone)]
enum Step {
    /// Device or host, hash, tokens, adapter.
    Store {
        host: bool,
        hash: u8,
        token: u8,
        adapter: bool,
    },
    Remove {
        host: bool,
        hash: u8,
    },
    Cleared,
    /// A store of hundreds of blocks, or the removal of all of them.
    Many {
        stored: bool,
    },
    Flush,
    /// Milliseconds.
    Wait(u64),
    /// One call in flight ends.
    End {
        which: usize,
        how: u8,
    },
    /// The server loses everything; what is in flight fails.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (any::<bool>(), 1u8..12, 1u8..6, prop::bool::weighted(0.3))
            .prop_map(|(host, hash, token, adapter)| Step::Store { host, hash, token, adapter }),
        6 => (any::<bool>(), 1u8..12).prop_map(|(host, hash)| Step::Remove { host, hash }),
        1 => Just(Step::Cleared),
        1 => any::<bool>().prop_map(|stored| Step::Many { stored }),
        4 => Just(Step::Flush),
        4 => (0u64..1500).prop_map(Step::Wait),
        12 => (0usize..1000, 0u8..8).prop_map(|(which, how)| Step::End { which, how }),
        1 => Just(Step::Restart),
    ]
}

struct World {
    ingest: Ingest<MsgpackDecoder>,
    dispatcher: Dispatcher,
    started: Instant,
    elapsed: u64,
    sequence: u64,
    in_flight: BTreeMap<CallId, Call>,
    server: HashMap<(AdapterId, u64), Tier>,
}

impl World {
    fn new(inferring: bool) -> Self {
        let rules = Rules { ignore_block_removed: inferring, ..Rules::default() };
        Self {
            ingest: Ingest::new(MsgpackDecoder::default(), rules, true, 100),
            dispatcher: Dispatcher::default(),
            started: Instant::now(),
            elapsed: 0,
            sequence: 0,
            in_flight: BTreeMap::new(),
            server: HashMap::new(),
        }
    }

    fn now(&self) -> Now {
        Now {
            instant: self.started + Duration::from_millis(self.elapsed),
            wall: 1_000_000 + i64::try_from(self.elapsed).expect("fits") * 1000,
            ticks: u32::try_from(self.elapsed / 100).expect("fits"),
        }
    }

    fn event(&mut self, event: &[u8]) {
        let mut payload = vec![0x92, 0x07, 0x91];
        payload.extend(event);
        let message = Message { connection: 0, sequence: Some(self.sequence), payload: &payload };
        self.sequence += 1;
        let (mut out, mut notices) = (Vec::new(), Vec::new());
        let now = self.now();
        self.ingest.apply(message, now.ticks, &mut out, &mut notices).expect("a good batch");
        for outgoing in out {
            self.dispatcher.offer(outgoing, self.ingest.map(), now);
        }
    }

    fn flush(&mut self) {
        let mut out = Vec::new();
        self.ingest.flush(&mut out);
        let now = self.now();
        for outgoing in out {
            self.dispatcher.offer(outgoing, self.ingest.map(), now);
        }
    }

    fn start_calls(&mut self) {
        let now = self.now();
        while let Some((id, call)) = self.dispatcher.next_call(self.ingest.map(), now) {
            let of = |call: &Call| -> HashSet<u64> {
                match call {
                    Call::Report { entries, .. } => entries.iter().map(|entry| entry.digest).collect(),
                    Call::Evict { digest, .. } => HashSet::from([*digest]),
                    Call::Clear { .. } => HashSet::new(),
                }
            };
            let digests = of(&call);
            for other in self.in_flight.values() {
                assert!(of(other).is_disjoint(&digests), "{call:?} beside {other:?}");
                assert!(!matches!((&call, other), (Call::Clear { .. }, _) | (_, Call::Clear { .. })));
            }
            self.in_flight.insert(id, call);
            let evictions = self.in_flight.values().filter(|call| matches!(call, Call::Evict { .. })).count();
            assert!(evictions <= MAX_EVICTIONS && self.in_flight.len() <= MAX_EVICTIONS + 1);
        }
    }

    fn end(&mut self, id: CallId, how: u8) {
        let call = self.in_flight.remove(&id).expect("in flight");
        let ended = match how {
            0 => Ended::NeverSent,
            1 | 2 => Ended::Failed,
            _ => Ended::Accepted,
        };
        // A call that failed may have been applied all the same.
        if how >= 2 {
            match call {
                Call::Report { entries, .. } => {
                    self.server.extend(entries.iter().map(|entry| ((entry.adapter, entry.digest), entry.tier)));
                }
                Call::Evict { digest, adapter: AdapterId::BASE, .. } => self.server.retain(|key, _| key.1 != digest),
                Call::Evict { digest, adapter, .. } => {
                    self.server.remove(&(adapter, digest));
                }
                Call::Clear { .. } => self.server.clear(),
            }
        }
        let now = self.now();
        self.dispatcher.ended(id, ended, self.ingest.map(), now);
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Store { host, hash, token, adapter } => {
                let mut event = vec![0x98, 0xab];
                event.extend(b"BlockStored");
                event.extend([0x91, *hash, 0xc0, 0x91, *token, 1]);
                event.push(if *adapter { 5 } else { 0xc0 });
                event.extend(medium(*host));
                if *adapter {
                    event.extend([0xa1, b'a']);
                } else {
                    event.push(0xc0);
                }
                self.event(&event);
            }
            Step::Remove { host, hash } => {
                let mut event = vec![0x93, 0xac];
                event.extend(b"BlockRemoved");
                event.extend([0x91, *hash]);
                event.extend(medium(*host));
                self.event(&event);
            }
            Step::Cleared => {
                let mut event = vec![0x91, 0xb0];
                event.extend(b"AllBlocksCleared");
                self.event(&event);
            }
            Step::Many { stored: true } => {
                let mut event = vec![0x96, 0xab];
                event.extend(b"BlockStored");
                event.extend(many_hashes());
                event.extend([0xc0, 0xdc, 1, 44]);
                event.resize(event.len() + 300, 9);
                event.extend([1, 0xc0]);
                self.event(&event);
            }
            Step::Many { stored: false } => {
                let mut event = vec![0x92, 0xac];
                event.extend(b"BlockRemoved");
                event.extend(many_hashes());
                self.event(&event);
            }
            Step::Flush => self.flush(),
            Step::Wait(ms) => self.elapsed += ms,
            Step::End { which, how } => {
                if !self.in_flight.is_empty() {
                    let ids: Vec<CallId> = self.in_flight.keys().copied().collect();
                    self.end(ids[which % ids.len()], *how);
                }
            }
            Step::Restart => {
                self.server.clear();
                for id in self.in_flight.keys().copied().collect::<Vec<_>>() {
                    self.end(id, 1);
                }
                let now = self.now();
                self.dispatcher.disconnected(self.ingest.map(), now);
                self.dispatcher.connected(false);
            }
        }
        self.start_calls();
    }

    /// The server answers at once from now on; everything is given time.
    fn settle(&mut self) {
        self.flush();
        for _ in 0..2000 {
            self.start_calls();
            let ids: Vec<CallId> = self.in_flight.keys().copied().collect();
            if ids.is_empty() {
                if self.dispatcher.is_idle() && self.dispatcher.sweep_left(self.ingest.map()) == 0 {
                    return;
                }
                self.elapsed += 100;
            }
            for id in ids {
                self.end(id, 7);
            }
        }
        panic!("never settles: {:?}", self.dispatcher);
    }
}

fn medium(host: bool) -> &'static [u8] {
    if host { b"\xa3CPU" } else { b"\xa3GPU" }
}

/// 300 hashes of their own.
fn many_hashes() -> Vec<u8> {
    let mut list = vec![0xdc, 1, 44];
    for i in 0..300u16 {
        list.push(0xcd);
        list.extend((1000 + i).to_be_bytes());
    }
    list
}

/// Plays a life to its end and compares.
fn check(steps: &[Step]) {
    let mut world = World::new(false);
    steps.iter().for_each(|step| world.step(step));
    world.settle();
    let held: HashMap<(AdapterId, u64), Tier> =
        world.ingest.map().all_held().iter().map(|r| ((r.adapter, r.digest), r.tier)).collect();
    assert_eq!(world.server, held);
}

fn store(hash: u8, token: u8, adapter: bool) -> Step {
    Step::Store { host: false, hash, token, adapter }
}

fn end(how: u8) -> Step {
    Step::End { which: 0, how }
}

#[test]
fn an_eviction_queued_behind_a_report_in_doubt_is_not_forgotten() {
    // The report of the base model's pair is applied and fails; by then its eviction is queued behind it.
    check(&[store(9, 1, false), end(3), store(9, 1, true), end(2)]);
}

#[test]
fn a_downgrade_that_fails_late_does_not_revive_what_was_evicted_since() {
    check(&[
        store(10, 3, false),
        Step::Store { host: true, hash: 10, token: 1, adapter: false },
        Step::Flush,
        end(3),
        end(3),
        Step::Remove { host: false, hash: 10 },
        store(10, 1, false),
        Step::Restart,
    ]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    // subscriber:102 subscriber:103 subscriber:104
    #[test]
    fn in_the_end_the_server_holds_what_the_engine_holds(steps in proptest::collection::vec(step(), 1..200), inferring: bool) {
        let mut world = World::new(inferring);
        for step in &steps {
            world.step(step);
            // Never ahead: a sequence is settled only when nothing older is open.
            let oldest = world.dispatcher.oldest();
            let reached = world.ingest.progress(oldest).next().and_then(|progress| progress.sequence);
            prop_assert!(reached.is_none_or(|reached| oldest.is_none_or(|oldest| reached + 1 < oldest + 1)));
        }
        world.settle();
        let held: HashMap<(AdapterId, u64), Tier> =
            world.ingest.map().all_held().iter().map(|r| ((r.adapter, r.digest), r.tier)).collect();
        // What is inferred to have moved stays on the server until its time is up.
        world.server.retain(|key, tier| held.contains_key(key) || !inferring || *tier != Tier::T2);
        prop_assert_eq!(&world.server, &held);
        let sequence = world.sequence;
        let oldest = world.dispatcher.oldest();
        let reached = world.ingest.progress(oldest).next().and_then(|progress| progress.sequence);
        prop_assert_eq!(reached, sequence.checked_sub(1));
    }
}
