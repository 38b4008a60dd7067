//! Gaps, replays, restarts, ranks and broken connections over real sockets, with the whole subscriber in between.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::calls::unhex;
use crate::recorder::{Recorder, Rpc, eventually};
use crate::relay::relay;
use crate::running::{Running, config};
use inferencecache_core::fingerprint::prefix_digests;
use inferencecache_wire::pb;
use inferencecache_wire::subscriber::Drained;
use inferencecache_wire::subscriber::config::Config;
use inferencecache_wire::testkit::fake_engine::{EngineOptions, FakeEngine, Publish, ReplayLayout};
use inferencecache_wire::testkit::msgpack::Writer;
use serde::Deserialize;
use serde_json::Value;

const TOPIC: &[u8] = b"kv-events";
const PATIENCE: Duration = Duration::from_secs(20);

async fn subscribed(engine: &FakeEngine) {
    eventually("a subscription", || engine.wait_for_subscriber(TOPIC, Duration::ZERO)).await;
}

/// One block of two tokens, of a rank if one is given.
fn store(ts: f64, hash: u64, token: u64, rank: Option<u64>) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.array(3).float64(ts).array(1).array(6).str("BlockStored").array(1).uint(hash).nil();
    writer.array(2).uint(token).uint(token + 1).uint(2).nil();
    match rank {
        Some(rank) => writer.uint(rank),
        None => writer.nil(),
    };
    writer.into_bytes()
}

fn event(ts: f64, tag: &str, hash: Option<u64>, rank: u64) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.array(3).float64(ts).array(1);
    match hash {
        Some(hash) => writer.array(2).str(tag).array(1).uint(hash),
        None => writer.array(1).str(tag),
    };
    writer.uint(rank);
    writer.into_bytes()
}

fn digest(token: u32) -> String {
    let mut digests = Vec::new();
    prefix_digests(&[token, token + 1], 2.try_into().expect("positive"), &mut digests);
    format!("{:016x}", digests[0])
}

/// What a server holds after these calls.
fn held(rpcs: &[Rpc]) -> BTreeSet<String> {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut held = BTreeSet::new();
    for rpc in rpcs {
        match rpc {
            Rpc::Update(update) => held.extend(update.prefixes.iter().map(|p| hex(&p.prefix_hash))),
            Rpc::Event(event) if event.r#type() == pb::cache_event::Type::AllCleared => held.clear(),
            Rpc::Event(event) => {
                held.remove(&hex(&event.prefix_hash));
            }
        }
    }
    held
}

fn tokens(tokens: &[u32]) -> BTreeSet<String> {
    tokens.iter().map(|&token| digest(token)).collect()
}

// === the published cases with a replay ===

#[derive(Debug, Deserialize)]
struct File {
    streams: Vec<Sample>,
}

#[derive(Debug, Deserialize)]
struct Sample {
    id: String,
    replay: Option<SampleReplay>,
    frames: Vec<Vec<String>>,
    expect: Vec<Value>,
}

#[derive(Debug, Clone, Deserialize)]
struct SampleReplay {
    requests_expected: Vec<u64>,
    replies_to_each: Vec<Vec<String>>,
}

/// A ROUTER that gives the same parts to each request, from the requested number on, and tells what it was asked.
struct Router {
    endpoint: String,
    requests: mpsc::Receiver<Vec<Vec<u8>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Router {
    fn start(context: &zmq::Context, replies: Vec<Vec<Vec<u8>>>, delay: Duration) -> Self {
        let socket = context.socket(zmq::ROUTER).expect("a socket");
        socket.set_linger(0).expect("an option");
        socket.bind("tcp://127.0.0.1:*").expect("a free port");
        let endpoint = socket.get_last_endpoint().expect("bound").expect("text");
        let (sender, requests) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if socket.poll(zmq::POLLIN, 5).expect("a poll") == 0 {
                    continue;
                }
                let request = socket.recv_multipart(0).expect("a request");
                let start = request.last().and_then(|start| start[..].try_into().ok()).map_or(0, u64::from_be_bytes);
                sender.send(request.clone()).expect("a listener");
                std::thread::sleep(delay);
                let number = |parts: &[Vec<u8>]| {
                    let number = parts[1..].iter().find_map(|part| <[u8; 8]>::try_from(&part[..]).ok());
                    number.map_or(u64::MAX, u64::from_be_bytes)
                };
                for reply in replies.iter().filter(|reply| number(reply) >= start) {
                    let parts = std::iter::once(&request[0]).chain(reply);
                    socket.send_multipart(parts, 0).expect("sent");
                }
            }
        });
        Self { endpoint, requests, stop, thread: Some(thread) }
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn publisher(context: &zmq::Context) -> (zmq::Socket, String) {
    let socket = context.socket(zmq::XPUB).expect("a socket");
    socket.set_rcvtimeo(20_000).expect("an option");
    socket.set_linger(0).expect("an option");
    socket.bind("tcp://127.0.0.1:*").expect("a free port");
    let endpoint = socket.get_last_endpoint().expect("bound").expect("text");
    (socket, endpoint)
}

fn expected_line(call: &Value) -> String {
    let (at, text) = (&call["timestamp_us"], |value: &Value| value.as_str().expect("text").to_owned());
    match call["type"].as_str() {
        Some("ALL_CLEARED") => format!("clear@{at}"),
        Some(_) => format!("evict@{at} {}", text(&call["prefix_hash"])),
        None => {
            let entries = call["prefixes"].as_array().expect("entries").iter();
            let entry = |e: &Value| format!("{}/{}/T{}", text(&e["prefix_hash"]), e["token_count"], e["tier"]);
            format!("report@{at} [{}]", entries.map(entry).collect::<Vec<_>>().join(", "))
        }
    }
}

// subscriber:87-90 subscriber:94 subscriber:97 subscriber:120
#[tokio::test]
async fn the_published_replays_work_over_a_real_router() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/kv_events_samples.json");
    let file: File = serde_json::from_str(&std::fs::read_to_string(path).expect("the case file")).expect("streams");
    let samples: Vec<Sample> = file.streams.into_iter().filter(|sample| sample.replay.is_some()).collect();
    assert_eq!(samples.len(), 6);
    for sample in samples {
        let replay = sample.replay.expect("filtered");
        let parts = |parts: &Vec<String>| parts.iter().map(|part| unhex(part)).collect::<Vec<_>>();
        let context = zmq::Context::new();
        let router = Router::start(&context, replay.replies_to_each.iter().map(parts).collect(), Duration::ZERO);
        let (engine, endpoint) = publisher(&context);
        let server = Recorder::start().await;
        let running = Running::start(Config {
            replay_endpoint: Some(router.endpoint.clone()),
            window: Duration::from_secs(3600),
            ..config(&endpoint, server.address)
        });
        engine.recv_bytes(0).expect("a subscription");
        let frames: Vec<Vec<Vec<u8>>> = sample.frames.iter().map(parts).collect();
        for frame in &frames {
            engine.send_multipart(frame, 0).expect("sent");
        }
        for start in &replay.requests_expected {
            let mut request = Vec::new();
            eventually("a request", || router.requests.try_recv().map(|parts| request = parts).is_ok()).await;
            assert_eq!(request.len(), 3, "{}: {request:x?}", sample.id);
            assert_eq!((&request[1][..], &request[2][..]), (&b""[..], &start.to_be_bytes()[..]), "{}", sample.id);
        }
        let last = u64::from_str_radix(&sample.frames.last().expect("frames")[1], 16).expect("a number");
        // Nothing is delivered within the hour, so what has been applied shows in the counts.
        let applied = frames.len() as f64;
        running.counts("batches_total", applied).await;
        eventually("the end of the replay", || {
            let counted = running.metric("replayed_batches_total") + running.metric("lost_batches_total");
            counted >= f64::from(u8::try_from(missing(&sample.frames)).expect("small"))
        })
        .await;
        assert_eq!(running.stop().await, Drained::Completely, "{last}");
        let expected: Vec<String> = sample.expect.iter().map(expected_line).collect();
        assert_eq!(between_clears(server.lines()), between_clears(expected), "{}", sample.id);
        assert!(router.requests.try_recv().is_err(), "{}: one request more", sample.id);
    }
}

/// The lines between clears, in no order: calls that name different hashes may overtake each other, but never a clear.
fn between_clears(lines: Vec<String>) -> Vec<BTreeSet<String>> {
    let parts = lines.split(|line| line.starts_with("clear"));
    parts.map(|part| part.iter().cloned().collect()).collect()
}

/// Numbers that the frames leave out, from 0 and from each fall.
fn missing(frames: &[Vec<String>]) -> u64 {
    let (mut next, mut missing) = (0, 0);
    for frame in frames {
        let number = u64::from_str_radix(&frame[1], 16).expect("a number");
        missing += number - if number >= next { next } else { 0 };
        next = number + 1;
    }
    missing
}

// === replay ===

fn with_replay(layout: ReplayLayout, buffer: usize) -> FakeEngine {
    let replay = Some("tcp://127.0.0.1:*".to_owned());
    FakeEngine::start(EngineOptions { replay, layout, buffer, ..EngineOptions::default() }).expect("free ports")
}

fn replaying(engine: &FakeEngine, server: SocketAddr) -> Config {
    Config { replay_endpoint: engine.replay_endpoint().map(str::to_owned), ..config(engine.endpoint(), server) }
}

#[tokio::test]
async fn thousands_of_missed_batches_come_back_in_every_layout() {
    for layout in [ReplayLayout::Current, ReplayLayout::Older, ReplayLayout::First] {
        let (mut engine, server) = (with_replay(layout, 10_000), Recorder::start().await);
        for token in 0..3000 {
            engine.lose(TOPIC, &store(5.0, 1 + token, 2 * token, None)).unwrap();
        }
        let running = Running::start(replaying(&engine, server.address));
        subscribed(&engine).await;
        let last = engine.publish(TOPIC, &store(6.0, 9999, 9999, None)).unwrap();
        running.reach(last).await;
        assert_eq!(held(&server.rpcs()).len(), 3001, "{layout:?}");
        for token in 0..500 {
            engine.lose(TOPIC, &store(7.0, 10_000 + token, 10_000 + 2 * token, None)).unwrap();
        }
        let last = engine.publish(TOPIC, &store(8.0, 8888, 8888, None)).unwrap();
        running.reach(last).await;
        assert_eq!(held(&server.rpcs()).len(), 3502, "{layout:?}");
        assert_eq!(running.metric("replayed_batches_total"), 3500.0);
        assert_eq!((running.metric("gaps_total"), running.metric("lost_batches_total")), (1.0, 0.0));
    }
}

#[tokio::test]
async fn a_buffer_that_has_rolled_over_loses_what_it_no_longer_has() {
    let (mut engine, server) = (with_replay(ReplayLayout::Current, 10), Recorder::start().await);
    let running = Running::start(replaying(&engine, server.address));
    subscribed(&engine).await;
    engine.publish(TOPIC, &store(5.0, 1, 1, None)).unwrap();
    for token in 0..30 {
        engine.lose(TOPIC, &store(5.0, 100 + token, 100 + 2 * token, None)).unwrap();
    }
    let last = engine.publish(TOPIC, &store(6.0, 2, 3, None)).unwrap();
    running.reach(last).await;
    assert_eq!((running.metric("lost_batches_total"), running.metric("replayed_batches_total")), (21.0, 9.0));
    assert_eq!(held(&server.rpcs()).len(), 11);
}

/// Nobody answers where the engine should: 2 s later the stream goes on.
#[tokio::test]
async fn a_replay_endpoint_that_nobody_listens_to_costs_two_seconds() {
    let (mut engine, server) = (FakeEngine::start(EngineOptions::default()).unwrap(), Recorder::start().await);
    let nowhere = free_ports(1);
    let replay_endpoint = Some(format!("tcp://127.0.0.1:{nowhere}"));
    let running = Running::start(Config { replay_endpoint, ..config(engine.endpoint(), server.address) });
    subscribed(&engine).await;
    engine.publish(TOPIC, &store(5.0, 1, 1, None)).unwrap();
    engine.skip(1);
    let last = engine.publish(TOPIC, &store(6.0, 2, 3, None)).unwrap();
    running.reach(last).await;
    assert_eq!((running.metric("gaps_total"), running.metric("lost_batches_total")), (1.0, 1.0));
}

// field:19
#[tokio::test]
#[ignore = "waits 3 s; the same with injected time is in streams.rs"]
async fn a_reply_after_three_seconds_is_discarded() {
    let context = zmq::Context::new();
    let late = [b"".to_vec(), b"t".to_vec(), 1u64.to_be_bytes().to_vec(), store(11.0, 2, 7, Some(0))];
    let end = [b"".to_vec(), b"".to_vec(), vec![0xff; 8], b"".to_vec()];
    let router = Router::start(&context, vec![late.to_vec(), end.to_vec()], Duration::from_secs(3));
    let (mut engine, server) = (FakeEngine::start(EngineOptions::default()).unwrap(), Recorder::start().await);
    let running = Running::start(Config {
        replay_endpoint: Some(router.endpoint.clone()),
        ..config(engine.endpoint(), server.address)
    });
    subscribed(&engine).await;
    engine.publish(TOPIC, &store(10.0, 1, 1, Some(0))).unwrap();
    engine.skip(1);
    let last = engine.publish(TOPIC, &event(12.0, "BlockRemoved", Some(2), 0)).unwrap();
    running.reach(last).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(held(&server.rpcs()), tokens(&[1]));
    assert_eq!((running.metric("lost_batches_total"), running.metric("replayed_batches_total")), (1.0, 0.0));
}

// === ranks ===

/// The first of so many ports in a row that are free now.
fn free_ports(number: u16) -> u16 {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let first = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = first.local_addr().unwrap().port();
        let others = (1..number).map(|i| std::net::TcpListener::bind(("127.0.0.1", port.checked_add(i)?)).ok());
        if others.collect::<Option<Vec<_>>>().is_some() {
            return port;
        }
        assert!(Instant::now() < deadline, "no free ports");
    }
}

fn rank_engine(port: u16) -> FakeEngine {
    let publish = Publish::Bind(format!("tcp://127.0.0.1:{port}"));
    FakeEngine::start(EngineOptions { publish, ..EngineOptions::default() }).expect("a free port")
}

// subscriber:119
#[tokio::test]
async fn a_block_of_two_ranks_is_evicted_when_the_second_one_removes_it() {
    let port = free_ports(2);
    let mut ranks = [rank_engine(port), rank_engine(port + 1)];
    let server = Recorder::start().await;
    let endpoint = format!("tcp://127.0.0.1:{port}");
    let running = Running::start(Config { engine_dp_size: 2, ..config(&endpoint, server.address) });
    for (rank, engine) in (0..).zip(&mut ranks) {
        subscribed(engine).await;
        engine.publish(TOPIC, &store(5.0, 1, 1, Some(rank))).unwrap();
        running.reach_on(i64::try_from(rank).unwrap(), 0).await;
    }
    let last = ranks[0].publish(TOPIC, &event(6.0, "BlockRemoved", Some(1), 0)).unwrap();
    running.reach_on(0, last).await;
    assert_eq!(held(&server.rpcs()), tokens(&[1]));
    let last = ranks[1].publish(TOPIC, &event(7.0, "BlockRemoved", Some(1), 1)).unwrap();
    running.reach_on(1, last).await;
    let evictions = server.lines().into_iter().filter(|line| line.starts_with("evict")).collect::<Vec<_>>();
    assert_eq!(evictions, [format!("evict@7000000 {}", digest(1))]);
    assert_eq!(running.metric("connected{rank=\"0\"}") + running.metric("connected{rank=\"1\"}"), 2.0);
    assert_eq!(server.lines().iter().filter(|line| line.starts_with("clear")).count(), 1);
}

// field:22
#[tokio::test]
async fn a_rank_that_starts_later_or_clears_takes_nothing_from_the_other() {
    let port = free_ports(2);
    let server = Recorder::start().await;
    let endpoint = format!("tcp://127.0.0.1:{port}");
    let running = Running::start(Config { engine_dp_size: 2, ..config(&endpoint, server.address) });
    let mut first = rank_engine(port);
    subscribed(&first).await;
    first.publish(TOPIC, &store(10.0, 1, 1, Some(0))).unwrap();
    running.reach_on(0, 0).await;
    let mut second = rank_engine(port + 1);
    subscribed(&second).await;
    second.publish(TOPIC, &store(11.0, 1, 7, Some(1))).unwrap();
    second.publish(TOPIC, &store(12.0, 2, 9, Some(1))).unwrap();
    running.reach_on(1, 1).await;
    assert_eq!(held(&server.rpcs()), tokens(&[1, 7, 9]));
    second.publish(TOPIC, &event(13.0, "AllBlocksCleared", None, 1)).unwrap();
    running.reach_on(1, 2).await;
    assert_eq!(held(&server.rpcs()), tokens(&[1]));
    let own = format!("{}/2", digest(1));
    let lines = server.lines();
    assert_eq!(lines.iter().filter(|line| line.starts_with("clear") || line.contains(&own)).count(), 2, "{lines:?}");
}

// field:27
#[tokio::test]
async fn the_second_node_listens_to_the_ports_of_its_own_ranks() {
    let base = free_ports(10);
    let mut ranks = [rank_engine(base + 8), rank_engine(base + 9)];
    let server = Recorder::start().await;
    let endpoint = format!("tcp://127.0.0.1:{base}");
    let running =
        Running::start(Config { engine_dp_size: 2, engine_dp_start_rank: 8, ..config(&endpoint, server.address) });
    for (rank, engine) in (8..).zip(&mut ranks) {
        subscribed(engine).await;
        engine.publish(TOPIC, &store(5.0, 1, rank, Some(rank))).unwrap();
        running.reach_on(i64::try_from(rank).unwrap(), 0).await;
    }
    assert_eq!(held(&server.rpcs()), tokens(&[8, 9]));
}

#[tokio::test]
async fn ipv6_and_ipc_engines_are_heard_and_answer() {
    let folder = tempfile::tempdir().unwrap();
    let ipc = |name: &str| format!("ipc://{}/{name}", folder.path().display());
    for (publish, replay) in [("tcp://[::1]:*".to_owned(), "tcp://[::1]:*".to_owned()), (ipc("events"), ipc("replay"))]
    {
        let options =
            EngineOptions { publish: Publish::Bind(publish), replay: Some(replay), ..EngineOptions::default() };
        let (mut engine, server) = (FakeEngine::start(options).unwrap(), Recorder::start().await);
        let running = Running::start(replaying(&engine, server.address));
        subscribed(&engine).await;
        engine.publish(TOPIC, &store(5.0, 1, 1, None)).unwrap();
        engine.lose(TOPIC, &store(6.0, 2, 3, None)).unwrap();
        let last = engine.publish(TOPIC, &store(7.0, 3, 5, None)).unwrap();
        running.reach(last).await;
        assert_eq!(held(&server.rpcs()), tokens(&[1, 3, 5]));
    }
}

// === connections ===

// field:25
#[tokio::test]
async fn a_publisher_that_comes_back_three_times_is_heard_each_time_and_what_was_before_is_cleared() {
    let server = Recorder::start().await;
    let port = free_ports(1);
    let running = Running::start(config(&format!("tcp://127.0.0.1:{port}"), server.address));
    for round in 0..4_u32 {
        let mut engine = rank_engine(port);
        subscribed(&engine).await;
        engine.publish(TOPIC, &store(1.0, 1, u64::from(round), None)).unwrap();
        server.wait("the store alone", |rpcs| held(rpcs) == tokens(&[round])).await;
    }
    assert_eq!((running.metric("reconnects_total"), running.metric("engine_restarts_total")), (3.0, 3.0));
}

/// A new process that has already passed the number that would come next.
#[tokio::test]
async fn a_refused_dial_makes_the_next_frame_a_restart_even_when_its_number_fits() {
    let server = Recorder::start().await;
    let folder = tempfile::tempdir().unwrap();
    for endpoint in [format!("tcp://127.0.0.1:{}", free_ports(1)), format!("ipc://{}/events", folder.path().display())]
    {
        let publish = || EngineOptions { publish: Publish::Bind(endpoint.clone()), ..EngineOptions::default() };
        let running = Running::start(config(&endpoint, server.address));
        let mut engine = FakeEngine::start(publish()).unwrap();
        subscribed(&engine).await;
        engine.publish(TOPIC, &store(5.0, 1, 1, None)).unwrap();
        let last = engine.publish(TOPIC, &store(5.0, 2, 3, None)).unwrap();
        running.reach(last).await;
        drop(engine);
        eventually("a refusal", || running.metric("engine_processes_gone_total") >= 1.0).await;
        let mut engine = FakeEngine::start(publish()).unwrap();
        subscribed(&engine).await;
        engine.skip(2);
        let last = engine.publish(TOPIC, &store(6.0, 3, 5, None)).unwrap();
        running.reach(last).await;
        assert_eq!(held(&server.rpcs()), tokens(&[5]), "{endpoint}");
        assert_eq!((running.metric("engine_restarts_total"), running.metric("gaps_total")), (1.0, 0.0));
        let _ = running.stop().await;
    }
}

async fn half_open(heartbeat: (Duration, Duration), limit: Duration) {
    let (mut engine, server) = (with_replay(ReplayLayout::Current, 10_000), Recorder::start().await);
    let address = engine.endpoint().trim_start_matches("tcp://").parse().unwrap();
    let (relayed, holds) = relay(address).await;
    let running = Running::start(Config {
        engine_endpoint: format!("tcp://{relayed}"),
        engine_heartbeat: heartbeat,
        ..replaying(&engine, server.address)
    });
    subscribed(&engine).await;
    let last = engine.publish(TOPIC, &store(5.0, 1, 1, None)).unwrap();
    running.reach(last).await;
    // Idle but healthy.
    tokio::time::sleep(heartbeat.0 + heartbeat.1).await;
    assert_eq!(running.metric("reconnects_total"), 0.0);
    holds.send_modify(|holds| *holds += 1);
    let start = Instant::now();
    engine.publish(TOPIC, &store(6.0, 2, 3, None)).unwrap();
    while running.metric("reconnects_total") < 1.0 {
        assert!(start.elapsed() < limit, "still on the dead connection");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // Subscriptions are renewed a moment after the connection, so publish until one arrives.
    eventually("a live frame", || {
        engine.publish(TOPIC, &store(7.0, 3, 5, None)).unwrap();
        running.metric("batches_total") >= 2.0
    })
    .await;
    server.wait("everything", |rpcs| held(rpcs) == tokens(&[1, 3, 5])).await;
    assert_eq!((running.metric("gaps_total"), running.metric("lost_batches_total")), (1.0, 0.0));
    assert_eq!(running.metric("engine_restarts_total"), 0.0);
}

// field:26
#[tokio::test]
async fn a_connection_that_died_silently_is_replaced_and_what_was_missed_is_asked_for() {
    half_open((Duration::from_millis(200), Duration::from_millis(600)), PATIENCE).await;
}

// field:26
#[tokio::test]
#[ignore = "takes a minute and a half: the real limits"]
async fn a_connection_that_died_silently_is_replaced_within_45_seconds() {
    half_open(Config::default().engine_heartbeat, Duration::from_secs(45)).await;
}

/// Forwards connections to an address that can change: then all of them break, and new ones lead to the new one. A dial is
/// never refused.
async fn switch(to: SocketAddr) -> (SocketAddr, tokio::sync::watch::Sender<SocketAddr>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (switch, watch) = tokio::sync::watch::channel(to);
    tokio::spawn(async move {
        while let Ok((mut from, _)) = listener.accept().await {
            let mut watch = watch.clone();
            let target = *watch.borrow_and_update();
            tokio::spawn(async move {
                let Ok(mut to) = tokio::net::TcpStream::connect(target).await else { return };
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut from, &mut to) => {}
                    _ = watch.changed() => {}
                }
            });
        }
    });
    (address, switch)
}

fn address(endpoint: &str) -> SocketAddr {
    endpoint.trim_start_matches("tcp://").parse().unwrap()
}

/// The engine is replaced while nobody looks, no dial is refused, and the new one has passed the number of the old one by
/// none, one or several, or has not reached it.
#[tokio::test]
async fn another_engine_behind_the_same_address_is_known_by_its_frames_whatever_their_numbers() {
    for (ahead, speaks) in [(1_u64, true), (2, false), (3, false), (3, true), (8, false), (8, true)] {
        let (mut old, server) = (with_replay(ReplayLayout::Current, 10_000), Recorder::start().await);
        let mut new = with_replay(ReplayLayout::Current, 10_000);
        let (events, to_events) = switch(address(old.endpoint())).await;
        let (replays, to_replays) = switch(address(old.replay_endpoint().unwrap())).await;
        let running = Running::start(Config {
            replay_endpoint: Some(format!("tcp://{replays}")),
            ..config(&format!("tcp://{events}"), server.address)
        });
        subscribed(&old).await;
        for token in [1, 3, 5] {
            old.publish(TOPIC, &store(5.0, token, token, None)).unwrap();
        }
        running.reach(2).await;
        let mut stored: Vec<u32> = Vec::new();
        for token in (0..ahead).map(|number| 101 + 2 * number) {
            new.lose(TOPIC, &store(4.0, token, token, None)).unwrap();
            stored.push(u32::try_from(token).unwrap());
        }
        to_replays.send_replace(address(new.replay_endpoint().unwrap()));
        to_events.send_replace(address(new.endpoint()));
        subscribed(&new).await;
        if speaks {
            new.publish(TOPIC, &store(4.0, 900, 901, None)).unwrap();
            stored.push(901);
        }
        server.wait("what the new one holds, and no more", |rpcs| held(rpcs) == tokens(&stored)).await;
        let counts = ["engine_restarts_total", "unproven_publishers_total", "lost_batches_total"];
        assert_eq!(counts.map(|name| running.metric(name)), [1.0, 0.0, 0.0], "{ahead} {speaks}");
    }
}

#[tokio::test]
async fn a_connection_that_comes_back_is_in_doubt_where_nobody_answers_and_trusted_where_the_last_frame_comes_back() {
    for answers in [true, false] {
        let (mut engine, server) = (with_replay(ReplayLayout::Current, 10_000), Recorder::start().await);
        let (events, to_events) = switch(address(engine.endpoint())).await;
        let replay_endpoint = engine.replay_endpoint().map(str::to_owned).filter(|_| answers);
        let running = Running::start(Config { replay_endpoint, ..config(&format!("tcp://{events}"), server.address) });
        subscribed(&engine).await;
        let last = engine.publish(TOPIC, &store(5.0, 1, 1, Some(0))).unwrap();
        running.reach(last).await;
        // Its last words, which nothing that follows reveals.
        let last = engine.lose(TOPIC, &event(6.0, "BlockRemoved", Some(1), 0)).unwrap();
        to_events.send_replace(address(engine.endpoint()));
        running.counts("reconnects_total", 1.0).await;
        if answers {
            server.wait("the removal", |rpcs| held(rpcs).is_empty()).await;
            running.reach(last).await;
        }
        let doubts = if answers { 0.0 } else { 1.0 };
        running.counts("unproven_publishers_total", doubts).await;
        assert_eq!(
            (running.metric("unproven_publishers_total"), running.metric("engine_restarts_total")),
            (doubts, 0.0)
        );
    }
}
