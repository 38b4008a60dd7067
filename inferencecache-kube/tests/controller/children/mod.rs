//! What a pass does to Deployment, Service and server Pods.

mod nodes;
mod others;
mod store;

use inferencecache_kube::adapters::{Options, builtin};
use inferencecache_kube::api::CacheBackend;
use inferencecache_kube::controller::backend::children::{Outcome, apply};
use inferencecache_kube::controller::backend::dispatch::decide;
use inferencecache_kube::controller::backend::error::ChildError;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};

use super::stage::{Place, stage};
use super::writes::{Writes, counted};

/// One object, the namespace it is in, and a controller whose writes are counted.
struct Scene {
    place: Place,
    client: Client,
    writes: Writes,
    name: &'static str,
}

impl Scene {
    /// An empty namespace.
    async fn new(namespace: &str, name: &'static str) -> Option<Self> {
        let plane = stage()?;
        let (client, writes) = counted(plane).await;
        Some(Self { place: Place::new(plane, namespace).await, client, writes, name })
    }

    /// Stores the object with one of the specs of `tests/data/backends.json`, merged with a patch.
    async fn backend(&self, spec: &str, patch: Value) -> CacheBackend {
        self.place.backend(self.name, sample(spec, &patch)).await
    }

    async fn edit(&self, patch: Value) -> CacheBackend {
        self.place.patch(self.name, patch).await
    }

    async fn try_pass(&self, now: Timestamp) -> Result<Outcome, ChildError> {
        let backend = self.place.get::<CacheBackend>(self.name).await.expect("the object");
        let plan = decide(&backend, &builtin(&Options::default()));
        apply(&self.client, &backend, &plan, Some(&self.place.pods().await), now).await
    }

    async fn pass_at(&self, now: Timestamp) -> Outcome {
        self.try_pass(now).await.expect("children")
    }

    async fn pass(&self) -> Outcome {
        self.pass_at(Timestamp::now()).await
    }

    /// A pass that finds nothing wrong, and another one that finds nothing to do.
    async fn settle(&self) -> Outcome {
        let outcome = self.pass().await;
        assert!(outcome.storage.is_none() && outcome.servers.is_none(), "{outcome:?}");
        self.writes.take();
        let outcome = self.pass().await;
        assert_eq!(self.writes.take(), 0, "a settled pass wrote");
        outcome
    }

    async fn deployment(&self) -> Option<Deployment> {
        self.place.get(self.name).await
    }

    async fn service(&self) -> Option<Service> {
        self.place.get(self.name).await
    }
}

fn sample(name: &str, patch: &Value) -> Value {
    let all: Value = serde_json::from_str(include_str!("../../data/backends.json")).expect("specs");
    let mut spec = all["managed"].clone();
    if name != "managed" {
        assert!(all[name].is_object(), "no spec {name}");
        merge(&mut spec, &all[name]);
    }
    merge(&mut spec, patch);
    spec
}

/// JSON merge patch.
fn merge(value: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *value = patch.clone();
        return;
    };
    if !value.is_object() {
        *value = json!({});
    }
    let object = value.as_object_mut().expect("an object");
    for (key, patch) in patch {
        if patch.is_null() {
            object.remove(key);
        } else {
            merge(object.entry(key).or_insert(Value::Null), patch);
        }
    }
}

/// As [`sample`], but as a patch that turns a spec of one kind into another.
fn into(name: &str) -> Value {
    let all: Value = serde_json::from_str(include_str!("../../data/backends.json")).expect("specs");
    json!({"spec": if name == "managed" { &all["managed"] } else { &all[name] }})
}

fn somebody() -> Value {
    json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "someone", "uid": "11111111-1111-1111-1111-111111111111",
        "controller": true}])
}
