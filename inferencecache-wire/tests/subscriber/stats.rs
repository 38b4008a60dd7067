//! The statistics path between a real page of metrics and a real gRPC server, both in this process, on free ports.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::recorder::{Recorder, Rpc, eventually};
use inferencecache_wire::pb;
use inferencecache_wire::subscriber::Subscriber;
use inferencecache_wire::subscriber::config::{Config, Identity};
use inferencecache_wire::subscriber::metrics::Metrics;
use inferencecache_wire::subscriber::stats::StatsConfig;
use inferencecache_wire::testkit::fake_engine::{EngineOptions, FakeEngine};
use inferencecache_wire::testkit::msgpack::Writer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::task::JoinHandle;

const TOPIC: &[u8] = b"kv-events";
const LOAD: &str = "vllm:num_requests_running 3\nvllm:num_requests_waiting 5\n";

/// What a page answers, byte by byte; `None` is silence.
type Answer = Arc<Mutex<Option<Vec<u8>>>>;

/// A page of metrics that answers as it is told to.
struct Page {
    address: SocketAddr,
    answer: Answer,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Page {
    async fn start(body: &str) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (answer, requests) = (Answer::default(), Arc::new(Mutex::new(Vec::new())));
        let page = Self { address, answer: Arc::clone(&answer), requests: Arc::clone(&requests) };
        page.say(body);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (answer, requests) = (Arc::clone(&answer), Arc::clone(&requests));
                tokio::spawn(async move {
                    let mut head = Vec::new();
                    while !head.ends_with(b"\r\n\r\n") {
                        match stream.read_u8().await {
                            Ok(byte) => head.push(byte),
                            Err(_) => return,
                        }
                    }
                    requests.lock().expect("whole").push(String::from_utf8_lossy(&head).to_lowercase());
                    let answer = answer.lock().expect("whole").clone();
                    match answer {
                        Some(answer) => drop(stream.write_all(&answer).await),
                        None => std::future::pending().await,
                    }
                });
            }
        });
        page
    }

    fn say(&self, body: &str) {
        self.answer_with(&format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len()));
    }

    fn answer_with(&self, answer: &str) {
        *self.answer.lock().expect("whole") = Some(answer.as_bytes().to_vec());
    }

    fn fall_silent(&self) {
        *self.answer.lock().expect("whole") = None;
    }

    fn requests(&self) -> usize {
        self.requests.lock().expect("whole").len()
    }
}

struct Running {
    metrics: Metrics,
    task: JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Running {
    fn start(config: Config) -> Self {
        let subscriber = Subscriber::builder(config).build().expect("a usable configuration");
        let metrics = subscriber.metrics();
        let task = tokio::spawn(async move {
            let _ = subscriber.run(std::future::pending()).await;
        });
        Self { metrics, task }
    }

    fn metric(&self, name: &str) -> f64 {
        let name = format!("inferencecache_subscriber_{name} ");
        let text = self.metrics.text();
        let value = text.lines().find_map(|line| line.strip_prefix(&name));
        value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in\n{text}"))
    }
}

fn config(engine: &str, server: SocketAddr, page: SocketAddr, interval: Duration) -> Config {
    let id = |name: &str| name.to_owned();
    Config {
        identity: Identity { replica_id: id("r0"), model_id: id("m"), tenant_id: id("t"), hash_scheme: id("vllm") },
        engine_endpoint: engine.to_owned(),
        server: server.to_string(),
        window: Duration::from_millis(10),
        reconnect_backoff: Duration::from_millis(50),
        stats: Some(StatsConfig {
            url: format!("http://{page}/metrics"),
            interval,
            capacity_bytes: 1 << 30,
            ..StatsConfig::default()
        }),
        ..Config::default()
    }
}

const OFTEN: Duration = Duration::from_millis(50);
const ONCE: Duration = Duration::from_secs(3600);
/// Nobody is there.
const NOWHERE: &str = "tcp://127.0.0.1:1";

fn samples(rpcs: &[Rpc]) -> Vec<pb::CacheStateUpdate> {
    let update = |rpc: &Rpc| match rpc {
        Rpc::Update(update) => update.stats.is_some().then(|| update.clone()),
        Rpc::Event(_) => None,
    };
    rpcs.iter().filter_map(update).collect()
}

/// `s` for a sample, `c` for a clear, `e` for an eviction, `r` for a report.
fn shape(rpcs: &[Rpc]) -> String {
    let letter = |rpc: &Rpc| match rpc {
        Rpc::Update(update) if update.stats.is_some() => 's',
        Rpc::Update(_) => 'r',
        Rpc::Event(event) if event.r#type() == pb::cache_event::Type::AllCleared => 'c',
        Rpc::Event(_) => 'e',
    };
    rpcs.iter().map(letter).collect()
}

// subscriber:141
#[tokio::test]
async fn the_first_sample_comes_at_once_and_carries_the_identity() {
    let (page, server) =
        (Page::start(&format!("{LOAD}vllm:kv_cache_usage_perc 0.42\n")).await, Recorder::start().await);
    let mut config = config(NOWHERE, server.address, page.address, ONCE);
    config.identity.hash_scheme = "sglang-custom".to_owned();
    let _running = Running::start(config);
    server.wait("a sample", |rpcs| !samples(rpcs).is_empty()).await;
    let update = samples(&server.rpcs()).remove(0);
    assert!(update.prefixes.is_empty() && update.timestamp_us > 0);
    let identity = [&*update.replica_id, &*update.model_id, &*update.tenant_id, &*update.hash_scheme];
    assert_eq!(identity, ["r0", "m", "t", "sglang-custom"]);
    let stats = update.stats.expect("a sample");
    assert_eq!((&*stats.replica_id, stats.cache_memory_bytes, stats.pressure), ("r0", 450_971_566, 0.03125));
    assert_eq!((&*stats.client_version, stats.hit_rate), ("", 0.0));
    let request = page.requests.lock().expect("whole")[0].clone();
    assert!(request.starts_with("get /metrics http/1.1\r\n"), "{request}");
    assert!(request.contains("accept: text/plain;version=0.0.4\r\n"), "{request}");
    assert!(request.contains(&format!("host: {}\r\n", page.address)), "{request}");
}

// subscriber:138
#[tokio::test]
async fn whatever_goes_wrong_with_a_page_is_a_missed_tick() {
    let (page, server) = (Page::start(LOAD).await, Recorder::start().await);
    let running = Running::start(config(NOWHERE, server.address, page.address, OFTEN));
    eventually("a good page", || running.metric("scrapes_total{result=\"ok\"}") >= 1.0).await;
    for (answer, result) in [
        ("HTTP/1.1 500 Sorry\r\ncontent-length: 0\r\n\r\n".to_owned(), "status"),
        (
            format!("HTTP/1.1 302 Found\r\nlocation: http://{}/metrics\r\ncontent-length: 0\r\n\r\n", page.address),
            "status",
        ),
        (format!("HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n{LOAD}"), "unreachable"),
        ("nonsense".to_owned(), "unreachable"),
        (format!("HTTP/1.1 200 OK\r\n\r\n{}", "x".repeat(17 << 20)), "too_large"),
        ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_owned(), "no_family"),
        ("HTTP/1.1 200 OK\r\n\r\nvllm:num_requests_running 1\n".to_owned(), "no_load"),
    ] {
        let name = format!("scrapes_total{{result=\"{result}\"}}");
        let before = running.metric(&name);
        page.answer_with(&answer);
        eventually(&name, || running.metric(&name) > before).await;
    }
    eventually("a loud miss", || running.metric("stale") == 1.0).await;
    page.say(LOAD);
    eventually("a recovery", || running.metric("stale") == 0.0).await;
}

// subscriber:138
#[tokio::test]
async fn a_page_that_is_never_answered_is_given_up_and_one_that_is_gone_is_missed() {
    let (page, server) = (Page::start(LOAD).await, Recorder::start().await);
    page.fall_silent();
    let silent = Running::start(config(NOWHERE, server.address, page.address, OFTEN));
    let gone = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port").local_addr().expect("bound");
    let refused = Running::start(config(NOWHERE, server.address, gone, OFTEN));
    eventually("refusals", || refused.metric("scrapes_total{result=\"unreachable\"}") >= 3.0).await;
    eventually("a timeout", || silent.metric("scrapes_total{result=\"timeout\"}") >= 1.0).await;
    assert!(samples(&server.rpcs()).is_empty());
}

// subscriber:140
#[tokio::test]
async fn a_server_that_takes_no_sample_makes_the_load_stale() {
    let (page, server) = (Page::start(LOAD).await, Recorder::start().await);
    server.mood.send_modify(|mood| mood.accepts = false);
    let running = Running::start(config(NOWHERE, server.address, page.address, OFTEN));
    eventually("a stale load", || running.metric("stale") == 1.0).await;
    let good = running.metric("scrapes_total{result=\"ok\"}");
    eventually("more pages", || running.metric("scrapes_total{result=\"ok\"}") >= good + 3.0).await;
    assert_eq!(running.metric("stale"), 1.0);
    server.mood.send_modify(|mood| mood.accepts = true);
    eventually("a recovery", || running.metric("stale") == 0.0).await;
}

#[tokio::test]
async fn neither_a_silent_engine_page_nor_a_hanging_server_holds_up_the_other() {
    let (page, server) = (Page::start(LOAD).await, Recorder::start().await);
    page.fall_silent();
    let mut engine = FakeEngine::start(EngineOptions::default()).expect("a free port");
    let running = Running::start(config(engine.endpoint(), server.address, page.address, OFTEN));
    eventually("a subscription", || engine.wait_for_subscriber(TOPIC, Duration::ZERO)).await;
    let start = Instant::now();
    for hash in 0..100 {
        let last = engine.publish(TOPIC, &store(hash)).expect("published");
        let reached = i64::try_from(last).expect("small");
        eventually("the block", || running.metrics.acknowledged_sequence(0).is_some_and(|at| at >= reached)).await;
    }
    assert!(start.elapsed() < Duration::from_secs(4), "faster than one page takes to be given up");
    page.say(LOAD);
    eventually("a page", || running.metric("scrapes_total{result=\"ok\"}") >= 1.0).await;
    server.mood.send_modify(|mood| mood.hangs = true);
    // The sample in flight hangs now; blocks that wait are seen.
    engine.publish(TOPIC, &store(1000)).expect("published");
    eventually("a report that waits", || running.metric("pending_reports") >= 1.0).await;
}

/// `[1.0, [BlockStored [hash] nil [hash, 1] 2 nil]]`
fn store(hash: u64) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.array(2).float64(1.0).array(1).array(6).str("BlockStored").array(1).uint(hash).nil().array(2);
    writer.uint(hash).uint(1).uint(2).nil();
    writer.into_bytes()
}

fn clear() -> Vec<u8> {
    let mut writer = Writer::new();
    writer.array(2).float64(1.0).array(1).array(1).str("AllBlocksCleared");
    writer.into_bytes()
}

fn sleep_state(awake: bool) -> String {
    let (awake, asleep) = (u8::from(awake), u8::from(!awake));
    format!(
        "{LOAD}# TYPE vllm:engine_sleep_state gauge\n\
         vllm:engine_sleep_state{{engine=\"0\",model_name=\"m\",sleep_state=\"weights_offloaded\"}} {asleep}.0\n\
         vllm:engine_sleep_state{{engine=\"0\",model_name=\"m\",sleep_state=\"awake\"}} {awake}.0\n\
         vllm:engine_sleep_state{{engine=\"0\",model_name=\"m\",sleep_state=\"discard_all\"}} 0.0\n"
    )
}

// field:16
#[tokio::test]
async fn an_engine_that_falls_asleep_is_forgotten_once() {
    let (page, server) = (Page::start(&sleep_state(true)).await, Recorder::start().await);
    let mut engine = FakeEngine::start(EngineOptions::default()).expect("a free port");
    let running = Running::start(config(engine.endpoint(), server.address, page.address, OFTEN));
    eventually("a subscription", || engine.wait_for_subscriber(TOPIC, Duration::ZERO)).await;
    engine.publish(TOPIC, &store(7)).expect("published");
    server.wait("the block", |rpcs| shape(rpcs).contains('r')).await;
    let before = server.rpcs().len();
    page.say(&sleep_state(false));
    server.wait("the clear, and samples after it", |rpcs| shape(&rpcs[before..]).contains("css")).await;
    page.say(&sleep_state(true));
    let seen = page.requests();
    eventually("pages of an engine that is awake", || page.requests() >= seen + 3).await;
    let after = shape(&server.rpcs()[before..]);
    assert_eq!((after.matches('c').count(), after.matches(['r', 'e']).count()), (1, 0), "{after}");
    assert_eq!(running.metric("tracked_blocks{kind=\"indexed\"}"), 0.0);
}

#[tokio::test]
async fn a_new_process_that_says_nothing_has_an_empty_cache() {
    let start = |at: u32| format!("{LOAD}process_start_time_seconds {at}\n");
    let (page, server) = (Page::start(&start(100)).await, Recorder::start().await);
    let mut engine = FakeEngine::start(EngineOptions::default()).expect("a free port");
    let running = Running::start(config(engine.endpoint(), server.address, page.address, OFTEN));
    eventually("a subscription", || engine.wait_for_subscriber(TOPIC, Duration::ZERO)).await;
    engine.publish(TOPIC, &store(7)).expect("published");
    server.wait("the block", |rpcs| shape(rpcs).contains('r')).await;
    // A page without a message since the one before.
    let seen = page.requests();
    eventually("two more pages", || page.requests() >= seen + 3).await;
    page.say(&start(200));
    eventually("an empty map", || running.metric("tracked_blocks{kind=\"indexed\"}") == 0.0).await;
    server.wait("the clear", |rpcs| shape(rpcs).trim_end_matches('s').ends_with('c')).await;
}

// field:17
#[tokio::test]
async fn a_storm_of_clears_leaves_the_block_and_the_load() {
    let (page, server) = (Page::start(LOAD).await, Recorder::start().await);
    let mut engine = FakeEngine::start(EngineOptions::default()).expect("a free port");
    let running = Running::start(config(engine.endpoint(), server.address, page.address, ONCE));
    eventually("a subscription", || engine.wait_for_subscriber(TOPIC, Duration::ZERO)).await;
    server.wait("the one sample of the hour", |rpcs| shape(rpcs) == "s").await;
    let mut last = 0;
    for payload in [clear(), store(1), clear(), clear(), store(1)] {
        last = engine.publish(TOPIC, &payload).expect("published");
    }
    let reached = i64::try_from(last).expect("small");
    eventually("all of it", || running.metrics.acknowledged_sequence(0).is_some_and(|at| at >= reached)).await;
    server
        .wait("a sample after the last clear", |rpcs| {
            let shape = shape(rpcs);
            shape.rfind('s') > shape.rfind('c')
        })
        .await;
    let shape = shape(&server.rpcs());
    // One clear is the start-up's, and says all that the first event does.
    assert!(shape.matches('c').count() <= 2, "{shape}");
    assert!(shape.rfind('r') > shape.rfind('c'), "{shape}");
    assert_eq!(page.requests(), 1);
}

#[tokio::test]
async fn the_capacity_on_the_page_bounds_what_is_repeated() {
    let info = "vllm:cache_config_info{block_size=\"2\",enable_prefix_caching=\"True\",num_gpu_blocks=\"4\"} 1\n";
    let (page, server) = (Page::start(&format!("{LOAD}{info}")).await, Recorder::start().await);
    let mut engine = FakeEngine::start(EngineOptions::default()).expect("a free port");
    let config = Config {
        reannounce_interval: Duration::from_secs(1),
        ..config(engine.endpoint(), server.address, page.address, OFTEN)
    };
    let running = Running::start(config);
    eventually("a subscription", || engine.wait_for_subscriber(TOPIC, Duration::ZERO)).await;
    for hash in 1..=6 {
        engine.publish(TOPIC, &store(hash)).expect("published");
    }
    let doubted = "doubted_blocks_total{reason=\"capacity\"}";
    eventually("doubts", || running.metric(doubted) == 2.0).await;
    let again = running.metric("reannounced_entries_total");
    eventually("two more rounds", || running.metric("reannounced_entries_total") >= again + 8.0).await;
    assert_eq!(running.metric(doubted), 2.0);
}
