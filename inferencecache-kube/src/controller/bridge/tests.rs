//! Calls of a server on loopback.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use prometheus::{Registry, TextEncoder};
use tokio::net::TcpListener;

use super::{Bridge, BridgeError, Endpoint, MAX_PROBE, Metrics, Probe, Tokens};
use crate::controller::backend::probing::{ProbeBackend as _, Report, Request, StageError};
use crate::controller::fence::Fence;

/// What the server says, and what it was asked last.
#[derive(Clone, Default)]
struct Server(Arc<Mutex<(u16, String, String)>>);

impl Server {
    fn says(&self, status: u16, body: &str) {
        let mut said = self.0.lock().expect("no panic");
        (said.0, said.1) = (status, body.to_owned());
    }

    fn asked(&self) -> String {
        self.0.lock().expect("no panic").2.clone()
    }
}

async fn answer(State(server): State<Server>, headers: HeaderMap, body: String) -> (StatusCode, String) {
    let bearer = headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or("no token");
    let mut said = server.0.lock().expect("no panic");
    said.2 = format!("{bearer}: {body}");
    (StatusCode::from_u16(said.0).expect("a status"), said.1.clone())
}

struct Set {
    server: Server,
    bridge: Bridge,
    at: Endpoint,
    registry: Registry,
    folder: tempfile::TempDir,
}

async fn set(fence: Fence) -> Set {
    let server = Server::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    let router = Router::new().fallback(answer).with_state(server.clone());
    tokio::spawn(async move { axum::serve(listener, router).await });
    let (registry, folder) = (Registry::new(), tempfile::tempdir().expect("a folder"));
    let tokens = Tokens { controller: folder.path().join("controller"), policy: folder.path().join("policy") };
    let metrics = Metrics::new(&registry).expect("metrics");
    let bridge = Bridge::new(None, tokens, fence, metrics).await.expect("a bridge");
    let at = Endpoint::parse(&format!("http://{address}/probe")).expect("an address");
    Set { server, bridge, at, registry, folder }
}

fn request() -> Request {
    Request { backend: "ns/cache".to_owned(), hash_scheme: "vllm".to_owned(), backend_type: None }
}

/// controller:159
#[tokio::test]
async fn a_probe_asks_for_one_backend_and_counts_what_it_is_told() {
    let Set { server, bridge, at, registry, folder } = set(Fence::open()).await;
    let probe = Probe::new(bridge, at);
    std::fs::write(folder.path().join("controller"), "tok").expect("written");
    server.says(200, r#"{"backend":"ns/cache","ingest":"ok","routing":"broken","t2":"skipped","errors":[{"stage":"routing","message":"m"}]}"#);
    let report = probe.probe(request()).await.expect("an answer");
    let errors = vec![StageError { stage: "routing".to_owned(), message: "m".to_owned() }];
    let expected = Report { ingest: "ok".to_owned(), routing: "broken".to_owned(), t2: "skipped".to_owned(), errors };
    assert_eq!(report, expected);
    assert_eq!(
        server.asked(),
        r#"Bearer tok: {"backend":"ns/cache","model":"functional-self-test","hashScheme":"vllm"}"#
    );
    server.says(200, r#"{"backend":"ns/cache"}"#);
    assert_eq!(probe.probe(request()).await, Ok(Report::default()), "a verdict, if an empty one");

    let shown = || TextEncoder::new().encode_to_string(&registry.gather()).expect("text");
    for line in [
        r#"probe_result_total{backend="ns/cache",result="ok",stage="ingest"} 1"#,
        r#"probe_result_total{backend="ns/cache",result="failed",stage="routing"} 2"#,
        r#"probe_result_total{backend="ns/cache",result="failed",stage="t2"} 1"#,
        r#"bridge_requests_total{channel="probe",result="ok"} 2"#,
    ] {
        assert!(shown().contains(line), "{line} in {}", shown());
    }
    probe.forget("ns/cache");
    assert!(!shown().contains("ns/cache"), "nothing is left of a backend that is gone");
}

#[tokio::test]
async fn whatever_is_no_verdict_is_an_error_that_says_what_it_was() {
    let Set { server, bridge, at, registry, folder } = set(Fence::open()).await;
    let probe = Probe::new(bridge, at);
    for (status, body, words) in [
        (200, "{}", &["\"ns/cache\"", "\"\""][..]),
        (200, r#"{"backend":"ns/other"}"#, &["ns/cache", "ns/other"][..]),
        (200, "soon", &["cannot be read"][..]),
        (503, "token review unavailable", &["503", "token review unavailable"][..]),
        (502, "dial 10.0.0.7:49152", &["502", "dial #"][..]),
        (200, "x".repeat(MAX_PROBE + 1).as_str(), &["longer than 65536"][..]),
    ] {
        server.says(status, body);
        let why = probe.probe(request()).await.expect_err("no verdict");
        for word in words {
            assert!(why.contains(word), "{word} in {why}");
        }
    }
    std::fs::create_dir(folder.path().join("controller")).expect("made");
    let why = probe.probe(request()).await.expect_err("a token that cannot be read");
    assert!(why.contains("token"), "{why}");
    let shown = TextEncoder::new().encode_to_string(&registry.gather()).expect("text");
    assert!(!shown.contains("probe_result_total"), "none of it is a result of a stage");
}

/// controller:125 field:46
#[tokio::test]
async fn only_a_200_is_a_snapshot_and_only_a_leader_asks() {
    let Set { server, bridge, at, .. } = set(Fence::open()).await;
    for (status, good) in [(200, true), (204, false), (401, false), (403, false), (500, false)] {
        server.says(status, if status == 204 { "" } else { "{}" });
        assert_eq!(bridge.snapshot(&at).await.is_ok(), good, "{status}");
        assert_eq!(bridge.policy(&at, "{}".into()).await.is_ok(), status < 300, "{status}");
    }
    let fence = Fence::open();
    fence.shut();
    let Set { server, bridge, at, .. } = set(fence).await;
    server.says(200, "{}");
    assert!(matches!(bridge.snapshot(&at).await, Err(BridgeError::Deposed(_))));
    assert!(matches!(bridge.policy(&at, "{}".into()).await, Err(BridgeError::Deposed(_))));
    assert_eq!(server.asked(), "");
}

#[test]
fn addresses_are_whole() {
    for good in ["http://server:8081/probe", "https://[::1]:8081/probe", "http://10.0.0.1/probe"] {
        assert_eq!(Endpoint::parse(good).map(|at| at.as_str().to_owned()), Ok(good.to_owned()));
    }
    for bad in ["", "server:8081", "/probe", "ftp://server/probe", "http://"] {
        assert!(Endpoint::parse(bad).is_err(), "{bad}");
    }
}
