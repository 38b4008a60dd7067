//! The two HTTP listeners over real sockets.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::logs::Logs;
use crate::server::*;
use axum::http::HeaderMap;
use inferencecache_wire::http::access::{Access, Decision, Denied, Guard};
use inferencecache_wire::metrics::AuthPath;
use inferencecache_wire::pb;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// server:109-110 server:110a server:163
#[tokio::test]
async fn the_public_listener_answers_any_method() {
    let server = Setup::new().start().await;
    for method in ["GET", "POST", "PUT"] {
        for path in ["/healthz", "/readyz", "/readyz?verbose"] {
            let reply = http(server.http, method, path, &[], b"").await;
            assert_eq!((reply.status, reply.text().as_str()), (200, "ok\n"), "{method} {path}");
        }
        let reply = http(server.http, method, "/metrics", &[], b"").await;
        assert_eq!(reply.status, 200);
        assert_eq!(reply.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
        assert!(reply.text().contains("\ninferencecache_server_up 1\n"));
    }
    assert_eq!(http(server.http, "HEAD", "/healthz", &[], b"").await.status, 200);
    server.readiness.set(false);
    let reply = get(server.http, "/readyz").await;
    assert_eq!((reply.status, reply.text().as_str()), (503, "not ready\n"));
    assert_eq!(get(server.http, "/healthz").await.status, 200);
}

/// server:110b server:111
#[tokio::test]
async fn paths_belong_to_one_listener_and_are_exact() {
    let server = Setup::new().start().await;
    for (method, path) in
        [("GET", "/snapshot"), ("POST", "/policy"), ("POST", "/probe"), ("GET", "/"), ("GET", "//healthz")]
    {
        assert_eq!(http(server.http, method, path, &[], b"").await.status, 404, "{method} {path}");
    }
    for path in ["/healthz", "/readyz", "/metrics", "/", "//snapshot", "/snapshot/", "/policy/", "/Snapshot"] {
        let reply = get(server.bridge, path).await;
        assert_eq!(reply.status, 404, "{path}");
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
    }
}

/// What changed is told once, however often it is pushed.
#[tokio::test]
async fn each_change_of_the_policies_is_told_once() {
    let server = Setup::new().start().await;
    let logs = Logs::collect();
    let none = r#"{"version":7}"#;
    let one = r#"{"version":7,"policies":[{"namespace":"t"}],"tenants":[{"tenantID":"t","maxIndexEntries":5}]}"#;
    for body in [none, one, one, none, one] {
        assert_eq!(http(server.bridge, "POST", "/policy", &[], body.as_bytes()).await.status, 204);
    }
    assert_eq!(http(server.bridge, "POST", "/policy", &[], b"{}").await.status, 400);
    let logged = logs.take();
    let told: Vec<&str> = logged.lines().filter(|line| line.contains("policy_changed")).collect();
    assert_eq!(told.len(), 3, "{logged}");
    assert!(told[0].contains("INFO") && told[0].contains("policies=1 tenants=1"), "{logged}");
    assert!(told[1].contains("revision=2 policies=0 tenants=0"), "{logged}");
}

/// server:112-114
#[tokio::test]
async fn a_snapshot_has_the_published_shape() {
    let server = Setup::new().start().await;
    let reply = get(server.bridge, "/snapshot?pretty=1").await;
    assert_eq!((reply.status, reply.header("content-type")), (200, Some("application/json")));
    assert_eq!(reply.text(), "{\"replicas\":[],\"tenants\":[],\"totalPrefixes\":0,\"hotPrefixes\":0}\n");

    let mut client = server.client().await;
    let stamped = pb::CacheStateUpdate { timestamp_us: 1_700_000_000_123_456, ..report("r1", vec![key("p", 16)]) };
    client.report(vec![stamped]).await;
    assert_eq!(
        get(server.bridge, "/snapshot").await.text(),
        concat!(
            r#"{"replicas":[{"replicaId":"r1","tenant":"t","cacheMemoryBytes":0,"hitRate":0,"pressure":0,"#,
            r#""lastUpdate":"0001-01-01T00:00:00Z","prefixCount":1,"lastEventAt":"2023-11-14T22:13:20.123456Z"}],"#,
            r#""tenants":[{"tenantId":"t","indexEntries":1,"hitRate":0,"memoryUsed":0}],"totalPrefixes":1,"hotPrefixes":0}"#,
            "\n"
        )
    );
    client.report(vec![pb::CacheStateUpdate { stats: Some(warm(0.75)), ..report("r1", vec![]) }]).await;
    let text = get(server.bridge, "/snapshot").await.text();
    assert!(
        text.contains(r#""statsReported":true"#) && text.contains(r#""hitRate":0.75,"hitRateReported":true"#),
        "{text}"
    );
}

/// No stamp can keep the snapshot from being published (W1).
#[tokio::test]
async fn a_snapshot_cannot_fail_on_data() {
    let server = Setup::new().start().await;
    let mut client = server.client().await;
    for (replica, timestamp_us) in [("far", i64::MAX), ("back", i64::MIN), ("before", -1)] {
        let odd = pb::ReplicaStats { hit_rate: f32::MAX, pressure: f32::MIN_POSITIVE, ..Default::default() };
        client
            .report(vec![pb::CacheStateUpdate { timestamp_us, stats: Some(odd), ..report(replica, vec![key("p", 1)]) }])
            .await;
    }
    let reply = get(server.bridge, "/snapshot").await;
    assert_eq!(reply.status, 200);
    let json: serde_json::Value = serde_json::from_slice(&reply.body).expect("JSON");
    assert_eq!(json["replicas"].as_array().map(Vec::len), Some(3));
}

/// server:115 server:128 policy:5
#[tokio::test]
async fn wrong_methods_name_the_right_ones() {
    let server = Setup::new().start().await;
    server.policy(r#"{"version":7,"policies":[{"namespace":"old"}]}"#);
    for method in ["POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS"] {
        let reply = http(server.bridge, method, "/snapshot", &[], b"").await;
        assert_eq!((reply.status, reply.header("allow")), (405, Some("GET")), "{method}");
        assert_eq!(reply.header("content-type"), Some("text/plain; charset=utf-8"));
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
    }
    for method in ["GET", "HEAD", "DELETE", "PATCH", "OPTIONS"] {
        let reply = http(server.bridge, method, "/policy", &[], b"").await;
        assert_eq!((reply.status, reply.header("allow")), (405, Some("POST, PUT")), "{method}");
        if method != "HEAD" {
            assert!(reply.text().starts_with("method not allowed"));
        }
    }
    assert_eq!(names(&server), ["old"]);
}

fn names(server: &Running) -> Vec<String> {
    let mut names: Vec<_> = server.policies.view().set().policies().map(|policy| policy.namespace.clone()).collect();
    names.sort();
    names
}

async fn push(server: &Running, body: &[u8]) -> Reply {
    http(server.bridge, "POST", "/policy", &[("Content-Type", "text/plain")], body).await
}

/// policy:1 policy:4 policy:31 policy:38
#[tokio::test]
async fn a_policy_push_is_applied() {
    let server = Setup::new().start().await;
    for method in ["POST", "PUT"] {
        server.policy(r#"{"version":7,"policies":[{"namespace":"old"}]}"#);
        let reply = http(server.bridge, method, "/policy", &[], b"{\"version\":7}\n").await;
        assert_eq!((reply.status, reply.body.len()), (204, 0), "{method}");
        assert_eq!(names(&server), [""; 0]);
    }
    assert_eq!(push(&server, br#"{"version":7,"policies":[{"namespace":"blue"}]}"#).await.status, 204);
    assert_eq!(names(&server), ["blue"]);
    assert!((server.metric(r#"inferencecache_policy_pushes_total{result="accepted"}"#) - 3.0).abs() < f64::EPSILON);
    assert!(server.metric("inferencecache_policy_last_push_timestamp_seconds") > 1.6e9);
}

/// policy:6-9 policy:15 policy:17 policy:20 policy:29-30 policy:39
#[tokio::test]
async fn a_bad_policy_changes_nothing() {
    let server = Setup::new().start().await;
    server.policy(r#"{"version":7,"policies":[{"namespace":"old"}]}"#);
    let decode = "decode policy snapshot: ";
    let version = "unsupported policy snapshot version";
    for (body, starts) in [
        (&b""[..], decode),
        (b"   ", decode),
        (b"not json", decode),
        (b"{}", version),
        (b"null", version),
        (br#"{"version":2,"policies":[]}"#, version),
        (br#"{"version":8,"policies":[],"shape":1}"#, decode),
        (br#"{"version":7,"note":"x"}"#, "decode policy snapshot: unknown field"),
        (br#"{"version":7,"policies":[{"namespace":"blue"}]} tail"#, decode),
        (br#"{"version":7,"policies":[{"namespace":"blue"}]}{"version":7}"#, decode),
        (b"\xef\xbb\xbf{\"version\":7}", decode),
    ] {
        let reply = push(&server, body).await;
        assert_eq!(reply.status, 400, "{}", String::from_utf8_lossy(body));
        assert!(reply.text().starts_with(starts), "{}", reply.text());
        assert_eq!(reply.header("content-type"), Some("text/plain; charset=utf-8"));
        assert_eq!(reply.header("x-content-type-options"), Some("nosniff"));
    }
    assert_eq!(names(&server), ["old"]);
    assert!((server.metric(r#"inferencecache_policy_pushes_total{result="rejected"}"#) - 11.0).abs() < f64::EPSILON);
}

/// policy:34-37
#[tokio::test]
async fn the_body_is_capped_as_a_whole() {
    let server = Setup::new().start().await;
    let sized = |bytes: usize| {
        let (head, tail) = (r#"{"version":7,"policies":[{"namespace":""#, r#""}]}"#);
        format!("{head}{}{tail}", "n".repeat(bytes - head.len() - tail.len())).into_bytes()
    };
    assert_eq!(push(&server, &sized(1_048_576)).await.status, 204);
    server.policy(r#"{"version":7,"policies":[{"namespace":"old"}]}"#);
    let mut blanks = b"{\"version\":7}".to_vec();
    blanks.resize(2 * 1024 * 1024, b' ');
    let many = (0..20_000)
        .map(|i| format!(r#"{{"namespace":"namespace-{i:05}","minimumMatchedTokens":64}}"#))
        .collect::<Vec<_>>();
    let many = format!(r#"{{"version":7,"policies":[{}]}}"#, many.join(","));
    assert!(many.len() > 1_048_576);
    for body in [sized(1_048_577), blanks, many.into_bytes()] {
        let reply = push(&server, &body).await;
        assert_eq!(reply.status, 400);
        assert!(reply.text().starts_with("decode policy snapshot: "), "{}", reply.text());
    }
    assert_eq!(names(&server), ["old"]);
}

/// Lets through who says so, and counts how often it was asked.
#[derive(Debug, Default)]
struct Scripted(AtomicUsize);

impl Guard for Scripted {
    fn admit<'a>(&'a self, path: AuthPath, headers: &'a HeaderMap, source: Option<IpAddr>) -> Decision<'a> {
        assert_eq!(source, Some(IpAddr::from([127, 0, 0, 1])));
        self.0.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            match (headers.get("authorization").and_then(|value| value.to_str().ok()), path) {
                (None, _) => Err(Denied::Unauthorized),
                (Some("Bearer snapshot"), AuthPath::Snapshot) | (Some("Bearer policy"), AuthPath::Policy) => Ok(()),
                (Some("Bearer boom"), _) => Err(Denied::Unavailable),
                (Some(_), _) => Err(Denied::Forbidden),
            }
        })
    }
}

/// server:117 server:121 server:127
#[tokio::test]
async fn access_comes_before_method_and_body() {
    let guard = Arc::new(Scripted::default());
    let mut setup = Setup::new();
    setup.access = Access::Guarded(guard.clone());
    let server = setup.start().await;
    for (method, path) in [("GET", "/snapshot"), ("DELETE", "/snapshot"), ("GET", "/policy"), ("POST", "/policy")] {
        let reply = http(server.bridge, method, path, &[], b"").await;
        assert_eq!((reply.status, reply.text().trim()), (401, "unauthorized"), "{method} {path}");
        assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
    }
    let with = |token: &'static str| [("Authorization", token)];
    let reply = http(server.bridge, "GET", "/policy", &with("Bearer boom"), b"").await;
    assert_eq!((reply.status, reply.text().trim()), (503, "token review unavailable"));
    let reply = http(server.bridge, "GET", "/policy", &with("Bearer snapshot"), b"").await;
    assert_eq!((reply.status, reply.text().trim()), (403, "forbidden"));
    assert_eq!(http(server.bridge, "GET", "/policy", &with("Bearer policy"), b"").await.status, 405);
    assert_eq!(http(server.bridge, "POST", "/policy", &with("Bearer policy"), b"{\"version\":7}").await.status, 204);
    assert_eq!(http(server.bridge, "GET", "/snapshot", &with("Bearer snapshot"), b"").await.status, 200);
    assert_eq!(get(server.bridge, "/elsewhere").await.status, 404);
    assert_eq!(guard.0.load(Ordering::Relaxed), 9, "once a request, and never for unknown paths");
    for (series, want) in [
        (r#"inferencecache_snapshot_auth_total{result="unauth"}"#, 2.0),
        (r#"inferencecache_snapshot_auth_total{result="ok"}"#, 1.0),
        (r#"inferencecache_policy_auth_total{result="unauth"}"#, 2.0),
        (r#"inferencecache_policy_auth_total{result="error"}"#, 1.0),
        (r#"inferencecache_policy_auth_total{result="forbidden"}"#, 1.0),
        (r#"inferencecache_policy_auth_total{result="ok"}"#, 2.0),
    ] {
        assert!((server.metric(series) - want).abs() < f64::EPSILON, "{series}");
    }
}

#[tokio::test]
async fn without_access_control_nothing_is_counted() {
    let server = Setup::new().start().await;
    assert_eq!(get(server.bridge, "/snapshot").await.status, 200);
    assert!(!server.metrics.render().contains("snapshot_auth_total{"));
}

/// Heads of requests must arrive in time.
#[tokio::test]
async fn a_slow_head_ends_the_connection() {
    let mut setup = Setup::new();
    setup.options.header_timeout = Duration::from_millis(100);
    let server = setup.start().await;
    for address in [server.http, server.bridge, server.grpc] {
        let mut stream = TcpStream::connect(address).await.expect("accepted");
        stream
            .write_all(if address == server.grpc { b"PRI * HTTP/2" } else { b"GET /healthz HTT" })
            .await
            .expect("taken");
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut rest)).await;
        assert!(ended.is_ok(), "{address} is kept open");
    }
}
