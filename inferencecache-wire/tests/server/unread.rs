//! Requests that are answered before their bodies have been read: the sender gets to send, and to see the answer.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::server::*;
use axum::http::HeaderMap;
use inferencecache_wire::http::access::{Access, Decision, Denied, Guard};
use inferencecache_wire::metrics::AuthPath;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// More than the system takes on behalf of a server that does not read.
const LARGE: usize = 15 << 20;

/// Lets through who brings anything at all.
#[derive(Debug)]
struct Anything;

impl Guard for Anything {
    fn admit<'a>(&'a self, _: AuthPath, headers: &'a HeaderMap, _: Option<IpAddr>) -> Decision<'a> {
        let decision = headers.get("authorization").map(drop).ok_or(Denied::Unauthorized);
        Box::pin(std::future::ready(decision))
    }
}

async fn guarded() -> Running {
    Setup { access: Access::Guarded(Arc::new(Anything)), ..Setup::new() }.start().await
}

async fn connect(to: SocketAddr) -> TcpStream {
    TcpStream::connect(to).await.expect("the server accepts")
}

/// The next answer on a connection: status, and whether the server announces the end.
async fn answer(stream: &mut TcpStream) -> (u16, bool) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(in_time("answer", stream.read_u8()).await.expect("an answer"));
    }
    let head = String::from_utf8(head).expect("a textual head").to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.expect("its body");
    (
        head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status"),
        head.contains("connection: close"),
    )
}

/// server:117 server:127 policy:59. The same for a wrong method, for no such path, and where any method will do.
#[tokio::test]
async fn who_is_refused_while_sending_may_finish_and_go_on() {
    let server = guarded().await;
    let letters = vec![b' '; LARGE];
    for (to, head, status) in [
        (server.bridge, "POST /policy", 401),
        (server.bridge, "POST /probe", 401),
        (server.bridge, "PUT /snapshot", 401),
        (server.bridge, "DELETE /policy HTTP/1.1\r\nAuthorization: x", 405),
        (server.bridge, "POST /nothing", 404),
        (server.http, "POST /policy", 404),
        (server.http, "POST /healthz", 200),
    ] {
        let head = if head.contains("HTTP") { head.to_owned() } else { format!("{head} HTTP/1.1") };
        for framing in
            [format!("Content-Length: {LARGE}\r\n\r\n"), format!("Transfer-Encoding: chunked\r\n\r\n{LARGE:x}\r\n")]
        {
            let mut stream = connect(to).await;
            stream.write_all(format!("{head}\r\nHost: x\r\n{framing}").as_bytes()).await.expect("the head is taken");
            assert_eq!(answer(&mut stream).await, (status, false), "{head}: the answer does not wait");
            in_time("send", stream.write_all(&letters)).await.expect("the body is taken");
            if framing.contains("chunked") {
                stream.write_all(b"\r\n0\r\n\r\n").await.expect("its end is taken");
            }
            stream.write_all(b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("the next head is taken");
            assert_eq!(answer(&mut stream).await, (404, false), "{head}: the connection serves its next request");
        }
    }
}

#[tokio::test]
async fn what_is_thrown_away_is_bounded() {
    let server = guarded().await;
    let mut stream = connect(server.bridge).await;
    let head = format!("POST /policy HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n", u64::MAX / 2);
    stream.write_all(head.as_bytes()).await.expect("the head is taken");
    assert_eq!(answer(&mut stream).await.0, 401);
    let megabyte = vec![b' '; 1 << 20];
    let sending = async {
        let mut sent = 0;
        while stream.write_all(&megabyte).await.is_ok() {
            sent += 1;
        }
        sent
    };
    let sent = in_time("end", sending).await;
    assert!((15..200).contains(&sent), "{sent} MiB were taken");
}

#[tokio::test]
async fn who_asks_before_sending_is_not_told_to_send() {
    let server = guarded().await;
    let mut stream = connect(server.bridge).await;
    let head = "POST /policy HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.expect("the head is taken");
    let mut all = String::new();
    in_time("end", stream.read_to_string(&mut all)).await.expect("the server closes");
    assert!(all.starts_with("HTTP/1.1 401 ") && all.ends_with("unauthorized\n"), "{all}");
    // Who is let in is asked to send.
    let mut stream = connect(server.bridge).await;
    let head = head.replacen("Host: x", "Authorization: x\r\nHost: x", 1).replacen("1000", "13", 1);
    stream.write_all(head.as_bytes()).await.expect("the head is taken");
    assert_eq!(answer(&mut stream).await.0, 100);
    stream.write_all(b"{\"version\":7}").await.expect("the body is taken");
    assert_eq!(answer(&mut stream).await.0, 204);
}

/// The end of the server does not wait for what nobody wants.
#[tokio::test]
async fn an_unwanted_body_does_not_hold_the_server() {
    let mut setup = Setup::new();
    // Whoever would have to be cut off would be waited for longer than the test has.
    setup.options.drain_timeout = std::time::Duration::from_secs(600);
    let server = setup.start().await;
    let mut stream = connect(server.bridge).await;
    stream.write_all(b"POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n").await.expect("taken");
    assert_eq!(answer(&mut stream).await.0, 404);
    in_time("end", server.end()).await.expect("joined").expect("ended well");
}
