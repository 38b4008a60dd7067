//! The two HTTP surfaces, each a router to mount in any axum server.
//!
//! ```text
//! :8080  public   /healthz /readyz /metrics            never authenticated
//! :8081  bridge   /snapshot /policy /probe             access, then method, then body
//! ```

pub mod access;
pub mod auth;
pub(crate) mod body;
pub mod bridge;
mod probe;
pub mod public;
#[cfg(feature = "tls")]
pub mod review;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Response, StatusCode, header};

/// A plain-text answer, which no browser shall take for anything else.
fn plain(status: StatusCode, text: &str) -> Response<Body> {
    let mut response = Response::new(Body::from(format!("{text}\n")));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// A plain-text refusal with one more header.
fn plain_with(status: StatusCode, text: &str, name: HeaderName, value: &'static str) -> Response<Body> {
    let mut response = plain(status, text);
    response.headers_mut().insert(name, HeaderValue::from_static(value));
    response
}

fn wrong_method(allowed: &'static str) -> Response<Body> {
    plain_with(StatusCode::METHOD_NOT_ALLOWED, "method not allowed", header::ALLOW, allowed)
}

async fn not_found() -> Response<Body> {
    plain(StatusCode::NOT_FOUND, "not found")
}
