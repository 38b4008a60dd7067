//! `POST /probe` over real sockets: on a whole server, and on one whose index or second tier is at fault.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::server::*;
use axum::http::HeaderMap;
use inferencecache_core::probe::{PAYLOAD_BYTES, ProbeTarget, T2Client, T2Error};
use inferencecache_core::testkit::{Hooked, Hooks};
use inferencecache_core::update::{Dropped, Update};
use inferencecache_core::{Index, IndexApi, IndexOptions, Lookup, Query, RESERVED_TENANT};
use inferencecache_wire::http::access::{Access, Decision, Denied, Guard};
use inferencecache_wire::metrics::AuthPath;
use serde::Deserialize;
use serde_json::{Value, json};

const CB1: &str = r#"{"backend":"cb-1","model":"m","hashScheme":"vllm"}"#;

async fn post(server: &Running, body: &str) -> Reply {
    http(server.bridge, "POST", "/probe", &[], body.as_bytes()).await
}

/// The answer to a well-formed request.
async fn probe(server: &Running, body: &str) -> Value {
    let reply = post(server, body).await;
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/json")), "{body}");
    serde_json::from_slice(&reply.body).expect("JSON")
}

fn passed(backend: &str) -> Value {
    json!({"backend": backend, "ingest": "ok", "routing": "ok", "t2": "skipped"})
}

/// Only the three results, and the stage and text of the only error.
fn failure(answer: &Value) -> (Vec<&str>, &str, &str) {
    let results = ["ingest", "routing", "t2"].map(|stage| answer[stage].as_str().expect("a result"));
    let errors = answer["errors"].as_array().expect("errors");
    assert_eq!(errors.len(), 1, "{answer}");
    let text = |key: &str| errors[0][key].as_str().expect("a text");
    (results.to_vec(), text("stage"), text("message"))
}

/// server:130-131
#[tokio::test]
async fn a_sound_server_passes() {
    let server = Setup::new().start().await;
    let answer = "{\"backend\":\"cb-1\",\"ingest\":\"ok\",\"routing\":\"ok\",\"t2\":\"skipped\"}\n";
    for body in [CB1.to_owned(), format!("{CB1}\n"), format!("{CB1}\n")] {
        let reply = http(server.bridge, "POST", "/probe?verbose=1", &[], body.as_bytes()).await;
        assert_eq!((reply.status, reply.text().as_str()), (200, answer));
        assert_eq!(reply.header("content-type"), Some("application/json"));
    }
    assert_eq!(server.index.storage_entries(), (0, 0));
}

/// A row of `cases/probe.json`; what each stands for is tested beside the decoder.
#[derive(Debug, Deserialize)]
struct Row {
    body: String,
    accepted: Option<[String; 4]>,
}

/// server:132-137 field:44
#[tokio::test]
async fn requests_are_taken_or_refused_as_specified() {
    let server = Setup::new().start().await;
    let rows: Vec<Row> = serde_json::from_str(include_str!("../cases/probe.json")).expect("the rows parse");
    for row in &rows {
        if let Some([backend, ..]) = &row.accepted {
            assert_eq!(probe(&server, &row.body).await, passed(backend), "{row:?}");
        } else {
            refused(&server, &row.body).await;
        }
    }
    let large = |length: usize| format!(r#"{{"backend":"{}","model":"m","hashScheme":"vllm"}}"#, "b".repeat(length));
    refused(&server, &large(5000)).await;
    refused(&server, &large(5_000_000)).await;
    refused(&server, &format!("{CB1}{}", " ".repeat(4096))).await;
    assert_eq!(probe(&server, &large(4000)).await, passed(&"b".repeat(4000)));
    assert_eq!(server.index.storage_entries(), (0, 0));
}

async fn refused(server: &Running, body: &str) {
    let reply = post(server, body).await;
    assert_eq!(reply.status, 400, "{body:.200}");
    assert_eq!(reply.header("content-type"), Some("text/plain; charset=utf-8"));
    assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
    let text = reply.text();
    let words =
        ["decode probe request: ", "probe request body has trailing content", "probe request missing required field"];
    assert!(words.iter().any(|words| text.starts_with(words)), "{text}");
}

/// server:138 server:128
#[tokio::test]
async fn any_other_method_is_told_the_right_one() {
    let server = Setup::new().start().await;
    for method in ["GET", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "PROPFIND"] {
        let reply = http(server.bridge, method, "/probe", &[], CB1.as_bytes()).await;
        assert_eq!((reply.status, reply.header("allow")), (405, Some("POST")), "{method}");
        let text = reply.text();
        assert!(method == "HEAD" || text.starts_with("method not allowed"), "{text}");
    }
    assert_eq!(http(server.bridge, "POST", "/probe/", &[], CB1.as_bytes()).await.status, 404);
    assert_eq!(http(server.http, "POST", "/probe", &[], CB1.as_bytes()).await.status, 404);
}

/// Lets nobody through.
#[derive(Debug)]
struct Closed(Denied);

impl Guard for Closed {
    fn admit<'a>(&'a self, path: AuthPath, _headers: &'a HeaderMap, _source: Option<IpAddr>) -> Decision<'a> {
        assert_eq!(path, AuthPath::Probe);
        let denied = self.0;
        Box::pin(async move { Err(denied) })
    }
}

/// server:127-128
#[tokio::test]
async fn whoever_is_not_let_in_learns_nothing() {
    for (denied, status, result) in [
        (Denied::Unauthorized, 401, "unauth"),
        (Denied::Forbidden, 403, "forbidden"),
        (Denied::Unavailable, 503, "error"),
    ] {
        let mut setup = Setup::new();
        setup.access = Access::Guarded(Arc::new(Closed(denied)));
        let server = setup.start().await;
        for method in ["POST", "GET", "HEAD"] {
            assert_eq!(http(server.bridge, method, "/probe", &[], CB1.as_bytes()).await.status, status, "{method}");
        }
        let series = format!("inferencecache_probe_auth_total{{result=\"{result}\"}}");
        assert!((server.metric(&series) - 3.0).abs() < f64::EPSILON);
    }
}

/// What is wrong with an index.
#[derive(Debug, Clone, Copy)]
enum Fault {
    LosesWrites,
    AnswersNothing,
    AnswersAnother,
    Panics,
}

impl Hooks for Fault {
    fn ingest(&self, index: &dyn IndexApi, update: &Update<'_>) -> Dropped {
        if matches!(self, Self::LosesWrites) { Dropped::default() } else { index.ingest(update) }
    }

    fn lookup_route(&self, index: &dyn IndexApi, query: &Query<'_>, out: &mut Lookup) {
        index.lookup_route(query, out);
        match self {
            Self::AnswersNothing => out.clear(),
            Self::AnswersAnother => out.rows.iter_mut().for_each(|row| row.replica = "r1".into()),
            Self::Panics => panic!("instead of an answer"),
            Self::LosesWrites => {}
        }
    }
}

async fn faulty(fault: Fault, second_tier: Arc<Store>) -> Running {
    let index = Arc::new(Hooked { index: Arc::new(Index::new(IndexOptions::default())), hooks: fault });
    let mut setup = Setup::over(index, Arc::default(), Arc::default());
    setup.second_tier = Some(second_tier);
    setup.start().await
}

/// server:139-141
#[tokio::test]
async fn a_faulty_index_is_told_by_stage() {
    for (fault, results, stage, words) in [
        (Fault::LosesWrites, ["failed", "skipped", "skipped"], "ingest", "__probe-cb-1"),
        (Fault::AnswersNothing, ["ok", "failed", "skipped"], "routing", "NO_HINT"),
        (Fault::AnswersAnother, ["ok", "failed", "skipped"], "routing", "not among the scored replicas: __probe-cb-1"),
        (Fault::Panics, ["ok", "failed", "skipped"], "routing", "panicked"),
    ] {
        let store = Arc::new(Store::default());
        let server = faulty(fault, store.clone()).await;
        let answer = probe(&server, CB1).await;
        let (got, at, message) = failure(&answer);
        assert_eq!((got, at), (results.to_vec(), stage), "{fault:?}");
        assert!(message.contains(words), "{message}");
        assert_eq!(store.calls.load(Ordering::SeqCst), 0, "the second tier is not asked");
        assert_eq!(server.index.storage_entries(), (0, 0));
        let panics = server.metric("inferencecache_handler_panics_total{rpc=\"probe\"}");
        assert_eq!(panics > 0.0, matches!(fault, Fault::Panics));
    }
}

/// A second tier that counts, and answers as it is told.
#[derive(Debug, Default)]
struct Store {
    fault: Option<T2Error>,
    calls: AtomicUsize,
    inside: AtomicUsize,
    most: AtomicUsize,
}

impl T2Client for Store {
    fn round_trip(&self, target: &ProbeTarget<'_>, payload: &[u8; PAYLOAD_BYTES]) -> Result<(), T2Error> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(inside, Ordering::SeqCst);
        assert_eq!(payload.len(), 49);
        assert_eq!(&payload[17..], target.hash().as_bytes());
        std::thread::sleep(Duration::from_millis(5));
        self.inside.fetch_sub(1, Ordering::SeqCst);
        self.fault.clone().map_or(Ok(()), Err)
    }
}

async fn with_store(store: &Arc<Store>) -> Running {
    let mut setup = Setup::new();
    setup.second_tier = Some(store.clone());
    setup.start().await
}

/// server:142-143
#[tokio::test]
async fn the_second_tier_is_asked_for_the_kinds_that_have_one() {
    for (kind, t2, calls) in [
        (json!(null), "ok", 1),
        (json!(""), "ok", 1),
        (json!("LMCache"), "ok", 1),
        (json!("Memory"), "skipped", 0),
        (json!("External"), "skipped", 0),
        (json!("lmcache"), "skipped", 0),
    ] {
        let store = Arc::new(Store::default());
        let server = with_store(&store).await;
        let body = json!({"backend": "cb-1", "model": "m", "hashScheme": "vllm", "backendType": kind});
        let want = json!({"backend": "cb-1", "ingest": "ok", "routing": "ok", "t2": t2});
        assert_eq!(probe(&server, &body.to_string()).await, want, "{kind}");
        assert_eq!(store.calls.load(Ordering::SeqCst), calls, "{kind}");
    }
}

/// server:144
#[tokio::test]
async fn a_second_tier_that_fails_says_which_half() {
    let fault = Some(T2Error::Put("connection refused".to_owned()));
    let server = with_store(&Arc::new(Store { fault, ..Store::default() })).await;
    let answer = probe(&server, CB1).await;
    let (results, stage, message) = failure(&answer);
    assert_eq!((results, stage), (vec!["ok", "ok", "failed"], "t2"));
    assert_eq!(message, "put failed: connection refused");
}

/// server:145
#[tokio::test(flavor = "multi_thread")]
async fn probes_of_one_backend_take_turns() {
    let store = Arc::new(Store::default());
    let server = with_store(&store).await;
    let bodies = (0..8).map(|n| format!(r#"{{"backend":"cb-1","model":"m{}","hashScheme":"vllm"}}"#, n % 2));
    let bodies: Vec<String> = bodies.collect();
    let answers = futures::future::join_all(bodies.iter().map(|body| probe(&server, body))).await;
    let want = json!({"backend": "cb-1", "ingest": "ok", "routing": "ok", "t2": "ok"});
    assert!(answers.iter().all(|answer| *answer == want), "{answers:?}");
    assert_eq!((store.calls.load(Ordering::SeqCst), store.most.load(Ordering::SeqCst)), (8, 1));
    assert_eq!(server.index.storage_entries(), (0, 0));
    assert!(!server.index.has_any_tenant(RESERVED_TENANT));
}

/// server:146
#[tokio::test(flavor = "multi_thread")]
async fn a_full_index_keeps_what_is_real() {
    let server = Setup::with(IndexOptions { max_entries: 1, ..IndexOptions::default() }).start().await;
    let mut client = server.client().await;
    client.report(vec![report("r1", vec![key("p", 128)])]).await;
    let bodies: Vec<String> =
        (0..16).map(|n| format!(r#"{{"backend":"cb-{n}","model":"m","hashScheme":"vllm"}}"#)).collect();
    let probes = futures::future::join_all(bodies.iter().map(|body| probe(&server, body)));
    let refreshes = async {
        for round in 0..50 {
            client.report(vec![report("r1", vec![key("p", 128)])]).await;
            let outcome = client.outcome(ask_key("p")).await;
            assert_eq!(outcome, ("PREFIX_MATCH".to_owned(), vec!["r1".to_owned()]), "round {round}");
        }
    };
    let (answers, ()) = tokio::join!(probes, refreshes);
    for (n, answer) in answers.iter().enumerate() {
        assert_eq!(*answer, passed(&format!("cb-{n}")));
    }
    assert_eq!(client.outcome(ask_key("p")).await.0, "PREFIX_MATCH");
    assert_eq!(server.index.storage_entries(), (1, 0));
}

/// server:147 policy:95-96
#[tokio::test]
async fn no_pushed_policy_reaches_a_probe() {
    let server = Setup::new().start().await;
    for body in [
        r#"{"version":7,"tenants":[{"tenantID":"inferencecache.io/probe","maxIndexEntries":0}]}"#,
        r#"{"version":7,"policies":[{"namespace":"inferencecache.io/probe","evictionTTL":1}]}"#,
        r#"{"version":7,"policies":[{"namespace":"inferencecache.io/probe","evictionTTL":1,"minimumPrefixTokens":999,
            "minimumMatchedTokens":999,"routingFloorScore":1e30,"lookupTimeoutMs":1,"eviction":"lfu",
            "strategy":{"requireChain":true,"enableChainMatching":false}}],
            "tenants":[{"tenantID":"inferencecache.io/probe","maxIndexEntries":0}]}"#,
    ] {
        assert_eq!(http(server.bridge, "POST", "/policy", &[], body.as_bytes()).await.status, 204, "{body}");
        assert_eq!(probe(&server, CB1).await, passed("cb-1"), "{body}");
    }
}

/// server:79 server:102 server:116, after probes
#[tokio::test]
async fn a_probe_shows_nowhere() {
    let server = Setup::new().start().await;
    let before = get(server.bridge, "/snapshot").await.text();
    for _ in 0..3 {
        assert_eq!(probe(&server, CB1).await, passed("cb-1"));
    }
    assert_eq!(get(server.bridge, "/snapshot").await.text(), before);
    let mut client = server.client().await;
    let state = client.state(RESERVED_TENANT, "m").await;
    assert_eq!((state.summary.expect("always present").total_prefixes, state.replicas.len()), (0, 0));
    let metrics = get(server.http, "/metrics").await.text();
    for family in ["inferencecache_index_entries{", "inferencecache_lookup_route_calls_total{", "evictions_total{"] {
        assert!(!metrics.contains(family), "{family}: {metrics}");
    }
    assert!(!metrics.contains("probe_auth_total{result=\"ok\"} 3"), "nothing is counted without access control");
}
