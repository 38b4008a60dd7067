//! Ready, serving, ending: what callers see at each step.

use std::time::Duration;

use crate::server::*;
use inferencecache_wire::pb;
use tokio_stream::StreamExt as _;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::v1::{ServerReflectionRequest, ServerReflectionResponse};

const SERVICE: &str = "inferencecache.v1alpha1.InferenceCache";

async fn health(server: &Running, service: &str) -> Result<ServingStatus, Code> {
    let mut client = HealthClient::new(server.channel().await);
    let request = HealthCheckRequest { service: service.to_owned() };
    client.check(request).await.map(|answer| answer.into_inner().status()).map_err(|status| status.code())
}

/// server:106
#[tokio::test]
async fn health_follows_readiness() {
    let server = Setup::new().start().await;
    for service in ["", SERVICE] {
        in_time("health", async { while health(&server, service).await != Ok(ServingStatus::Serving) {} }).await;
    }
    assert_eq!(health(&server, "nope").await, Err(Code::NotFound));
    server.readiness.set(false);
    for service in ["", SERVICE] {
        in_time("health", async { while health(&server, service).await != Ok(ServingStatus::NotServing) {} }).await;
    }
}

fn asked(message_request: MessageRequest) -> ServerReflectionRequest {
    ServerReflectionRequest { host: String::new(), message_request: Some(message_request) }
}

/// server:107
#[tokio::test]
async fn reflection_lists_and_describes_the_services() {
    let server = Setup::new().start().await;
    let mut client = ServerReflectionClient::new(server.channel().await);
    let requests = [
        MessageRequest::ListServices(String::new()),
        MessageRequest::FileContainingSymbol(SERVICE.to_owned()),
        MessageRequest::FileByFilename("inferencecache/v1alpha1/inferencecache.proto".to_owned()),
    ];
    let answers =
        client.server_reflection_info(tokio_stream::iter(requests.map(asked))).await.expect("opens").into_inner();
    let answers: Vec<ServerReflectionResponse> = answers.map(|answer| answer.expect("an answer")).collect().await;
    let Some(MessageResponse::ListServicesResponse(list)) = &answers[0].message_response else { panic!("{answers:?}") };
    let names: Vec<_> = list.service.iter().map(|service| service.name.as_str()).collect();
    for name in [SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"] {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
    for answer in &answers[1..] {
        assert!(matches!(&answer.message_response, Some(MessageResponse::FileDescriptorResponse(_))), "{answer:?}");
    }
    let mut old =
        tonic_reflection::pb::v1alpha::server_reflection_client::ServerReflectionClient::new(server.channel().await);
    let list = tonic_reflection::pb::v1alpha::server_reflection_request::MessageRequest::ListServices(String::new());
    let request =
        tonic_reflection::pb::v1alpha::ServerReflectionRequest { host: String::new(), message_request: Some(list) };
    let mut answers = old.server_reflection_info(tokio_stream::iter([request])).await.expect("opens").into_inner();
    assert!(answers.message().await.expect("an answer").is_some());
}

/// Readiness goes first, and everything is still answered during the lame duck.
#[tokio::test]
async fn traffic_may_move_away_before_the_listeners_close() {
    let mut setup = Setup::new();
    setup.options.lame_duck = Duration::from_secs(600);
    let server = setup.start().await;
    let (public, bridge, metrics) = (server.http, server.bridge, server.metrics.clone());
    let mut client = server.client().await;
    let mut watch = HealthClient::new(server.channel().await);
    let mut watch = watch.watch(HealthCheckRequest::default()).await.expect("opens").into_inner();
    let readiness = server.readiness.clone();
    let serving = server.end();
    until("readiness", || !readiness.is_ready()).await;
    assert_eq!(get(public, "/readyz").await.status, 503);
    assert_eq!(get(public, "/healthz").await.status, 200);
    assert!(metrics.render().contains("\ninferencecache_server_up 0\n"));
    assert_eq!(get(bridge, "/snapshot").await.status, 200);
    assert_eq!(client.outcome(ask_key("p")).await.0, "NO_HINT");
    in_time("status", async {
        while watch.message().await.expect("open").expect("a status").status() != ServingStatus::NotServing {}
    })
    .await;
    assert!(!serving.is_finished());
    serving.abort();
}

/// server:162
#[tokio::test]
async fn open_streams_end_with_unavailable() {
    let mut setup = Setup::new();
    // Whoever would have to be cut off would be waited for longer than the test has.
    setup.options.drain_timeout = Duration::from_secs(600);
    let server = setup.start().await;
    let mut client = server.client().await;
    let (updates, stream) = tokio::sync::mpsc::unbounded_channel::<pb::CacheStateUpdate>();
    let mut reporting = client.clone();
    let reporter = tokio::spawn(async move {
        let stream = tokio_stream::wrappers::UnboundedReceiverStream::new(stream);
        reporting.0.report_cache_state(stream).await.expect_err("no Ack").code()
    });
    updates.send(report("r1", vec![key("p", 16)])).expect("open");
    client.holds().await;
    let mut watching = HealthClient::new(server.channel().await);
    let mut watch = watching.watch(HealthCheckRequest::default()).await.expect("opens").into_inner();
    let mut reflecting = ServerReflectionClient::new(server.channel().await);
    let pending = tokio_stream::pending::<ServerReflectionRequest>();
    let mut reflection = reflecting.server_reflection_info(pending).await.expect("opens").into_inner();

    let serving = server.end();
    assert_eq!(reporter.await.expect("joined"), Code::Unavailable);
    let ended = loop {
        if let Err(status) = watch.message().await {
            break status.code();
        }
    };
    assert_eq!(ended, Code::Unavailable);
    assert_eq!(reflection.message().await.expect_err("ends").code(), Code::Unavailable);
    in_time("end", serving).await.expect("joined").expect("ended well");
    drop(updates);
}

/// A peer that holds its connection open costs the drain timeout and no more.
#[tokio::test]
async fn draining_is_bounded() {
    use tokio::io::AsyncWriteExt as _;
    let mut setup = Setup::new();
    setup.options.drain_timeout = Duration::from_millis(100);
    setup.options.header_timeout = Duration::from_secs(600);
    let server = setup.start().await;
    let mut slow = tokio::net::TcpStream::connect(server.bridge).await.expect("accepted");
    slow.write_all(b"POST /policy HTTP/1.1\r\nHost: te").await.expect("taken");
    assert_eq!(get(server.bridge, "/snapshot").await.status, 200, "both are accepted by now");
    in_time("end", server.end()).await.expect("joined").expect("ended well");
    drop(slow);
}

#[tokio::test]
async fn listeners_are_closed_once_it_has_ended() {
    let server = Setup::new().start().await;
    let addresses = [server.grpc, server.http, server.bridge];
    server.end().await.expect("joined").expect("ended well");
    for address in addresses {
        assert!(tokio::net::TcpStream::connect(address).await.is_err(), "{address}");
    }
}

/// A listener that breaks takes the server with it, and is named; nothing is left half served.
#[tokio::test]
async fn a_listener_that_fails_ends_the_server() {
    use inferencecache_wire::server::{Listeners, Server};
    use socket2::{Domain, Socket, Type};
    use tokio::net::{TcpListener, TcpStream};

    // Bound and not listening: to accept on it fails for good.
    let broken = || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a free port");
        socket.set_nonblocking(true).expect("set");
        TcpListener::from_std(socket.into()).expect("registered")
    };
    for name in ["grpc", "http", "bridge"] {
        let sound = async || TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let mut listeners = Listeners { grpc: sound().await, http: sound().await, bridge: sound().await };
        match name {
            "grpc" => listeners.grpc = broken(),
            "http" => listeners.http = broken(),
            _ => listeners.bridge = broken(),
        }
        let Setup { router, policies, metrics, access, .. } = Setup::new();
        let server = Server::new(router, policies, access).metrics(metrics.clone());
        let (readiness, server) = (server.readiness(), server.over(listeners));
        let addresses = server.addresses().expect("bound");
        let why = in_time("end", server.run(std::future::pending())).await.expect_err("nobody asked for the end");
        assert_eq!(why.listener, name);
        assert!(!readiness.is_ready());
        assert!(metrics.render().contains("\ninferencecache_server_up 0\n"));
        for address in addresses {
            assert!(TcpStream::connect(address).await.is_err(), "{name}: {address}");
        }
    }
}

/// What has outlived its TTL is swept in the background.
#[tokio::test]
async fn the_index_is_swept() {
    let mut setup = Setup::new();
    setup.options.sweep_interval = Duration::from_millis(5);
    let server = setup.start().await;
    let mut client = server.client().await;
    client.report(vec![pb::CacheStateUpdate { timestamp_us: 1, ..report("r1", vec![key("old", 16)]) }]).await;
    until("sweep", || server.index.storage_entries().0 == 0).await;
    let expired = r#"inferencecache_index_evictions_total{algorithm="lru",reason="ttl"}"#;
    until("count", || server.metric(expired) >= 1.0).await;
    assert!(server.metrics.render().contains("inferencecache_index_entries{model=\"m\"} 0"));
}

/// The gauge shows what the index holds at the time of the scrape, and nothing of the reserved tenant.
#[tokio::test]
async fn storage_entries_are_shown_before_any_sweep() {
    let server = Setup::new().start().await;
    let shown = || server.metric("inferencecache_index_storage_entries");
    assert_eq!(shown(), 0.0);
    let mut client = server.client().await;
    client.report(vec![report("r1", vec![key("p", 16), key("q", 16)]), report("r2", vec![key("p", 16)])]).await;
    assert_eq!(shown(), 3.0);
    client.publish(event(pb::cache_event::Type::AllCleared, "r1")).await;
    assert_eq!(shown(), 1.0);
}
