//! A backend, its Pods and its Deployment, and the passes over them: what a pass publishes is what the next one reads.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use crate::api::CacheBackend;
use crate::controller::backend::dispatch::Mode;
use crate::controller::backend::status::decide::{Decision, Facts, decide};
use crate::controller::backend::status::matched::Wanted;
use crate::controller::backend::status::probe::View;
use crate::controller::backend::status::storage::Managed;
use crate::controller::backend::status::{events, patch};
use crate::controller::recorder::Severity;

pub(super) const UID: &str = "11111111-2222-3333-4444-555555555555";
const ENDPOINT: &str = "cache.ns.svc.cluster.local:6379";

pub(super) struct World {
    pub(super) backend: Value,
    pub(super) mode: Mode,
    pub(super) pods: Vec<Value>,
    pub(super) deployment: Option<Value>,
    pub(super) endpoint: Option<&'static str>,
    pub(super) failure: Option<&'static str>,
    pub(super) nodes_failure: Option<&'static str>,
    pub(super) applied: bool,
    /// Pods can be listed.
    pub(super) readable: bool,
    pub(super) wanted: Option<Wanted>,
    pub(super) probe: View,
    pub(super) now: Timestamp,
    /// Events so far, each with how often.
    pub(super) told: BTreeMap<String, usize>,
    pub(super) writes: usize,
}

fn server() -> Value {
    json!({
        "image": "registry.example/lmcache@sha256:0000000000000000000000000000000000000000000000000000000000000000",
        "port": 6500, "l1Capacity": "4Gi", "maxWorkers": 4,
        "resources": {"requests": {"cpu": "1", "memory": "5Gi"}, "limits": {"memory": "5Gi"}},
    })
}

impl World {
    /// Managed, with a Deployment that is being rolled out for the first time.
    pub(super) fn managed() -> Self {
        let storage = json!({"provider": "Redis", "ownership": "Managed", "redis": {}});
        let mut world = Self::new(Mode::Managed, json!({"remoteStorage": storage}));
        world.deployment(0, 0);
        world.endpoint = Some(ENDPOINT);
        world
    }

    pub(super) fn external(endpoint: &str) -> Self {
        let storage = json!({"provider": "Redis", "ownership": "External", "endpoint": endpoint, "redis": {}});
        Self::new(Mode::External, json!({"remoteStorage": storage}))
    }

    pub(super) fn host_only() -> Self {
        Self::new(Mode::HostOnly, json!({}))
    }

    pub(super) fn events_only() -> Self {
        Self::new(Mode::EventsOnly, json!({"lmCache": null, "integration": {"mode": "EventsOnly"}}))
    }

    pub(super) fn node_local() -> Self {
        let mut server = server();
        merge(
            &mut server,
            &json!({"maxWorkers": null, "port": 6555, "httpPort": 18080, "maxGPUWorkers": 4, "maxCPUWorkers": 4}),
        );
        let lm_cache = json!({"topology": "NodeLocal", "podLocal": null, "nodeLocal": {"idleRetentionSeconds": 300, "server": server}});
        Self::new(Mode::HostOnly, json!({"lmCache": lm_cache}))
    }

    fn new(mode: Mode, spec: Value) -> Self {
        let mut backend = json!({
            "apiVersion": "inferencecache.io/v1alpha1", "kind": "CacheBackend",
            "metadata": {"name": "cache", "namespace": "ns", "uid": UID, "generation": 1},
            "spec": {
                "runtime": "VLLM", "type": "LMCache",
                "engineSelector": {"matchLabels": {"inferencecache.io/cache-domain": "d1"}},
                "integration": {"mode": "Offload", "role": "ReadWrite", "failOpen": true},
                "observation": {"modelID": "m1", "firstEventTimeout": "5m"},
                "lmCache": {"topology": "PodLocal", "podLocal": {"server": server()}},
            },
        });
        merge(&mut backend["spec"], &spec);
        Self {
            backend,
            mode,
            pods: Vec::new(),
            deployment: None,
            endpoint: None,
            failure: None,
            nodes_failure: None,
            applied: true,
            readable: true,
            wanted: Some(Wanted::Nobody),
            probe: View::Off,
            now: "2026-01-02T03:04:05.6Z".parse().expect("a time"),
            told: BTreeMap::new(),
            writes: 0,
        }
    }

    /// The wait for the first event is waived.
    pub(super) fn off(mut self) -> Self {
        self.annotate("inferencecache.io/require-kv-events", "false");
        self
    }

    pub(super) fn closed(mut self) -> Self {
        merge(&mut self.backend["spec"], &json!({"integration": {"failOpen": false}}));
        self
    }

    pub(super) fn timeout(mut self, timeout: &str) -> Self {
        merge(&mut self.backend["spec"], &json!({"observation": {"firstEventTimeout": timeout}}));
        self
    }

    pub(super) fn without_selector(mut self) -> Self {
        merge(&mut self.backend["spec"], &json!({"engineSelector": null}));
        self
    }

    pub(super) fn with(mut self, pods: impl IntoIterator<Item = Value>) -> Self {
        self.pods.extend(pods);
        self
    }

    pub(super) fn annotate(&mut self, key: &str, value: &str) {
        merge(&mut self.backend, &json!({"metadata": {"annotations": {key: value}}}));
    }

    /// An edit of the spec moves the generation; `restamp` rewires the engines at it.
    pub(super) fn edit(&mut self, mode: Mode, spec: &Value) {
        merge(&mut self.backend["spec"], spec);
        let generation = self.backend["metadata"]["generation"].as_i64().expect("a generation") + 1;
        self.backend["metadata"]["generation"] = json!(generation);
        self.mode = mode;
    }

    pub(super) fn restamp(&mut self) {
        let generation = self.backend["metadata"]["generation"].to_string();
        for pod in &mut self.pods {
            merge(pod, &json!({"metadata": {"annotations": {"inferencecache.io/injected-generation": generation}}}));
        }
    }

    /// Somebody else writes into the status.
    pub(super) fn plant(&mut self, status: &Value) {
        merge(&mut self.backend, &json!({"status": status}));
    }

    /// An event was seen by the index at that second.
    pub(super) fn event(&mut self, at: &str) {
        self.plant(&json!({"indexParticipation": {"prefixCount": 1, "lastEventAt": at}}));
    }

    pub(super) fn deployment(&mut self, updated: i32, available: i32) {
        self.deployment = Some(json!({
            "metadata": {"name": "cache", "generation": 1},
            "spec": {"replicas": 1, "selector": {}, "template": {}},
            "status": {"observedGeneration": 1, "updatedReplicas": updated, "availableReplicas": available},
        }));
    }

    pub(super) fn later(&mut self, seconds: i64) {
        self.now = self.now.checked_add(k8s_openapi::jiff::SignedDuration::from_secs(seconds)).expect("a time");
    }

    pub(super) fn decide(&self) -> Decision {
        let backend: CacheBackend = serde_json::from_value(self.backend.clone()).expect("a backend");
        let read =
            |value: &Value| serde_json::from_value::<Pod>(value.clone()).unwrap_or_else(|why| panic!("{value}: {why}"));
        let pods: Vec<Pod> = self.pods.iter().map(read).collect();
        let deployment: Option<Deployment> =
            self.deployment.clone().map(|value| serde_json::from_value(value).expect("a Deployment"));
        decide(&Facts {
            backend: &backend,
            mode: self.mode,
            dispatched: true,
            applied: self.applied,
            managed: Managed { deployment: deployment.as_ref(), endpoint: self.endpoint, failure: self.failure },
            nodes_failure: self.nodes_failure,
            engine_container: "vllm",
            pods: self.readable.then_some(&pods),
            wanted: self.wanted.filter(|_| self.readable),
            probe: self.probe.clone(),
            now: self.now,
        })
    }

    /// One pass, published and told.
    pub(super) fn pass(&mut self) -> Decision {
        let before: CacheBackend = serde_json::from_value(self.backend.clone()).expect("a backend");
        let before = before.status.unwrap_or_default();
        let decision = self.decide();
        let Some(patch) = patch::between(&before, &decision.status) else { return decision };
        self.writes += 1;
        merge(&mut self.backend, &patch);
        let unmatched = decision.unmatched.iter().map(|_| "Normal EngineSelectorUnmatched".to_owned());
        let told = events::between(&before, &decision.status).into_iter().map(|told| {
            let severity = if told.severity == Severity::Normal { "Normal" } else { "Warning" };
            format!("{severity} {}", told.reason)
        });
        for event in told.chain(unmatched) {
            *self.told.entry(event).or_default() += 1;
        }
        decision
    }

    /// Passes until nothing is written: one that writes, one that does not.
    pub(super) fn settle(&mut self) -> Decision {
        self.pass();
        let writes = self.writes;
        let decision = self.pass();
        assert_eq!(self.writes, writes, "the second pass over the same facts writes: {}", self.status());
        decision
    }

    pub(super) fn status(&self) -> &Value {
        &self.backend["status"]
    }

    pub(super) fn condition(&self, type_: &str) -> Option<&Value> {
        self.status()["conditions"].as_array().into_iter().flatten().find(|condition| condition["type"] == type_)
    }

    /// `Status/Reason` of a condition, or `absent`.
    pub(super) fn says(&self, type_: &str) -> String {
        let text = |condition: &Value, key: &str| condition[key].as_str().unwrap_or_default().to_owned();
        self.condition(type_)
            .map_or_else(|| "absent".to_owned(), |c| format!("{}/{}", text(c, "status"), text(c, "reason")))
    }

    pub(super) fn message(&self, type_: &str) -> &str {
        self.condition(type_).and_then(|condition| condition["message"].as_str()).unwrap_or_default()
    }

    /// How often an Event was told.
    pub(super) fn count(&self, event: &str) -> usize {
        self.told.get(event).copied().unwrap_or(0)
    }

    #[track_caller]
    pub(super) fn expect(&self, wanted: &[(&str, &str)]) {
        for (type_, says) in wanted {
            assert_eq!(self.says(type_), *says, "{type_} of {}", self.status());
        }
    }
}

/// RFC 7396.
pub(super) fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let members = target.as_object_mut().expect("an object");
    for (key, value) in patch {
        if value.is_null() {
            members.remove(key);
        } else {
            merge(members.entry(key).or_insert(Value::Null), value);
        }
    }
}

/// An engine of the domain that nobody wired.
pub(super) fn bare(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "ns", "labels": {"inferencecache.io/cache-domain": "d1"}},
        "spec": {"containers": [{"name": "vllm"}]},
        "status": {"phase": "Running"},
    })
}

/// The same, wired by the backend at generation 1.
pub(super) fn injected(name: &str) -> Value {
    let mut pod = bare(name);
    merge(
        &mut pod,
        &json!({"metadata": {"annotations": {
            "inferencecache.io/injected-by": "ns/cache",
            "inferencecache.io/injected-by-uid": UID,
            "inferencecache.io/injected-generation": "1",
        }}}),
    );
    pod
}

pub(super) fn changed(mut pod: Value, patch: &Value) -> Value {
    merge(&mut pod, patch);
    pod
}

pub(super) fn ready(pod: Value) -> Value {
    changed(pod, &json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}))
}

/// With a sidecar that is ready and running.
pub(super) fn served(pod: Value) -> Value {
    let state = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
    changed(pod, &json!({"status": {"initContainerStatuses": [status_of("lmcache-mp-server", true, &state)]}}))
}

/// Wired, served and ready.
pub(super) fn good(name: &str) -> Value {
    ready(served(injected(name)))
}

pub(super) fn on(pod: Value, node: &str) -> Value {
    changed(pod, &json!({"spec": {"nodeName": node}}))
}

pub(super) fn status_of(container: &str, ready: bool, state: &Value) -> Value {
    json!({"name": container, "image": "i", "imageID": "i", "restartCount": 0, "ready": ready, "state": state})
}

pub(super) const MINUTES: fn(u64) -> Duration = Duration::from_mins;
