//! Who gets through to the bridge: the numbered rows over real HTTP, and what a flood or a slow reviewer changes.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::logs::Logs;
use crate::server::*;
use inferencecache_core::ManualClock;
use inferencecache_wire::auth::{PendingReview, Review, ReviewUnavailable, TokenReviewer};
use inferencecache_wire::http::access::Access;
use inferencecache_wire::http::auth::{Audiences, BearerGuard, BearerOptions};
use tokio::sync::Semaphore;

const ACCOUNT: &str = "system:serviceaccount:ic:controller";
const CONTROLLER: &str = "inferencecache.io/controller";
const POLICY: &str = "inferencecache.io/policy";

/// Knows the tokens of the fixture, and whatever begins with one of their names and a dash.
#[derive(Debug)]
struct Script {
    asked: Mutex<Vec<(String, String)>>,
    /// A review takes one permit and keeps it.
    permits: Semaphore,
    running: AtomicUsize,
}

impl Script {
    fn asked(&self) -> Vec<String> {
        let asked = std::mem::take(&mut *self.asked.lock().expect("unpoisoned"));
        asked.into_iter().map(|(token, _)| token).collect()
    }

    async fn answer(&self, token: &str, audience: &str) -> Result<Review, ReviewUnavailable> {
        self.asked.lock().expect("unpoisoned").push((token.to_owned(), audience.to_owned()));
        self.running.fetch_add(1, Ordering::SeqCst);
        self.permits.acquire().await.expect("open").forget();
        self.running.fetch_sub(1, Ordering::SeqCst);
        let review = |username: &str, audiences: &[&str]| Review {
            authenticated: true,
            username: username.to_owned(),
            audiences: audiences.iter().map(|&audience| audience.to_owned()).collect(),
            error: String::new(),
        };
        let refused = |error: &str| Review { error: error.to_owned(), ..Review::default() };
        let bound = |to: &str| {
            if audience == to {
                review(ACCOUNT, &[to])
            } else {
                refused(&format!("token audiences [\"{to}\"] is invalid for the target audiences [{audience:?}]"))
            }
        };
        match token.split('-').next().unwrap_or_default() {
            "good" => Ok(review(ACCOUNT, &[audience])),
            "controller" => Ok(bound(CONTROLLER)),
            "policy" => Ok(bound(POLICY)),
            "other" => Ok(review("system:serviceaccount:ic:other", &[audience])),
            "deaf" => Ok(review(ACCOUNT, &["https://kubernetes.default.svc"])),
            "boom" => Err(ReviewUnavailable(format!("connection refused while asking about {token}"))),
            "nil" => Err(ReviewUnavailable("the answer has no status".to_owned())),
            "panic" => panic!("asked to"),
            _ => Ok(refused(&format!("[invalid bearer token, no such token {token}]"))),
        }
    }
}

impl TokenReviewer for Script {
    fn review<'a>(&'a self, token: &'a str, audience: &'a str) -> PendingReview<'a> {
        Box::pin(self.answer(token, audience))
    }
}

/// A guarded server, its reviewer and its clock.
struct Guarded {
    server: Running,
    reviewer: Arc<Script>,
    clock: ManualClock,
}

impl Guarded {
    async fn new() -> Self {
        Self::with(BearerOptions::default(), Semaphore::MAX_PERMITS).await
    }

    async fn with(options: BearerOptions, permits: usize) -> Self {
        let (asked, permits, running) = (Mutex::default(), Semaphore::new(permits), AtomicUsize::new(0));
        let reviewer = Arc::new(Script { asked, permits, running });
        let clock = ManualClock::at(1_000_000);
        let audiences = Audiences { controller: CONTROLLER.to_owned(), policy: POLICY.to_owned() };
        let guard = BearerGuard::with(reviewer.clone(), ACCOUNT, audiences, Arc::new(clock.clone()), options);
        let server = Setup { access: Access::Guarded(Arc::new(guard)), ..Setup::new() }.start().await;
        server.policy(r#"{"version":7,"policies":[{"namespace":"old","minimumPrefixTokens":9}]}"#);
        Self { server, reviewer, clock }
    }

    async fn request(&self, method: &str, path: &str, authorization: Option<&str>, body: &[u8]) -> Reply {
        let headers: Vec<_> = authorization.iter().map(|&value| ("Authorization", value)).collect();
        http(self.server.bridge, method, path, &headers, body).await
    }

    /// The status of `GET /snapshot` with a token.
    async fn snapshot(&self, token: &str) -> u16 {
        self.request("GET", "/snapshot", Some(&format!("Bearer {token}")), b"").await.status
    }

    /// `ok`, `unauth`, `forbidden`, `error` so far.
    fn counts(&self, path: &str) -> [f64; 4] {
        ["ok", "unauth", "forbidden", "error"]
            .map(|result| self.server.metric(&format!("inferencecache_{path}_auth_total{{result=\"{result}\"}}")))
    }

    fn kept(&self) -> bool {
        self.server.policies.view().set().policy("old").is_some()
    }

    async fn running(&self, number: usize) {
        until("reviews", || self.reviewer.running.load(Ordering::SeqCst) == number).await;
    }
}

// === the numbered rows ===

#[tokio::test]
async fn a_header_that_names_nobody_is_401_without_a_review() {
    // server:117 server:118
    let guarded = Guarded::new().await;
    let headers =
        [None, Some("Bearer "), Some("Basic x"), Some("Bearer"), Some("Bearer\tgood"), Some("good"), Some("")];
    for (n, header) in headers.into_iter().enumerate() {
        let reply = guarded.request("GET", "/snapshot", header, b"").await;
        assert_eq!((reply.status, reply.text().trim()), (401, "unauthorized"), "{header:?}");
        assert_eq!(reply.header("www-authenticate"), Some("Bearer"));
        assert_eq!(reply.header("content-type"), Some("text/plain; charset=utf-8"));
        assert_eq!(guarded.counts("snapshot"), [0.0, (n + 1) as f64, 0.0, 0.0]);
    }
    let endless = format!("Bearer good-{}", "x".repeat(20_000));
    assert_eq!(guarded.request("GET", "/snapshot", Some(&endless), b"").await.status, 401);
    assert_eq!(guarded.reviewer.asked(), [""; 0]);
}

#[tokio::test]
async fn the_scheme_is_taken_in_any_case_and_the_token_trimmed() {
    // server:119
    let guarded = Guarded::new().await;
    for header in ["bearer good", "BEARER good", "Bearer good", "Bearer   good"] {
        assert_eq!(guarded.request("GET", "/snapshot", Some(header), b"").await.status, 200, "{header}");
    }
    assert_eq!(guarded.reviewer.asked(), ["good"], "all of them are one token");
    assert_eq!(guarded.counts("snapshot"), [4.0, 0.0, 0.0, 0.0]);
}

#[tokio::test]
async fn verdicts_have_their_statuses_and_counters() {
    // server:120 server:121 server:122
    let guarded = Guarded::new().await;
    let cases = [
        ("bad", 401, "unauthorized", [0.0, 1.0, 0.0, 0.0]),
        ("other", 403, "forbidden", [0.0, 1.0, 1.0, 0.0]),
        ("boom", 503, "token review unavailable", [0.0, 1.0, 1.0, 1.0]),
        ("nil", 503, "token review unavailable", [0.0, 1.0, 1.0, 2.0]),
        ("good", 200, "", [1.0, 1.0, 1.0, 2.0]),
    ];
    for (token, status, text, counts) in cases {
        let reply = guarded.request("GET", "/snapshot", Some(&format!("Bearer {token}")), b"").await;
        assert_eq!(reply.status, status, "{token}");
        assert!(status == 200 || reply.text().trim() == text, "{token}");
        assert_eq!(reply.header("www-authenticate").is_some(), status == 401);
        assert_eq!(guarded.counts("snapshot"), counts, "{token}");
    }
}

#[tokio::test]
async fn refusals_are_remembered_for_ten_seconds_and_failures_not_at_all() {
    // server:122a
    let guarded = Guarded::new().await;
    for (after, reviews) in [(0, 1), (5, 0), (6, 1)] {
        guarded.clock.advance(Duration::from_secs(after));
        assert_eq!(guarded.snapshot("bad").await, 401);
        assert_eq!(guarded.reviewer.asked().len(), reviews, "after {after} s more");
    }
    assert_eq!(guarded.counts("snapshot"), [0.0, 3.0, 0.0, 0.0]);
    for _ in 0..2 {
        assert_eq!(guarded.snapshot("boom").await, 503);
        assert_eq!(guarded.reviewer.asked().len(), 1);
    }
    for reviews in [1, 0] {
        assert_eq!(guarded.snapshot("other").await, 403);
        assert_eq!(guarded.reviewer.asked().len(), reviews);
    }
}

#[tokio::test]
async fn an_accepted_token_needs_no_review_for_thirty_seconds() {
    // server:123
    let guarded = Guarded::new().await;
    for (after, reviews) in [(0, 1), (10, 0), (31, 1)] {
        guarded.clock.advance(Duration::from_secs(after));
        assert_eq!(guarded.snapshot("good").await, 200);
        assert_eq!(guarded.reviewer.asked().len(), reviews, "after {after} s more");
    }
    assert_eq!(guarded.counts("snapshot"), [3.0, 0.0, 0.0, 0.0]);
    for (after, reviews) in [(29, 0), (1, 1)] {
        guarded.clock.advance(Duration::from_secs(after));
        assert_eq!(guarded.snapshot("good").await, 200);
        assert_eq!(guarded.reviewer.asked().len(), reviews, "thirty seconds to the microsecond are over");
    }
}

#[tokio::test]
async fn each_path_asks_for_itself_with_its_own_audience() {
    // server:124 server:125 server:126 policy:60
    let guarded = Guarded::new().await;
    let probe = br#"{"backend":"cb-1","model":"m","hashScheme":"vllm"}"#;
    let paths = [("GET", "/snapshot", &b""[..]), ("POST", "/policy", br#"{"version":7}"#), ("POST", "/probe", probe)];
    let answers = async |token: &str| {
        let mut statuses = Vec::new();
        for (method, path, body) in paths {
            statuses.push(guarded.request(method, path, Some(&format!("Bearer {token}")), body).await.status);
        }
        statuses
    };
    assert_eq!(answers("controller").await, [200, 401, 200]);
    assert!(guarded.kept());
    assert_eq!(guarded.counts("policy"), [0.0, 1.0, 0.0, 0.0]);
    assert_eq!(answers("policy").await, [401, 204, 401]);
    assert_eq!(answers("good").await, [200, 204, 200]);
    let asked = std::mem::take(&mut *guarded.reviewer.asked.lock().expect("unpoisoned"));
    let audiences: Vec<_> = asked.iter().map(|(_, audience)| audience.as_str()).collect();
    assert_eq!(audiences, [CONTROLLER, POLICY, CONTROLLER].repeat(3), "three caches, three reviews of each");
    for (path, counts) in [("snapshot", [2.0, 1.0]), ("policy", [2.0, 1.0]), ("probe", [2.0, 1.0])] {
        assert_eq!(guarded.counts(path)[..2], counts, "{path}");
    }
}

#[tokio::test]
async fn access_comes_before_method_and_body() {
    // server:127 policy:59 policy:61
    let guarded = Guarded::new().await;
    for path in ["/policy", "/snapshot", "/probe"] {
        for method in ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD"] {
            for (header, status) in [(None, 401), (Some("Bearer bad"), 401), (Some("Bearer other"), 403)] {
                let reply = guarded.request(method, path, header, br#"{"version":7}"#).await;
                assert_eq!(reply.status, status, "{method} {path} {header:?}");
                assert_eq!(reply.header("allow"), None);
            }
        }
    }
    assert!(guarded.kept());
    let reply = guarded.request("GET", "/policy", Some("Bearer good"), b"").await;
    assert_eq!((reply.status, reply.header("allow")), (405, Some("POST, PUT")));
    assert_eq!(guarded.request("GET", "/nowhere", None, b"").await.status, 404, "what is not there needs no access");
}

#[tokio::test]
async fn no_more_than_the_limit_is_remembered() {
    // server:129
    let mut options = BearerOptions::default();
    options.cache_entries = 2;
    let guarded = Guarded::with(options, Semaphore::MAX_PERMITS).await;
    for token in ["good-1", "good-2", "good-3", "good-2", "good-3", "good-1"] {
        assert_eq!(guarded.snapshot(token).await, 200);
        guarded.clock.advance(Duration::from_secs(1));
    }
    assert_eq!(guarded.reviewer.asked(), ["good-1", "good-2", "good-3", "good-1"], "the soonest to expire was dropped");
}

// === what the reviewer says, and what it does not ===

#[tokio::test]
async fn a_review_that_does_not_confirm_the_audience_is_no_acceptance() {
    let guarded = Guarded::new().await;
    let logs = Logs::collect();
    assert_eq!(guarded.snapshot("deaf").await, 401);
    let logged = logs.take();
    assert!(logged.contains("does not confirm the audience") && logged.contains(CONTROLLER), "{logged}");
}

#[tokio::test]
async fn the_log_has_the_reason_and_never_the_token() {
    let guarded = Guarded::new().await;
    let logs = Logs::collect();
    assert_eq!(guarded.snapshot("bad-secret").await, 401);
    let logged = logs.take();
    assert!(logged.contains("WARN") && logged.contains("auth_token_review_unauthenticated"), "{logged}");
    assert!(logged.contains("error=") && logged.contains("invalid bearer token, no such token [token]"), "{logged}");
    assert_eq!(guarded.snapshot("boom-secret").await, 503);
    let failed = logs.take();
    assert!(failed.contains("auth_token_review_failed") && failed.contains("connection refused"), "{failed}");
    assert_eq!(guarded.snapshot("other-secret").await, 403);
    assert_eq!(guarded.snapshot("good-secret").await, 200);
    let rest = logs.take();
    for text in [&logged, &failed, &rest, &format!("{:?}", guarded.server.metrics.render())] {
        assert!(!text.contains("secret"), "{text}");
    }
}

#[tokio::test]
async fn a_reviewer_that_panics_is_one_that_could_not_be_asked() {
    let guarded = Guarded::new().await;
    assert_eq!(guarded.snapshot("panic").await, 503);
    assert_eq!(guarded.snapshot("panic").await, 503, "and the token is not under review for ever");
    assert_eq!(guarded.snapshot("good").await, 200);
}

// === single flight, slow reviewers, floods ===

#[tokio::test]
async fn one_token_is_under_review_once() {
    let guarded = Guarded::with(BearerOptions::default(), 0).await;
    let (_, answers) = tokio::join!(
        async {
            guarded.running(1).await;
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            guarded.reviewer.permits.add_permits(100);
        },
        futures::future::join_all((0..10).map(|_| guarded.snapshot("good"))),
    );
    assert_eq!(answers, [200; 10]);
    assert_eq!(guarded.reviewer.asked(), ["good"]);
    assert_eq!(guarded.counts("snapshot"), [10.0, 0.0, 0.0, 0.0], "every request is counted");
}

#[tokio::test]
async fn a_review_goes_on_when_its_caller_has_left() {
    let guarded = Guarded::with(BearerOptions::default(), 0).await;
    tokio::select! {
        status = guarded.snapshot("good") => panic!("answered {status} without a review"),
        () = guarded.running(1) => {}
    }
    guarded.reviewer.permits.add_permits(1);
    guarded.running(0).await;
    assert_eq!(guarded.snapshot("good").await, 200);
    assert_eq!(guarded.reviewer.asked(), ["good"]);
}

#[tokio::test]
async fn a_reviewer_that_does_not_answer_is_given_up() {
    let mut options = BearerOptions::default();
    options.review_timeout = Duration::from_millis(50);
    let guarded = Guarded::with(options, 0).await;
    let logs = Logs::collect();
    assert_eq!(guarded.snapshot("good").await, 503);
    assert!(logs.take().contains("no answer within 50ms"));
    assert_eq!(guarded.counts("snapshot"), [0.0, 0.0, 0.0, 1.0]);
    guarded.reviewer.permits.add_permits(1);
    assert_eq!(guarded.snapshot("good").await, 200);
}

#[tokio::test]
async fn unknown_tokens_cannot_keep_out_one_that_was_accepted() {
    let mut options = BearerOptions::default();
    options.unknown_reviews = 2;
    let guarded = Guarded::with(options, 1).await;
    assert_eq!(guarded.snapshot("good").await, 200);
    guarded.clock.advance(Duration::from_secs(31));
    let junk: Vec<_> = (0..20).map(|n| format!("bad-{n}")).collect();
    let flood = futures::future::join_all(junk.iter().map(|token| guarded.snapshot(token)));
    let known = async {
        guarded.running(2).await; // the places of unknown tokens are taken, and nobody answers
        let (status, ()) = tokio::join!(guarded.snapshot("good"), async {
            guarded.running(3).await;
            guarded.reviewer.permits.add_permits(100);
        });
        status
    };
    let (statuses, status) = tokio::join!(flood, known);
    assert_eq!(status, 200);
    assert_eq!(statuses, [401; 20], "the flood is worked off in its own places");
    assert_eq!(guarded.reviewer.asked().iter().filter(|token| *token == "good").count(), 2);
}

/// `GET /snapshot` from an address of one's own.
async fn snapshot_from(source: [u8; 4], to: SocketAddr, token: &str) -> u16 {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.bind((source, 0).into()).expect("a loopback address");
    let mut stream = socket.connect(to).await.expect("accepted");
    let request =
        format!("GET /snapshot HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {token}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("answered");
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status")
}

#[tokio::test]
async fn a_source_uses_up_only_its_own_budget() {
    let mut options = BearerOptions::default();
    (options.source_burst, options.source_rate) = (5, 1);
    let guarded = Guarded::with(options, Semaphore::MAX_PERMITS).await;
    let bridge = guarded.server.bridge;
    assert_eq!(snapshot_from([127, 0, 0, 2], bridge, "good-controller").await, 200);
    let mut statuses = Vec::new();
    for n in 0..10 {
        statuses.push(snapshot_from([127, 0, 0, 2], bridge, &format!("bad-{n}")).await);
    }
    assert_eq!(statuses, [[401; 4].as_slice(), &[503; 6]].concat());
    assert_eq!(guarded.reviewer.asked().len(), 5, "what is over the budget is not asked");
    assert_eq!(snapshot_from([127, 0, 0, 3], bridge, "good-new").await, 200, "others have their own");
    guarded.clock.advance(Duration::from_secs(31));
    for _ in 0..40 {
        snapshot_from([127, 0, 0, 2], bridge, &format!("bad-{:?}", std::time::Instant::now())).await;
    }
    assert_eq!(snapshot_from([127, 0, 0, 2], bridge, "good-controller").await, 200, "what was accepted needs none");
    let [_, _, _, errors] = guarded.counts("snapshot");
    assert_eq!(errors, 6.0 + 35.0);
}
