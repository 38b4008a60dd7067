//! The listener for the controller: `GET /snapshot`, `POST` or `PUT /policy`, `POST /probe`.
//!
//! 1. Access first, then the method, then the body: an unauthenticated wrong method is 401.
//! 2. A policy push is applied whole or not at all.
//! 3. `/snapshot` cannot fail on data, and at most two are built at a time: each walks the index.

use std::future::Future;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, Method, Request, Response, StatusCode, header};
use axum::routing::any;
use inferencecache_core::{IndexApi, PolicyStore, Prober, T2Client};
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use super::access::Access;
use super::{body, not_found, plain, probe, wrong_method};
use crate::metrics::{AuthPath, Metrics};
use crate::policy::{self, Oddities};
use crate::snapshot;

/// Snapshots built at a time.
const SNAPSHOTS: usize = 2;

/// What the bridge works on.
#[derive(Debug)]
pub struct Bridge<I: ?Sized> {
    index: Arc<I>,
    policies: Arc<PolicyStore>,
    metrics: Arc<Metrics>,
    access: Access,
    prober: Arc<Prober<I>>,
    building: Semaphore,
    oddities: Mutex<Oddities>,
}

impl<I: IndexApi + ?Sized> Bridge<I> {
    /// A bridge to `index` and `policies`.
    #[must_use]
    pub fn new(index: Arc<I>, policies: Arc<PolicyStore>, metrics: Arc<Metrics>, access: Access) -> Self {
        let prober = Arc::new(Prober::new(index.clone()));
        let building = Semaphore::new(SNAPSHOTS);
        Self { index, policies, metrics, access, prober, building, oddities: Mutex::default() }
    }

    /// Tests `client` with each probe of a backend that has a second tier. Default none: then that stage is skipped.
    #[must_use]
    pub fn second_tier(mut self, client: Option<Arc<dyn T2Client>>) -> Self {
        let mut prober = Prober::new(self.index.clone());
        prober.t2 = client;
        self.prober = Arc::new(prober);
        self
    }

    /// The routes.
    pub fn router(self) -> Router {
        Router::new()
            .route("/snapshot", any(publish::<I>))
            .route("/policy", any(push::<I>))
            .route("/probe", any(test::<I>))
            .fallback(not_found)
            .with_state(Arc::new(self))
    }

    /// The answer to a request that does not get through.
    fn refuses(&self, path: AuthPath, request: &Request<Body>) -> impl Future<Output = Option<Response<Body>>> + Send {
        self.access.check(&self.metrics, path, request.headers(), request.extensions())
    }

    /// Applies a body, or says what is wrong with it.
    fn apply(&self, body: Result<Vec<u8>, body::Broken>) -> Result<(), String> {
        let body = body.map_err(|why| format!("decode policy snapshot: {why}"))?;
        let decoded = policy::decode(&body).map_err(|why| why.to_string())?;
        let (policies, tenants) = (decoded.set.policies().len(), decoded.set.tenants().len());
        if self.policies.replace(decoded.set) {
            tracing::info!(revision = self.policies.revision(), policies, tenants, "policy_changed");
        }
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
    if let Some(refusal) = bridge.refuses(AuthPath::Snapshot, &request).await {
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
    if let Some(refusal) = bridge.refuses(AuthPath::Policy, &request).await {
        return refusal;
    }
    if request.method() != Method::POST && request.method() != Method::PUT {
        return wrong_method("POST, PUT");
    }
    let body = body::read(request.into_body(), policy::MAX_BODY + 1).await;
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

async fn test<I: IndexApi + ?Sized>(State(bridge): State<Arc<Bridge<I>>>, request: Request<Body>) -> Response<Body> {
    if let Some(refusal) = bridge.refuses(AuthPath::Probe, &request).await {
        return refusal;
    }
    probe::answer(&bridge.prober, &bridge.metrics, request).await
}
