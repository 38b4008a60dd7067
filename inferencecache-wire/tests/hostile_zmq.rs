//! Hostile input on the engine's socket: random bytes, mutations of valid batches, lying lengths, odd message shapes, over a
//! real ZMQ socket into a real subscriber and a real gRPC server.
//!
//! The same bytes go through the rules alone into a naive index; what both hold at the end must be the same pairs. Stamps are
//! left out of the comparison: they depend on how reports are gathered.

#![cfg(all(feature = "server", feature = "testkit"))]

#[path = "common/memory.rs"]
mod memory;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use inferencecache_core::testkit::{Dump, Inspect, Model};
use inferencecache_core::{Entry, Event, EventKind, Index, IndexApi, IndexOptions, PolicyStore, Router, Update};
use inferencecache_wire::grpc::service::InferenceCacheService;
use inferencecache_wire::kvevents::MsgpackDecoder;
use inferencecache_wire::subscriber::Subscriber;
use inferencecache_wire::subscriber::config::{Config, Identity, Rules};
use inferencecache_wire::subscriber::ingest::{Ingest, Message};
use inferencecache_wire::subscriber::metrics::Metrics;
use inferencecache_wire::subscriber::window::{Delivery, Outgoing};
use inferencecache_wire::testkit::msgpack::Writer;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tonic::transport::server::TcpIncoming;

/// Messages between two waits for the server, so that nothing is dropped for want of room.
const CHUNK: usize = 1000;

/// A valid batch of a fixed set.
fn valid(rng: &mut SmallRng) -> Vec<u8> {
    let mut out = Writer::new();
    out.array(3).float64(1_700_000_000.5);
    let events = rng.random_range(1..4);
    out.array(events);
    for _ in 0..events {
        match rng.random_range(0..40) {
            0 => {
                out.array(1).str("AllBlocksCleared");
            }
            1..14 => {
                out.array(3).str("BlockRemoved").array(1).uint(rng.random_range(1..150));
                out.str(["GPU", "CPU"][rng.random_range(0..2)]);
            }
            _ => {
                let blocks = rng.random_range(1..4usize);
                out.map(7).str("type").str("BlockStored").str("block_hashes").array(blocks);
                for _ in 0..blocks {
                    out.uint(rng.random_range(1..150));
                }
                out.str("parent_block_hash");
                if rng.random_bool(0.6) {
                    out.nil()
                } else {
                    out.uint(rng.random_range(1..150))
                };
                out.str("token_ids").array(blocks * 2);
                for _ in 0..blocks * 2 {
                    out.uint(rng.random_range(0..9));
                }
                out.str("block_size").uint(2).str("medium").str(["GPU", "GPU", "CPU"][rng.random_range(0..3)]);
                out.str("lora_name");
                if rng.random_bool(0.8) {
                    out.nil()
                } else {
                    out.str("legal")
                };
            }
        }
    }
    out.nil();
    out.into_bytes()
}

fn hostile(rng: &mut SmallRng, set: &[Vec<u8>]) -> Vec<u8> {
    let mut payload = set[rng.random_range(0..set.len())].clone();
    match rng.random_range(0..20) {
        0..2 => payload = (0..rng.random_range(0..150)).map(|_| rng.random()).collect(),
        2..10 => {
            for _ in 0..rng.random_range(1..4) {
                let at = rng.random_range(0..=payload.len());
                match rng.random_range(0..4) {
                    0 if rng.random_bool(0.3) => payload.truncate(at),
                    1 => payload.insert(at, rng.random()),
                    2 if at < payload.len() => drop(payload.remove(at)),
                    _ if at < payload.len() => payload[at] ^= 1 << rng.random_range(0..8),
                    _ => {}
                }
            }
        }
        // Lengths that lie, and nesting without end.
        10 => {
            let tails: [&[u8]; 4] = [
                &[0xdd, 0x7f, 0xff, 0xff, 0xff],
                &[0xdf, 0xff, 0xff, 0xff, 0xff],
                &[0xc6, 0x7f, 0xff, 0xff, 0xff],
                &[0x91; 3000],
            ];
            payload = [&[0x92, 0xcb, 0x40, 0x8f, 0x44, 0, 0, 0, 0, 0][..], tails[rng.random_range(0..4)]].concat();
        }
        _ => {}
    }
    payload
}

/// A batch that says nothing about blocks.
fn mark() -> Vec<u8> {
    let mut out = Writer::new();
    out.array(2).float64(0.0).array(1).array(1).str("Mark");
    out.into_bytes()
}

struct World {
    index: Arc<Index>,
    model: Model,
    rules: Ingest<MsgpackDecoder>,
    socket: zmq::Socket,
    metrics: Metrics,
    sequence: u64,
}

impl World {
    async fn start(max_entries: u64, max_tracked_blocks: usize) -> Self {
        let options = IndexOptions { max_entries, ..IndexOptions::default() };
        let index = Arc::new(Index::new(options.clone()));
        let router = Router::new(index.clone(), Arc::new(PolicyStore::new()));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let server = listener.local_addr().expect("bound").to_string();
        let service = InferenceCacheService::new(router).mount();
        tokio::spawn(
            tonic::transport::Server::builder()
                .add_service(service)
                .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true))),
        );
        let socket = zmq::Context::new().socket(zmq::XPUB).expect("a socket");
        socket.set_sndhwm(0).expect("an option");
        socket.bind("tcp://127.0.0.1:*").expect("a free port");
        let engine_endpoint = socket.get_last_endpoint().expect("bound").expect("text");
        let rules = Rules { max_tracked_blocks, ..Rules::default() };
        let config = Config {
            identity: Identity {
                replica_id: "r0".to_owned(),
                model_id: "m".to_owned(),
                tenant_id: "t".to_owned(),
                hash_scheme: "vllm".to_owned(),
            },
            rules: rules.clone(),
            engine_endpoint,
            topic: String::new(),
            server,
            window: Duration::from_millis(2),
            ..Config::default()
        };
        let subscriber = Subscriber::builder(config).build().expect("a subscriber");
        let metrics = subscriber.metrics();
        tokio::spawn(async move { subscriber.run(std::future::pending()).await });
        // The subscription arrives as a message; nothing is lost to a slow joiner.
        socket.set_rcvtimeo(20_000).expect("an option");
        tokio::task::block_in_place(|| socket.recv_bytes(0)).expect("a subscriber");
        Self {
            index,
            model: Model::new(options),
            rules: Ingest::new(MsgpackDecoder::default(), rules, true, 0),
            socket,
            metrics,
            sequence: 0,
        }
    }

    fn take(&mut self, out: &mut Vec<Outgoing>) {
        let adapters = self.rules.map().adapters();
        for Outgoing { delivery, .. } in out.drain(..) {
            match delivery {
                Delivery::Report { entries, .. } => {
                    let digests: Vec<[u8; 8]> = entries.iter().map(|entry| entry.digest.to_be_bytes()).collect();
                    let names: Vec<_> = entries.iter().map(|entry| adapters.name(entry.adapter).to_string()).collect();
                    let entries: Vec<Entry<'_>> = entries
                        .iter()
                        .zip(&digests)
                        .zip(&names)
                        .map(|((entry, digest), adapter)| Entry {
                            adapter,
                            tier: entry.tier as i32 + 1,
                            prefix_hash: digest,
                            token_count: i32::try_from(entry.tokens).unwrap_or(i32::MAX),
                            ..Entry::default()
                        })
                        .collect();
                    let who = Update { replica: "r0", model: "m", tenant: "t", scheme: "vllm", ..Update::default() };
                    self.model.ingest(&Update { entries: &entries, ..who });
                }
                Delivery::Evict { digest, adapter, .. } => {
                    let (hash, adapter) = (digest.to_be_bytes(), adapters.name(adapter).to_string());
                    self.model.apply_event(&Event {
                        kind: EventKind::PrefixEvicted,
                        replica: "r0",
                        model: "m",
                        tenant: "t",
                        prefix_hash: &hash,
                        adapter: &adapter,
                        timestamp: 0,
                    });
                }
                Delivery::Clear { .. } => {
                    let (kind, replica, model, tenant) = (EventKind::AllCleared, "r0", "m", "t");
                    self.model.apply_event(&Event { kind, replica, model, tenant, ..Event::default() });
                }
            }
        }
    }

    /// Publishes one message and gives it to the rules.
    fn publish(&mut self, payload: &[u8], odd: Option<u32>, compare: bool) {
        let number = self.sequence.to_be_bytes();
        let (parts, sequence): (Vec<&[u8]>, Option<u64>) = match odd {
            Some(0) => (vec![payload], None),
            Some(1) => (vec![b"topic", payload], None),
            Some(2) => (vec![b"", b"short", payload], None),
            _ => {
                self.sequence += 1;
                (vec![b"", &number, payload], Some(self.sequence - 1))
            }
        };
        self.socket.send_multipart(parts, 0).expect("sent");
        if compare {
            let (mut out, mut notices) = (Vec::new(), Vec::new());
            let message = Message { connection: 0, sequence, payload };
            let _refused = self.rules.apply(message, 0, &mut out, &mut notices);
            self.take(&mut out);
        }
    }

    /// Waits until the server has acknowledged all that follows from what was published.
    async fn settle(&mut self, compare: bool) {
        let wanted = i64::try_from(self.sequence).expect("small");
        self.publish(&mark(), None, compare);
        let until = Instant::now() + Duration::from_secs(30);
        while self.metrics.acknowledged_sequence(-1).max(self.metrics.acknowledged_sequence(0)) != Some(wanted) {
            assert!(Instant::now() < until, "not acknowledged: {wanted}\n{}", self.metrics.text());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    async fn run(&mut self, messages: usize, compare: bool, mut at: impl FnMut(usize, u64)) {
        let seed = 0x5eed;
        println!("seed {seed:#x}, {messages} messages");
        let mut rng = SmallRng::seed_from_u64(seed);
        let set: Vec<_> = (0..2000).map(|_| valid(&mut rng)).collect();
        for sent in 0..messages {
            let payload = hostile(&mut rng, &set);
            let odd = rng.random_bool(0.02).then(|| rng.random_range(0..3));
            self.publish(&payload, odd, compare);
            if sent % CHUNK == CHUNK - 1 {
                self.settle(compare).await;
                at(sent + 1, self.index.storage_entries().0);
            }
        }
        self.settle(compare).await;
        self.index.check().expect("the derived state holds");
        if compare {
            let mut out = Vec::new();
            self.rules.flush(&mut out);
            self.take(&mut out);
            let (held, wanted) = (pairs(&self.index.dump()), pairs(&self.model.dump()));
            assert!(!wanted.is_empty());
            assert_eq!(held, wanted);
        }
    }
}

fn pairs(dump: &Dump) -> BTreeSet<(String, Vec<u8>, i32, i32)> {
    let pair = |entry: &inferencecache_core::testkit::DumpEntry| {
        (entry.adapter.to_string(), entry.hash.clone(), entry.token_count, entry.tier)
    };
    dump.entries.iter().map(pair).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_batches_change_only_what_the_rules_accept() {
    World::start(0, 500_000).await.run(20_000, true, |_, _| {}).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: a million messages; make soak"]
async fn a_million_hostile_batches_change_only_what_the_rules_accept() {
    World::start(0, 500_000).await.run(1_000_000, true, |_, _| {}).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: a million messages; make soak"]
async fn a_million_hostile_batches_leave_memory_flat() {
    const CAP: u64 = 150;
    let (mut early, mut most) = (0, 0);
    World::start(CAP, 2_000)
        .await
        .run(1_000_000, false, |sent, entries| {
            most = most.max(entries);
            if sent >= 100_000 && early == 0 {
                assert_eq!(most, CAP, "the cap must be reached first");
                early = memory::resident_bytes();
            }
        })
        .await;
    let late = memory::resident_bytes();
    println!("resident after 10^5: {early}, after 10^6: {late}, ratio {:.3}", late as f64 / early as f64);
    assert!(late as f64 <= early as f64 * 1.1, "grew from {early} to {late}");
}

/// The barrier of a reader is one figure, whether the engine names its only rank, names none, or does both by turns.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rank_that_comes_and_goes_does_not_hold_the_figure_back() {
    let mut world = World::start(0, 500_000).await;
    for round in 0..6u64 {
        let mut batch = Writer::new();
        batch.array(3).float64(1_700_000_000.5).array(1).array(6).str("BlockStored");
        batch.array(1).uint(round + 1).nil().array(2).uint(round).uint(7).uint(2).nil();
        if round % 2 == 0 {
            batch.uint(0)
        } else {
            batch.nil()
        };
        world.publish(&batch.into_bytes(), None, false);
        world.settle(false).await;
    }
    assert_eq!(world.index.storage_entries().0, 6);
}
