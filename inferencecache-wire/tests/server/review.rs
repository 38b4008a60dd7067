//! Token reviews over HTTPS, against a double of the API server.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::certs::{Authority, Mount};
use crate::server::*;
use axum::body::Body;
use axum::http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use inferencecache_wire::auth::{Review, TokenReviewer as _};
use inferencecache_wire::http::access::Access;
use inferencecache_wire::http::auth::{Audiences, BearerGuard};
use inferencecache_wire::http::review::{ApiServer, HttpTokenReviewer, NoReviewer};
use inferencecache_wire::tls::{ServerFiles, ServerTls};
use serde_json::{Value, json};
use tokio::net::TcpListener;

const ACCOUNT: &str = "system:serviceaccount:ic:controller";

/// What the double does with a review.
#[derive(Clone)]
enum Mode {
    /// Knows `good` and no other.
    Reviews,
    Answers(u16, Vec<u8>),
    Hangs,
    HangsUp,
}

/// An API server that only reviews tokens.
struct Api {
    address: SocketAddr,
    authority: Authority,
    mount: Mount,
    shared: Arc<Shared>,
}

struct Shared {
    mode: Mutex<Mode>,
    /// Who may ask.
    own_token: Mutex<String>,
    questions: Mutex<Vec<Value>>,
    connections: AtomicUsize,
}

impl Api {
    async fn new() -> Self {
        let authority = Authority::new("cluster");
        let mount = Mount::new(&authority, &authority.issue("127.0.0.1"));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let files = ServerFiles { cert: mount.cert(), key: mount.key(), client_ca: None };
        let tls = ServerTls::load(files, &[b"http/1.1"], |_| {}).await.expect("a good pair");
        let shared = Arc::new(Shared {
            mode: Mutex::new(Mode::Reviews),
            own_token: Mutex::new("own".to_owned()),
            questions: Mutex::default(),
            connections: AtomicUsize::new(0),
        });
        mount.put("token", "own\n");
        let serving = shared.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (tls, shared) = (tls.clone(), serving.clone());
                tokio::spawn(async move {
                    let Ok(stream) = tls.accept(stream).await else { return };
                    shared.connections.fetch_add(1, Ordering::SeqCst);
                    let service = service_fn(|request| answer(shared.clone(), request));
                    let _ = hyper::server::conn::http1::Builder::new()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        Self { address, authority, mount, shared }
    }

    fn config(&self) -> ApiServer {
        ApiServer {
            url: format!("https://{}", self.address),
            ca_file: self.mount.ca(),
            token_file: self.mount.path("token"),
        }
    }

    async fn reviewer(&self) -> HttpTokenReviewer {
        HttpTokenReviewer::new(self.config()).await.expect("good files")
    }

    fn mode(&self, mode: Mode) {
        *self.shared.mode.lock().expect("unpoisoned") = mode;
    }
}

async fn answer(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.expect("a body").to_bytes();
    let respond = |status: u16, body: Vec<u8>| {
        let mut response = Response::new(Body::from(body));
        *response.status_mut() = status.try_into().expect("a status");
        Ok(response)
    };
    let own = format!("Bearer {}", shared.own_token.lock().expect("unpoisoned"));
    if head.headers.get("authorization").is_none_or(|have| have != own.as_str()) {
        let failure = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "Unauthorized",
            "reason": "Unauthorized", "code": 401});
        return respond(401, failure.to_string().into());
    }
    assert_eq!((head.method.as_str(), head.uri.path()), ("POST", "/apis/authentication.k8s.io/v1/tokenreviews"));
    assert_eq!(head.headers["content-type"], "application/json");
    let question: Value = serde_json::from_slice(&body).expect("JSON");
    shared.questions.lock().expect("unpoisoned").push(question.clone());
    let mode = shared.mode.lock().expect("unpoisoned").clone();
    match mode {
        Mode::Reviews => {
            let status = if question["spec"]["token"] == "good" {
                json!({"authenticated": true, "user": {"username": ACCOUNT, "uid": "1", "groups": ["system:serviceaccounts"]},
                    "audiences": question["spec"]["audiences"]})
            } else {
                json!({"user": {}, "error": "[invalid bearer token, token lookup failed]"})
            };
            let mut review = question;
            review["metadata"] = json!({"creationTimestamp": null});
            review["status"] = status;
            respond(201, review.to_string().into())
        }
        Mode::Answers(status, body) => respond(status, body),
        Mode::Hangs => std::future::pending().await,
        Mode::HangsUp => panic!("hung up"),
    }
}

#[tokio::test]
async fn the_question_and_the_answer_have_the_published_shape() {
    let api = Api::new().await;
    let reviewer = api.reviewer().await;
    let review = reviewer.review("good", "inferencecache.io/policy").await.expect("reviewed");
    let audiences = vec!["inferencecache.io/policy".to_owned()];
    assert_eq!(review, Review { authenticated: true, username: ACCOUNT.to_owned(), audiences, error: String::new() });
    let review = reviewer.review("junk", "").await.expect("reviewed");
    let error = "[invalid bearer token, token lookup failed]".to_owned();
    assert_eq!(review, Review { error, ..Review::default() });
    let questions = std::mem::take(&mut *api.shared.questions.lock().expect("unpoisoned"));
    let question = |spec: Value| json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec});
    assert_eq!(
        questions,
        [
            question(json!({"token": "good", "audiences": ["inferencecache.io/policy"]})),
            question(json!({"token": "junk"})),
        ]
    );
    assert_eq!(api.shared.connections.load(Ordering::SeqCst), 1, "one connection serves many reviews");
}

#[tokio::test]
async fn whatever_is_no_review_is_no_verdict() {
    let api = Api::new().await;
    let reviewer = api.reviewer().await;
    let forbidden = json!({"kind": "Status", "message": "cannot create resource \"tokenreviews\""}).to_string();
    let cases = [
        (Mode::Answers(401, b"{}".to_vec()), "answers 401"),
        (Mode::Answers(403, forbidden.into()), "answers 403 Forbidden: cannot create resource"),
        (Mode::Answers(500, b"oops".to_vec()), "answers 500"),
        (Mode::Answers(302, Vec::new()), "answers 302"),
        (Mode::Answers(201, Vec::new()), "not a TokenReview"),
        (Mode::Answers(200, b"<html>".to_vec()), "not a TokenReview"),
        (Mode::Answers(201, b"{}".to_vec()), "no status"),
        (Mode::Answers(201, b"{\"status\":null}".to_vec()), "no status"),
        (Mode::Answers(201, b"{\"status\":{\"authenticated\":\"yes\"}}".to_vec()), "not a TokenReview"),
        (Mode::Answers(201, vec![b' '; 1024 * 1024 + 1]), "broke off"),
        (Mode::HangsUp, "client error"),
    ];
    for (mode, why) in cases {
        api.mode(mode);
        let unavailable = reviewer.review("good", "a").await.expect_err(why).to_string();
        assert!(unavailable.contains(why), "{why}: {unavailable}");
        assert!(!unavailable.contains("own"), "{unavailable}");
    }
    api.mode(Mode::Answers(201, b"{\"status\":{\"authenticated\":true,\"audiences\":null,\"error\":null}}".to_vec()));
    let review = reviewer.review("good", "a").await.expect("reviewed");
    assert_eq!(review, Review { authenticated: true, ..Review::default() });
    std::fs::remove_file(api.mount.path("token")).expect("removed");
    let unavailable = reviewer.review("good", "a").await.expect_err("no token of our own").to_string();
    assert!(unavailable.contains("cannot read"), "{unavailable}");
    api.mount.put("token", "line\nbreak");
    let unavailable = reviewer.review("good", "a").await.expect_err("nothing to send").to_string();
    assert!(unavailable.contains("holds no token") && !unavailable.contains("break"), "{unavailable}");
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_given_up() {
    let api = Api::new().await;
    let reviewer = api.reviewer().await;
    api.mode(Mode::Hangs);
    let review = reviewer.review("good", "a");
    tokio::pin!(review);
    // Time only passes faster once the question has arrived.
    while api.shared.questions.lock().expect("unpoisoned").is_empty() {
        tokio::select! {
            biased;
            _ = review.as_mut() => panic!("answered"),
            () = tokio::task::yield_now() => {}
        }
    }
    tokio::time::pause();
    let unavailable = review.await.expect_err("no answer").to_string();
    assert!(unavailable.contains("did not answer within 3s"), "{unavailable}");
    tokio::time::resume();
    api.mode(Mode::Reviews);
    assert!(reviewer.review("good", "a").await.expect("reviewed").authenticated, "on a new connection");
}

#[tokio::test]
async fn our_own_token_refused_is_nobodys_fault_and_a_new_one_is_used_at_once() {
    // field:42
    let api = Api::new().await;
    *api.shared.own_token.lock().expect("unpoisoned") = "rotated".to_owned();
    let audiences = Audiences {
        controller: "inferencecache.io/controller".to_owned(),
        policy: "inferencecache.io/policy".to_owned(),
    };
    let guard = BearerGuard::new(Arc::new(api.reviewer().await), ACCOUNT, audiences);
    let server = Setup { access: Access::Guarded(Arc::new(guard)), ..Setup::new() }.start().await;
    let call = async || http(server.bridge, "GET", "/snapshot", &[("Authorization", "Bearer good")], b"").await;
    for _ in 0..3 {
        let reply = call().await;
        assert_eq!((reply.status, reply.text().trim()), (503, "token review unavailable"));
    }
    let error = "inferencecache_snapshot_auth_total{result=\"error\"}";
    assert_eq!(server.metric(error), 3.0);
    assert_eq!(server.metric("inferencecache_snapshot_auth_total{result=\"unauth\"}"), 0.0);
    api.mount.put("token", "rotated");
    assert_eq!(call().await.status, 200);
    assert_eq!(server.metric(error), 3.0);
}

#[tokio::test]
async fn the_server_must_be_the_clusters_and_its_authority_may_change() {
    let api = Api::new().await;
    let stranger = Authority::new("stranger");
    api.mount.put("ca.crt", &stranger.pem);
    let reviewer = api.reviewer().await;
    let unavailable = reviewer.review("good", "a").await.expect_err("a stranger").to_string();
    assert!(unavailable.contains("handshake with 127.0.0.1 failed") && unavailable.contains("UnknownIssuer"));
    api.mount.put("ca.crt", &api.authority.pem);
    assert!(reviewer.review("good", "a").await.expect("reviewed").authenticated);
}

#[tokio::test]
async fn without_a_cluster_there_is_no_reviewer() {
    let api = Api::new().await;
    let dir = api.mount.dir();
    for (host, port) in [(None, None), (Some(""), Some("443")), (Some("10.0.0.1"), None), (Some("10.0.0.1"), Some(""))]
    {
        let why = ApiServer::in_cluster(host, port, dir).expect_err("not in a cluster").to_string();
        assert!(why.contains("KUBERNETES_SERVICE_"), "{why}");
    }
    let found = ApiServer::in_cluster(Some("fd00::1"), Some("443"), dir).expect("in a cluster");
    let expected = ApiServer {
        url: "https://[fd00::1]:443".to_owned(),
        ca_file: dir.join("ca.crt"),
        token_file: dir.join("token"),
    };
    assert_eq!(found, expected);
    HttpTokenReviewer::new(found).await.expect("an address");
    std::fs::remove_file(dir.join("token")).expect("removed");
    let why = ApiServer::in_cluster(Some("10.0.0.1"), Some("443"), dir).expect_err("no account").to_string();
    assert!(why.contains("cannot read") && why.contains("token"), "{why}");

    for url in ["http://127.0.0.1:1", "127.0.0.1:1", "https://", "", "https://a b"] {
        let why = HttpTokenReviewer::new(ApiServer { url: url.to_owned(), ..api.config() }).await.expect_err(url);
        assert!(matches!(&why, NoReviewer::Url(have) if have == url), "{why}");
    }
    std::fs::remove_file(api.mount.ca()).expect("removed");
    let why = HttpTokenReviewer::new(api.config()).await.expect_err("no authorities");
    assert!(matches!(why, NoReviewer::Tls(_)), "{why}");
}
