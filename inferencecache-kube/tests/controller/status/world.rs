//! One namespace with a reconciler of its own, a probe that a test scripts, and hands that play kubelet and index.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use inferencecache_kube::adapters::{Options, builtin};
use inferencecache_kube::api::CacheBackend;
use inferencecache_kube::controller::backend::metrics::Metrics;
use inferencecache_kube::controller::backend::probing::{Answer, ProbeBackend, Report, Request, StageError};
use inferencecache_kube::controller::backend::run::{BackendController, Settings};
use inferencecache_kube::controller::recorder::Recorder;
use inferencecache_kube::testkit::cluster::ControlPlane;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::api::ListParams;
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::stage::{Place, stage, until};

/// How long nothing may change to call it settled.
const QUIET: Duration = Duration::from_secs(2);

/// Answers as it is told, and counts.
#[derive(Default)]
pub(crate) struct Probe {
    pub(crate) calls: AtomicUsize,
    pub(crate) requests: Mutex<Vec<Request>>,
    answer: Mutex<Option<Result<Report, String>>>,
}

impl Probe {
    /// What it answers from now on.
    pub(crate) fn says(&self, ingest: &str, routing: &str, t2: &str) {
        let report = Report {
            ingest: ingest.to_owned(),
            routing: routing.to_owned(),
            t2: t2.to_owned(),
            errors: vec![StageError { stage: "ingest".to_owned(), message: "no event arrived".to_owned() }],
        };
        *self.answer.lock().expect("the answer") = Some(Ok(report));
    }

    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

impl ProbeBackend for Probe {
    fn probe(&self, request: Request) -> Answer<'_> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        self.requests.lock().expect("the requests").push(request);
        let answer = self.answer.lock().expect("the answer").clone();
        Box::pin(async move { answer.unwrap_or_else(|| Err("status 503".to_owned())) })
    }
}

/// A reconciler that runs.
pub(crate) struct Running {
    pub(crate) metrics: Metrics,
    stop: CancellationToken,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Running {
    pub(crate) fn start(client: &Client, namespace: &str, probe: Option<Arc<Probe>>, watch_period: u32) -> Self {
        let (recorder, writer) = Recorder::new(client.clone(), "test").expect("a recorder");
        let metrics = Metrics::new().expect("metrics");
        let settings = Settings { namespace: Some(namespace.to_owned()), watch_period, ..Settings::default() };
        let registries = Arc::new(builtin(&Options::default()));
        let probe = probe.map(|probe| probe as Arc<dyn ProbeBackend>);
        let controller = BackendController::new(client.clone(), registries, probe, recorder, metrics.clone(), settings);
        let stop = CancellationToken::new();
        let tasks = vec![tokio::spawn(controller.run(stop.clone())), tokio::spawn(writer.run(stop.clone()))];
        Self { metrics, stop, tasks: Mutex::new(tasks) }
    }

    /// Ends it, orderly.
    pub(crate) async fn end(&self) {
        self.stop.cancel();
        let tasks = std::mem::take(&mut *self.tasks.lock().expect("the tasks"));
        for task in tasks {
            task.await.expect("it ends well");
        }
    }

    /// A counter of its metrics, summed over its labels.
    pub(crate) fn count(&self, name: &str) -> u64 {
        let families = self.metrics.collectors().into_iter().flat_map(|collector| collector.collect());
        let found = families.filter(|family| family.name() == name);
        let sum: f64 = found.flat_map(|family| family.get_metric().to_vec()).map(|m| m.get_counter().get_value()).sum();
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small count")]
        let sum = sum as u64;
        sum
    }
}

pub(crate) struct World {
    pub(crate) place: Place,
    pub(crate) running: Running,
}

/// A namespace with a reconciler; `None` where there are no tools for it.
pub(crate) async fn world(name: &str, probe: Option<Arc<Probe>>) -> Option<World> {
    let plane: &ControlPlane = stage()?;
    let place = Place::new(plane, name).await;
    let running = Running::start(&place.client, name, probe, 180);
    Some(World { place, running })
}

pub(crate) fn managed() -> Value {
    let mut spec = host_only();
    spec["remoteStorage"] = json!({"provider": "Redis", "ownership": "Managed", "redis": {}});
    spec
}

pub(crate) fn host_only() -> Value {
    json!({
        "runtime": "VLLM", "type": "LMCache",
        "engineSelector": {"matchLabels": {"inferencecache.io/cache-domain": "d1"}},
        "integration": {"mode": "Offload", "role": "ReadWrite", "failOpen": true},
        "observation": {"modelID": "m1", "firstEventTimeout": "5m"},
        "lmCache": {"topology": "PodLocal", "podLocal": {"server": {
            "image": "registry.example/lmcache@sha256:0000000000000000000000000000000000000000000000000000000000000000",
            "port": 6500, "l1Capacity": "4Gi", "maxWorkers": 4,
            "resources": {"requests": {"cpu": "1", "memory": "5Gi"}, "limits": {"memory": "5Gi"}},
        }}},
    })
}

pub(crate) fn events_only(timeout: &str) -> Value {
    json!({
        "runtime": "VLLM", "type": "LMCache",
        "engineSelector": {"matchLabels": {"inferencecache.io/cache-domain": "d1"}},
        "integration": {"mode": "EventsOnly"},
        "observation": {"modelID": "m1", "firstEventTimeout": timeout},
    })
}

impl World {
    pub(crate) async fn backend(&self, name: &str) -> CacheBackend {
        self.place.get(name).await.expect("the CacheBackend")
    }

    pub(crate) async fn status(&self, name: &str) -> Value {
        serde_json::to_value(self.backend(name).await.status).expect("a status")
    }

    /// Waits until conditions say that (`Status/Reason`, or `absent`), and then until nothing changes for a while.
    pub(crate) async fn settled(&self, name: &str, wanted: &[(&str, &str)]) -> Value {
        let what = format!("{name} says {wanted:?}");
        until(&what, async || self.agrees(name, wanted).await).await;
        let (mut since, mut version) = (Instant::now(), self.version(name).await);
        until(&format!("{name} is quiet"), async || (self.version(name).await == version).then_some(())).await;
        while since.elapsed() < QUIET {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let now = self.version(name).await;
            if now != version {
                (since, version) = (Instant::now(), now);
            }
        }
        let status = self.status(name).await;
        assert!(self.agrees(name, wanted).await.is_some(), "{what} no longer: {status}");
        status
    }

    async fn agrees(&self, name: &str, wanted: &[(&str, &str)]) -> Option<()> {
        let status = self.status(name).await;
        wanted.iter().all(|(type_, says)| says_of(&status, type_) == *says).then_some(())
    }

    pub(crate) async fn version(&self, name: &str) -> String {
        self.backend(name).await.resource_version().unwrap_or_default()
    }

    /// A managed backend `cache`, with its Deployment available and a good engine.
    pub(crate) async fn good(&self, spec: Value, annotations: &Value) -> CacheBackend {
        let backend = self.create("cache", spec, annotations).await;
        self.engine("e1", &backend).await;
        self.deployment(1, 1).await;
        backend
    }

    pub(crate) async fn create(&self, name: &str, spec: Value, annotations: &Value) -> CacheBackend {
        self.place
            .create(json!({
                "apiVersion": "inferencecache.io/v1alpha1", "kind": "CacheBackend",
                "metadata": {"name": name, "annotations": annotations}, "spec": spec,
            }))
            .await
    }

    /// What a Deployment controller would report of Deployment `cache`, once it is there.
    pub(crate) async fn deployment(&self, updated: i32, available: i32) {
        let deployment = until("the Deployment", async || self.place.get::<Deployment>("cache").await).await;
        let status = json!({
            "observedGeneration": deployment.metadata.generation, "replicas": 1,
            "updatedReplicas": updated, "availableReplicas": available, "readyReplicas": available,
        });
        self.place.status::<Deployment>("cache", status).await;
    }

    /// An engine that was wired by the backend as it is now, served and ready.
    pub(crate) async fn engine(&self, name: &str, backend: &CacheBackend) {
        let annotations = json!({
            "inferencecache.io/injected-by": format!("{}/{}", self.place.namespace, backend.name_any()),
            "inferencecache.io/injected-by-uid": backend.metadata.uid,
            "inferencecache.io/injected-generation": backend.metadata.generation.map(|g| g.to_string()),
        });
        self.pod(name, &annotations).await;
        let sidecar = json!({
            "name": "lmcache-mp-server", "image": "i", "imageID": "i", "restartCount": 0, "ready": true,
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        });
        let ready = json!({"type": "Ready", "status": "True"});
        let status = json!({"phase": "Running", "initContainerStatuses": [sidecar], "conditions": [ready]});
        self.place.status::<Pod>(name, status).await;
    }

    pub(crate) async fn pod(&self, name: &str, annotations: &Value) {
        let labels = json!({"inferencecache.io/cache-domain": "d1"});
        let containers = json!([{"name": "vllm", "image": "e:1"}]);
        let metadata = json!({"name": name, "labels": labels, "annotations": annotations});
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}});
        self.place.create::<Pod>(pod).await;
    }

    /// The engines are wired anew, at the generation of now.
    pub(crate) async fn restamp(&self, pod: &str) {
        let generation = self.backend("cache").await.metadata.generation.map(|g| g.to_string());
        let annotations = json!({"inferencecache.io/injected-generation": generation});
        self.place.patch::<Pod>(pod, json!({"metadata": {"annotations": annotations}})).await;
    }

    /// What the index poller would write after an event.
    pub(crate) async fn event(&self, name: &str, at: &str) {
        let seen = json!({"indexParticipation": {"prefixCount": 1, "lastEventAt": at}});
        self.place.status::<CacheBackend>(name, seen).await;
    }

    /// How often each Event about an object was told: `Type Reason`.
    pub(crate) async fn events(&self, name: &str) -> BTreeMap<String, i32> {
        let mut counts = BTreeMap::new();
        for event in self.place.api::<Event>().list(&ListParams::default()).await.expect("Events") {
            if event.regarding.as_ref().and_then(|object| object.name.as_deref()) == Some(name) {
                let key = format!("{} {}", event.type_.unwrap_or_default(), event.reason.unwrap_or_default());
                *counts.entry(key).or_default() += event.series.map_or(1, |series| series.count);
            }
        }
        counts
    }

    /// Waits until an Event has been told so often, and asserts that it is not told more often.
    pub(crate) async fn told(&self, name: &str, event: &str, times: i32) {
        until(&format!("{event} of {name}"), async || {
            (self.events(name).await.get(event).copied().unwrap_or(0) >= times).then_some(())
        })
        .await;
        assert_eq!(self.events(name).await.get(event).copied().unwrap_or(0), times, "{event}");
    }
}

/// `Status/Reason` of a condition, or `absent`.
pub(crate) fn says_of(status: &Value, type_: &str) -> String {
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.iter().find(|condition| condition["type"] == type_);
    found.map_or_else(
        || "absent".to_owned(),
        |c| format!("{}/{}", c["status"].as_str().unwrap_or_default(), c["reason"].as_str().unwrap_or_default()),
    )
}
