//! Probes and metrics over plain HTTP.

use axum::Router;
use axum::http::header;
use axum::routing::get;

use super::metrics::Metrics;

/// `/healthz` and `/readyz`, which answer 200 as long as somebody does. Serve it once the admission listener is there.
pub fn probes() -> Router {
    Router::new().route("/healthz", get(async || "ok")).route("/readyz", get(async || "ok"))
}

/// `/metrics`.
pub fn metrics(metrics: Metrics) -> Router {
    let show = move || {
        let text = metrics.render();
        async move { ([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text) }
    };
    Router::new().route("/metrics", get(show))
}
