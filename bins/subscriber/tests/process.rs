//! The binary as a process: exit codes, what it says, and how it ends.

#[path = "../../../inferencecache-wire/tests/common/recorder.rs"]
#[expect(dead_code, reason = "shared with tests that need more of it")]
mod recorder;

use std::process::Stdio;
use std::time::Duration;

use inferencecache_wire::testkit::fake_engine::{EngineOptions, FakeEngine};
use inferencecache_wire::testkit::script::Script;
use recorder::{Recorder, eventually};
use serde_json::Value;
use tokio::process::Command;

const TOPIC: &[u8] = b"kv-events";

fn command(flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvevent-subscriber"));
    command.args(flags).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

#[tokio::test]
async fn refusals_have_their_codes_and_name_the_flag() {
    for (flags, code, words) in [
        (&["--help"][..], 0, "--engine-endpoint"),
        (&["--model-id=m"], 2, "--replica-id"),
        (&["--replica-id=r", "--model-id=m", "--cache-tier=xpu"], 2, "--cache-tier"),
        (&["--replica-id=r", "--model-id=m", "--no-such-flag"], 2, "no-such-flag"),
        (&["--replica-id=r", "--model-id=m", "--index-group=-1"], 2, "--index-group"),
        (&["--replica-id=r", "--model-id=m", "--health-bind-address=foo"], 2, "--health-bind-address"),
        (&["--replica-id=r", "--model-id=m", "--engine-metrics-url=https://h/"], 2, "--engine-metrics-url"),
        (&["--replica-id=r", "--model-id=m", "--server="], 1, "--server"),
        (&["--help=false"], 2, "--replica-id"),
        (&["--replica-id=r", "--model-id=m", "--server=nonsense"], 1, "nonsense"),
        (&["--replica-id=r", "--model-id=m", "--tls-ca-file=/ca.pem"], 1, "--tls-ca-file"),
    ] {
        let output = command(flags).output().await.expect("the binary starts");
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && text.contains(words), "{flags:?}: {:?}: {text}", output.status);
    }
}

// subscriber:115 subscriber:121
#[tokio::test]
async fn it_says_what_it_does_without_tokens_and_delivers_before_it_ends() {
    let server = Recorder::start().await;
    let mut engine = FakeEngine::start(EngineOptions::default()).expect("a free port");
    let health = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port");
    let child = command(&[
        "--replica-id=r0",
        "--model-id=m",
        "--tenant-id=t",
        &format!("--engine-endpoint={}", engine.endpoint()),
        &format!("--server={}", server.address),
        &format!("--health-bind-address={health}"),
        "--window=1h",
        "--engine-cache-size-bytes=1",
        "--log-level=debug",
    ])
    .spawn()
    .expect("the binary starts");
    let id = child.id().expect("it runs").to_string();
    eventually("a subscription", || engine.wait_for_subscriber(TOPIC, Duration::ZERO)).await;
    let script = Script { block_size: 2, num_blocks: 2, start_token: 77_001, ..Script::default() };
    let play = script.check().expect("a good script");
    engine.publish(TOPIC, &play.stored()).expect("published");
    engine.publish(TOPIC, b"\x92\x07\x93").expect("published");
    // One more block, without tokens: a warning, nothing else.
    let silent = Script { omit_token_ids: true, num_blocks: 3, start_token: 77_101, ..Script::default() };
    let silent = silent.check().expect("a good script");
    engine.publish(TOPIC, &silent.stored()).expect("published");
    let mut page = String::new();
    while !page.contains("inferencecache_subscriber_batches_total 3\n") {
        page = get(health, "/metrics").await;
    }
    assert!(get(health, "/readyz").await.starts_with("HTTP/1.1 200 "));

    assert!(std::process::Command::new("kill").args(["-TERM", &id]).status().expect("kill runs").success());
    let output = tokio::time::timeout(Duration::from_secs(11), child.wait_with_output()).await;
    let output = output.expect("in time").expect("waited for");
    assert_eq!(output.status.code(), Some(0));
    let lines = server.lines();
    assert_eq!(lines.len(), 2, "{lines:?}");
    for (digest, tokens) in play.expected() {
        assert!(lines[1].contains(&format!("{digest:016x}/{tokens}/T1")), "{lines:?}");
    }

    let log = String::from_utf8(output.stderr).expect("UTF-8");
    for token in ["77001", "77002", "77003", "77004", "77101"] {
        assert!(!log.contains(token), "{log}");
    }
    let said: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let find = |message: &str| said.iter().find(|line| line["msg"].as_str().is_some_and(|m| m.starts_with(message)));
    let start = find("kvevent-subscriber starting").expect("a start line");
    for (field, value) in [
        ("server", Value::from(server.address.to_string())),
        ("replica_id", "r0".into()),
        ("model_id", "m".into()),
        ("stats_interval", "10s".into()),
        ("cache_tier", "auto".into()),
        ("engine_model_name", "".into()),
        ("ignore_block_removed", false.into()),
    ] {
        assert_eq!(start[field], value, "{field}");
    }
    assert_eq!(find("subscribed to engine KV events").expect("said")["topic"], "kv-events");
    assert_eq!(find("dropping undecodable event batch").expect("said")["level"], "WARN");
    assert_eq!(find("BlockStored produced no index entries").expect("said")["hashes"], 3);
    assert_eq!(said.last().expect("lines")["msg"], "kvevent-subscriber stopped");
}

async fn get(address: std::net::SocketAddr, path: &str) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut response = String::new();
    if let Ok(mut stream) = tokio::net::TcpStream::connect(address).await {
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("written");
        stream.read_to_string(&mut response).await.expect("read");
    }
    response
}

/// Answers so many requests with 500, and then with a page.
async fn metrics_page(mut failures: u32) -> std::net::SocketAddr {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let page = "vllm:num_requests_running 1\nvllm:num_requests_waiting 1\nvllm:kv_cache_usage_perc 0.5\n";
            let answer = match failures {
                0 => format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{page}", page.len()),
                _ => "HTTP/1.1 500 Sorry\r\ncontent-length: 0\r\nconnection: close\r\n\r\n".to_owned(),
            };
            failures = failures.saturating_sub(1);
            let _ = stream.read(&mut [0; 4096]).await;
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    address
}

// subscriber:139 subscriber:140 subscriber:141
#[tokio::test]
async fn a_load_that_is_not_delivered_gets_louder_and_its_return_is_told() {
    let (server, page) = (Recorder::start().await, metrics_page(5).await);
    let health = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port");
    let child = command(&[
        "--replica-id=r0",
        "--model-id=m",
        "--hash-scheme=sglang-custom",
        "--engine-endpoint=tcp://127.0.0.1:1",
        &format!("--engine-metrics-url=http://{page}/metrics"),
        "--stats-interval=50ms",
        &format!("--server={}", server.address),
        &format!("--health-bind-address={health}"),
        "--log-level=debug",
    ])
    .spawn()
    .expect("the binary starts");
    let id = child.id().expect("it runs").to_string();
    let pages = async |more: u32| {
        let count = async || {
            let page = get(health, "/metrics").await;
            let line =
                page.lines().find_map(|l| l.strip_prefix("inferencecache_subscriber_scrapes_total{result=\"ok\"} "));
            line.and_then(|value| value.parse::<u32>().ok()).unwrap_or(0)
        };
        let (before, deadline) = (count().await, tokio::time::Instant::now() + Duration::from_secs(20));
        while count().await < before + more {
            assert!(tokio::time::Instant::now() < deadline, "no more pages are read");
        }
    };
    server.wait("a sample", |rpcs| !rpcs.is_empty()).await;
    // Then the pages are read, and nobody takes what they say.
    server.mood.send_modify(|mood| mood.accepts = false);
    pages(6).await;
    server.mood.send_modify(|mood| mood.accepts = true);
    pages(3).await;
    assert!(std::process::Command::new("kill").args(["-TERM", &id]).status().expect("kill runs").success());
    let output = tokio::time::timeout(Duration::from_secs(11), child.wait_with_output()).await;
    let log = String::from_utf8(output.expect("in time").expect("waited for").stderr).expect("UTF-8");
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let text = |line: &Value, field: &str| line[field].as_str().unwrap_or_default().to_owned();
    let told: Vec<String> = lines
        .iter()
        .filter(|line| text(line, "msg").starts_with("engine load "))
        .map(|line| format!("{} {} {}", text(line, "level"), text(line, "event"), line["after_failures"]))
        .collect();
    let first = ["WARN  null", "WARN  null", "ERROR load_signal_stale null", "DEBUG  null", "DEBUG  null"];
    assert_eq!(told[..5], first, "{log}");
    assert_eq!(told[5], "INFO load_signal_recovered 5");
    let second = &told[6..];
    assert_eq!(second[..4], first[..4], "{log}");
    let back = second.iter().position(|line| line.starts_with("INFO load_signal_recovered ")).expect("told");
    assert!(second[3..back].iter().all(|line| line == "DEBUG  null"), "{told:?}");
    let scheme: Vec<&Value> = lines.iter().filter(|line| text(line, "msg").contains("hash scheme")).collect();
    assert_eq!(scheme.len(), 1, "{log}");
    assert_eq!(scheme[0]["level"], "WARN");
}
