//! Thousands of peers that give nothing, and dozens that give it one byte at a time, against the real process with its default
//! limits: everybody else is served as if they were not there, and memory stays bounded.
//!
//! `make soak` runs it. Opens some 4,000 files in each of two processes.

mod common;
#[path = "common/frames.rs"]
mod frames;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::*;
use inferencecache_wire::grpc::client::{ClientOptions, channel};
use inferencecache_wire::pb;
use inferencecache_wire::pb::inference_cache_client::InferenceCacheClient;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

const LOOKUP: &str = "/inferencecache.v1alpha1.InferenceCache/LookupRoute";
const REPORT: &str = "/inferencecache.v1alpha1.InferenceCache/ReportCacheState";

/// Between two bytes of a slow peer.
const DRIP: Duration = Duration::from_millis(200);

/// Resident memory of another process, in bytes.
fn resident(server: &Running) -> u64 {
    let page = std::fs::read_to_string(format!("/proc/{}/statm", server.id())).expect("Linux");
    page.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("statm") * 4096
}

fn metric(server: &Running, series: &str) -> f64 {
    let page = server.get("/metrics").expect("served");
    let value = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok());
    value.unwrap_or(0.0)
}

/// Callers that must not notice anything: lookups on a connection of their own, on a new one each, and every HTTP surface.
struct Healthy {
    end: Arc<AtomicBool>,
    calls: Arc<[AtomicUsize; 4]>,
    slowest_us: Arc<[AtomicU64; 4]>,
    tasks: Vec<JoinHandle<()>>,
}

impl Healthy {
    const KINDS: [&'static str; 4] = ["lookups", "lookups on a new connection", "/readyz", "/snapshot"];

    fn start(runtime: &tokio::runtime::Runtime, server: &Running) -> Self {
        let mut healthy =
            Self { end: Arc::default(), calls: Arc::default(), slowest_us: Arc::default(), tasks: Vec::new() };
        for kind in 0..4 {
            let (grpc, http, bridge) = (server.grpc.clone(), server.http.clone(), server.bridge.clone());
            let (end, calls, slowest) = (healthy.end.clone(), healthy.calls.clone(), healthy.slowest_us.clone());
            healthy.tasks.push(runtime.spawn(async move {
                let options = ClientOptions { call_timeout: PATIENCE, ..Default::default() };
                let connect = || InferenceCacheClient::new(channel(&grpc, &options).expect("an address"));
                let mut client = connect();
                while !end.load(Ordering::SeqCst) {
                    let start = Instant::now();
                    match kind {
                        0 | 1 => {
                            if kind == 1 {
                                client = connect();
                            }
                            let request = pb::LookupRouteRequest { model_id: "m".to_owned(), ..Default::default() };
                            let response = client.lookup_route(request).await.expect("no call fails").into_inner();
                            assert_eq!(response.reason_code, "NO_HINT");
                        }
                        _ => {
                            let (address, path) =
                                if kind == 2 { (http.clone(), "/readyz") } else { (bridge.clone(), "/snapshot") };
                            let asked = tokio::task::spawn_blocking(move || ask(&address, "GET", path, ""));
                            let answer = asked.await.expect("joined").expect("an answer");
                            assert!(answer.starts_with("HTTP/1.1 200 "), "{path}: {answer:?}");
                        }
                    }
                    let took = u64::try_from(start.elapsed().as_micros()).expect("short");
                    slowest[kind].fetch_max(took, Ordering::SeqCst);
                    calls[kind].fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            }));
        }
        healthy
    }

    /// Waits until each of them has had `more` answers.
    fn progress(&self, server: &Running, more: usize) {
        let before = self.calls.each_ref().map(|calls| calls.load(Ordering::SeqCst));
        server.until("served", || {
            assert!(!self.tasks.iter().any(JoinHandle::is_finished), "a healthy caller failed");
            self.calls.iter().zip(before).all(|(calls, before)| calls.load(Ordering::SeqCst) >= before + more)
        });
    }

    fn finish(self, runtime: &tokio::runtime::Runtime) {
        self.end.store(true, Ordering::SeqCst);
        for task in self.tasks {
            runtime.block_on(task).expect("no call failed");
        }
        for (kind, name) in Self::KINDS.iter().enumerate() {
            let (calls, slowest) = (&self.calls[kind], &self.slowest_us[kind]);
            println!(
                "  {} {name}, 0 failed, slowest {} us",
                calls.load(Ordering::SeqCst),
                slowest.load(Ordering::SeqCst)
            );
        }
    }
}

/// Peers that have to be looked after: what they are sent is read, settings and pings are acknowledged.
struct Polite {
    open: Vec<JoinHandle<()>>,
}

impl Polite {
    fn keep(&mut self, runtime: &tokio::runtime::Runtime, mut stream: TcpStream) {
        self.open.push(runtime.spawn(async move {
            let (mut received, mut buffer) = (Vec::new(), vec![0; 16 * 1024]);
            while let Ok(bytes @ 1..) = stream.read(&mut buffer).await {
                received.extend_from_slice(&buffer[..bytes]);
                let answers = frames::courtesies(&mut received);
                if stream.write_all(&answers).await.is_err() {
                    break;
                }
            }
        }));
    }

    fn still_open(&self) -> usize {
        self.open.iter().filter(|peer| !peer.is_finished()).count()
    }
}

#[test]
#[ignore = "soak: thousands of connections"]
fn two_thousand_idle_connections_and_ten_thousand_half_open_streams() {
    let server = Running::start(&[]);
    let runtime = runtime();
    let healthy = Healthy::start(&runtime, &server);
    healthy.progress(&server, 50);
    let before = resident(&server);

    // On each listener 2,000 connections that say nothing. The HTTP listeners have 256 places.
    let mut silent = Vec::new();
    let mut idle = Polite { open: Vec::new() };
    runtime.block_on(async {
        for _ in 0..2000 {
            for address in [&server.http, &server.bridge] {
                silent.push(TcpStream::connect(address).await.expect("accepted"));
            }
            let mut stream = TcpStream::connect(&server.grpc).await.expect("accepted");
            stream.write_all(frames::PREFACE).await.expect("taken");
            idle.keep(&runtime, stream);
        }
    });
    healthy.progress(&server, 200);
    let with_idle = resident(&server);
    for listener in ["http", "bridge"] {
        let closed = format!("inferencecache_connections_closed_total{{listener=\"{listener}\",reason=\"made_room\"}}");
        assert!(metric(&server, &closed) >= 1000.0, "{listener}");
    }
    assert_eq!(idle.still_open(), 2000, "all of these have a place");

    // 10,000 calls whose request does not come: lookups, which end after half a minute, and reports, which stay.
    let mut half_open = Polite { open: Vec::new() };
    runtime.block_on(async {
        for connection in 0..10 {
            let mut stream = TcpStream::connect(&server.grpc).await.expect("accepted");
            let path = if connection % 2 == 0 { LOOKUP } else { REPORT };
            let heads: Vec<u8> = (0..1000).flat_map(|call| frames::head(2 * call + 1, path)).collect();
            stream.write_all(frames::PREFACE).await.expect("taken");
            stream.write_all(&heads).await.expect("taken");
            half_open.keep(&runtime, stream);
        }
        // Over HTTP/1 a half-open exchange is a connection: half a head, and half a body.
        for _ in 0..100 {
            let mut head = TcpStream::connect(&server.http).await.expect("accepted");
            head.write_all(b"GET /metrics HTTP/1.1\r\nHost").await.expect("taken");
            let mut body = TcpStream::connect(&server.bridge).await.expect("accepted");
            body.write_all(b"POST /policy HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{").await.expect("taken");
            silent.extend([head, body]);
        }
    });
    healthy.progress(&server, 1000);
    let with_streams = resident(&server);
    assert_eq!(half_open.still_open(), 10);
    println!(
        "resident: {before} bytes before, {with_idle} with idle connections ({} a connection), {with_streams} with \
         half-open streams ({} a stream)",
        with_idle.saturating_sub(before) / 2512,
        with_streams.saturating_sub(with_idle) / 10_000,
    );
    assert!(with_streams - before < 512 << 20, "memory stays bounded");
    assert_eq!(metric(&server, "inferencecache_grpc_calls_refused_total"), 0.0);
    healthy.finish(&runtime);
    server.signal("-TERM");
    let (status, said) = server.ended();
    assert_eq!(status.code(), Some(0));
    assert_eq!(said.last().map(String::as_str), Some("graceful_shutdown_done"), "and they do not hold back its end");
}

/// Sends what comes of `bytes` one byte at a time, until it is hung up on.
fn drip(runtime: &tokio::runtime::Runtime, address: &str, at_once: Vec<u8>, bytes: Vec<u8>) -> JoinHandle<()> {
    let address = address.to_owned();
    runtime.spawn(async move {
        let mut stream = TcpStream::connect(&address).await.expect("accepted");
        if stream.write_all(&at_once).await.is_err() {
            return;
        }
        for byte in bytes.iter().cycle() {
            tokio::time::sleep(DRIP).await;
            if stream.write_all(&[*byte]).await.is_err() {
                return;
            }
        }
    })
}

/// Reads one byte at a time.
fn sip(runtime: &tokio::runtime::Runtime, address: &str, request: Vec<u8>) -> JoinHandle<()> {
    let address = address.to_owned();
    runtime.spawn(async move {
        let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
        socket.set_recv_buffer_size(4096).expect("set");
        let mut stream = socket.connect(address.parse().expect("an address")).await.expect("accepted");
        if stream.write_all(&request).await.is_err() {
            return;
        }
        let mut byte = [0];
        while stream.read(&mut byte).await.is_ok_and(|bytes| bytes > 0) {
            tokio::time::sleep(DRIP).await;
        }
    })
}

#[test]
#[ignore = "soak: half a minute of slow peers"]
fn slow_peers_slow_nobody_else() {
    let server = Running::start(&[]);
    let runtime = runtime();
    // A page that does not fit into the system's buffers.
    let updates = (0..20_000).map(|n| pb::CacheStateUpdate {
        replica_id: format!("{n:0400}"),
        tenant_id: "t".to_owned(),
        model_id: "m".to_owned(),
        stats: Some(pb::ReplicaStats::default()),
        ..Default::default()
    });
    runtime.block_on(async {
        let mut client =
            InferenceCacheClient::new(channel(&server.grpc, &ClientOptions::default()).expect("an address"));
        client.report_cache_state(tokio_stream::iter(updates)).await.expect("an Ack");
    });
    let healthy = Healthy::start(&runtime, &server);
    healthy.progress(&server, 50);
    let before = resident(&server);
    let mut slow = Vec::new();
    let (http, bridge, grpc) = (server.http.as_str(), server.bridge.as_str(), server.grpc.as_str());
    let x = || b"x".to_vec();
    let preface = frames::PREFACE.to_vec();
    for _ in 0..60 {
        for address in [http, bridge] {
            slow.push(drip(&runtime, address, vec![], b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Slow: ".to_vec()));
            slow.push(drip(&runtime, address, b"GET /snapshot HTTP/1.1\r\nHost: x\r\nX: ".to_vec(), x()));
        }
        let body =
            |method: &str, path: &str| format!("{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 4000\r\n\r\n");
        slow.push(drip(&runtime, http, body("POST", "/readyz").into_bytes(), x()));
        slow.push(drip(&runtime, bridge, body("POST", "/policy").into_bytes(), b" ".to_vec()));
        slow.push(drip(&runtime, bridge, body("POST", "/probe").into_bytes(), b" ".to_vec()));
        let chunked = b"PUT /policy HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        slow.push(drip(&runtime, bridge, chunked, b"1\r\n \r\n".to_vec()));
        // HTTP/2: the introduction, a frame's head, the content of a head, and the frames of a request.
        slow.push(drip(&runtime, grpc, vec![], preface.clone()));
        slow.push(drip(&runtime, grpc, preface.clone(), frames::head(1, LOOKUP)));
        slow.push(drip(&runtime, grpc, [preface.clone(), frames::head(1, LOOKUP)].concat(), frames::data(1, b"\0\0")));
        slow.push(drip(&runtime, grpc, [preface.clone(), frames::head(1, REPORT)].concat(), frames::data(1, b"\0\0")));
    }
    let mut readers = Vec::new();
    for _ in 0..20 {
        readers.push(sip(&runtime, bridge, b"GET /snapshot HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()));
        readers.push(sip(&runtime, http, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()));
        let deaf = [frames::DEAF_PREFACE.to_vec(), frames::head(1, LOOKUP), frames::last(1, &[0; 5])].concat();
        readers.push(sip(&runtime, grpc, deaf));
    }
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(45) {
        healthy.progress(&server, 50);
    }
    let with = resident(&server);
    let gone = slow.iter().filter(|peer| peer.is_finished()).count();
    println!("{} slow peers, {gone} of them hung up on; resident {before} bytes before, {with} with them", slow.len());
    for listener in ["http", "bridge", "grpc"] {
        for reason in ["made_room", "slow_reader"] {
            let series =
                format!("inferencecache_connections_closed_total{{listener=\"{listener}\",reason=\"{reason}\"}}");
            println!("  {listener} {reason}: {}", metric(&server, &series));
        }
    }
    assert!(with.saturating_sub(before) < 512 << 20, "memory stays bounded");
    // On gRPC, who introduces itself may go on as slowly as it likes: it holds one place, which it loses when that is wanted and
    // it has no call under way. All others have a limit that is shorter than this.
    assert!(gone >= slow.len() * 9 / 12, "{gone} of {}", slow.len());
    assert!(
        metric(&server, "inferencecache_connections_closed_total{listener=\"grpc\",reason=\"slow_reader\"}") >= 20.0
    );
    assert!(
        metric(&server, "inferencecache_connections_closed_total{listener=\"bridge\",reason=\"slow_reader\"}") >= 20.0
    );
    healthy.finish(&runtime);
    server.signal("-TERM");
    assert_eq!(server.ended().0.code(), Some(0));
}
