//! A listener for probes and metrics.
//!
//! 1. Readiness never depends on the engine or the server: a sidecar that is not ready takes the engine's Pod out of service.
//! 2. A connection carries one request and has little time, and there are only so many: whoever holds them all cannot keep
//!    the kubelet out for long.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::metrics::Metrics;

/// Connections at a time; more are closed at once.
pub const MAX_CONNECTIONS: usize = 64;
/// For the head of a request.
const HEAD: Duration = Duration::from_secs(2);
/// For a whole connection.
const CONNECTION: Duration = Duration::from_secs(10);
/// After the system had no room for one more connection.
const PAUSE: Duration = Duration::from_millis(100);

/// Binds `host:port`, or `:port` on all addresses.
///
/// # Errors
///
/// What the system says: the port is taken, or the host is not ours.
pub async fn bind(address: &str) -> io::Result<TcpListener> {
    let Some(port) = address.strip_prefix(':') else { return TcpListener::bind(address).await };
    let port: u16 = port.parse().map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    match TcpListener::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))).await {
        // A host without IPv6.
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))).await
        }
        result => result,
    }
}

/// `/healthz`, `/readyz` and `/metrics`.
pub fn router(metrics: Metrics) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(|| async { "ok\n" }))
        .route("/metrics", get(move || async move { ([(CONTENT_TYPE, Metrics::content_type())], metrics.text()) }))
}

/// Serves [`router`] for ever. Connections end with this call.
pub async fn serve(listener: TcpListener, metrics: Metrics) {
    let router = router(metrics);
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        let Ok((stream, _)) = accepted else {
            sleep(PAUSE).await;
            continue;
        };
        // Closed by being dropped.
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else { continue };
        let service = TowerToHyperService::new(router.clone());
        connections.spawn(async move {
            let mut http = http1::Builder::new();
            http.keep_alive(false).timer(TokioTimer::new()).header_read_timeout(HEAD);
            let _ = timeout(CONNECTION, http.serve_connection(TokioIo::new(stream), service)).await;
            drop(permit);
        });
    }
}
