//! Answers that nobody takes: what they hold is bounded, and everybody else is answered.

#[path = "common/server.rs"]
mod server;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use inferencecache_wire::pb;
use prost::Message as _;
use server::*;
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::Code;
use tonic::codegen::http::{Request, Response};

const REPLICAS: usize = 2_000;
const LOOKUP: &str = "LookupRoute";
const STATE: &str = "GetCacheState";

fn replica(n: usize) -> String {
    format!("replica-{n:05}")
}

/// A peer that lets no byte of an answer through, until it is dropped and its connection with it.
struct Deaf {
    sender: hyper::client::conn::http2::SendRequest<Full<Bytes>>,
    _connection: AbortOnDropHandle<()>,
}

impl Deaf {
    async fn connect(server: &Running) -> Self {
        let stream = TcpStream::connect(server.grpc).await.expect("the server accepts");
        stream.set_nodelay(true).expect("set");
        let mut http = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
        let (sender, connection) =
            http.initial_stream_window_size(0).handshake(TokioIo::new(stream)).await.expect("HTTP/2");
        let connection = tokio::spawn(async { drop(connection.await) });
        Self { sender, _connection: AbortOnDropHandle::new(connection) }
    }

    /// The head of an answer, and its status if there is nothing else.
    async fn ask(&mut self, method: &str, message: &[u8]) -> (Response<Incoming>, Option<Code>) {
        let length = u32::try_from(message.len()).expect("small").to_be_bytes();
        let body = [&[0], &length[..], message].concat();
        let request = Request::post(format!("http://server/inferencecache.v1alpha1.InferenceCache/{method}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(Full::new(body.into()))
            .expect("a request");
        self.sender.ready().await.expect("a connection");
        let response = in_time("head", self.sender.send_request(request)).await.expect("an answer");
        let status = response.headers().get("grpc-status").map(|status| Code::from_bytes(status.as_bytes()));
        (response, status)
    }
}

/// A server with many replicas of one prefix, and room for ten answers about them or less.
async fn crowded() -> Running {
    let mut setup = Setup::new();
    setup.options.max_unfinished_bytes = 1_000_000;
    let server = setup.start().await;
    let reports = (0..REPLICAS)
        .map(|n| pb::CacheStateUpdate { stats: Some(warm(0.0)), ..report(&replica(n), vec![key("p", 128)]) });
    server.client().await.report(reports.collect()).await;
    server.policy(r#"{"version":7,"policies":[{"namespace":"t","routingFloorScore":0}]}"#);
    server
}

fn refused(server: &Running) -> f64 {
    server.metric("inferencecache_grpc_answers_refused_total")
}

#[tokio::test]
async fn large_answers_that_are_not_taken_share_one_budget() {
    let server = crowded().await;
    let mut healthy = server.client().await;
    let whole = || pb::GetCacheStateRequest { tenant_id: "t".to_owned(), model_id: "m".to_owned() };
    for (method, question) in [(STATE, whole().encode_to_vec()), (LOOKUP, ask_key("p").encode_to_vec())] {
        assert_eq!(healthy.state("t", "m").await.replicas.len(), REPLICAS);
        assert_eq!(healthy.outcome(ask_key("p")).await.1.len(), REPLICAS);
        let before = refused(&server);
        let mut deaf = Deaf::connect(&server).await;
        let mut kept = Vec::new();
        for _ in 0..100 {
            let (response, status) = deaf.ask(method, &question).await;
            kept.push(response);
            // A lookup never fails; what is held for it from now on is a NO_HINT.
            assert!(status.is_none() || (method == STATE && status == Some(Code::ResourceExhausted)), "{status:?}");
        }
        assert!(refused(&server) - before >= 90.0, "{method}: {} refused", refused(&server) - before);
        // Others are answered as far as there is room, and lookups of the usual size as ever.
        assert_eq!(healthy.0.get_cache_state(whole()).await.expect_err("no room").code(), Code::ResourceExhausted);
        assert_eq!(healthy.outcome(ask_key("p")).await, ("NO_HINT".to_owned(), vec![]));
        assert_eq!(healthy.outcome(ask_key("novel")).await.0, "AFFINITY_HINT");
        let saturated = server.metric(r#"inferencecache_lookup_input_refused_total{cause="saturated"}"#);
        assert!(saturated >= 1.0);
        // With the peer its answers go, and there is room again.
        drop((kept, deaf));
        in_time("room", async {
            while healthy.0.get_cache_state(whole()).await.is_err() || healthy.outcome(ask_key("p")).await.1.is_empty()
            {
            }
        })
        .await;
    }
}
