//! The reconciler of CacheBackends, from its watches to its workers.
//!
//! ```text
//!  CacheBackend ─────────────── itself ──┐
//!  Deployment, Service of ours ─ owner ──┤
//!  Pod ─ owner, record, cache domain ────┼─▶ Queue ─▶ workers ─▶ Reconciler::pass
//!  requeue, backoff, probe answers ──────┘
//! ```
//!
//! A kind that does not exist yet is asked for until it does; nothing else waits for it. Told to stop, watches end at once and
//! passes under way get [`Settings::grace`].

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::Client;
use kube::api::{Api, PartialObjectMeta};
use tokio_util::sync::CancellationToken;

use super::metrics::Metrics;
use super::probing::{Desk, Key, ProbeBackend};
use super::reconcile::Reconciler;
use super::triggers::{Domains, owner};
use crate::adapters::Registries;
use crate::api::{CacheBackend, names};
use crate::controller::queue::{Pace, Queue};
use crate::controller::recorder::Recorder;
use crate::controller::watch::{PERIOD, Scope, Seen, follow, key_of};

/// How the reconciler works.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The one namespace that it looks after; default: all of them.
    pub namespace: Option<String>,
    /// Passes at a time, of different objects. Default 4.
    pub workers: usize,
    /// How often passes come.
    pub pace: Pace,
    /// How long passes under way may take after the end was asked for. Default 5 s.
    pub grace: Duration,
    /// Longest life of a watch request, in seconds. Default [`PERIOD`].
    pub watch_period: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self { namespace: None, workers: 4, pace: Pace::default(), grace: Duration::from_secs(5), watch_period: PERIOD }
    }
}

/// Reconciles every CacheBackend of the cluster.
pub struct BackendController {
    client: Client,
    registries: Arc<Registries>,
    probe: Option<Arc<dyn ProbeBackend>>,
    recorder: Recorder,
    metrics: Metrics,
    settings: Settings,
}

impl BackendController {
    /// With those adapters; `None` for `probe` switches the functional probe off.
    #[must_use]
    pub fn new(
        client: Client,
        registries: Arc<Registries>,
        probe: Option<Arc<dyn ProbeBackend>>,
        recorder: Recorder,
        metrics: Metrics,
        settings: Settings,
    ) -> Self {
        Self { client, registries, probe, recorder, metrics, settings }
    }

    /// Runs until `stop`, and until what is under way then has ended.
    pub async fn run(self, stop: CancellationToken) {
        let queue: Queue<Key> = Queue::new(self.settings.pace);
        let reconciler = Arc::new(Reconciler {
            client: self.client.clone(),
            registries: self.registries,
            recorder: self.recorder,
            desk: Desk::new(self.probe, stop.clone()),
            domains: Domains::default(),
            queue: queue.clone(),
            metrics: self.metrics,
        });
        let work = queue.clone().work(self.settings.workers, &stop, self.settings.grace, |key| {
            let reconciler = Arc::clone(&reconciler);
            async move { reconciler.pass(key).await }
        });
        let namespace = self.settings.namespace.as_deref();
        let everything = Scope { period: self.settings.watch_period, ..Scope::default() };
        let backends = follow(api::<CacheBackend>(&self.client, namespace), &everything, &stop, |seen| {
            if let Seen::Present { object, .. } | Seen::Gone(object) = seen {
                queue.add(key_of(object));
            }
        });
        // Whoever takes the label off one of ours is seen as deleting it, and that wakes the owner too.
        let labels = format!("{}={}", names::APP_MANAGED_BY, names::CONTROLLER);
        let ours = Scope { labels: Some(labels), ..everything.clone() };
        let child = |key: Option<Key>| {
            if let Some(key) = key {
                queue.add(key);
            }
        };
        let deployments = follow(api::<Deployment>(&self.client, namespace), &ours, &stop, |seen| {
            if let Seen::Present { object, .. } | Seen::Gone(object) = seen {
                child(owner(&object.metadata));
            }
        });
        let services = follow(api::<Service>(&self.client, namespace), &ours, &stop, |seen| {
            if let Seen::Present { object, .. } | Seen::Gone(object) = seen {
                child(owner(&object.metadata));
            }
        });
        let pods = follow(api::<Pod>(&self.client, namespace), &everything, &stop, |seen| {
            if let Seen::Present { object, .. } | Seen::Gone(object) = seen {
                for key in reconciler.domains.woken(&object.metadata) {
                    queue.gather(key);
                }
            }
        });
        tokio::join!(work, backends, deployments, services, pods);
    }
}

impl std::fmt::Debug for BackendController {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BackendController").field("settings", &self.settings).finish_non_exhaustive()
    }
}

/// Metadata of the objects of a kind.
fn api<K>(client: &Client, namespace: Option<&str>) -> Api<PartialObjectMeta<K>>
where
    K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    }
}
