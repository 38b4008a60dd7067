//! One pass over one CacheBackend: read, decide, act, tell.
//!
//! ```text
//!  get CacheBackend ─▶ list Pods, Deployments ─▶ dispatch ─▶ children ─▶ status::decide ─▶ patch ─▶ Events
//!    gone, ending: nothing is written                                      │ one request, or none
//!                                                                          └▶ probe calls, beside
//! ```
//!
//! 1. What is decided upon was read in this pass, from the API server.
//! 2. The status is written once, and only what differs. Events are told after it was accepted, also when the pass has failed.
//! 3. A failed pass comes again after a backoff, whatever else it wanted.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::Resource as _;
use kube::api::{Api, Patch, PatchParams};
use tokio::time::{Instant, timeout};

use super::children;
use super::dispatch;
use super::error::ChildError;
use super::live::{self, ListError};
use super::metrics::Metrics;
use super::probing::{Desk, Key, Request};
use super::status::decide::{Decision, Facts, decide};
use super::status::events::{self, Transition};
use super::status::patch;
use super::status::storage::Managed;
use super::triggers::Domains;
use crate::adapters::{Registries, RuntimeId};
use crate::api::{CacheBackend, CacheBackendStatus, names};
use crate::controller::queue::{End, Queue};
use crate::controller::recorder::{Note, Recorder, Severity};

/// Longest pass. An API server that does not answer must not hold a worker for ever.
const PASS: Duration = Duration::from_secs(30);
/// When to look again where nothing else says so.
const RESYNC: Duration = Duration::from_hours(10);
/// `reportingController` of the Events.
const REPORTER: &str = "cachebackend-controller";
const UNMATCHED: &str = "EngineSelectorUnmatched";

/// Why a pass failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
enum PassError {
    #[error("cannot read the object")]
    Read(#[source] kube::Error),
    #[error(transparent)]
    Children(#[from] ChildError),
    #[error(transparent)]
    List(#[from] ListError),
    #[error("cannot write the status")]
    Status(#[source] kube::Error),
}

/// Whatever a pass needs.
pub(super) struct Reconciler {
    pub(super) client: Client,
    pub(super) registries: Arc<Registries>,
    pub(super) recorder: Recorder,
    pub(super) desk: Desk,
    pub(super) domains: Domains,
    pub(super) queue: Queue<Key>,
    pub(super) metrics: Metrics,
}

impl Reconciler {
    /// One pass, with its end for the queue.
    pub(super) async fn pass(&self, key: Key) -> End {
        let end = match timeout(PASS, self.reconcile(&key)).await {
            Ok(Ok(again)) => again.map_or(End::Done, End::Again),
            Ok(Err(why)) => {
                let cause = std::error::Error::source(&why).map(ToString::to_string).unwrap_or_default();
                tracing::warn!(namespace = key.0, name = key.1, error = %why, cause, "reconcile failed");
                End::Failed
            }
            Err(_) => {
                tracing::warn!(namespace = key.0, name = key.1, "reconcile took longer than {PASS:?}");
                End::Failed
            }
        };
        self.metrics.pass(end != End::Failed);
        end
    }

    /// When to look again; `None`: never, because the object is gone or going.
    async fn reconcile(&self, key: &Key) -> Result<Option<Duration>, PassError> {
        let api: Api<CacheBackend> = Api::namespaced(self.client.clone(), &key.0);
        let Some(backend) = api.get_opt(&key.1).await.map_err(PassError::Read)? else {
            self.desk.gone(key);
            self.domains.learn(key, None);
            return Ok(None);
        };
        if backend.metadata.deletion_timestamp.is_some() {
            self.desk.forget(key);
            return Ok(None);
        }
        self.domains.learn(key, backend.spec.domain());
        let now = Timestamp::now();
        let (pods, wanted) = tokio::join!(live::pods(&self.client, &backend), live::wanted(&self.client, &backend));
        let plan = dispatch::decide(&backend, &self.registries);
        let known = pods.as_deref().ok();
        let (dispatched, outcome, mut failure) = match children::apply(&self.client, &backend, &plan, known, now).await
        {
            Ok(outcome) => (true, outcome, None),
            Err(why) => (false, children::Outcome::default(), Some(PassError::from(why))),
        };
        let storage = outcome.storage.as_ref().map(ChildError::summary);
        let nodes = outcome.servers.as_ref().map(ChildError::summary);
        let decision = decide(&Facts {
            backend: &backend,
            mode: plan.mode,
            dispatched,
            applied: storage.is_none(),
            managed: Managed {
                deployment: outcome.deployment.as_ref(),
                endpoint: outcome.endpoint.as_deref(),
                failure: storage.as_deref(),
            },
            nodes_failure: nodes.as_deref(),
            engine_container: self.engine_container(&backend),
            pods: known,
            wanted: wanted.as_ref().ok().copied(),
            probe: self.desk.view(key, uid_of(&backend), Instant::now()),
            now,
        });
        let published = self.publish(&api, key, &backend, &decision).await?;
        if !published {
            return Ok(None);
        }
        let again = [decision.requeue, outcome.next, Some(RESYNC)].into_iter().flatten().min();
        failure = failure.or_else(|| outcome.failure().map(PassError::from));
        failure = failure.or_else(|| pods.err().or(wanted.err()).map(PassError::from));
        failure.map_or(Ok(again), Err)
    }

    /// Name of the engine's container, as its adapter has it.
    fn engine_container(&self, backend: &CacheBackend) -> &str {
        let selected = self.registries.runtime.select(&RuntimeId::of(Some(backend)), Some(backend));
        selected.map(|selected| selected.adapter().engine_container_name()).unwrap_or_default()
    }

    /// Writes the status if it differs, and does what is due then. False: the object is gone.
    async fn publish(
        &self,
        api: &Api<CacheBackend>,
        key: &Key,
        backend: &CacheBackend,
        decision: &Decision,
    ) -> Result<bool, PassError> {
        if decision.forget_probe {
            self.desk.forget(key);
        }
        if decision.probe.call {
            let queue = self.queue.clone();
            self.desk
                .call(key.clone(), uid_of(backend), Request::about(backend), Instant::now(), move |key| queue.add(key));
        }
        let none = CacheBackendStatus::default();
        let before = backend.status.as_ref().unwrap_or(&none);
        if let Some(patch) = patch::between(before, &decision.status) {
            let params = PatchParams { field_manager: Some(names::CONTROLLER.to_owned()), ..PatchParams::default() };
            let written = api.patch_status(&key.1, &params, &Patch::Merge(patch)).await;
            if let Err(why) = written {
                self.desk.used(key, false);
                return match why {
                    kube::Error::Api(status) if status.code == 404 => Ok(false),
                    why => Err(PassError::Status(why)),
                };
            }
            self.metrics.status_written();
            for transition in events::between(before, &decision.status) {
                self.tell(backend, transition);
            }
            if let Some(note) = &decision.unmatched {
                let reason = UNMATCHED.to_owned();
                self.tell(backend, Transition { severity: Severity::Normal, reason, note: note.clone() });
            }
        }
        if decision.probe.used {
            self.desk.used(key, true);
        }
        Ok(true)
    }

    fn tell(&self, backend: &CacheBackend, transition: Transition) {
        let regarding = ObjectReference { resource_version: None, ..backend.object_ref(&()) };
        self.recorder.publish(Note {
            controller: REPORTER,
            regarding,
            related: None,
            severity: transition.severity,
            reason: transition.reason,
            note: transition.note,
            name: None,
        });
    }
}

fn uid_of(backend: &CacheBackend) -> &str {
    backend.metadata.uid.as_deref().unwrap_or_default()
}
