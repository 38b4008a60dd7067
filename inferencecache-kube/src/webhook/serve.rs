//! From an HTTP request to an answer.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Request as HttpRequest, State};
use axum::http::{HeaderValue, Response, StatusCode, header};
use axum::routing::post;
use futures::FutureExt as _;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::backend::{self, Rules};
use super::decode::{Strict, decode};
use super::field::FieldError;
use super::metrics::{Metrics, Outcome};
use super::names::{Kind, POD_PATH};
use super::review::{Answer, Request, Review};
use super::siblings::{ReadError, Siblings};
use super::{pod, seam};
use super::{policy, tenant};
use crate::api::names::CACHE_DOMAIN;
use crate::api::{CacheBackend, CachePolicy, CacheTenant};

/// Largest review that is read: two objects of 3 MiB and what is around them.
pub const MAX_BODY: usize = 7 * 1024 * 1024;
/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Reviews at a time. Each may hold a few times [`MAX_BODY`]; others wait.
const MAX_REVIEWS: usize = 32;
/// Bytes of bodies that are held at a time, those included that still arrive. More is refused.
const MAX_HELD: usize = MAX_REVIEWS * MAX_BODY;
/// How long a review waits for its turn.
const TURN_TIMEOUT: Duration = Duration::from_secs(5);
/// Reviews of Pods at a time, beside the others: neither kind waits for the other.
const MAX_PODS: usize = 32;
/// How long the review of a Pod waits for its turn; then the API server goes on without an answer.
const POD_TURN_TIMEOUT: Duration = Duration::from_millis(500);

/// Judges the custom resources.
#[derive(Clone)]
pub struct Admission {
    rules: Rules,
    siblings: Arc<dyn Siblings>,
    metrics: Metrics,
    turns: Arc<Semaphore>,
    room: Arc<Semaphore>,
    pod_turns: Arc<Semaphore>,
}

impl std::fmt::Debug for Admission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admission").field("rules", &self.rules).finish_non_exhaustive()
    }
}

/// What an endpoint does.
#[derive(Clone, Copy, Debug)]
enum Task {
    Mutate(Kind),
    Validate(Kind),
    Link,
}

/// The seven endpoints. Mount it where the API server is told to call; it answers POST with `application/json`.
pub fn router(admission: Admission) -> Router {
    let mut router = Router::new();
    for kind in Kind::ALL {
        for (path, task) in [(kind.mutate_path(), Task::Mutate(kind)), (kind.validate_path(), Task::Validate(kind))] {
            // A handful, made once and used as long as the process lives.
            let name: &'static str = Box::leak(path.clone().into_boxed_str());
            let handler = move |State(admission): State<Admission>, request: HttpRequest| async move {
                admission.serve(name, task, request).await
            };
            router = router.route(&path, post(handler));
        }
    }
    let link = |State(admission): State<Admission>, request: HttpRequest| async move {
        admission.serve(POD_PATH, Task::Link, request).await
    };
    router.route(POD_PATH, post(link)).with_state(admission)
}

impl Admission {
    /// With those rules and that way to read siblings.
    #[must_use]
    pub fn new(rules: Rules, siblings: Arc<dyn Siblings>, metrics: Metrics) -> Self {
        Self {
            rules,
            siblings,
            metrics,
            turns: Arc::new(Semaphore::new(MAX_REVIEWS)),
            pod_turns: Arc::new(Semaphore::new(MAX_PODS)),
            room: Arc::new(Semaphore::new(MAX_HELD)),
        }
    }

    async fn serve(&self, path: &'static str, task: Task, request: HttpRequest) -> Response<Body> {
        let begun = Instant::now();
        let _in_flight = self.metrics.begin();
        // A body that trickles in takes nobody's turn.
        let body = read(request, &self.room).await;
        let turn = match task {
            Task::Link => tokio::time::timeout(POD_TURN_TIMEOUT, self.pod_turns.acquire()).await,
            _ => tokio::time::timeout(TURN_TIMEOUT, self.turns.acquire()).await,
        };
        let review = match (&body, &turn) {
            (Ok(body), Ok(Ok(_))) => parse(&body.bytes),
            (Err(refused), _) => Err(refused.clone()),
            _ => Err((StatusCode::SERVICE_UNAVAILABLE, "too many reviews are under way".to_owned())),
        };
        let (status, body, outcome) = match review {
            Ok(review) => {
                let answer = AssertUnwindSafe(self.answer(task, &review.request)).catch_unwind().await;
                let answer = answer.unwrap_or_else(|_| match task {
                    // A Pod is never refused for a fault of ours.
                    Task::Link => Answer::Noted(Vec::new(), "created without a cache: the review failed".to_owned()),
                    _ => Answer::Failed("the review failed; see the controller's log".to_owned()),
                });
                let body = answer.render(&review.api_version, &review.request.uid);
                (StatusCode::OK, body, Outcome::Answered(answer.code()))
            }
            Err((status, why)) => {
                let body = Answer::Malformed(why).render("admission.k8s.io/v1", "");
                (status, body, Outcome::Unreadable(status.as_u16()))
            }
        };
        self.metrics.ended(path, outcome, begun.elapsed());
        let mut response = Response::new(Body::from(body.to_string()));
        *response.status_mut() = status;
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }

    async fn answer(&self, task: Task, request: &Request) -> Answer {
        match task {
            Task::Link => pod::answer(request, &*self.siblings, self.rules.adapters(), &self.metrics).await,
            Task::Mutate(Kind::Backend) if request.object.is_object() => {
                Answer::Patched(backend::patch(&request.object))
            }
            Task::Mutate(_) => Answer::Allowed,
            Task::Validate(_) if !matches!(request.operation.as_str(), "CREATE" | "UPDATE") => Answer::Allowed,
            Task::Validate(kind) if lets_a_deletion_go_on(request) => {
                tracing::debug!(kind = kind.name(), "webhook_deletion_goes_on");
                Answer::Allowed
            }
            Task::Validate(Kind::Backend) => self.backend(request).await,
            Task::Validate(Kind::Policy) => self.policy(request).await,
            Task::Validate(Kind::Tenant) => self.tenant(request).await,
        }
    }

    async fn backend(&self, request: &Request) -> Answer {
        let (mut new, old): (CacheBackend, Option<CacheBackend>) = match objects(request) {
            Ok(objects) => objects,
            Err(answer) => return answer,
        };
        let (name, namespace) = (request.object_name(), request.object_namespace());
        new.metadata.namespace.get_or_insert_with(|| namespace.to_owned());
        let mut errors = match old {
            None => self.rules.create(&new),
            Some(mut old) => {
                old.metadata.namespace.get_or_insert_with(|| namespace.to_owned());
                self.rules.update(&old, &new)
            }
        };
        if new.spec.domain().is_some() {
            let siblings = match self.siblings.list(Kind::Backend, namespace).await {
                Ok(siblings) => siblings,
                Err(why) => return unread(&why),
            };
            let label = format!("/spec/engineSelector/matchLabels/{}", CACHE_DOMAIN.replace('/', "~1"));
            let others = siblings.iter().filter_map(|sibling| {
                Some((sibling.metadata.name.as_deref()?, sibling.data.pointer(&label)?.as_str()?))
            });
            errors.extend(backend::conflict(namespace, name, &new, others));
        }
        Answer::verdict(Kind::Backend.name(), name, errors)
    }

    async fn policy(&self, request: &Request) -> Answer {
        let (new, old): (CachePolicy, Option<CachePolicy>) = match objects(request) {
            Ok(objects) => objects,
            Err(answer) => return answer,
        };
        let (name, namespace) = (request.object_name(), request.object_namespace());
        let mut errors: Vec<FieldError> = Vec::new();
        match old {
            Some(old) => errors = seam::introduced(&policy::validate(&old), policy::validate(&new)),
            None => {
                let siblings = match self.siblings.list(Kind::Policy, namespace).await {
                    Ok(siblings) => siblings,
                    Err(why) => return unread(&why),
                };
                let others = siblings.iter().filter_map(|sibling| sibling.metadata.name.as_deref());
                errors.extend(policy::only_one(namespace, name, others));
                errors.extend(policy::validate(&new));
            }
        }
        Answer::verdict(Kind::Policy.name(), name, errors)
    }

    async fn tenant(&self, request: &Request) -> Answer {
        let (new, old): (CacheTenant, Option<CacheTenant>) = match objects(request) {
            Ok(objects) => objects,
            Err(answer) => return answer,
        };
        let (name, namespace) = (request.object_name(), request.object_namespace());
        let id = new.spec.tenant_id.as_str();
        let before = old.as_ref().map(tenant::validate).unwrap_or_default();
        let mut errors = seam::introduced(&before, tenant::validate(&new));
        if old.is_none_or(|old| old.spec.tenant_id != id) {
            let siblings = match self.siblings.list(Kind::Tenant, namespace).await {
                Ok(siblings) => siblings,
                Err(why) => return unread(&why),
            };
            let others = siblings.iter().filter_map(|sibling| {
                Some((sibling.metadata.name.as_deref()?, sibling.data.pointer("/spec/tenantID")?.as_str()?))
            });
            errors.extend(tenant::only_one(namespace, name, id, others));
        }
        Answer::verdict(Kind::Tenant.name(), name, errors)
    }
}

/// A body, and the room it takes until it is dropped.
struct Held {
    bytes: Vec<u8>,
    room: Option<OwnedSemaphorePermit>,
}

/// The body of a request. Everything else than 200 makes the API server act on its failure policy.
async fn read(request: HttpRequest, room: &Arc<Semaphore>) -> Result<Held, (StatusCode, String)> {
    let json = request.headers().get(header::CONTENT_TYPE).is_some_and(|kind| kind == "application/json");
    if !json {
        return Err((StatusCode::UNSUPPORTED_MEDIA_TYPE, "send application/json".to_owned()));
    }
    let body = collect(Limited::new(request.into_body(), MAX_BODY), room);
    let late = |_| Err((StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time".to_owned()));
    tokio::time::timeout(BODY_TIMEOUT, body).await.unwrap_or_else(late)
}

async fn collect(mut body: Limited<Body>, room: &Arc<Semaphore>) -> Result<Held, (StatusCode, String)> {
    let mut held = Held { bytes: Vec::new(), room: None };
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|why| {
            if why.is::<LengthLimitError>() {
                (StatusCode::PAYLOAD_TOO_LARGE, format!("a review is at most {MAX_BODY} bytes long"))
            } else {
                (StatusCode::BAD_REQUEST, format!("the body broke off: {why}"))
            }
        })?;
        let Ok(data) = frame.into_data() else { continue };
        let bytes = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let Ok(more) = room.clone().try_acquire_many_owned(bytes) else {
            return Err((StatusCode::SERVICE_UNAVAILABLE, "too much is arriving at a time".to_owned()));
        };
        match &mut held.room {
            Some(room) => room.merge(more),
            room => *room = Some(more),
        }
        held.bytes.extend_from_slice(&data);
    }
    Ok(held)
}

fn parse(body: &[u8]) -> Result<Review, (StatusCode, String)> {
    serde_json::from_slice(body).map_err(|why| (StatusCode::BAD_REQUEST, format!("this is no AdmissionReview: {why}")))
}

/// The object, and on an update the one before.
fn objects<K: Strict>(request: &Request) -> Result<(K, Option<K>), Answer> {
    let malformed = |why: super::Undecodable| Answer::Malformed(why.to_string());
    let new = decode(&request.object).map_err(malformed)?;
    let old = match request.operation.as_str() {
        "UPDATE" => Some(decode(&request.old_object).map_err(malformed)?),
        _ => None,
    };
    Ok((new, old))
}

/// An update of an object that is being deleted, which changes nothing but its metadata: a finalizer on its way out.
fn lets_a_deletion_go_on(request: &Request) -> bool {
    let ending = request.old_object.pointer("/metadata/deletionTimestamp").is_some_and(Value::is_string);
    request.operation == "UPDATE" && ending && request.object.get("spec") == request.old_object.get("spec")
}

fn unread(why: &ReadError) -> Answer {
    tracing::warn!(err = %why, "webhook_siblings_unread");
    Answer::Denied(format!("cannot tell whether this conflicts with other objects: {why}; try again"))
}
