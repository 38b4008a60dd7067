//! A listener for probes and metrics.
//!
//! Readiness never depends on the engine or the server: a sidecar that is not ready takes the engine's Pod out of service.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use axum::Router;
use axum::http::header::CONTENT_TYPE;
use axum::routing::get;
use tokio::net::TcpListener;

use super::metrics::Metrics;

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
