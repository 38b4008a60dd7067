//! The HTTPS listener of admission: certificates that change while it runs, and the end of it.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use inferencecache_kube::testkit::cluster::Authority;
use inferencecache_kube::webhook::{Limits, Listener, Metrics, health};
use inferencecache_wire::tls::ServerFiles;
use tempfile::TempDir;
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};
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
    let mut request: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n";
    while !request.is_empty() {
        let written = poll_fn(|cx| Pin::new(&mut *stream).poll_write(cx, request)).await.expect("a request");
        request = &request[written..];
    }
    poll_fn(|cx| Pin::new(&mut *stream).poll_flush(cx)).await.expect("a request");
    let mut answer = [0; 4096];
    let mut answer = ReadBuf::new(&mut answer);
    poll_fn(|cx| Pin::new(&mut *stream).poll_read(cx, &mut answer)).await.expect("an answer");
    String::from_utf8_lossy(answer.filled()).into_owned()
}

struct Running {
    address: SocketAddr,
    metrics: Metrics,
    stop: CancellationToken,
    served: tokio::task::JoinHandle<()>,
}

async fn run(folder: &Path) -> Running {
    let metrics = Metrics::new().expect("metrics");
    let address = "127.0.0.1:0".parse().expect("an address");
    let listener =
        Listener::bind(files(folder), address, metrics.clone(), Limits::default()).await.expect("a listener");
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
