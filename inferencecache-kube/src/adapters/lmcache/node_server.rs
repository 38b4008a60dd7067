//! NodeLocal, the node's side: the Pod that runs one LMCache server on one node.
//!
//! It follows an engine that is there already: its node, its tolerations, its runtime class. The scheduler still judges
//! taints, resources and host ports, because the node is required by affinity and not written into `nodeName`. The caller
//! adds the owner reference and creates the Pod.

use k8s_openapi::api::core::v1::{
    Affinity, Container, LocalObjectReference, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm,
    Pod, PodSpec, Toleration,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sha2::{Digest, Sha256};

use super::node_local::{Identity, shm_mount};
use super::server::{self, base_env, cache_args, credentials, l2_adapter};
use super::settings::NodeLocal;
use crate::adapters::error::AdapterError;
use crate::adapters::pod::env_from_field;
use crate::adapters::value::Binding;
use crate::api::backend::NodeLocalScheduling;
use crate::api::{CacheBackend, names};

/// Longest name of a Pod.
const NAME_BYTES: usize = 253;
/// Digits of the node's digest in the name.
const DIGEST_DIGITS: usize = 12;
/// Seconds between the request to end and the end.
const GRACE_SECONDS: i64 = 30;

/// `<backend>-<digest of the node>`: the same for ever, different on every node, and short enough.
#[must_use]
pub fn pod_name(backend: &str, node: &str) -> String {
    let digest: String = Sha256::digest(node).iter().map(|byte| format!("{byte:02x}")).collect();
    let digest = digest.get(..DIGEST_DIGITS).unwrap_or(&digest);
    let trim = |text: &str| text.trim_end_matches(['.', '-']).to_owned();
    let mut prefix = trim(backend);
    let mut room = (NAME_BYTES - DIGEST_DIGITS - 1).min(prefix.len());
    while !prefix.is_char_boundary(room) {
        room -= 1;
    }
    prefix.truncate(room);
    format!("{}-{digest}", trim(&prefix))
}

/// The server Pod of `backend` on `node`, where `source` is an engine that runs there.
///
/// # Errors
/// No NodeLocal server in the object, no uid, settings or a binding that make no sense, no node, or an engine elsewhere.
pub fn render(
    backend: &CacheBackend,
    binding: Option<&Binding>,
    node: &str,
    source: &Pod,
) -> Result<Pod, AdapterError> {
    let settings = super::settings::node_local(backend)?;
    let identity = Identity::of(backend)?;
    if node.is_empty() {
        return Err(AdapterError::pod("node", "is not named; the server follows an engine that is scheduled"));
    }
    let engine = source.spec.as_ref();
    let found = engine.and_then(|spec| spec.node_name.as_deref()).unwrap_or_default();
    if found != node {
        let name = source.metadata.name.as_deref().unwrap_or_default();
        return Err(AdapterError::pod(format!("engine {name:?}"), format!("is on node {found:?}, not on {node:?}")));
    }
    let scheduling = backend.spec.lm_cache.as_ref().and_then(|l| l.node_local.as_ref()?.scheduling.clone());
    let mut spec = place(engine.unwrap_or(&PodSpec::default()), scheduling.unwrap_or_default(), node);
    spec.containers = vec![container(&settings, &identity, binding)?];
    spec.volumes = Some(vec![identity.volume()]);
    Ok(Pod { metadata: metadata(backend, &identity, node), spec: Some(spec), status: None })
}

fn metadata(backend: &CacheBackend, identity: &Identity, node: &str) -> ObjectMeta {
    let meta = &backend.metadata;
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    let (name, namespace, uid) = (text(&meta.name), text(&meta.namespace), text(&meta.uid));
    let pairs =
        |list: Vec<(&str, String)>| Some(list.into_iter().map(|(key, value)| (key.to_owned(), value)).collect());
    ObjectMeta {
        name: Some(pod_name(&name, node)),
        namespace: meta.namespace.clone(),
        labels: pairs(vec![
            (names::APP_NAME, names::MP_SERVER_CONTAINER.to_owned()),
            (names::APP_MANAGED_BY, names::CONTROLLER.to_owned()),
            (names::NODE_SERVER, "true".to_owned()),
            (names::BACKEND_UID, uid.clone()),
            (names::MP_METRICS, "true".to_owned()),
        ]),
        annotations: pairs(vec![
            (names::NODE_OWNER, format!("{namespace}/{name}")),
            (names::NODE_OWNER_UID, uid),
            (names::NODE_GENERATION, meta.generation.unwrap_or_default().to_string()),
            (names::NODE_TARGET, node.to_owned()),
            (names::NODE_SHM_NAME, identity.shm_name.clone()),
        ]),
        ..ObjectMeta::default()
    }
}

/// Everything about where the Pod runs: the node by affinity, the rest from the engine, then the object's own wishes.
fn place(engine: &PodSpec, wishes: NodeLocalScheduling, node: &str) -> PodSpec {
    let text = |wish: Option<String>, inherited: &Option<String>| {
        wish.filter(|name| !name.is_empty()).or_else(|| inherited.clone().filter(|name| !name.is_empty()))
    };
    let requirement = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.to_owned()]),
    };
    let term = NodeSelectorTerm { match_fields: Some(vec![requirement]), match_expressions: None };
    PodSpec {
        affinity: Some(Affinity {
            node_affinity: Some(NodeAffinity {
                required_during_scheduling_ignored_during_execution: Some(NodeSelector {
                    node_selector_terms: vec![term],
                }),
                ..NodeAffinity::default()
            }),
            ..Affinity::default()
        }),
        host_network: Some(true),
        host_ipc: Some(false),
        dns_policy: Some("ClusterFirstWithHostNet".to_owned()),
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        restart_policy: Some("Always".to_owned()),
        termination_grace_period_seconds: wishes.termination_grace_period_seconds.or(Some(GRACE_SECONDS)),
        tolerations: merged(&engine.tolerations, wishes.tolerations, |one: &Toleration, other| one == other),
        image_pull_secrets: merged(&engine.image_pull_secrets, wishes.image_pull_secrets, same_secret),
        service_account_name: wishes.service_account_name.filter(|name| !name.is_empty()),
        security_context: wishes.security_context,
        priority_class_name: text(wishes.priority_class_name, &engine.priority_class_name),
        scheduler_name: text(wishes.scheduler_name, &engine.scheduler_name)
            .or_else(|| Some("default-scheduler".to_owned())),
        runtime_class_name: wishes.runtime_class_name.or_else(|| engine.runtime_class_name.clone()),
        ..PodSpec::default()
    }
}

fn same_secret(one: &LocalObjectReference, other: &LocalObjectReference) -> bool {
    one.name == other.name
}

/// The inherited entries, then the wished-for ones that are not among them.
fn merged<T: Clone>(
    inherited: &Option<Vec<T>>,
    wished: Option<Vec<T>>,
    same: impl Fn(&T, &T) -> bool,
) -> Option<Vec<T>> {
    let mut list = inherited.clone().unwrap_or_default();
    for entry in wished.into_iter().flatten() {
        if !list.iter().any(|known| same(known, &entry)) {
            list.push(entry);
        }
    }
    Some(list).filter(|list| !list.is_empty())
}

fn container(settings: &NodeLocal, identity: &Identity, binding: Option<&Binding>) -> Result<Container, AdapterError> {
    let spec = &settings.server;
    let address = format!("$({})", names::NODE_IP);
    let mut args: Vec<String> = vec![
        "server".to_owned(),
        "--instance-id".to_owned(),
        identity.instance_id.clone(),
        "--shm-name".to_owned(),
        identity.shm_name.clone(),
        "--host".to_owned(),
        address.clone(),
        "--port".to_owned(),
        spec.port.to_string(),
        "--http-host".to_owned(),
        address,
        "--http-port".to_owned(),
        settings.http_port.to_string(),
    ];
    args.extend(cache_args(spec));
    args.extend(["--max-gpu-workers".to_owned(), settings.max_gpu_workers.to_string()]);
    args.extend(["--max-cpu-workers".to_owned(), settings.max_cpu_workers.to_string()]);
    args.extend(l2_adapter(binding)?.into_iter().flat_map(|json| ["--l2-adapter".to_owned(), json]));
    let mut env = base_env();
    env.push(env_from_field(names::NODE_IP, "status.hostIP"));
    env.extend(credentials(binding));
    Ok(Container {
        name: names::MP_SERVER_CONTAINER.to_owned(),
        image: Some(spec.image.clone()),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        command: Some(vec!["lmcache".to_owned()]),
        args: Some(args),
        env: Some(env),
        ports: Some(server::ports(spec.port.into(), settings.http_port.into(), true)),
        resources: Some(spec.resources.clone()),
        volume_mounts: Some(vec![shm_mount()]),
        startup_probe: Some(server::startup_probe()),
        readiness_probe: Some(server::readiness_probe()),
        liveness_probe: Some(server::liveness_probe()),
        security_context: Some(server::security_context()),
        ..Container::default()
    })
}

#[cfg(test)]
mod tests {
    use super::pod_name;

    /// adapters:D30,D31
    #[test]
    fn names_are_short_distinct_and_stable() {
        assert_eq!(pod_name("llama-node", "h200-rack3-07"), "llama-node-a49e9ee1eedd");
        assert_eq!(pod_name("node-cache", "node-a"), "node-cache-66570ff05a20");
        assert_eq!(pod_name("node-cache", "node-b"), "node-cache-93ef37c61571");
        assert_eq!(pod_name("x.-", "node-a"), "x-66570ff05a20");
        let long = "b".repeat(350);
        let (one, other) = (pod_name(&long, "node-a"), pod_name(&long, "node-b"));
        assert!(one.len() <= 253 && other.len() <= 253 && one != other && one == pod_name(&long, "node-a"));
        let dotted = format!("{}.{}", "b".repeat(239), "c".repeat(20));
        assert_eq!(pod_name(&dotted, "node-a"), format!("{}-66570ff05a20", "b".repeat(239)));
    }
}
