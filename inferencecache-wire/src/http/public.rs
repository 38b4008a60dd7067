//! The listener for kubelets and scrapers: `/healthz`, `/readyz`, `/metrics`. Any method is taken for GET.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::routing::any;

use super::{not_found, plain};
use crate::metrics::{CONTENT_TYPE, Metrics};
use crate::readiness::Readiness;

/// The routes. `/readyz` follows `readiness`; `/metrics` shows `metrics`.
pub fn router(metrics: Arc<Metrics>, readiness: Readiness) -> Router {
    Router::new()
        .route("/healthz", any(async || plain(StatusCode::OK, "ok")))
        .route("/readyz", any(ready).with_state(readiness))
        .route("/metrics", any(expose).with_state(metrics))
        .fallback(not_found)
}

async fn ready(State(readiness): State<Readiness>) -> Response<Body> {
    if readiness.is_ready() { plain(StatusCode::OK, "ok") } else { plain(StatusCode::SERVICE_UNAVAILABLE, "not ready") }
}

async fn expose(State(metrics): State<Arc<Metrics>>) -> Response<Body> {
    let mut response = Response::new(Body::from(metrics.render()));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(CONTENT_TYPE));
    response
}

#[cfg(test)]
mod tests {
    use axum::http::Request;
    use http_body_util::BodyExt as _;
    use tower::Service as _;

    use super::*;

    /// server:110: nobody has turned readiness on yet, and the listener answers already.
    #[tokio::test]
    async fn it_is_not_ready_before_the_start() {
        let readiness = Readiness::default();
        let routes = router(Arc::default(), readiness.clone());
        for (status, said) in [(503, "not ready\n"), (200, "ok\n")] {
            let request = Request::get("/readyz").body(Body::empty()).expect("a request");
            let answer = routes.clone().call(request).await.expect("infallible");
            assert_eq!(answer.status(), status);
            let body = answer.into_body().collect().await.expect("whole").to_bytes();
            assert_eq!(body, said);
            readiness.set(true);
        }
    }
}
