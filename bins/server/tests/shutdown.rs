//! The end under load: no client that follows readiness loses a call.

mod common;

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use common::*;
use inferencecache_wire::grpc::client::{ClientOptions, channel};
use inferencecache_wire::pb;
use inferencecache_wire::pb::inference_cache_client::InferenceCacheClient;
use tonic::transport::Channel;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

fn connect(server: &str) -> Channel {
    channel(server, &ClientOptions { call_timeout: PATIENCE, ..Default::default() }).expect("an address")
}

fn lookup() -> pb::LookupRouteRequest {
    pb::LookupRouteRequest {
        tenant_id: "t".to_owned(),
        model_id: "m".to_owned(),
        hash_scheme: "vllm".to_owned(),
        prefix_hash: b"p".to_vec(),
        ..Default::default()
    }
}

/// What all callers share.
#[derive(Default)]
struct Load {
    calls: AtomicUsize,
    /// Callers that have been told to go elsewhere.
    moved: AtomicUsize,
    /// Calls that were made after the signal.
    late: AtomicUsize,
    signalled: AtomicBool,
}

impl Load {
    fn done(&self) {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if self.signalled.load(Ordering::SeqCst) {
            self.late.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Resolves when the health service says that this server is to be left.
async fn health_says_leave(server: String) {
    let mut health = HealthClient::new(connect(&server));
    let mut watch = health.watch(HealthCheckRequest::default()).await.expect("opens").into_inner();
    while watch.message().await.expect("no end before it is said").expect("a status").status() == ServingStatus::Serving
    {
    }
}

/// The same by polling, as a kubelet does it.
async fn readyz_says_leave(http: String) {
    loop {
        let http = http.clone();
        let answer = tokio::task::spawn_blocking(move || ask(&http, "GET", "/readyz", "")).await.expect("joined");
        if answer.expect("it still listens").contains(" 503 ") {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Looks up without pause until told to leave; the call under way is finished.
async fn gateway(server: String, fresh: bool, load: Arc<Load>, leave: impl Future<Output = ()>) {
    let mut client = InferenceCacheClient::new(connect(&server));
    let mut leave = std::pin::pin!(leave);
    while futures::poll!(leave.as_mut()).is_pending() {
        if fresh {
            client = InferenceCacheClient::new(connect(&server));
        }
        client.lookup_route(lookup()).await.expect("no call is lost");
        load.done();
    }
    load.moved.fetch_add(1, Ordering::SeqCst);
}

/// Reports in streams of ten updates until told to leave; every one of them is acknowledged.
async fn producer(server: String, load: Arc<Load>, leave: impl Future<Output = ()>) {
    let mut client = InferenceCacheClient::new(connect(&server));
    let mut leave = std::pin::pin!(leave);
    while futures::poll!(leave.as_mut()).is_pending() {
        let updates = (0..10_u8).map(|n| pb::CacheStateUpdate {
            replica_id: "r1".to_owned(),
            tenant_id: "t".to_owned(),
            model_id: "m".to_owned(),
            hash_scheme: "vllm".to_owned(),
            prefixes: vec![pb::PrefixEntry { prefix_hash: vec![n], token_count: 16, ..Default::default() }],
            ..Default::default()
        });
        let ack = client.report_cache_state(tokio_stream::iter(updates)).await.expect("no report is lost");
        assert!(ack.into_inner().accepted);
        load.done();
    }
    load.moved.fetch_add(1, Ordering::SeqCst);
}

/// server:161
#[test]
fn who_follows_readiness_loses_no_call() {
    let server = Running::start(&["--lame-duck=1s"]);
    let (runtime, load) = (runtime(), Arc::new(Load::default()));
    let mut callers = Vec::new();
    for fresh in [false, false, true] {
        let (grpc, http) = (server.grpc.clone(), server.http.clone());
        callers.push(runtime.spawn(gateway(grpc.clone(), fresh, load.clone(), health_says_leave(grpc.clone()))));
        callers.push(runtime.spawn(gateway(grpc, fresh, load.clone(), readyz_says_leave(http))));
    }
    let grpc = server.grpc.clone();
    callers.push(runtime.spawn(producer(grpc.clone(), load.clone(), health_says_leave(grpc.clone()))));
    callers.push(runtime.spawn(producer(grpc, load.clone(), readyz_says_leave(server.http.clone()))));
    let all = callers.len();
    server.until("under load", || load.calls.load(Ordering::SeqCst) > 500);
    load.signalled.store(true, Ordering::SeqCst);
    server.signal("-TERM");
    for caller in callers {
        runtime.block_on(caller).expect("no call is lost");
    }
    assert_eq!(load.moved.load(Ordering::SeqCst), all);
    let (calls, late) = (load.calls.load(Ordering::SeqCst), load.late.load(Ordering::SeqCst));
    println!("{calls} calls, {late} of them after the signal, 0 failed");
    let (status, said) = server.ended();
    assert_eq!(status.code(), Some(0));
    assert_eq!(said[3..], ["graceful_shutdown_started", "graceful_shutdown_done"]);
}
