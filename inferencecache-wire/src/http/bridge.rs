//! The listener for the controller: `GET /snapshot`, `POST` or `PUT /policy`.
//!
//! 1. Access first, then the method, then the body: an unauthenticated wrong method is 401.
//! 2. A policy push is applied whole or not at all.
//! 3. `/snapshot` cannot fail on data, and at most two are built at a time: each walks the index.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, Method, Request, Response, StatusCode, header};
use axum::routing::any;
use http_body_util::BodyExt as _;
use inferencecache_core::{IndexApi, PolicyStore};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::access::Access;
use super::{not_found, plain, plain_with};
use crate::metrics::{AuthPath, Metrics};
use crate::policy::{self, Oddities, PolicyError};
use crate::snapshot;

/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// How much of a body that is too large is still read, so that its sender gets to see the answer.
const DRAIN_BYTES: usize = 16 * 1024 * 1024;
/// Snapshots built at a time.
const SNAPSHOTS: usize = 2;

/// What the bridge works on.
#[derive(Debug)]
pub struct Bridge<I: ?Sized> {
    index: Arc<I>,
    policies: Arc<PolicyStore>,
    metrics: Arc<Metrics>,
    access: Access,
    building: Semaphore,
    oddities: Mutex<Oddities>,
}

impl<I: IndexApi + ?Sized> Bridge<I> {
    /// A bridge to `index` and `policies`.
    #[must_use]
    pub fn new(index: Arc<I>, policies: Arc<PolicyStore>, metrics: Arc<Metrics>, access: Access) -> Self {
        let building = Semaphore::new(SNAPSHOTS);
        Self { index, policies, metrics, access, building, oddities: Mutex::default() }
    }

    /// The routes.
    pub fn router(self) -> Router {
        Router::new()
            .route("/snapshot", any(publish::<I>))
            .route("/policy", any(push::<I>))
            .fallback(not_found)
            .with_state(Arc::new(self))
    }

    /// Applies a body, or says what is wrong with it.
    fn apply(&self, body: Result<Vec<u8>, String>) -> Result<(), String> {
        let decoded = policy::decode(&body?).map_err(|why| why.to_string())?;
        self.policies.replace(decoded.set);
        let before = std::mem::replace(&mut *self.oddities.lock(), decoded.oddities);
        // The same body comes again and again; its author is told once.
        if decoded.oddities != before && decoded.oddities != Oddities::default() {
            let Oddities { vanishing_floors, silent_floors, missing_budgets } = decoded.oddities;
            tracing::warn!(vanishing_floors, silent_floors, missing_budgets, "policy_snapshot_oddities");
        }
        Ok(())
    }
}

async fn publish<I: IndexApi + ?Sized>(State(bridge): State<Arc<Bridge<I>>>, request: Request<Body>) -> Response<Body> {
    if let Some(refusal) = bridge.access.check(&bridge.metrics, AuthPath::Snapshot, request.headers()).await {
        return refusal;
    }
    if request.method() != Method::GET {
        return wrong_method("GET");
    }
    let _turn = bridge.building.acquire().await;
    let index = bridge.index.clone();
    let Ok(body) = tokio::task::spawn_blocking(move || snapshot::json(&index.snapshot())).await else {
        bridge.metrics.handler_panic("snapshot");
        return plain(StatusCode::INTERNAL_SERVER_ERROR, "the index failed");
    };
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

async fn push<I: IndexApi + ?Sized>(State(bridge): State<Arc<Bridge<I>>>, request: Request<Body>) -> Response<Body> {
    if let Some(refusal) = bridge.access.check(&bridge.metrics, AuthPath::Policy, request.headers()).await {
        return refusal;
    }
    if request.method() != Method::POST && request.method() != Method::PUT {
        return wrong_method("POST, PUT");
    }
    let body = read(request.into_body(), policy::MAX_BODY).await;
    let applied = bridge.apply(body);
    bridge.metrics.policy_push(applied.is_ok());
    match applied {
        Ok(()) => {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NO_CONTENT;
            response
        }
        Err(why) => plain(StatusCode::BAD_REQUEST, &why),
    }
}

fn wrong_method(allowed: &'static str) -> Response<Body> {
    plain_with(StatusCode::METHOD_NOT_ALLOWED, "method not allowed", header::ALLOW, allowed)
}

/// The whole body, if it has at most `limit` bytes and arrives in time.
async fn read(body: Body, limit: usize) -> Result<Vec<u8>, String> {
    match tokio::time::timeout(BODY_TIMEOUT, collect(body, limit)).await {
        Ok(read) => read,
        Err(_) => Err(format!("decode policy snapshot: the body did not arrive within {BODY_TIMEOUT:?}")),
    }
}

async fn collect(mut body: Body, limit: usize) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let mut length = 0_usize;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|why| format!("decode policy snapshot: the body broke off: {why}"))?;
        let Some(data) = frame.data_ref() else { continue };
        length = length.saturating_add(data.len());
        if length <= limit {
            bytes.extend_from_slice(data);
        } else if length > DRAIN_BYTES {
            break;
        }
    }
    if length > limit { Err(PolicyError::TooLarge.to_string()) } else { Ok(bytes) }
}
