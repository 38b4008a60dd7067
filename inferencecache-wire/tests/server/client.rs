//! The hint client: without a server, with one that hangs, and with a real one.

use std::time::Duration;

use crate::server::*;
use inferencecache_wire::grpc::client::{Cause, ClientOptions, HintClient, channel};
use tokio::io::AsyncReadExt;
use tokio::net::TcpListener;

fn patient() -> ClientOptions {
    ClientOptions { call_timeout: Duration::from_secs(5), ..ClientOptions::default() }
}

#[tokio::test]
async fn a_real_server_is_heard() {
    let server = Setup::new().start().await;
    server.client().await.report(vec![report("r1", vec![key("p", 128)])]).await;
    let client = HintClient::new(&server.grpc.to_string(), &patient()).expect("an address");
    let hint = client.lookup(ask_key("p")).await;
    assert_eq!((hint.replica(), hint.degraded.as_ref()), (Some("r1"), None));
    assert_eq!(hint.response.reason_code, "PREFIX_MATCH");
    let mut unknown = ask_key("p");
    "elsewhere".clone_into(&mut unknown.tenant_id);
    let hint = client.lookup(unknown).await;
    assert_eq!((hint.replica(), hint.response.reason_code.as_str()), (None, "UNKNOWN_TENANT"));
    let mut large = ask();
    large.prompt_text = "x".repeat(5 * 1024 * 1024);
    let hint = client.lookup(large).await;
    assert!(matches!(hint.degraded, Some(Cause::Refused(tonic::Code::ResourceExhausted, _))), "{hint:?}");
    assert_eq!(hint.response.reason_code, "NO_HINT");
}

#[tokio::test]
async fn no_server_is_no_hint() {
    let free = TcpListener::bind("127.0.0.1:0").await.expect("a free port").local_addr().expect("bound");
    let client = HintClient::new(&free.to_string(), &patient()).expect("an address");
    for _ in 0..2 {
        let hint = client.lookup(ask_key("p")).await;
        assert_eq!((hint.replica(), hint.response.reason_code.as_str()), (None, "NO_HINT"));
        assert!(matches!(hint.degraded, Some(Cause::Unreachable(_))), "{hint:?}");
    }
}

#[tokio::test]
async fn a_hanging_server_is_no_hint_in_time() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a client");
        let mut sink = Vec::new();
        let _ = stream.read_to_end(&mut sink).await; // takes everything, says nothing
    });
    let options = ClientOptions { call_timeout: Duration::from_millis(50), ..ClientOptions::default() };
    let client = HintClient::new(&address, &options).expect("an address");
    let hint = in_time("hint from one that never answers", client.lookup(ask_key("p"))).await;
    assert_eq!(hint.degraded, Some(Cause::Slow(Duration::from_millis(50))));
    assert_eq!(hint.response.reason_code, "NO_HINT");
}

#[tokio::test]
async fn a_server_that_returns_is_found_again() {
    let server = Setup::new().start().await;
    let address = server.grpc;
    let client = HintClient::new(&address.to_string(), &patient()).expect("an address");
    assert_eq!(client.lookup(ask_key("p")).await.degraded, None);
    server.end().await.expect("joined").expect("ended well");
    assert!(matches!(client.lookup(ask_key("p")).await.degraded, Some(Cause::Unreachable(_))));
    let _again = Setup::new().start_at(address).await;
    assert_eq!(client.lookup(ask_key("p")).await.degraded, None);
}

#[tokio::test]
async fn addresses_that_cannot_be_dialled_are_named() {
    for address in ["", "host", ":9090", "host:port", "http://", "a b:1"] {
        let why = channel(address, &ClientOptions::default()).expect_err(address).to_string();
        assert!(why.contains(&format!("{address:?}")) && why.contains("host:port"), "{why}");
    }
    for address in ["host:9090", "http://host:9090", "[::1]:9090"] {
        assert!(channel(address, &ClientOptions::default()).is_ok(), "{address}");
    }
}
