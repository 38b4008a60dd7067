//! The whole subscriber between a real ZMQ publisher and a real gRPC server, both in this process, on free ports.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::recorder::{Recorder, Rpc, eventually};
use crate::relay::relay;
use crate::running::{Running, config};
use inferencecache_core::fingerprint::{prefix_digests, wire_bytes};
use inferencecache_wire::pb;
use inferencecache_wire::subscriber::config::Config;
use inferencecache_wire::subscriber::link::Resolver;
use inferencecache_wire::subscriber::{Drained, Subscriber};
use inferencecache_wire::testkit::capture::Capture;
use inferencecache_wire::testkit::fake_engine::{CapturePlayer, EngineOptions, FakeEngine, Publish};
use inferencecache_wire::testkit::msgpack::Writer;

const TOPIC: &[u8] = b"kv-events";

fn engine() -> FakeEngine {
    FakeEngine::start(EngineOptions::default()).expect("a free port")
}

async fn subscribed(engine: &FakeEngine) {
    eventually("a subscription", || engine.wait_for_subscriber(TOPIC, Duration::ZERO)).await;
}

/// `[ts, [BlockStored [hashes] parent [tokens] size nil]]`
fn store(ts: f64, hashes: &[u64], parent: Option<u64>, tokens: impl IntoIterator<Item = u64>, size: u64) -> Vec<u8> {
    let tokens: Vec<u64> = tokens.into_iter().collect();
    let mut writer = Writer::new();
    writer.array(2).float64(ts).array(1).array(6).str("BlockStored").array(hashes.len());
    for &hash in hashes {
        writer.uint(hash);
    }
    match parent {
        Some(parent) => writer.uint(parent),
        None => writer.nil(),
    };
    writer.array(tokens.len());
    for token in tokens {
        writer.uint(token);
    }
    writer.uint(size).nil();
    writer.into_bytes()
}

/// `[ts, [BlockRemoved [hashes]]]`
fn remove(ts: f64, hashes: &[u64]) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.array(2).float64(ts).array(1).array(2).str("BlockRemoved").array(hashes.len());
    for &hash in hashes {
        writer.uint(hash);
    }
    writer.into_bytes()
}

fn clear(ts: f64) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.array(2).float64(ts).array(1).array(1).str("AllBlocksCleared");
    writer.into_bytes()
}

/// One block of two tokens.
fn pair(ts: f64, hash: u64, token: u64) -> Vec<u8> {
    store(ts, &[hash], None, [token, token + 1], 2)
}

/// What a server holds after these calls: adapter and hash.
fn held(rpcs: &[Rpc]) -> HashSet<(String, Vec<u8>)> {
    let mut held: HashSet<(String, Vec<u8>)> = HashSet::new();
    for rpc in rpcs {
        match rpc {
            Rpc::Update(update) => {
                held.extend(update.prefixes.iter().map(|p| (p.adapter_id.clone(), p.prefix_hash.clone())));
            }
            Rpc::Event(event) if event.r#type() == pb::cache_event::Type::AllCleared => held.clear(),
            Rpc::Event(event) => held.retain(|(adapter, hash)| {
                *hash != event.prefix_hash || !event.adapter_id.is_empty() && *adapter != event.adapter_id
            }),
        }
    }
    held
}

#[tokio::test]
async fn a_store_and_a_removal_reach_the_server_with_the_identity() {
    let (mut engine, server) = (engine(), Recorder::start().await);
    let running = Running::start(config(engine.endpoint(), server.address));
    subscribed(&engine).await;
    engine.publish(TOPIC, &pair(1000.5, 10, 1)).unwrap();
    let last = engine.publish(TOPIC, &remove(1001.5, &[10])).unwrap();
    running.reach(last).await;
    assert_eq!(
        server.lines(),
        ["clear@0", "report@1000500000 [9581a6bbf9cef45a/2/T1]", "evict@1001500000 9581a6bbf9cef45a"]
    );
    for rpc in server.rpcs() {
        let identity = match rpc {
            Rpc::Update(u) => {
                assert_eq!((u.hash_scheme, u.adapter_id, u.stats), ("vllm".to_owned(), String::new(), None));
                [u.replica_id, u.model_id, u.tenant_id]
            }
            Rpc::Event(e) => [e.replica_id, e.model_id, e.tenant_id],
        };
        assert_eq!(identity, ["r0", "m", "t"]);
    }
    assert_eq!(running.stop().await, Drained::Completely);
}

// subscriber:118
#[tokio::test]
async fn topics_are_filtered_by_prefix() {
    for (engine_topic, topic, received) in [
        ("", "kv-events", false),
        ("kv-events", "kv-events", true),
        ("kv-events-b", "kv-events", true),
        ("", "", true),
        ("anything", "", true),
    ] {
        let (mut engine, server) = (engine(), Recorder::start().await);
        let running = Running::start(Config { topic: topic.to_owned(), ..config(engine.endpoint(), server.address) });
        eventually("a subscription", || engine.wait_for_subscriber(topic.as_bytes(), Duration::ZERO)).await;
        engine.publish(engine_topic.as_bytes(), &pair(1.0, 1, 1)).unwrap();
        // This one always arrives, so what was not there before it never will be.
        let last = engine.publish(topic.as_bytes(), &pair(2.0, 2, 3)).unwrap();
        running.reach(last).await;
        let first = held(&server.rpcs()).contains(&(String::new(), hash_of(&[1, 2])));
        assert_eq!(first, received, "engine {engine_topic:?}, subscriber {topic:?}");
    }
}

fn hash_of(tokens: &[u32]) -> Vec<u8> {
    let mut digests = Vec::new();
    prefix_digests(tokens, 2.try_into().unwrap(), &mut digests);
    wire_bytes(*digests.last().unwrap()).to_vec()
}

// field:24
#[tokio::test]
async fn an_engine_that_dials_out_is_listened_to() {
    let server = Recorder::start().await;
    // A port that is free now; the subscriber finds it taken at first and tries again.
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = taken.local_addr().unwrap().port();
    let running = Running::start(config(&format!("tcp://*:{port}"), server.address));
    let options =
        EngineOptions { publish: Publish::Connect(format!("tcp://127.0.0.1:{port}")), ..EngineOptions::default() };
    drop(taken);
    let mut first = FakeEngine::start(options.clone()).unwrap();
    subscribed(&first).await;
    let last = first.publish(TOPIC, &pair(1000.5, 10, 1)).unwrap();
    running.reach(last).await;
    drop(first);
    let mut second = FakeEngine::start(options).unwrap();
    subscribed(&second).await;
    second.publish(TOPIC, &pair(1001.5, 11, 3)).unwrap();
    server.wait("the second engine's block", |rpcs| held(rpcs).contains(&(String::new(), hash_of(&[3, 4])))).await;
    assert_eq!(running.metric("connected{rank=\"0\"}"), 1.0);
    assert_eq!(running.metric("reconnects_total"), 1.0);
}

#[tokio::test]
async fn a_publisher_that_comes_back_on_its_port_is_subscribed_to_again() {
    let (mut engine, server) = (engine(), Recorder::start().await);
    let running = Running::start(config(engine.endpoint(), server.address));
    for round in 0..3 {
        subscribed(&engine).await;
        engine.publish(TOPIC, &pair(5.0, round, 1 + 2 * round)).unwrap();
        let tokens = u32::try_from(1 + 2 * round).unwrap();
        let block = (String::new(), hash_of(&[tokens, tokens + 1]));
        server.wait("the block", |rpcs| held(rpcs).contains(&block)).await;
        engine.restart().unwrap();
    }
    assert_eq!(running.metric("reconnects_total"), 2.0);
}

// field:43
#[tokio::test]
#[ignore = "takes half a minute: the time after which a silent connection counts as dead"]
async fn a_connection_to_the_server_that_died_silently_is_replaced() {
    let (mut engine, server) = (engine(), Recorder::start().await);
    let (address, holds) = relay(server.address).await;
    let running = Running::start(config(engine.endpoint(), address));
    subscribed(&engine).await;
    let last = engine.publish(TOPIC, &pair(5.0, 1, 1)).unwrap();
    running.reach(last).await;
    holds.send_modify(|holds| *holds += 1);
    let start = Instant::now();
    let last = engine.publish(TOPIC, &pair(5.0, 2, 3)).unwrap();
    while running.metrics.acknowledged_sequence(0) != i64::try_from(last).ok() {
        assert!(start.elapsed() < Duration::from_secs(60));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    eventually("a full report", || running.metric("full_reports_total") >= 1.0).await;
    assert_eq!(held(&server.rpcs()).len(), 2);
}

/// Plays a recording and returns how many prompts are predicted by what the server then holds.
async fn play(file: &str, block_size: u32, recomputes_last: bool, adapters: &[&str], topic: &str) -> (usize, usize) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/captures").join(file);
    let mut capture = Capture::load(&path).expect("the capture");
    capture.shift_to(1e9);
    let (engine, server) = (engine(), Recorder::start().await);
    let running = Running::start(Config { topic: topic.to_owned(), ..config(engine.endpoint(), server.address) });
    eventually("a subscription", || engine.wait_for_subscriber(topic.as_bytes(), Duration::ZERO)).await;
    let mut player = CapturePlayer::new(engine, capture);
    let (mut right, mut total) = (0, 0);
    while let Some(step) = player.step().unwrap() {
        if let Some(last) = step.last {
            running.reach(last).await;
        }
        let Some(prompt) = step.prompt else { continue };
        let adapter = adapters.iter().find(|&&name| name == prompt.model).copied().unwrap_or("");
        let held = held(&server.rpcs());
        let mut digests = Vec::new();
        prefix_digests(&prompt.token_ids, block_size.try_into().unwrap(), &mut digests);
        let is_held = |digest: &&u64| held.contains(&(adapter.to_owned(), wire_bytes(**digest).to_vec()));
        let mut matched = digests.iter().take_while(is_held).count() * block_size as usize;
        if recomputes_last && matched == prompt.token_ids.len() {
            matched = matched.saturating_sub(block_size as usize);
        }
        right += usize::from(matched == prompt.cached_tokens as usize);
        total += 1;
    }
    (right, total)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recorded_engines_are_predicted_over_real_sockets() {
    assert_eq!(play("vllm-0.32-cpu-a.jsonl", 32, true, &["legal"], "kv-events").await, (78, 79));
    assert_eq!(play("sglang-0.5.23-radix-a.jsonl", 16, false, &[], "").await, (107, 107));
}

// subscriber:102
#[tokio::test]
async fn a_server_that_comes_up_late_gets_every_held_block() {
    let mut engine = engine();
    let address = Recorder::start().await.kill();
    let running = Running::start(config(engine.endpoint(), address));
    subscribed(&engine).await;
    engine.publish(TOPIC, &store(5.0, &[1, 2], None, 1..=4, 2)).unwrap();
    // subscriber:108: stored and removed while nobody listened.
    engine.publish(TOPIC, &pair(5.0, 3, 9)).unwrap();
    eventually("a failed call", || running.metric("rpc_failures_total{rpc=\"PublishEvent\"}") > 0.0).await;
    let last = engine.publish(TOPIC, &remove(6.0, &[3])).unwrap();
    let server = Recorder::on(address).await;
    let start = Instant::now();
    running.reach(last).await;
    assert!(start.elapsed() < Duration::from_secs(15));
    let lines = server.lines();
    assert_eq!(held(&server.rpcs()).len(), 2, "{lines:?}");
    assert!(lines.iter().all(|line| !line.contains("evict")), "{lines:?}");
}

// subscriber:103
#[tokio::test]
async fn a_server_that_restarts_empty_gets_everything_again_while_the_engine_is_idle() {
    let (mut engine, server) = (engine(), Recorder::start().await);
    let running = Running::start(config(engine.endpoint(), server.address));
    subscribed(&engine).await;
    let hashes: Vec<u64> = (1..=500).collect();
    engine.publish(TOPIC, &store(5.0, &hashes, None, 1..=1000, 2)).unwrap();
    let last = engine.publish(TOPIC, &remove(6.0, &[500])).unwrap();
    running.reach(last).await;
    let before = held(&server.rpcs());
    assert_eq!(before.len(), 499);
    let mut address = server.kill();
    for round in 1..=2 {
        let server = Recorder::on(address).await;
        let start = Instant::now();
        server.wait("everything held", |rpcs| held(rpcs) == before).await;
        assert!(start.elapsed() < Duration::from_secs(15), "round {round}");
        address = server.kill();
    }
    assert!(running.metric("full_reports_total") >= 2.0);
}

/// The name is looked up for each dial.
#[tokio::test]
async fn a_server_that_moves_to_another_address_gets_everything_there_while_the_engine_is_idle() {
    let (mut engine, server) = (engine(), Recorder::start().await);
    let (moves, address) = tokio::sync::watch::channel(server.address);
    let resolver: Resolver = Arc::new(move |host, port| {
        assert_eq!((host, port), ("server.of.the.cluster", 9090));
        let found = vec![*address.borrow()];
        Box::pin(async { Ok(found) })
    });
    let subscriber = Subscriber::builder(config(engine.endpoint(), "server.of.the.cluster:9090")).resolver(resolver);
    let running = Running::run(subscriber.build().expect("a usable configuration"));
    subscribed(&engine).await;
    let hashes: Vec<u64> = (1..=100).collect();
    let last = engine.publish(TOPIC, &store(5.0, &hashes, None, 1..=200, 2)).unwrap();
    running.reach(last).await;
    let before = held(&server.rpcs());
    assert_eq!(before.len(), 100);
    let elsewhere = Recorder::start().await;
    moves.send_replace(elsewhere.address);
    server.kill();
    elsewhere.wait("everything held", |rpcs| held(rpcs) == before).await;
}

// subscriber:104
#[tokio::test]
async fn a_report_that_is_not_accepted_is_retried() {
    let (mut engine, server) = (engine(), Recorder::start().await);
    let running = Running::start(config(engine.endpoint(), server.address));
    subscribed(&engine).await;
    let last = engine.publish(TOPIC, &remove(1.0, &[9])).unwrap();
    running.reach(last).await;
    server.mood.send_modify(|mood| mood.accepts = false);
    let last = engine.publish(TOPIC, &pair(5.0, 1, 1)).unwrap();
    eventually("two refusals", || running.metric("rpc_failures_total{rpc=\"ReportCacheState\"}") >= 2.0).await;
    assert_ne!(running.metrics.acknowledged_sequence(0), i64::try_from(last).ok());
    server.mood.send_modify(|mood| mood.accepts = true);
    running.reach(last).await;
}

// subscriber:105
#[tokio::test]
async fn a_server_that_hangs_does_not_stop_the_engine_from_being_heard() {
    let (mut engine, server) = (engine(), Recorder::start().await);
    let running = Running::start(config(engine.endpoint(), server.address));
    subscribed(&engine).await;
    let last = engine.publish(TOPIC, &pair(5.0, 1, 1)).unwrap();
    running.reach(last).await;
    server.mood.send_modify(|mood| mood.hangs = true);
    let start = Instant::now();
    for i in 0..10_000 {
        engine.publish(TOPIC, &pair(5.0, 100 + i, i)).unwrap();
    }
    eventually("all batches", || running.metric("batches_total") >= 10_001.0).await;
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(running.metric("tracked_blocks{kind=\"indexed\"}"), 10_001.0);
    server.mood.send_modify(|mood| mood.hangs = false);
    running.reach(engine.next_sequence() - 1).await;
    assert_eq!(held(&server.rpcs()).len(), 10_000, "tokens 1, 2 are stored twice");
}

// subscriber:106
#[tokio::test]
async fn one_store_of_many_blocks_arrives_in_several_messages() {
    let (mut engine, server) = (engine(), Recorder::start().await);
    let running = Running::start(config(engine.endpoint(), server.address));
    subscribed(&engine).await;
    let hashes: Vec<u64> = (1..=10_000).collect();
    let last = engine.publish(TOPIC, &store(5.0, &hashes, None, 1..=20_000, 2)).unwrap();
    running.reach(last).await;
    let sizes: Vec<usize> = server
        .rpcs()
        .iter()
        .filter_map(|rpc| match rpc {
            Rpc::Update(update) => Some(update),
            Rpc::Event(_) => None,
        })
        .inspect(|update| assert!(prost::Message::encoded_len(*update) <= 1 << 20))
        .map(|update| update.prefixes.len())
        .collect();
    assert_eq!(sizes, [4096, 4096, 1808]);
    assert_eq!(held(&server.rpcs()).len(), 10_000);
}

// subscriber:107
#[tokio::test]
async fn more_evictions_than_can_be_kept_become_a_clear_and_a_full_report() {
    let (mut engine, server) = (engine(), Recorder::start().await);
    let running = Running::start(config(engine.endpoint(), server.address));
    subscribed(&engine).await;
    for i in 0..72u64 {
        let hashes: Vec<u64> = (i * 1000..(i + 1) * 1000).map(|hash| hash + 1).collect();
        engine.publish(TOPIC, &store(5.0, &hashes, None, hashes.iter().copied(), 1)).unwrap();
    }
    running.reach(engine.next_sequence() - 1).await;
    let address = server.kill();
    eventually("the loss", || running.metric("rpc_failures_total{rpc=\"ReportCacheState\"}") > 0.0).await;
    for i in 0..70u64 {
        let hashes: Vec<u64> = (i * 1000..(i + 1) * 1000).map(|hash| hash + 1).collect();
        engine.publish(TOPIC, &remove(6.0, &hashes)).unwrap();
    }
    eventually("all removals", || running.metric("events_total{type=\"removed\"}") >= 70.0).await;
    let server = Recorder::on(address).await;
    running.reach(engine.next_sequence() - 1).await;
    assert_eq!(server.lines()[0], "clear@0");
    assert_eq!(held(&server.rpcs()).len(), 2000);
    assert!(server.rpcs()[1..].iter().all(|rpc| matches!(rpc, Rpc::Update(_))));
}

// subscriber:112
#[tokio::test]
async fn a_pair_that_was_just_reported_is_not_reported_again() {
    let (mut engine, server) = (engine(), Recorder::start().await);
    let running = Running::start(config(engine.endpoint(), server.address));
    subscribed(&engine).await;
    let last = engine.publish(TOPIC, &pair(5.0, 1, 1)).unwrap();
    running.reach(last).await;
    for _ in 0..99 {
        engine.publish(TOPIC, &pair(5.0, 1, 1)).unwrap();
    }
    running.reach(engine.next_sequence() - 1).await;
    assert_eq!(server.lines(), ["clear@0", "report@5000000 [9581a6bbf9cef45a/2/T1]"]);
}

// subscriber:113
#[tokio::test]
async fn evictions_overlap_but_never_two_of_one_hash_and_a_clear_waits_for_all() {
    let (mut engine, server) = (engine(), Recorder::start().await);
    let running = Running::start(config(engine.endpoint(), server.address));
    subscribed(&engine).await;
    let hashes: Vec<u64> = (1..=1000).collect();
    let last = engine.publish(TOPIC, &store(5.0, &hashes, None, 1..=2000, 2)).unwrap();
    running.reach(last).await;
    server.mood.send_modify(|mood| mood.delay = Duration::from_millis(10));
    engine.publish(TOPIC, &remove(6.0, &hashes)).unwrap();
    engine.publish(TOPIC, &store(7.0, &hashes[..1], None, 1..=2, 2)).unwrap();
    engine.publish(TOPIC, &remove(8.0, &hashes[..1])).unwrap();
    engine.publish(TOPIC, &clear(9.0)).unwrap();
    let last = engine.publish(TOPIC, &store(10.0, &hashes[..1], None, 1..=2, 2)).unwrap();
    running.reach(last).await;
    let most = server.state().most_in_flight;
    assert!((2..=64).contains(&most), "{most}");
    assert!(!server.state().overlapped);
    let lines = server.lines();
    let first: Vec<&String> = lines.iter().filter(|line| line.contains("9581a6bbf9cef45a")).collect();
    assert_eq!(
        first[1..],
        [
            "evict@6000000 9581a6bbf9cef45a",
            "report@7000000 [9581a6bbf9cef45a/2/T1]",
            "evict@8000000 9581a6bbf9cef45a",
            "report@10000000 [9581a6bbf9cef45a/2/T1]"
        ]
    );
    let evictions = lines.iter().filter(|line| line.starts_with("evict")).count();
    assert_eq!((evictions, &lines[lines.len() - 2][..]), (1001, "clear@9000000"));
}

// subscriber:114
#[tokio::test]
async fn the_map_is_bounded() {
    let (mut engine, server) = (engine(), Recorder::start().await);
    let mut config = config(engine.endpoint(), server.address);
    config.rules.max_tracked_blocks = 1000;
    let running = Running::start(config);
    subscribed(&engine).await;
    for i in 0..5000 {
        engine.publish(TOPIC, &pair(5.0, i + 1, 2 * i)).unwrap();
    }
    running.reach(engine.next_sequence() - 1).await;
    assert_eq!(running.metric("tracked_blocks{kind=\"indexed\"}"), 1000.0);
    assert_eq!(running.metric("map_evictions_total"), 4000.0);
}

// subscriber:115
#[tokio::test]
async fn what_is_gathered_leaves_before_the_end() {
    let (mut engine, server) = (engine(), Recorder::start().await);
    let config = Config { window: Duration::from_secs(3600), ..config(engine.endpoint(), server.address) };
    let running = Running::start(config);
    subscribed(&engine).await;
    engine.publish(TOPIC, &pair(5.0, 1, 1)).unwrap();
    eventually("the batch", || running.metric("batches_total") >= 1.0).await;
    assert_eq!(running.stop().await, Drained::Completely);
    assert_eq!(server.lines(), ["clear@0", "report@5000000 [9581a6bbf9cef45a/2/T1]"]);
}

// subscriber:116
#[tokio::test]
async fn a_server_that_hangs_delays_the_end_by_five_seconds_at_most() {
    let (mut engine, server) = (engine(), Recorder::start().await);
    server.mood.send_modify(|mood| mood.hangs = true);
    let running = Running::start(config(engine.endpoint(), server.address));
    subscribed(&engine).await;
    engine.publish(TOPIC, &pair(5.0, 1, 1)).unwrap();
    server.wait("the first call", |rpcs| !rpcs.is_empty()).await;
    let start = Instant::now();
    assert_eq!(running.stop().await, Drained::Partly);
    assert!(start.elapsed() < Duration::from_secs(6));
}

// subscriber:117
#[tokio::test]
async fn a_taken_health_port_is_a_warning_and_readiness_depends_on_nobody() {
    let taken = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let nowhere = Recorder::start().await.kill();
    let (mut engine, server) = (engine(), Recorder::start().await);
    let running =
        Running::start(Config { health_bind_address: Some(address), ..config(engine.endpoint(), server.address) });
    subscribed(&engine).await;
    let last = engine.publish(TOPIC, &pair(5.0, 1, 1)).unwrap();
    running.reach(last).await;

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let subscriber = Subscriber::builder(config("tcp://127.0.0.1:1", nowhere)).health_listener(listener);
    let running = tokio::spawn(subscriber.build().unwrap().run(std::future::pending()));
    for (path, body) in
        [("/healthz", "ok"), ("/readyz", "ok"), ("/metrics", "inferencecache_subscriber_batches_total 0")]
    {
        let response = get(address, path).await;
        assert!(response.starts_with("HTTP/1.1 200 ") && response.contains(body), "{path}: {response}");
    }
    running.abort();
}

async fn get(address: std::net::SocketAddr, path: &str) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response
}
