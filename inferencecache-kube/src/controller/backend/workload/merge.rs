//! A live object and what it should be, into what to write.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::DynamicObject;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::super::ownership;
use crate::adapters::defaults::equal_after_defaults;

/// Fields of the Pod that the object owns, beside its containers.
const POD: [&str; 15] = [
    "volumes",
    "nodeSelector",
    "affinity",
    "tolerations",
    "topologySpreadConstraints",
    "imagePullSecrets",
    "serviceAccountName",
    "serviceAccount",
    "securityContext",
    "priorityClassName",
    "schedulerName",
    "runtimeClassName",
    "terminationGracePeriodSeconds",
    "hostNetwork",
    "dnsPolicy",
];
/// Fields of each container that the object owns.
const CONTAINER: [&str; 12] = [
    "image",
    "imagePullPolicy",
    "command",
    "args",
    "env",
    "ports",
    "resources",
    "volumeMounts",
    "startupProbe",
    "readinessProbe",
    "livenessProbe",
    "securityContext",
];

/// The live Deployment as it should be; `None` where it is.
pub(in super::super) fn deployment(live: &DynamicObject, desired: &Deployment) -> Option<DynamicObject> {
    let mut object = live.clone();
    let mut changed = metadata(&mut object.metadata, &desired.metadata);
    let wanted = json_of(desired.spec.as_ref());
    changed |= within(&mut object.data, "spec", |spec| {
        let mut changed = force(spec, "replicas", wanted.get("replicas"));
        changed |= strategy(spec, wanted.get("strategy"));
        let template = spec.entry("template").or_insert(Value::Null);
        changed | within(template, "spec", |live| pod(live, wanted.pointer("/template/spec").unwrap_or(&Value::Null)))
    });
    changed.then_some(object)
}

/// The live Service as it should be; `None` where it is. Its address is the cluster's own and stays.
pub(in super::super) fn service(live: &DynamicObject, desired: &Service) -> Option<DynamicObject> {
    let mut object = live.clone();
    let mut changed = metadata(&mut object.metadata, &desired.metadata);
    let wanted = json_of(desired.spec.as_ref());
    changed |= within(&mut object.data, "spec", |spec| {
        ["type", "selector", "ports"]
            .into_iter()
            .fold(false, |changed, key| changed | force(spec, key, wanted.get(key)))
    });
    changed.then_some(object)
}

fn metadata(live: &mut ObjectMeta, desired: &ObjectMeta) -> bool {
    let mut changed = live.labels != desired.labels;
    live.labels.clone_from(&desired.labels);
    for reference in desired.owner_references.iter().flatten() {
        changed |= ownership::take(live, reference);
    }
    changed
}

/// A strategy of another type is replaced whole: parameters of the old one would be refused beside it.
fn strategy(spec: &mut Map<String, Value>, wanted: Option<&Value>) -> bool {
    let rolling = json!({"type": "RollingUpdate"});
    let wanted = wanted.unwrap_or(&rolling);
    if spec.get("strategy").and_then(|live| live.get("type")) == wanted.get("type") {
        return false;
    }
    spec.insert("strategy".to_owned(), wanted.clone());
    true
}

fn pod(live: &mut Map<String, Value>, wanted: &Value) -> bool {
    let mut changed = false;
    for key in POD {
        let default = json!("ClusterFirst");
        let fallback = (key == "dnsPolicy").then_some(&default);
        changed |= force(live, key, wanted.get(key).or(fallback));
    }
    let desired = wanted.get("containers").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let containers = live.entry("containers").or_insert_with(|| json!([]));
    if !containers.is_array() {
        *containers = json!([]);
    }
    if let Some(containers) = containers.as_array_mut() {
        let before = containers.len();
        containers.retain(|container| desired.iter().any(|wanted| wanted.get("name") == container.get("name")));
        changed |= containers.len() != before;
        for wanted in desired {
            match containers.iter_mut().find(|container| container.get("name") == wanted.get("name")) {
                Some(Value::Object(container)) => {
                    for key in CONTAINER {
                        changed |= force(container, key, wanted.get(key));
                    }
                }
                _ => {
                    containers.push(wanted.clone());
                    changed = true;
                }
            }
        }
    }
    changed
}

/// Gives a field the wanted value, or takes it away, unless the live one means the same.
fn force(object: &mut Map<String, Value>, key: &str, wanted: Option<&Value>) -> bool {
    let field = |value: Option<&Value>| value.map(|value| Map::from_iter([(key.to_owned(), value.clone())]));
    let field = |value| field(value).unwrap_or_default();
    if equal_after_defaults(&field(wanted), &field(object.get(key))) {
        return false;
    }
    match wanted {
        Some(value) => object.insert(key.to_owned(), value.clone()),
        None => object.remove(key),
    };
    true
}

fn json_of<T: Serialize>(value: Option<&T>) -> Value {
    serde_json::to_value(value).unwrap_or_default()
}

/// Changes a member, which is an object or becomes one.
fn within(value: &mut Value, key: &str, change: impl FnOnce(&mut Map<String, Value>) -> bool) -> bool {
    let as_map = |value: Value| if let Value::Object(map) = value { map } else { Map::new() };
    let mut outer = as_map(value.take());
    let mut inner = as_map(outer.remove(key).unwrap_or_default());
    let changed = change(&mut inner);
    outer.insert(key.to_owned(), Value::Object(inner));
    *value = Value::Object(outer);
    changed
}
