//! What goes wrong before a request exists, and what goes wrong behind it.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::doubles::{First, Scripted, on_ingest, on_lookup};
use crate::raw::Raw;
use crate::server::*;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use hyper_util::rt::{TokioExecutor, TokioIo};
use inferencecache_core::testkit::Hooked;
use inferencecache_core::tokenizer::TokenizeError;
use inferencecache_core::{ManualClock, PolicyStore};
use inferencecache_wire::metrics::Metrics;
use inferencecache_wire::pb;
use tokio::net::TcpStream;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::http::{Request, Uri};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

const LOOKUP: &str = "/inferencecache.v1alpha1.InferenceCache/LookupRoute";
const METHODS: [&str; 8] = [
    LOOKUP,
    "/inferencecache.v1alpha1.InferenceCache/LookupPDRoute",
    "/inferencecache.v1alpha1.InferenceCache/RenderTemplate",
    "/inferencecache.v1alpha1.InferenceCache/GetCacheState",
    "/inferencecache.v1alpha1.InferenceCache/ReportCacheState",
    "/inferencecache.v1alpha1.InferenceCache/PublishEvent",
    "/inferencecache.v1alpha1.InferenceCache/StreamCacheEvents",
    "/inferencecache.v1alpha1.InferenceCache/StreamMetrics",
];

/// A channel over one connection, which is never made again.
async fn single_connection(server: &Running) -> Channel {
    let used = Arc::new(AtomicBool::new(false));
    let address = server.grpc;
    let connector = tower::service_fn(move |_: Uri| {
        let first = !used.swap(true, Ordering::SeqCst);
        async move {
            assert!(first, "the connection was lost");
            TcpStream::connect(address).await.map(TokioIo::new)
        }
    });
    let endpoint = Endpoint::from_static("http://server");
    endpoint.connect_with_connector(connector).await.expect("the server accepts")
}

async fn raw(channel: &Channel, method: &'static str, request: tonic::Request<Vec<u8>>) -> Result<Vec<u8>, Status> {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await.expect("connected");
    grpc.unary(request, PathAndQuery::from_static(method), Raw).await.map(|response| response.into_inner())
}

/// server:108 field:41
#[tokio::test]
async fn an_oversized_message_is_resource_exhausted_and_the_connection_stays() {
    let server = Setup::new().start().await;
    let channel = single_connection(&server).await;
    let mut client = Client(pb::inference_cache_client::InferenceCacheClient::new(channel.clone()));
    for method in METHODS {
        let status = raw(&channel, method, tonic::Request::new(vec![0; 5 * 1024 * 1024])).await.expect_err(method);
        assert_eq!(status.code(), Code::ResourceExhausted, "{method}: {status:?}");
        assert_eq!(client.lookup(ask_key("p")).await.reason_code, "NO_HINT", "after {method}");
    }
    let large = pb::LookupRouteRequest { prompt_text: "x".repeat(5 * 1024 * 1024), ..ask() };
    let status = client.0.lookup_route(large).await.expect_err("too large");
    assert_eq!(status.code(), Code::ResourceExhausted);
    let fits = pb::LookupRouteRequest { prompt_text: "x".repeat(4 * 1024 * 1024 - 64), ..ask() };
    assert_eq!(client.lookup(fits).await.reason_code, "NO_HINT");
}

/// server:108
#[tokio::test]
async fn the_limit_is_a_setting() {
    let mut setup = Setup::new();
    setup.options.max_message_bytes = 6 * 1024 * 1024;
    let mut client = setup.start().await.client().await;
    let large = pb::LookupRouteRequest { token_ids: vec![u32::MAX; 1_048_576], ..ask() };
    assert_eq!(client.lookup(large).await.reason_code, "NO_HINT");
}

/// server:108a
#[tokio::test]
async fn what_is_not_protobuf_is_internal_and_the_connection_stays() {
    let server = Setup::new().start().await;
    let channel = single_connection(&server).await;
    let mut client = Client(pb::inference_cache_client::InferenceCacheClient::new(channel.clone()));
    for method in METHODS {
        let status = raw(&channel, method, tonic::Request::new(vec![0xff; 9])).await.expect_err(method);
        assert_eq!(status.code(), Code::Internal, "{method}: {status:?}");
        assert_eq!(client.lookup(ask_key("p")).await.reason_code, "NO_HINT", "after {method}");
    }
}

#[tokio::test]
async fn an_unknown_compression_is_unimplemented() {
    let server = Setup::new().start().await;
    let channel = single_connection(&server).await;
    for method in METHODS {
        let mut request = tonic::Request::new(Vec::new());
        request.metadata_mut().insert("grpc-encoding", "snappy".parse().expect("ASCII"));
        let status = raw(&channel, method, request).await.expect_err(method);
        assert_eq!(status.code(), Code::Unimplemented, "{method}: {status:?}");
    }
    let status = raw(&channel, "/inferencecache.v1alpha1.InferenceCache/Nothing", tonic::Request::new(vec![])).await;
    assert_eq!(status.expect_err("unknown").code(), Code::Unimplemented);
    let status = raw(&channel, "/other.Service/Nothing", tonic::Request::new(vec![])).await;
    assert_eq!(status.expect_err("unknown").code(), Code::Unimplemented);
}

/// A bad message in the middle of a stream ends it; what came before stays.
#[tokio::test]
async fn a_stream_ends_with_the_status_of_its_bad_message() {
    let server = Setup::new().start().await;
    let channel = single_connection(&server).await;
    let good = prost::Message::encode_to_vec(&report("r1", vec![key("p", 128)]));
    for (bad, code) in [(vec![0xff; 9], Code::Internal), (vec![0; 5 * 1024 * 1024], Code::ResourceExhausted)] {
        let mut grpc = tonic::client::Grpc::new(channel.clone());
        grpc.ready().await.expect("connected");
        let path = PathAndQuery::from_static("/inferencecache.v1alpha1.InferenceCache/ReportCacheState");
        let stream = tonic::Request::new(tokio_stream::iter(vec![good.clone(), bad]));
        let status = grpc.client_streaming(stream, path, Raw).await.expect_err("no Ack");
        assert_eq!(status.code(), code, "{status:?}");
    }
    assert_eq!(server.client().await.total().await, 1);
}

/// One exchange below the gRPC library, so that nothing on this side watches the deadline.
async fn bare<B>(server: &Running, timeout: &str, body: B) -> hyper::Response<hyper::body::Incoming>
where
    B: hyper::body::Body<Data = Bytes, Error = Infallible> + Send + Unpin + 'static,
{
    let stream = TcpStream::connect(server.grpc).await.expect("the server accepts");
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("HTTP/2");
    tokio::spawn(connection);
    let request = Request::post(format!("http://server{LOOKUP}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("grpc-timeout", timeout)
        .body(body)
        .expect("a request");
    sender.send_request(request).await.expect("an answer")
}

fn framed(request: &pb::LookupRouteRequest) -> Full<Bytes> {
    let message = prost::Message::encode_to_vec(request);
    let mut frame = vec![0];
    frame.extend(u32::try_from(message.len()).expect("small").to_be_bytes());
    frame.extend(message);
    Full::new(frame.into())
}

async fn decoded(response: hyper::Response<hyper::body::Incoming>) -> pb::LookupRouteResponse {
    let body = response.into_body().collect().await.expect("a body");
    assert_eq!(body.trailers().expect("trailers").get("grpc-status").expect("a status"), "0");
    prost::Message::decode(&body.to_bytes()[5..]).expect("a response")
}

/// server:58
#[tokio::test]
async fn a_deadline_in_the_past_is_a_timeout() {
    let server = Setup::new().start().await;
    server.client().await.report(vec![report("r1", vec![key("p", 128)])]).await;
    for timeout in ["0n", "1n"] {
        let response = decoded(bare(&server, timeout, framed(&ask_key("p"))).await).await;
        assert_eq!((response.reason_code.as_str(), response.replica_scores.len()), ("TIMEOUT", 0));
    }
    let response = decoded(bare(&server, "10S", framed(&ask_key("p"))).await).await;
    assert_eq!(response.reason_code, "PREFIX_MATCH");
}

#[tokio::test]
async fn a_deadline_before_the_request_has_arrived_is_deadline_exceeded() {
    let server = Setup::new().start().await;
    let never = StreamBody::new(tokio_stream::pending::<Result<Frame<Bytes>, Infallible>>());
    let response = bare(&server, "20m", never).await;
    assert_eq!(response.headers().get("grpc-status").expect("a status"), "4");
}

fn over(index: Hooked<First>) -> Setup {
    Setup::over(Arc::new(index), Arc::new(PolicyStore::default()), Arc::new(Metrics::default()))
}

fn calls(server: &Running) -> f64 {
    server.metric(r#"inferencecache_lookup_route_latency_seconds_count{model="m"}"#)
}

/// D4, W24: a fault below the handler costs one hint.
#[tokio::test]
async fn a_panic_is_answered_counted_and_survived() {
    for isolated in [false, true] {
        let mut setup = over(on_lookup(|| panic!("asked to")));
        setup.options.isolate_lookups = isolated;
        let server = setup.start().await;
        let channel = single_connection(&server).await;
        let mut client = Client(pb::inference_cache_client::InferenceCacheClient::new(channel));
        for _ in 0..3 {
            let response = client.lookup(ask_key("p")).await;
            assert_eq!((response.reason_code.as_str(), response.replica_scores.len()), ("NO_HINT", 0));
        }
        let request = pb::GetCacheStateRequest { model_id: "panic".to_owned(), ..Default::default() };
        assert_eq!(client.0.get_cache_state(request).await.expect_err("a fault").code(), Code::Internal);
        assert_eq!(
            (server.metric(r#"inferencecache_handler_panics_total{rpc="LookupRoute"}"#), calls(&server)),
            (3.0, 3.0)
        );
    }
}

#[tokio::test]
async fn a_panic_while_reporting_costs_one_update() {
    let index = on_ingest(|update| assert_ne!(update.replica, "bad", "asked to"));
    let server = over(index).start().await;
    let mut client = server.client().await;
    let updates = ["r1", "bad", "r2"].map(|replica| report(replica, vec![key(replica, 16)]));
    assert!(client.report(updates.to_vec()).await.accepted);
    assert_eq!(client.total().await, 2);
}

/// server:59
#[tokio::test]
async fn a_lookup_that_took_too_long_is_a_timeout() {
    // It takes 50 ms on a clock that only this lookup moves.
    let clock = Arc::new(ManualClock::at(1_700_000_000_000_000));
    let moved = clock.clone();
    let mut setup = over(on_lookup(move || moved.advance(Duration::from_millis(50))));
    setup.router.clock = clock;
    let server = setup.start().await;
    server.policy(r#"{"version":7,"policies":[{"namespace":"t","lookupTimeoutMs":5}]}"#);
    assert_eq!(server.client().await.outcome(ask_key("p")).await, ("TIMEOUT".to_owned(), vec![]));
}

/// A server whose index does not answer until the sender is dropped.
fn stuck() -> (Setup, std::sync::mpsc::Sender<()>) {
    let (release, blocked) = std::sync::mpsc::channel();
    let blocked = std::sync::Mutex::new(blocked);
    let mut setup = over(on_lookup(move || {
        let _ = blocked.lock().expect("unpoisoned").recv();
    }));
    setup.options.isolate_lookups = true;
    (setup, release)
}

/// server:60-61
#[tokio::test]
async fn an_index_that_does_not_return_is_not_waited_for() {
    let (setup, release) = stuck();
    let server = setup.start().await;
    let mut client = server.client().await;
    server.policy(r#"{"version":7,"policies":[{"namespace":"t","lookupTimeoutMs":20}]}"#);
    let outcome = in_time("answer while the index is at it", client.outcome(ask_key("p"))).await;
    assert_eq!(outcome, ("TIMEOUT".to_owned(), vec![]));
    assert!((calls(&server) - 1.0).abs() < f64::EPSILON);
    drop(release);
    server.policy(r#"{"version":7,"policies":[{"namespace":"t","lookupTimeoutMs":1000}]}"#);
    client.report(vec![report("r1", vec![key("p", 128)])]).await;
    assert_eq!(client.outcome(ask_key("p")).await.0, "PREFIX_MATCH");
}

/// A caller that goes away is still counted, once.
#[tokio::test]
async fn a_cancelled_lookup_is_observed() {
    let (setup, release) = stuck();
    let server = setup.start().await;
    let mut client = server.client().await;
    let call = tokio::time::timeout(Duration::from_millis(50), client.lookup(ask_key("p")));
    assert!(call.await.is_err(), "it does not return");
    until("observation", || calls(&server) >= 1.0).await;
    let timeouts = r#"inferencecache_lookup_route_calls_total{hint_used="false",model="m",reason_code="TIMEOUT"}"#;
    assert!((server.metric(timeouts) - 1.0).abs() < f64::EPSILON);
    drop(release);
}

fn text(text: &str) -> pb::LookupRouteRequest {
    pb::LookupRouteRequest { prompt_text: text.to_owned(), ..ask() }
}

async fn with_tokenizer(
    script: impl Fn(&str, &str) -> Result<Vec<u32>, TokenizeError> + Send + Sync + 'static,
) -> (Running, Client) {
    let mut setup = Setup::new();
    setup.router.tokenizer = Some(Scripted::tokenizer(script));
    let server = setup.start().await;
    let client = server.client().await;
    (server, client)
}

/// server:68-69 server:71-74 server:76-77
#[tokio::test]
async fn text_is_tokenised_and_echoed() {
    let (server, mut client) = with_tokenizer(|model, text| {
        assert_eq!(model, "m");
        match text {
            "known" => Ok((1..=64).collect()),
            "novel" => Ok((1001..=1064).collect()),
            "short" => Ok((1..=8).collect()),
            "none" => Ok(vec![]),
            "many" => Ok(vec![1; 1_048_577]),
            "broken" => panic!("asked to"),
            _ => Err(TokenizeError::Failed),
        }
    })
    .await;
    let (mut keys, mut counts) = (Vec::new(), Vec::new());
    let tokens: Vec<u32> = (1..=64).collect();
    inferencecache_core::fingerprint::chain(&tokens, 16.try_into().expect("above 0"), &mut keys, &mut counts);
    let held = pb::PrefixEntry {
        block_hashes: keys.iter().map(|key| key.to_vec()).collect(),
        block_token_counts: counts,
        ..Default::default()
    };
    client.report(vec![report("r1", vec![held])]).await;
    for (prompt, reason, echoed) in [
        ("known", "PREFIX_MATCH", 64),
        ("novel", "AFFINITY_HINT", 64),
        ("short", "NO_HINT", 8),
        ("none", "NO_HINT", 0),
        ("many", "NO_HINT", 0),
        ("broken", "NO_HINT", 0),
        ("failing", "NO_HINT", 0),
    ] {
        let response = client.lookup(text(prompt)).await;
        assert_eq!((response.reason_code.as_str(), response.token_ids.len()), (reason, echoed), "{prompt}");
    }
    assert_eq!(client.lookup(text(&"x".repeat(1_048_577))).await.reason_code, "NO_HINT");
    assert!((calls(&server) - 8.0).abs() < f64::EPSILON);

    server.policy(r#"{"version":7,"policies":[{"namespace":"t","affinityRouting":false,"minimumPrefixTokens":1000}]}"#);
    let response = client.lookup(text("known")).await;
    assert_eq!((response.reason_code.as_str(), response.token_ids.len()), ("NO_HINT", 64));
}

/// server:62 server:75
#[tokio::test]
async fn a_tokenizer_that_blocks_is_not_waited_for() {
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = std::sync::Mutex::new(blocked);
    let (server, mut client) = with_tokenizer(move |_, _| {
        let _ = blocked.lock().expect("unpoisoned").recv();
        Ok((1..=64).collect())
    })
    .await;
    server.policy(r#"{"version":7,"policies":[{"namespace":"t","lookupTimeoutMs":20}]}"#);
    let response = in_time("answer while the tokenizer is at it", client.lookup(text("hello world"))).await;
    assert_eq!((response.reason_code.as_str(), response.token_ids.len()), ("TIMEOUT", 0));
    // Each of these holds a permit for as long as the tokenizer does not return.
    for _ in 1..64 {
        assert_eq!(client.lookup(text("hello world")).await.reason_code, "TIMEOUT");
    }
    server.policy(r#"{"version":7}"#);
    // At once: whoever waited for a permit would time out.
    assert_eq!(client.lookup(text("hello world")).await.reason_code, "NO_HINT");
    drop(release);
}

/// server:63
#[tokio::test]
async fn text_without_any_deadline_has_its_own() {
    let (release, blocked) = std::sync::mpsc::channel::<()>();
    let blocked = std::sync::Mutex::new(blocked);
    let mut setup = Setup::new();
    assert_eq!(setup.router.tokenise_timeout, 5_000_000, "5 s");
    setup.router.tokenise_timeout = 30_000;
    setup.router.tokenizer = Some(Scripted::tokenizer(move |_, _| {
        let _ = blocked.lock().expect("unpoisoned").recv();
        Ok(vec![])
    }));
    let server = setup.start().await;
    assert_eq!(server.client().await.lookup(text("hello")).await.reason_code, "TIMEOUT");
    drop(release);
}

/// Part of a message that announces 900 kB, and then nothing more.
fn unfinished() -> StreamBody<impl tokio_stream::Stream<Item = Result<Frame<Bytes>, Infallible>>> {
    use tokio_stream::StreamExt as _;
    let part = [&[0][..], &900_000u32.to_be_bytes(), &vec![0; 800_000]].concat();
    StreamBody::new(tokio_stream::once(Ok(Frame::data(Bytes::from(part)))).chain(tokio_stream::pending()))
}

/// What incomplete messages hold is bounded over all calls, and given back with the call.
#[tokio::test]
async fn unfinished_messages_share_one_budget() {
    let mut setup = Setup::new();
    setup.options.max_unfinished_bytes = 1_000_000;
    let server = setup.start().await;
    let address = server.grpc;
    let used = || server.metric("inferencecache_grpc_unfinished_refused_total");
    let first = tokio::spawn({
        let stream = TcpStream::connect(address).await.expect("connects");
        async move {
            let (mut sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.expect("h2");
            tokio::spawn(connection);
            // An answer means that the second one was first; then it is tried again.
            loop {
                let request = Request::post(format!("http://{address}{LOOKUP}"))
                    .header("content-type", "application/grpc")
                    .header("te", "trailers")
                    .body(unfinished())
                    .expect("a request");
                sender.send_request(request).await.expect("an answer");
            }
        }
    });
    // Once the first one is held, a second one is refused; a small one still gets through.
    let refused = in_time("refusal", async {
        loop {
            let response = bare(&server, "200m", unfinished()).await;
            if response.headers().get("grpc-status").is_some_and(|status| status == "8") {
                return;
            }
        }
    });
    refused.await;
    assert!(used() >= 1.0);
    let response = decoded(bare(&server, "10S", framed(&ask_key("p"))).await).await;
    assert_eq!(response.reason_code, "NO_HINT");
    // The call ends, and its share is free again: an incomplete message waits for its deadline instead of being refused.
    first.abort();
    let freed = in_time("share", async {
        loop {
            let response = bare(&server, "50m", unfinished()).await;
            if response.headers().get("grpc-status").is_some_and(|status| status == "4") {
                return;
            }
        }
    });
    freed.await;
}
