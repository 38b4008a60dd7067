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

#[cfg(test)]
mod tests {
    use super::super::super::samples::{backend, merge as patched};
    use super::super::render::{Desired, render};
    use super::*;
    use crate::adapters::{ManagedRedis, StorageProvider as _};

    fn desired(patch: &Value) -> Desired {
        let backend = backend("managed", patch);
        render(&backend, ManagedRedis.render(&backend).expect("a store")).expect("children")
    }

    fn object(value: Value) -> DynamicObject {
        serde_json::from_value(value).expect("an object")
    }

    /// As an API server has it: with its defaults, a status and fields that these types do not know.
    fn live(patch: &Value) -> Value {
        let mut live = serde_json::to_value(desired(patch).deployment).expect("JSON");
        patched(
            &mut live,
            &json!({
                "metadata": {"uid": "d1", "resourceVersion": "7", "generation": 1,
                    "annotations": {"deployment.kubernetes.io/revision": "1"}},
                "spec": {
                    "progressDeadlineSeconds": 600, "revisionHistoryLimit": 10, "fromTheFuture": {"kept": true},
                    "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
                    "template": {"spec": {"restartPolicy": "Always", "dnsPolicy": "ClusterFirst",
                        "securityContext": {}}},
                },
                "status": {"replicas": 1, "availableReplicas": 1},
            }),
        );
        patched(
            &mut live["spec"]["template"]["spec"]["containers"][0],
            &json!({"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                "readinessProbe": {"successThreshold": 1}}),
        );
        let probe = &mut live["spec"]["template"]["spec"]["containers"][0]["readinessProbe"];
        if probe["timeoutSeconds"].is_null() {
            probe["timeoutSeconds"] = json!(1);
        }
        live
    }

    /// controller:18
    #[test]
    fn what_an_api_server_fills_in_is_no_difference() {
        for patch in [
            json!({}),
            json!({"remoteStorage": {"redis": {"resources": {}}}}),
            json!({"remoteStorage": {"redis": {"resources": {"requests": {}, "limits": {"memory": "1Gi"}}}}}),
            json!({"remoteStorage": {"redis": {"authentication": {"password": {"name": "s", "key": "k"}}}}}),
            json!({"remoteStorage": {"workload": {"serviceAccountName": "redis", "tolerations": []}}}),
        ] {
            let desired = desired(&patch);
            assert_eq!(deployment(&object(live(&patch)), &desired.deployment), None, "{patch}");
            let mut service_live = serde_json::to_value(&desired.service).expect("JSON");
            patched(
                &mut service_live,
                &json!({"spec": {"clusterIP": "10.0.0.7", "clusterIPs": ["10.0.0.7"], "sessionAffinity": "None"}}),
            );
            assert_eq!(service(&object(service_live), &desired.service), None, "{patch}");
        }
    }

    /// controller:17: each is put back, and then nothing is left to do.
    #[test]
    fn drift_is_put_back() {
        let wanted = desired(&json!({})).deployment;
        for drift in [
            json!({"metadata": {"labels": {"mine": "too"}}}),
            json!({"metadata": {"labels": {"app.kubernetes.io/name": null}}}),
            json!({"metadata": {"ownerReferences": null}}),
            json!({"spec": {"replicas": 3}}),
            json!({"spec": {"replicas": null}}),
            json!({"spec": {"strategy": {"type": "Recreate", "rollingUpdate": null}}}),
            json!({"spec": {"template": {"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}}}),
            json!({"spec": {"template": {"spec": {"nodeSelector": {"a": "b"}}}}}),
            json!({"spec": {"template": {"spec": {"schedulerName": "x"}}}}),
            json!({"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 5}}}}),
            json!({"spec": {"template": {"spec": {"hostNetwork": true}}}}),
            json!({"spec": {"template": {"spec": {"dnsPolicy": "Default"}}}}),
            json!({"spec": {"template": {"spec": {"serviceAccountName": "x", "serviceAccount": "x"}}}}),
            json!({"spec": {"template": {"spec": {"serviceAccount": "x"}}}}),
            json!({"spec": {"template": {"spec": {"securityContext": {"runAsUser": 0}}}}}),
            json!({"spec": {"template": {"spec": {"containers": []}}}}),
        ] {
            let mut live = live(&json!({}));
            patched(&mut live, &drift);
            let put = deployment(&object(live), &wanted).unwrap_or_else(|| panic!("not seen: {drift}"));
            assert_eq!(deployment(&put, &wanted), None, "{drift}");
            assert_eq!(put.data["spec"]["fromTheFuture"], json!({"kept": true}), "{drift}");
        }
        for drift in [
            json!({"image": "x"}),
            json!({"command": ["sh"]}),
            json!({"args": ["x"]}),
            json!({"env": [{"name": "A", "value": "b"}]}),
            json!({"ports": null}),
            json!({"resources": {"requests": {"cpu": "1"}}}),
            json!({"resources": null}),
            json!({"readinessProbe": {"timeoutSeconds": 9}}),
            json!({"livenessProbe": {"exec": {"command": ["true"]}}}),
            json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]}),
            json!({"securityContext": {"privileged": true}}),
            json!({"imagePullPolicy": "Never"}),
            json!({"name": "other"}),
        ] {
            let mut live = live(&json!({}));
            patched(&mut live["spec"]["template"]["spec"]["containers"][0], &drift);
            let put = deployment(&object(live), &wanted).unwrap_or_else(|| panic!("not seen: {drift}"));
            assert_eq!(deployment(&put, &wanted), None, "{drift}");
        }
    }

    #[test]
    fn what_is_not_ours_to_say_stays() {
        let wanted = desired(&json!({})).deployment;
        for kept in [
            json!({"metadata": {"annotations": {"note": "kept"}}}),
            json!({"spec": {"paused": true}}),
            json!({"spec": {"strategy": {"rollingUpdate": {"maxSurge": 2}}}}),
            json!({"spec": {"template": {"metadata": {"annotations": {"note": "kept"}, "labels": {"more": "kept"}}}}}),
            json!({"spec": {"template": {"spec": {"initContainers": [{"name": "i"}], "enableServiceLinks": false}}}}),
        ] {
            let mut live = live(&json!({}));
            patched(&mut live, &kept);
            assert_eq!(deployment(&object(live), &wanted), None, "{kept}");
        }
    }

    /// controller:15: without wishes the defaults come back, the account's older spelling included.
    #[test]
    fn a_wish_taken_back_leaves_nothing() {
        let wishes = json!({"nodeSelector": {"a": "b"}, "tolerations": [{"operator": "Exists"}],
            "imagePullSecrets": [{"name": "p"}], "serviceAccountName": "redis", "securityContext": {"runAsUser": 1},
            "schedulerName": "x", "terminationGracePeriodSeconds": 45, "priorityClassName": "high"});
        let before = live(&json!({"remoteStorage": {"workload": wishes}}));
        let after = deployment(&object(before), &desired(&json!({})).deployment).expect("a change");
        let pod = after.data["spec"]["template"]["spec"].as_object().expect("a Pod");
        let mut fields: Vec<&str> = pod.keys().map(String::as_str).collect();
        fields.sort_unstable();
        let left = ["containers", "dnsPolicy", "restartPolicy", "schedulerName", "terminationGracePeriodSeconds"];
        assert_eq!(fields, left);
        assert_eq!(
            (&pod["schedulerName"], &pod["terminationGracePeriodSeconds"]),
            (&json!("default-scheduler"), &json!(30))
        );
    }

    /// controller:16
    #[test]
    fn a_service_keeps_its_address_and_nothing_else() {
        let wanted = desired(&json!({})).service;
        for drift in [
            json!({"spec": {"ports": [{"name": "redis", "port": 7777, "protocol": "TCP", "targetPort": "redis"}]}}),
            json!({"spec": {"selector": {"app": "x"}}}),
            json!({"spec": {"type": "NodePort"}}),
            json!({"metadata": {"labels": {"mine": "too"}}}),
        ] {
            let mut live = serde_json::to_value(&wanted).expect("JSON");
            patched(&mut live, &json!({"spec": {"clusterIP": "10.0.0.7"}}));
            patched(&mut live, &drift);
            let put = service(&object(live), &wanted).unwrap_or_else(|| panic!("not seen: {drift}"));
            assert_eq!(put.data["spec"]["clusterIP"], json!("10.0.0.7"), "{drift}");
            assert_eq!(service(&put, &wanted), None, "{drift}");
        }
    }
}
