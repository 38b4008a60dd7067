//! A cache server of tests: says what it is told to, and remembers what it was asked.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use inferencecache_kube::controller::bridge::Endpoint;
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// What the fake does and has seen.
#[derive(Default)]
struct Shared {
    snapshot: (u16, String),
    policy: u16,
    delay: Duration,
    /// Bodies of `/policy` that were accepted or not, with the header of each.
    policies: Vec<(Value, String)>,
    scrapes: usize,
    probes: usize,
    under_way: usize,
    most_under_way: usize,
}

/// One fake server, for as long as its runtime lives.
#[derive(Clone)]
pub(crate) struct Fake {
    shared: Arc<Mutex<Shared>>,
    address: SocketAddr,
}

impl Fake {
    /// One that answers 503 to scrapes and 204 to pushes.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let shared = Shared { snapshot: (503, String::new()), policy: 204, ..Shared::default() };
        let fake = Self { shared: Arc::new(Mutex::new(shared)), address };
        let router = Router::new()
            .route("/snapshot", get(snapshot))
            .route("/policy", post(policy))
            .route("/probe", post(probe))
            .with_state(fake.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        fake
    }

    pub(crate) fn at(&self, path: &str) -> Endpoint {
        Endpoint::parse(&format!("http://{}/{path}", self.address)).expect("an address")
    }

    /// What scrapes get from now on.
    pub(crate) fn say(&self, snapshot: &Value) {
        self.lock().snapshot = (200, snapshot.to_string());
    }

    /// What scrapes get from now on: nothing but a status.
    pub(crate) fn refuse_scrapes(&self, status: u16) {
        self.lock().snapshot = (status, String::new());
    }

    /// What pushes get from now on.
    pub(crate) fn answer_pushes(&self, status: u16, delay: Duration) {
        let mut shared = self.lock();
        (shared.policy, shared.delay) = (status, delay);
    }

    /// The bodies of all pushes, and their `Authorization`.
    pub(crate) fn pushes(&self) -> Vec<(Value, String)> {
        self.lock().policies.clone()
    }

    /// The part of the last pushed body that names that namespace.
    pub(crate) fn pushed(&self, namespace: &str) -> Option<Value> {
        let pushes = self.pushes();
        let policies = pushes.last()?.0["policies"].as_array()?.clone();
        policies.into_iter().find(|policy| policy["namespace"] == json!(namespace))
    }

    pub(crate) fn scrapes(&self) -> usize {
        self.lock().scrapes
    }

    /// Everything that was asked, of any kind.
    pub(crate) fn asked(&self) -> usize {
        let shared = self.lock();
        shared.scrapes + shared.policies.len() + shared.probes
    }

    /// Most pushes that were under way at once.
    pub(crate) fn most_under_way(&self) -> usize {
        self.lock().most_under_way
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Shared> {
        self.shared.lock().expect("no test panicked here")
    }
}

async fn snapshot(State(fake): State<Fake>) -> (StatusCode, String) {
    let mut shared = fake.lock();
    shared.scrapes += 1;
    let (status, body) = shared.snapshot.clone();
    (StatusCode::from_u16(status).expect("a status"), body)
}

async fn policy(State(fake): State<Fake>, headers: HeaderMap, body: Bytes) -> StatusCode {
    let bearer = headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let (status, delay) = {
        let mut shared = fake.lock();
        shared.policies.push((serde_json::from_slice(&body).expect("JSON"), bearer));
        shared.under_way += 1;
        shared.most_under_way = shared.most_under_way.max(shared.under_way);
        (shared.policy, shared.delay)
    };
    tokio::time::sleep(delay).await;
    fake.lock().under_way -= 1;
    StatusCode::from_u16(status).expect("a status")
}

async fn probe(State(fake): State<Fake>, body: Bytes) -> String {
    fake.lock().probes += 1;
    let asked: Value = serde_json::from_slice(&body).expect("JSON");
    json!({"backend": asked["backend"], "ingest": "ok", "routing": "ok", "t2": "skipped"}).to_string()
}
