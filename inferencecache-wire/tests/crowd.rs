//! Peers that come in numbers and give nothing: silent connections, half-open calls, answers that nobody takes. The limits are
//! small here; `bins/server/tests/crowd.rs` does it in earnest.
#![cfg(feature = "server")]

#[path = "common/server.rs"]
mod server;

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::http2::SendRequest;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use inferencecache_core::{Stats, Update};
use prost::Message as _;
use server::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

const LOOKUP: &str = "/inferencecache.v1alpha1.InferenceCache/LookupRoute";
const REPORT: &str = "/inferencecache.v1alpha1.InferenceCache/ReportCacheState";
const HEALTH: &str = "/grpc.health.v1.Health/Check";

fn closed(server: &Running, listener: &str, reason: &str) -> f64 {
    server.metric(&format!("inferencecache_connections_closed_total{{listener=\"{listener}\",reason=\"{reason}\"}}"))
}

async fn everybody_is_served(server: &Running) {
    assert_eq!(get(server.http, "/readyz").await.status, 200);
    assert_eq!(get(server.bridge, "/snapshot").await.status, 200);
    assert_eq!(server.client().await.outcome(ask_key("p")).await.0, "NO_HINT");
}

/// Waits until a peer is hung up on.
async fn hung_up(stream: &mut TcpStream) {
    in_time("end", async { while stream.read(&mut [0; 1024]).await.is_ok_and(|bytes| bytes > 0) {} }).await;
}

#[tokio::test]
async fn silent_connections_cost_each_other_their_places_and_nobody_else() {
    let mut setup = Setup::new();
    (setup.options.max_http_connections, setup.options.max_grpc_connections) = (4, 4);
    setup.options.header_timeout = Duration::from_secs(600);
    let server = setup.start().await;
    let mut client = server.client().await;
    let mut silent = Vec::new();
    for round in 0..20 {
        for (listener, beginning) in [
            (server.http, &b"GET /readyz HT"[..]),
            (server.bridge, b""),
            (server.grpc, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        ] {
            let mut stream = TcpStream::connect(listener).await.expect("accepted");
            stream.write_all(beginning).await.expect("taken");
            silent.push(stream);
        }
        // This one has always been busy more lately than at least one of the others.
        assert_eq!(client.outcome(ask_key("p")).await.0, "NO_HINT", "round {round}");
    }
    everybody_is_served(&server).await;
    for listener in ["http", "bridge", "grpc"] {
        assert!(closed(&server, listener, "made_room") >= 16.0, "{listener}");
        let refused = format!("inferencecache_connections_refused_total{{listener=\"{listener}\"}}");
        assert_eq!(server.metric(&refused), 0.0, "{listener}");
    }
    for stream in silent.iter_mut().take(30) {
        hung_up(stream).await;
    }
}

/// Who has a request under way keeps its place; then the newcomer is the one to go.
#[tokio::test]
async fn connections_with_work_are_bounded_and_stay() {
    let mut setup = Setup::new();
    setup.options.max_http_connections = 1;
    let server = setup.start().await;
    let mut first = TcpStream::connect(server.bridge).await.expect("accepted");
    first
        .write_all(b"POST /policy HTTP/1.1\r\nHost: test\r\nContent-Length: 13\r\nExpect: 100-continue\r\n\r\n")
        .await
        .expect("taken");
    // Asked for the body, so the handler is at work.
    let mut answer = [0; 25];
    in_time("interim answer", first.read_exact(&mut answer)).await.expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 100 Continue\r\n\r\n");
    let mut second = TcpStream::connect(server.bridge).await.expect("the system accepts");
    hung_up(&mut second).await;
    assert_eq!(server.metric("inferencecache_connections_refused_total{listener=\"bridge\"}"), 1.0);
    first.write_all(b"{\"version\":7}").await.expect("taken");
    in_time("answer", first.read_exact(&mut answer)).await.expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 204 No Content\r\n");
    // Now it is idle, and gives way.
    assert_eq!(get(server.bridge, "/snapshot").await.status, 200);
    assert_eq!(closed(&server, "bridge", "made_room"), 1.0);
}

type Sender<B> = SendRequest<B>;

async fn connect<B>(server: &Running, window: Option<u32>) -> Sender<B>
where
    B: Body<Data = Bytes, Error = Infallible> + Send + Unpin + 'static,
{
    let stream = TcpStream::connect(server.grpc).await.expect("accepted");
    let mut http = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    http.initial_stream_window_size(window);
    let (sender, connection) = http.handshake(TokioIo::new(stream)).await.expect("HTTP/2");
    tokio::spawn(connection);
    sender
}

fn call<B>(path: &str, body: B) -> Request<B> {
    Request::post(format!("http://server{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(body)
        .expect("a request")
}

fn never() -> StreamBody<tokio_stream::Pending<Result<Frame<Bytes>, Infallible>>> {
    StreamBody::new(tokio_stream::pending())
}

fn lookup() -> Full<Bytes> {
    let message = ask_key("p").encode_to_vec();
    let length = u32::try_from(message.len()).expect("small").to_be_bytes();
    Full::new([&[0][..], &length, &message].concat().into())
}

async fn status(response: Response<Incoming>) -> String {
    let head = response.headers().get("grpc-status").cloned();
    let status = match head {
        Some(status) => status,
        None => {
            let body = in_time("body", response.into_body().collect()).await.expect("a body");
            body.trailers().and_then(|trailers| trailers.get("grpc-status")).expect("a status").clone()
        }
    };
    status.to_str().expect("ASCII").to_owned()
}

#[tokio::test]
async fn calls_are_bounded_over_all_connections() {
    let mut setup = Setup::new();
    setup.options.max_calls = 3;
    let server = setup.start().await;
    let mut open = Vec::new();
    for path in [LOOKUP, REPORT, HEALTH] {
        let mut sender = connect(&server, None).await;
        open.push(tokio::spawn(async move { sender.send_request(call(path, never())).await }));
    }
    let mut sender = connect(&server, None).await;
    let refused = "inferencecache_grpc_calls_refused_total";
    in_time("refusal", async {
        while status(sender.send_request(call(LOOKUP, lookup())).await.expect("an answer")).await != "8" {}
    })
    .await;
    assert!(server.metric(refused) >= 1.0);
    for call in open {
        call.abort();
        in_time("place", async {
            while status(sender.send_request(call_lookup()).await.expect("an answer")).await != "0" {}
        })
        .await;
    }
}

fn call_lookup() -> Request<Full<Bytes>> {
    call(LOOKUP, lookup())
}

/// Half-open calls end, whatever deadline they came with, but a stream of reports is as long as it likes.
#[tokio::test]
async fn a_request_that_does_not_arrive_is_not_waited_for() {
    let mut setup = Setup::new();
    setup.options.request_timeout = Duration::from_millis(100);
    let server = setup.start().await;
    let mut sender = connect(&server, None).await;
    let mut reports = connect(&server, None).await;
    let open = tokio::spawn(async move { reports.send_request(call(REPORT, never())).await.map(drop) });
    for path in [LOOKUP, "/inferencecache.v1alpha1.InferenceCache/PublishEvent", HEALTH] {
        for timeout in [None, Some("1H")] {
            let mut request = call(path, never());
            if let Some(timeout) = timeout {
                request.headers_mut().insert("grpc-timeout", timeout.parse().expect("ASCII"));
            }
            let response = in_time("answer", sender.send_request(request)).await.expect("an answer");
            assert_eq!(status(response).await, "4", "{path} {timeout:?}");
        }
    }
    assert!(!open.is_finished(), "six times as long has passed");
    let mut client = server.client().await;
    client.report(vec![report("r1", vec![key("p", 128)])]).await;
    assert_eq!(client.outcome(ask_key("p")).await.0, "PREFIX_MATCH");
    open.abort();
}

/// The answer that other implementations give (server.md §5.1 takes their codes).
#[tokio::test]
async fn a_time_limit_that_cannot_be_read_is_refused() {
    let server = Setup::new().start().await;
    let mut sender = connect(&server, None).await;
    for path in [LOOKUP, REPORT, HEALTH] {
        for timeout in ["", "5", "m", "-5m", "1.5S", "123456789m", "5x"] {
            let mut request = call(path, lookup());
            request.headers_mut().insert("grpc-timeout", timeout.parse().expect("ASCII"));
            let response = sender.send_request(request).await.expect("an answer");
            assert_eq!(status(response).await, "13", "{path} {timeout:?}");
        }
        let mut request = call(path, lookup());
        request.headers_mut().insert("grpc-timeout", "99999999H".parse().expect("ASCII"));
        let response = sender.send_request(request).await.expect("an answer");
        // The bytes of a lookup are no request of the others.
        assert_eq!(status(response).await == "0", path == LOOKUP, "{path}");
    }
}

#[tokio::test]
async fn answers_that_nobody_takes_end_the_connection() {
    let mut setup = Setup::new();
    setup.options.reader_timeout = Duration::from_millis(200);
    let server = setup.start().await;
    let mut healthy = server.client().await;
    let mut sender = connect(&server, Some(0)).await;
    // The head comes; the body does not fit through a closed window.
    let response = in_time("head", sender.send_request(call_lookup())).await.expect("a head");
    in_time("end", response.into_body().collect()).await.expect_err("hung up on");
    assert_eq!(closed(&server, "grpc", "slow_reader"), 1.0);
    assert_eq!(healthy.outcome(ask_key("p")).await.0, "NO_HINT");
    // A stream that has nothing to say is not one that is not read.
    let mut watch = tonic_health::pb::health_client::HealthClient::new(server.channel().await);
    let mut watch = watch.watch(tonic_health::pb::HealthCheckRequest::default()).await.expect("opens").into_inner();
    watch.message().await.expect("open").expect("a status");
    let more = tokio::time::timeout(Duration::from_secs(1), watch.message()).await;
    assert!(more.is_err(), "five times as long: {more:?}");
}

#[tokio::test]
async fn a_page_that_nobody_reads_ends_the_connection() {
    let mut setup = Setup::new();
    setup.options.reader_timeout = Duration::from_millis(200);
    let server = setup.start().await;
    // Far more than the system buffers for a connection.
    for n in 0..60_000 {
        let replica = format!("{n:0400}");
        let stats = Some(Stats::default());
        let (tenant, model, scheme, adapter) = ("t", "m", "vllm", "");
        server.index.ingest(&Update {
            replica: &replica,
            model,
            tenant,
            scheme,
            adapter,
            timestamp: 0,
            entries: &[],
            stats,
        });
    }
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(4096).expect("set");
    let mut stream = socket.connect(server.bridge).await.expect("accepted");
    stream.write_all(b"GET /snapshot HTTP/1.1\r\nHost: test\r\n\r\n").await.expect("taken");
    until("end", || closed(&server, "bridge", "slow_reader") >= 1.0).await;
    drop(stream);
    // Who reads gets it all.
    assert!(get(server.bridge, "/snapshot").await.body.len() > 24_000_000);
}
