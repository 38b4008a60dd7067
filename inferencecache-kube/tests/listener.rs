//! The HTTPS listener of admission: certificates that change while it runs, and the end of it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use inferencecache_kube::testkit::cluster::Authority;
use inferencecache_kube::webhook::{Limits, Listener, Metrics, health};
use inferencecache_wire::tls::ServerFiles;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(60);

fn write(folder: &Path, authority: &Authority) {
    let (cert, key) = authority.issue("webhook", &["localhost".to_owned()]).expect("a certificate");
    std::fs::write(folder.join("tls.crt"), cert).expect("tls.crt");
    std::fs::write(folder.join("tls.key"), key).expect("tls.key");
}

fn files(folder: &Path) -> ServerFiles {
    ServerFiles { cert: folder.join("tls.crt"), key: folder.join("tls.key"), client_ca: None }
}

/// A connection that believes that authority alone.
async fn connect(address: SocketAddr, authority: &Authority) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.pem().as_bytes()).expect("PEM")).expect("an authority");
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").expect("a name");
    tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

async fn ask(stream: &mut TlsStream<TcpStream>) -> String {
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("a request");
    let mut answer = [0; 4096];
    let read = stream.read(&mut answer).await.expect("an answer");
    String::from_utf8_lossy(&answer[..read]).into_owned()
}

struct Running {
    address: SocketAddr,
    metrics: Metrics,
    stop: CancellationToken,
    served: tokio::task::JoinHandle<()>,
}

async fn run(folder: &Path) -> Running {
    run_with(folder, Limits::default()).await
}

async fn run_with(folder: &Path, limits: Limits) -> Running {
    let metrics = Metrics::new().expect("metrics");
    let address = "127.0.0.1:0".parse().expect("an address");
    let listener = Listener::bind(files(folder), address, metrics.clone(), limits).await.expect("a listener");
    let address = listener.address().expect("an address");
    let stop = CancellationToken::new();
    let served = tokio::spawn(listener.serve(health::probes(), stop.clone()));
    Running { address, metrics, stop, served }
}

/// webhooks:W03: a Secret is mounted as a link that is swapped.
#[tokio::test]
async fn a_replaced_certificate_is_shown_to_new_connections_and_old_ones_go_on() {
    let folder = TempDir::new().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let (first, second) = (Authority::new("first").expect("one"), Authority::new("second").expect("two"));
    for (name, authority) in [("..one", &first), ("..two", &second)] {
        std::fs::create_dir(at(name)).expect("a folder");
        write(&at(name), authority);
    }
    std::os::unix::fs::symlink("..one", at("..data")).expect("a link");
    for name in ["tls.crt", "tls.key"] {
        std::os::unix::fs::symlink(format!("..data/{name}"), at(name)).expect("a link");
    }
    let running = run(folder.path()).await;
    let mut old = connect(running.address, &first).await.expect("a connection");
    assert!(ask(&mut old).await.ends_with("ok"));
    assert!(connect(running.address, &second).await.is_err());

    std::os::unix::fs::symlink("..two", at("..new")).expect("a link");
    std::fs::rename(at("..new"), at("..data")).expect("a swap");
    connect(running.address, &second).await.expect("the new certificate, at once");
    assert!(connect(running.address, &first).await.is_err());
    assert!(ask(&mut old).await.ends_with("ok"), "an open connection goes on");
    assert!(running.metrics.render().contains("inferencecache_webhook_certificate_reads_total{result=\"ok\"} 2"));
}

/// webhooks:W04 field:51
#[tokio::test]
async fn half_a_pair_is_not_served_and_counted() {
    let folder = TempDir::new().expect("a folder");
    let (first, second) = (Authority::new("first").expect("one"), Authority::new("second").expect("two"));
    write(folder.path(), &first);
    let running = run(folder.path()).await;
    let (cert, key) = second.issue("webhook", &["localhost".to_owned()]).expect("a certificate");
    for half in ["not a certificate", cert.as_str()] {
        std::fs::write(folder.path().join("tls.crt"), half).expect("tls.crt");
        connect(running.address, &first).await.expect("the last good pair");
    }
    let refused = |text: &str| text.contains("inferencecache_webhook_certificate_reads_total{result=\"refused\"} 2");
    assert!(refused(&running.metrics.render()), "{}", running.metrics.render());
    std::fs::write(folder.path().join("tls.key"), key).expect("tls.key");
    let deadline = Instant::now() + PATIENCE;
    while connect(running.address, &second).await.is_err() {
        assert!(Instant::now() < deadline, "the new pair is not taken");
    }
}

/// webhooks:W05
#[tokio::test]
async fn without_a_certificate_nothing_listens() {
    let folder = TempDir::new().expect("a folder");
    let address = "127.0.0.1:0".parse().expect("an address");
    let metrics = Metrics::new().expect("metrics");
    let why =
        Listener::bind(files(folder.path()), address, metrics, Limits::default()).await.expect_err("no certificate");
    assert!(why.to_string().contains("tls.crt"), "{why}");
}

#[tokio::test]
async fn asked_to_end_it_takes_no_new_connection_and_lets_the_others_finish() {
    let folder = TempDir::new().expect("a folder");
    let authority = Authority::new("one").expect("an authority");
    write(folder.path(), &authority);
    let running = run(folder.path()).await;
    let mut idle = connect(running.address, &authority).await.expect("a connection");
    assert!(ask(&mut idle).await.ends_with("ok"));
    running.stop.cancel();
    tokio::time::timeout(PATIENCE, running.served).await.expect("an end").expect("no panic");
    assert!(TcpStream::connect(running.address).await.is_err());
}

/// Neither a socket that says nothing nor a connection that asks nothing is worth waiting for.
#[tokio::test]
async fn who_asks_nothing_does_not_hold_up_the_end() {
    let folder = TempDir::new().expect("a folder");
    let authority = Authority::new("one").expect("an authority");
    write(folder.path(), &authority);
    let mut limits = Limits::default();
    limits.handshake_timeout = PATIENCE * 10;
    limits.header_timeout = PATIENCE * 10;
    limits.drain = PATIENCE * 10;
    let running = run_with(folder.path(), limits).await;
    let _socket = TcpStream::connect(running.address).await.expect("a socket");
    let _silent = connect(running.address, &authority).await.expect("a connection");
    let mut half = connect(running.address, &authority).await.expect("a connection");
    half.write_all(b"GET /healthz HTTP/1.1\r\nhost:").await.expect("half of a head");
    running.stop.cancel();
    tokio::time::timeout(PATIENCE, running.served).await.expect("an end").expect("no panic");
}

/// Whoever holds every place and asks nothing does not keep the API server out.
#[tokio::test]
async fn an_idle_connection_gives_its_place_to_a_new_one() {
    let folder = TempDir::new().expect("a folder");
    let authority = Authority::new("one").expect("an authority");
    write(folder.path(), &authority);
    let mut limits = Limits::default();
    limits.max_connections = 4;
    limits.handshake_timeout = PATIENCE * 10;
    let running = run_with(folder.path(), limits).await;
    let mut crowd = Vec::new();
    for _ in 0..8 {
        crowd.push(TcpStream::connect(running.address).await.expect("a socket"));
        let mut asking = connect(running.address, &authority).await.expect("a place");
        assert!(ask(&mut asking).await.ends_with("ok"));
        crowd.push(asking.into_inner().0);
    }
    let text = running.metrics.render();
    // 16 came, 4 have a place.
    assert!(text.contains("inferencecache_webhook_connections_displaced_total 12"), "{text}");
    assert!(text.contains("inferencecache_webhook_connections_refused_total 0"), "{text}");
}

/// What is no TLS, no HTTP or endless ends that connection alone.
#[tokio::test]
async fn garbage_ends_its_own_connection() {
    let folder = TempDir::new().expect("a folder");
    let authority = Authority::new("one").expect("an authority");
    write(folder.path(), &authority);
    let running = run(folder.path()).await;
    for garbage in [&b"GET /healthz HTTP/1.1\r\n\r\n"[..], &[0x16, 3, 1, 0xff, 0xff, 1, 0, 0], &[0; 4096]] {
        let mut socket = TcpStream::connect(running.address).await.expect("a socket");
        // It may be closed before all of it was taken.
        let _ = socket.write_all(garbage).await;
        let _ = socket.shutdown().await;
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(PATIENCE, socket.read_to_end(&mut rest)).await;
        ended.expect("it is closed").map(drop).unwrap_or_default();
    }
    let endless = format!("GET / HTTP/1.1\r\nx: {}", "y".repeat(1 << 20));
    let many = format!("GET / HTTP/1.1\r\n{}", "x: y\r\n".repeat(100_000));
    for head in ["\u{1}\u{2}\r\n\r\n".to_owned(), "GET /\r\n\r\n".repeat(3), endless, many] {
        let mut stream = connect(running.address, &authority).await.expect("a connection");
        // It may be closed before all of it was taken.
        let _ = stream.write_all(head.as_bytes()).await;
        let mut rest = Vec::new();
        let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut rest)).await;
        ended.expect("it is closed").map(drop).unwrap_or_default();
        let said = String::from_utf8_lossy(&rest);
        assert!(said.is_empty() || said.starts_with("HTTP/1.1 4"), "{said}");
    }
    let mut stream = connect(running.address, &authority).await.expect("a connection");
    assert!(ask(&mut stream).await.ends_with("ok"));
}
