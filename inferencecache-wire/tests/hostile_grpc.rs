//! Hostile input on the gRPC port: random bytes, mutations of valid messages, absurd lengths and counts.
//!
//! The same bytes are given to a naive index by the rules of what is accepted. Every lookup must be answered alike, and at the
//! end both must hold the same. Nothing panics, and memory stops growing once the cap is reached.

#![cfg(feature = "server")]

#[path = "common/memory.rs"]
mod memory;
#[path = "common/raw.rs"]
mod raw;

use std::sync::Arc;

use inferencecache_core::index::CacheState;
use inferencecache_core::policy::{Policy, PolicySet, PolicyStore, TenantQuota};
use inferencecache_core::testkit::{Inspect, Model};
use inferencecache_core::{
    Answer, Entry, Event, EventKind, HashList, Index, IndexApi, IndexOptions, ManualClock, RESERVED_TENANT, Resolvers,
    Router, Stats, Update,
};
use inferencecache_wire::convert;
use inferencecache_wire::grpc::service::InferenceCacheService;
use inferencecache_wire::pb;
use prost::Message;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use raw::Raw;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

const NOW: i64 = 1_800_000_000_000_000;
const SERVICE: &str = "/inferencecache.v1alpha1.InferenceCache/";

#[derive(Clone, Copy, Debug, PartialEq)]
enum Method {
    Report,
    Event,
    Lookup,
    State,
}

/// One valid message of a fixed set.
fn valid(rng: &mut SmallRng) -> (Method, Vec<u8>) {
    let pick = |rng: &mut SmallRng, from: &[&str]| from[rng.random_range(0..from.len())].to_owned();
    let hash = |rng: &mut SmallRng| {
        let mut hash = rng.random_range(0..300u64).to_be_bytes().to_vec();
        match rng.random_range(0..20) {
            0 => hash.extend([7; 24]),
            1 => hash.truncate(3),
            _ => {}
        }
        hash
    };
    let tenant_id = pick(rng, &["acme", "blue", "crew"]);
    let model_id = pick(rng, &["m", "n"]);
    let hash_scheme = pick(rng, &["vllm", "vllm", "sglang"]);
    let adapter_id = pick(rng, &["", "", "", "legal"]);
    let replica_id = pick(rng, &["r0", "r1", "r2", "r3"]);
    let chain: Vec<Vec<u8>> = (0..rng.random_range(0..6)).map(|_| hash(rng)).collect();
    let counts = vec![16; chain.len()];
    let stamp = [0, NOW, NOW - 60_000_000, NOW - 1_799_000_000, NOW + 4_000_000, NOW + 60_000_000];
    let timestamp_us = stamp[rng.random_range(0..stamp.len())];
    match rng.random_range(0..10) {
        0..5 => {
            let prefixes = (0..rng.random_range(0..4))
                .map(|_| pb::PrefixEntry {
                    prefix_hash: hash(rng),
                    token_count: rng.random_range(0..200),
                    block_hashes: if rng.random_bool(0.3) { chain.clone() } else { Vec::new() },
                    block_token_counts: if rng.random_bool(0.3) { counts.clone() } else { Vec::new() },
                    tier: rng.random_range(0..4),
                    adapter_id: String::new(),
                })
                .collect();
            let stats = rng.random_bool(0.3).then(|| pb::ReplicaStats {
                hit_rate: rng.random(),
                pressure: rng.random(),
                cache_memory_bytes: rng.random_range(0..1 << 40),
                ..pb::ReplicaStats::default()
            });
            let update = pb::CacheStateUpdate {
                replica_id,
                model_id,
                tenant_id,
                hash_scheme,
                timestamp_us,
                prefixes,
                stats,
                adapter_id,
            };
            (Method::Report, update.encode_to_vec())
        }
        5..7 => {
            let event = pb::CacheEvent {
                r#type: [2, 2, 2, 3, 4][rng.random_range(0..5)],
                replica_id,
                model_id,
                tenant_id,
                prefix_hash: hash(rng),
                timestamp_us,
                adapter_id,
            };
            (Method::Event, event.encode_to_vec())
        }
        7..9 => {
            let by_chain = rng.random_bool(0.6);
            let request = pb::LookupRouteRequest {
                model_id,
                tenant_id,
                prefix_hash: if by_chain { Vec::new() } else { hash(rng) },
                prefix_token_count: rng.random_range(0..100),
                hash_scheme,
                slo: Some(pb::Slo { ttft_ms: rng.random_range(0..400), tbt_ms: 0 }),
                block_hashes: if by_chain { chain } else { Vec::new() },
                block_token_counts: if by_chain { counts } else { Vec::new() },
                token_ids: if rng.random_bool(0.1) { (0..40).collect() } else { Vec::new() },
                prompt_text: String::new(),
                adapter_id,
            };
            (Method::Lookup, request.encode_to_vec())
        }
        _ => (Method::State, pb::GetCacheStateRequest { model_id, tenant_id }.encode_to_vec()),
    }
}

/// A length-delimited field with whatever length it claims.
fn field(number: u32, claimed: u64, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    prost::encoding::encode_varint(u64::from(number << 3 | 2), &mut out);
    prost::encoding::encode_varint(claimed, &mut out);
    out.extend_from_slice(content);
    out
}

fn absurd(rng: &mut SmallRng, message: &mut Vec<u8>) {
    let number = rng.random_range(1..12);
    let extra = match rng.random_range(0..9) {
        0 => field(number, u64::MAX, b"x"),
        1 => field(number, 1 << 31, b"xy"),
        2 => field(number, 600, &[b'a'; 600]),
        3 => field(number, 65, &[9; 65]),
        4 => vec![0x0a; 300],
        5 => field(number, 10, &[0xff; 10]),
        6 => (0..200).flat_map(|_| field(number, 8, &[1; 8])).collect(),
        // A negative count, a tier that nobody knows, a stamp at the end of time.
        7 => [vec![0x10], vec![0xff; 9], vec![0x01]].concat(),
        _ => [vec![0x28], vec![0xff; 8], vec![0x7f]].concat(),
    };
    message.extend(extra);
    if rng.random_bool(0.01) {
        // A chain beyond the limit: half a megabyte of blocks.
        message.extend((0..65_537u32).flat_map(|i| field(7, 4, &i.to_be_bytes())));
    }
}

fn hostile(rng: &mut SmallRng, set: &[(Method, Vec<u8>)]) -> (Method, Vec<u8>) {
    let (method, message) = &set[rng.random_range(0..set.len())];
    let (method, mut message) = (*method, message.clone());
    match rng.random_range(0..20) {
        0..2 => message = (0..rng.random_range(0..120)).map(|_| rng.random()).collect(),
        2..12 => {
            for _ in 0..rng.random_range(1..4) {
                let at = rng.random_range(0..=message.len());
                match rng.random_range(0..4) {
                    0 => message.truncate(at),
                    1 => message.insert(at, rng.random()),
                    2 if at < message.len() => drop(message.remove(at)),
                    _ if at < message.len() => message[at] ^= 1 << rng.random_range(0..8),
                    _ => {}
                }
            }
        }
        12 => absurd(rng, &mut message),
        _ => {}
    }
    (method, message)
}

/// The stamp that the index must get: more than 5 s ahead is now.
fn stamp(stamp: i64) -> i64 {
    if stamp > NOW + 5_000_000 { NOW } else { stamp }
}

#[derive(Debug)]
enum Expected {
    Lookup(pb::LookupRouteResponse),
    State(CacheState),
}

struct World {
    index: Arc<Index>,
    model: Arc<Model>,
    oracle: Router<Model>,
    channel: Channel,
}

impl World {
    async fn start() -> Self {
        let policies = Arc::new(PolicyStore::new());
        let lenient = |namespace: &str| Policy { namespace: namespace.into(), ..Policy::default() };
        policies.replace(PolicySet::new(
            [Policy { eviction: "lfu".into(), ..lenient("blue") }, lenient("acme")],
            [TenantQuota { tenant: "crew".into(), max_index_entries: 60, ..TenantQuota::default() }],
        ));
        let clock = Arc::new(ManualClock::at(NOW));
        let options = IndexOptions {
            max_entries: 400,
            max_stats: 100,
            clock: clock.clone(),
            resolvers: Resolvers::all(&policies),
            ..IndexOptions::default()
        };
        let index = Arc::new(Index::new(options.clone()));
        let model = Arc::new(Model::new(options));
        let mut router = Router::new(index.clone(), policies.clone());
        router.clock = clock.clone();
        let mut oracle = Router::new(model.clone(), policies);
        oracle.clock = clock;
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let service = InferenceCacheService::new(router).mount();
        tokio::spawn(
            tonic::transport::Server::builder()
                .add_service(service)
                .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true))),
        );
        let channel = Endpoint::from_shared(format!("http://{address}")).expect("an address").connect_lazy();
        Self { index, model, oracle, channel }
    }

    async fn call(&self, method: Method, messages: Vec<Vec<u8>>) -> Result<Vec<u8>, Status> {
        let path = match method {
            Method::Report => "ReportCacheState",
            Method::Event => "PublishEvent",
            Method::Lookup => "LookupRoute",
            Method::State => "GetCacheState",
        };
        let path = format!("{SERVICE}{path}").parse().expect("a path");
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        grpc.ready().await.expect("the server is up");
        let stream = Request::new(tokio_stream::iter(messages));
        grpc.client_streaming(stream, path, Raw).await.map(tonic::Response::into_inner)
    }

    /// Gives the naive index what the rules accept; says what must be answered, or that the transport refuses the message.
    fn expect(&self, method: Method, message: &[u8]) -> Result<Option<Expected>, ()> {
        match method {
            Method::Report => {
                let message = pb::CacheStateUpdate::decode(message).map_err(|_| ())?;
                self.report(&message);
            }
            Method::Event => {
                let message = pb::CacheEvent::decode(message).map_err(|_| ())?;
                self.event(&message);
            }
            Method::Lookup => {
                let message = pb::LookupRouteRequest::decode(message).map_err(|_| ())?;
                let mut answer = Answer::new();
                self.oracle.route(&convert::question(&message), None, &mut answer);
                let response = convert::lookup_response(&answer, &message.adapter_id, std::time::Duration::ZERO);
                return Ok(Some(Expected::Lookup(response)));
            }
            Method::State => {
                let message = pb::GetCacheStateRequest::decode(message).map_err(|_| ())?;
                let mut state = self.model.cache_state(&message.tenant_id, &message.model_id);
                if message.tenant_id == RESERVED_TENANT {
                    state = CacheState::default();
                }
                return Ok(Some(Expected::State(state)));
            }
        }
        Ok(None)
    }

    /// The published limits of a report, written down a second time, so that a wrong one at the door shows.
    fn report(&self, message: &pb::CacheStateUpdate) {
        let long = |id: &String| id.len() > 512;
        let keys = [&message.replica_id, &message.tenant_id, &message.model_id, &message.hash_scheme];
        if message.tenant_id == RESERVED_TENANT || keys.into_iter().any(long) {
            return;
        }
        let fits = |entry: &&pb::PrefixEntry| {
            let adapter = if entry.adapter_id.is_empty() { &message.adapter_id } else { &entry.adapter_id };
            let blocks = entry.block_hashes.len().max(entry.block_token_counts.len());
            let mut hashes = entry.block_hashes.iter().chain([&entry.prefix_hash]);
            !long(adapter) && blocks <= 65_536 && hashes.all(|hash| hash.len() <= 64)
        };
        let entries: Vec<Entry<'_>> = message
            .prefixes
            .iter()
            .filter(fits)
            .map(|entry| Entry {
                adapter: &entry.adapter_id,
                tier: entry.tier,
                prefix_hash: &entry.prefix_hash,
                token_count: entry.token_count,
                block_hashes: HashList::Vecs(&entry.block_hashes),
                block_token_counts: &entry.block_token_counts,
            })
            .collect();
        let stats = message.stats.as_ref().map(|stats| Stats {
            cache_memory_bytes: stats.cache_memory_bytes,
            hit_rate: stats.hit_rate,
            pressure: stats.pressure,
            t2_hit_tokens: stats.t2_hit_tokens,
            t2_query_tokens: stats.t2_query_tokens,
        });
        self.model.ingest(&Update {
            replica: &message.replica_id,
            model: &message.model_id,
            tenant: &message.tenant_id,
            scheme: &message.hash_scheme,
            adapter: &message.adapter_id,
            timestamp: stamp(message.timestamp_us),
            entries: &entries,
            stats,
        });
    }

    fn event(&self, message: &pb::CacheEvent) {
        let keys = [&message.replica_id, &message.tenant_id, &message.model_id, &message.adapter_id];
        let long = keys.into_iter().any(|id| id.len() > 512) || message.prefix_hash.len() > 64;
        if long || message.tenant_id == RESERVED_TENANT {
            return;
        }
        let kinds = [
            EventKind::Unspecified,
            EventKind::PrefixAdded,
            EventKind::PrefixEvicted,
            EventKind::ReplicaUpdated,
            EventKind::AllCleared,
        ];
        let kind = usize::try_from(message.r#type).ok().and_then(|kind| kinds.get(kind)).copied().unwrap_or_default();
        self.model.apply_event(&Event {
            kind,
            replica: &message.replica_id,
            model: &message.model_id,
            tenant: &message.tenant_id,
            prefix_hash: &message.prefix_hash,
            adapter: &message.adapter_id,
            timestamp: stamp(message.timestamp_us),
        });
    }

    async fn run(&self, messages: u32, mut at: impl FnMut(u32)) {
        let seed = 0x5eed;
        println!("seed {seed:#x}, {messages} messages");
        let mut rng = SmallRng::seed_from_u64(seed);
        let set: Vec<_> = (0..2000).map(|_| valid(&mut rng)).collect();
        let mut sent = 0;
        while sent < messages {
            let (method, first) = hostile(&mut rng, &set);
            let mut batch = vec![first];
            while method == Method::Report && batch.len() < 6 && rng.random_bool(0.5) {
                let (next, message) = hostile(&mut rng, &set);
                if next == method {
                    batch.push(message);
                }
            }
            let mut expected = Ok(None);
            for message in &batch {
                expected = self.expect(method, message);
                if expected.is_err() {
                    break;
                }
            }
            let count = u32::try_from(batch.len()).expect("few");
            let got = self.call(method, batch).await;
            match (&expected, &got) {
                (Err(()), Err(status)) => assert_eq!(status.code(), Code::Internal, "message {sent}: {status}"),
                (Ok(Some(Expected::State(wanted))), Ok(bytes)) => {
                    let got = pb::GetCacheStateResponse::decode(&bytes[..]).expect("our own answer");
                    let rows = got.replicas.iter().map(|row| (&*row.replica_id, row.cache_memory_bytes, row.hit_rate));
                    assert!(
                        rows.eq(wanted.replicas.iter().map(|(id, stats)| (
                            &**id,
                            stats.cache_memory_bytes,
                            stats.hit_rate
                        ))),
                        "message {sent}: {got:?}"
                    );
                    let total = got.summary.map(|summary| summary.total_prefixes);
                    assert_eq!(total, Some(wanted.total_prefixes as i64), "message {sent}");
                }
                (Ok(Some(Expected::Lookup(wanted))), Ok(bytes)) => {
                    let mut got = pb::LookupRouteResponse::decode(&bytes[..]).expect("our own answer");
                    got.lookup_latency_us = 0;
                    assert_eq!(&got, wanted, "message {sent}");
                }
                (Ok(None), Ok(_)) => {}
                _ => panic!("message {sent}, {method:?}: expected {expected:?}, got {got:?}"),
            }
            sent += count;
            at(sent);
        }
        let (fast, slow) = (self.index.dump(), self.model.dump());
        assert!(fast == slow, "the indexes differ:\n{}", slow.diff(&fast));
        self.index.check().expect("the derived state holds");
        assert_eq!(self.index.snapshot(), self.model.snapshot());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_messages_change_only_what_the_rules_accept() {
    World::start().await.run(30_000, |_| {}).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: a million messages; make soak"]
async fn a_million_hostile_messages_leave_memory_flat() {
    let mut early = 0;
    World::start()
        .await
        .run(1_000_000, |sent| {
            if sent >= 100_000 && early == 0 {
                early = memory::resident_bytes();
            }
        })
        .await;
    let late = memory::resident_bytes();
    println!("resident after 10^5: {early}, after 10^6: {late}, ratio {:.3}", late as f64 / early as f64);
    assert!(late as f64 <= early as f64 * 1.1, "grew from {early} to {late}");
}
