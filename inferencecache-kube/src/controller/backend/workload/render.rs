//! A provider's containers and ports, dressed: names, labels, selector, owner, placement.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec};
use k8s_openapi::api::core::v1::{PodSpec, PodTemplateSpec, Service, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

use super::super::ownership;
use crate::adapters::{AdapterError, RenderedStorage};
use crate::api::backend::Workload;
use crate::api::{CacheBackend, names};

/// Seconds between the request to end and the end, where nothing else is asked for.
const GRACE_SECONDS: i64 = 30;

/// The children of a managed store.
#[derive(Debug, Clone, PartialEq)]
pub struct Desired {
    /// Its one process: several Pods behind one Service would be several stores.
    pub deployment: Deployment,
    /// Its address.
    pub service: Service,
}

/// The children of a managed store.
///
/// # Errors
/// The object was not read from an API server, or the provider runs nothing.
pub fn render(backend: &CacheBackend, rendered: RenderedStorage) -> Result<Desired, AdapterError> {
    let nothing = || AdapterError::backend("spec.remoteStorage", "has a provider that runs nothing");
    let pod = rendered.pod.ok_or_else(nothing)?;
    let service = rendered.service.and_then(|service| service.spec).ok_or_else(nothing)?;
    let labels = labels(backend);
    let selector = selector(backend);
    let metadata = ObjectMeta {
        name: backend.metadata.name.clone(),
        namespace: backend.metadata.namespace.clone(),
        labels: Some(labels.clone()),
        owner_references: Some(vec![ownership::reference(backend)?]),
        ..ObjectMeta::default()
    };
    let wishes = backend.spec.remote_storage.as_ref().and_then(|storage| storage.workload.clone());
    let deployment = Deployment {
        metadata: metadata.clone(),
        spec: Some(DeploymentSpec {
            replicas: Some(1),
            selector: LabelSelector { match_labels: Some(selector.clone()), match_expressions: None },
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta { labels: Some(labels), ..ObjectMeta::default() }),
                spec: Some(place(pod, wishes.unwrap_or_default())),
            },
            ..DeploymentSpec::default()
        }),
        status: None,
    };
    let service = Service {
        metadata,
        spec: Some(ServiceSpec {
            type_: Some(service.type_.unwrap_or_else(|| "ClusterIP".to_owned())),
            selector: Some(selector),
            ports: service.ports,
            ..ServiceSpec::default()
        }),
        status: None,
    };
    Ok(Desired { deployment, service })
}

/// What the Pods of the store are found by. It cannot be changed later, so it says nothing of the object but its name.
fn selector(backend: &CacheBackend) -> BTreeMap<String, String> {
    let name = backend.metadata.name.clone().unwrap_or_default();
    BTreeMap::from([
        (names::APP_NAME.to_owned(), names::CACHE_BACKEND.to_owned()),
        (names::APP_INSTANCE.to_owned(), name),
        (names::APP_MANAGED_BY.to_owned(), names::CONTROLLER.to_owned()),
    ])
}

fn labels(backend: &CacheBackend) -> BTreeMap<String, String> {
    let mut labels = selector(backend);
    let cache_type = backend.spec.cache_type.as_ref().filter(|cache_type| !cache_type.is_empty());
    labels.extend(cache_type.map(|cache_type| (names::BACKEND_TYPE.to_owned(), cache_type.to_string())));
    labels
}

/// The provider's Pod with the object's wishes, each only where it is said.
fn place(pod: PodSpec, wishes: Workload) -> PodSpec {
    let given = |text: Option<String>| text.filter(|text| !text.is_empty());
    let account = given(wishes.service_account_name).or(pod.service_account_name);
    PodSpec {
        node_selector: wishes.node_selector.or(pod.node_selector),
        affinity: wishes.affinity.or(pod.affinity),
        tolerations: wishes.tolerations.or(pod.tolerations),
        topology_spread_constraints: wishes.topology_spread_constraints.or(pod.topology_spread_constraints),
        image_pull_secrets: wishes.image_pull_secrets.or(pod.image_pull_secrets),
        // An API server keeps the older field of the same meaning and would bring the account back from it.
        service_account: account.clone(),
        service_account_name: account,
        security_context: wishes.security_context.or(pod.security_context),
        priority_class_name: given(wishes.priority_class_name).or(pod.priority_class_name),
        runtime_class_name: given(wishes.runtime_class_name).or(pod.runtime_class_name),
        scheduler_name: given(wishes.scheduler_name)
            .or(pod.scheduler_name)
            .or_else(|| Some("default-scheduler".to_owned())),
        termination_grace_period_seconds: wishes
            .termination_grace_period_seconds
            .or(pod.termination_grace_period_seconds)
            .or(Some(GRACE_SECONDS)),
        ..pod
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::samples::backend;
    use super::*;
    use crate::adapters::{ManagedRedis, StorageProvider as _};
    use serde_json::{Value, json};

    fn rendered(patch: &Value) -> (Value, Value) {
        let backend = backend("managed", patch);
        let desired = render(&backend, ManagedRedis.render(&backend).expect("a store")).expect("children");
        let deployment = serde_json::to_value(desired.deployment).expect("JSON");
        (deployment, serde_json::to_value(desired.service).expect("JSON"))
    }

    /// controller:1,2,35
    #[test]
    fn a_bare_store_is_one_redis_and_its_service() {
        let selector = json!({"app.kubernetes.io/name": "cachebackend", "app.kubernetes.io/instance": "cache",
            "app.kubernetes.io/managed-by": "inference-cache-controller"});
        let mut labels = selector.clone();
        labels["inferencecache.io/backend-type"] = json!("LMCache");
        let metadata = json!({"name": "cache", "namespace": "ns", "labels": labels, "ownerReferences": [{
            "apiVersion": "inferencecache.io/v1alpha1", "kind": "CacheBackend", "name": "cache", "uid": "u1",
            "controller": true, "blockOwnerDeletion": true}]});
        let container = json!({
            "name": "redis-l2",
            "image": "docker.io/library/redis:7.4-alpine",
            "imagePullPolicy": "IfNotPresent",
            "args": ["redis-server", "--save", "", "--appendonly", "no", "--protected-mode", "no",
                "--maxmemory", "6871947674", "--maxmemory-policy", "allkeys-lru"],
            "ports": [{"name": "redis", "containerPort": 6379, "protocol": "TCP"}],
            "readinessProbe": {"tcpSocket": {"port": "redis"}, "initialDelaySeconds": 3, "periodSeconds": 10,
                "failureThreshold": 6},
            "resources": {"requests": {"memory": "4Gi"}, "limits": {"memory": "8Gi"}},
        });
        let (deployment, service) = rendered(&json!({}));
        assert_eq!(deployment["metadata"], metadata);
        assert_eq!(
            deployment["spec"],
            json!({"replicas": 1, "selector": {"matchLabels": selector}, "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [container], "schedulerName": "default-scheduler",
                    "terminationGracePeriodSeconds": 30},
            }})
        );
        assert_eq!(service["metadata"], metadata);
        assert_eq!(
            service["spec"],
            json!({"type": "ClusterIP", "selector": selector,
                "ports": [{"name": "redis", "port": 6379, "targetPort": "redis", "protocol": "TCP"}]})
        );
        assert_eq!((deployment, service), rendered(&json!({"runtime": "SGLang"})));
    }

    #[test]
    fn without_a_type_there_is_no_label_of_it() {
        let (deployment, _) = rendered(&json!({"type": null}));
        let labels = deployment["metadata"]["labels"].as_object().expect("labels");
        assert_eq!(labels.len(), 3);
    }

    /// controller:14
    #[test]
    fn wishes_replace_field_by_field() {
        let wishes = json!({
            "nodeSelector": {"disk": "fast"},
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}}},
            "tolerations": [{"key": "cache", "operator": "Exists"}],
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
            "imagePullSecrets": [{"name": "pull"}],
            "serviceAccountName": "redis",
            "securityContext": {"runAsUser": 999},
            "priorityClassName": "high",
            "runtimeClassName": "kata",
            "schedulerName": "packer",
            "terminationGracePeriodSeconds": 45,
        });
        let (deployment, _) = rendered(&json!({"remoteStorage": {"workload": wishes}}));
        let mut pod = deployment["spec"]["template"]["spec"].clone();
        let pod = pod.as_object_mut().expect("a Pod");
        pod.remove("containers");
        assert_eq!(pod.remove("serviceAccount"), Some(json!("redis")));
        assert_eq!(Value::Object(pod.clone()), wishes);
    }

    #[test]
    fn what_runs_nothing_is_no_store() {
        let backend = backend("external", &json!({}));
        let rendered = RenderedStorage { protocol: crate::adapters::Protocol::resp(), pod: None, service: None };
        assert!(render(&backend, rendered).is_err());
    }
}
