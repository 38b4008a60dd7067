//! `POST /probe`: one self-test a request, in a thread that may block.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderValue, Method, Request, Response, StatusCode, header};
use inferencecache_core::{IndexApi, Prober};

use super::{body, plain, wrong_method};
use crate::metrics::Metrics;
use crate::probe::{self, MAX_BODY, ProbeResponse};

/// Answers a request that has been let in. Each well-formed one gets 200, whatever the test finds.
pub(super) async fn answer<I: IndexApi + ?Sized>(
    prober: &Arc<Prober<I>>,
    metrics: &Metrics,
    request: Request<Body>,
) -> Response<Body> {
    if request.method() != Method::POST {
        return wrong_method("POST");
    }
    let body = match body::read(request.into_body(), MAX_BODY + 1).await {
        Ok(body) => body,
        Err(why) => return plain(StatusCode::BAD_REQUEST, &format!("decode probe request: {why}")),
    };
    let request = match probe::decode(&body) {
        Ok(request) => request,
        Err(why) => return plain(StatusCode::BAD_REQUEST, &why.to_string()),
    };
    let prober = prober.clone();
    let test = tokio::task::spawn_blocking(move || {
        let outcome = prober.run(&request.target());
        let panicked = outcome.panicked;
        (panicked, serde_json::to_vec(&ProbeResponse::new(request.backend, outcome)))
    });
    let Ok((panicked, Ok(mut json))) = test.await else {
        metrics.handler_panic("probe");
        return plain(StatusCode::INTERNAL_SERVER_ERROR, "the probe failed");
    };
    if panicked {
        metrics.handler_panic("probe");
    }
    json.push(b'\n');
    let mut response = Response::new(Body::from(json));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
