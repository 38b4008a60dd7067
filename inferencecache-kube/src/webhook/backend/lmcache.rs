//! R3: LMCache as a multiprocess server, beside an engine or on its node.

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::resources::{amount, check};
use crate::api::backend::{CacheType, LmCache, NodeLocal, NodeLocalServer, PodLocalServer, Topology};
use crate::api::names::{KV_EVENT_PORT, MP_HTTP_PORT};
use crate::api::{Amount, CacheBackend};
use crate::webhook::field::FieldError;
use crate::webhook::syntax::is_pinned_image;

const BLOCK: &str = "spec.lmCache";
const POD: &str = "spec.lmCache.podLocal";
const NODE: &str = "spec.lmCache.nodeLocal";
const SELECTOR: &str = "spec.engineSelector.matchLabels";
const GPU: &str = "nvidia.com/gpu";
const MAX_RETENTION: i32 = 86_400;

/// R3.
pub(super) fn topology(backend: &CacheBackend) -> Vec<FieldError> {
    let spec = &backend.spec;
    if *spec.effective_type() != CacheType::LmCache {
        return Vec::new();
    }
    let Some(lm_cache) = &spec.lm_cache else {
        if spec.events_only() {
            return Vec::new();
        }
        let detail = "type LMCache with mode Offload needs a topology and its server";
        return vec![FieldError::required(BLOCK, detail)];
    };
    if spec.events_only() {
        let detail = "mode EventsOnly takes events and offloads nothing, so it has no LMCache server; leave it out";
        return vec![FieldError::forbidden(BLOCK, detail)];
    }
    let mut errors = Vec::new();
    match &lm_cache.topology {
        Topology::PodLocal => pod_local(lm_cache, &mut errors),
        Topology::NodeLocal => {
            node_local(lm_cache, &mut errors);
            if spec.selector().is_none() {
                let detail = "topology NodeLocal serves the engines that are selected; select them";
                errors.push(FieldError::required(SELECTOR, detail));
            }
        }
        Topology::Other(text) if text.is_empty() => {
            errors.push(FieldError::required("spec.lmCache.topology", "choose PodLocal or NodeLocal"));
        }
        Topology::Other(text) => {
            errors.push(FieldError::not_supported("spec.lmCache.topology", text, Topology::ALLOWED));
        }
    }
    errors
}

fn pod_local(lm_cache: &LmCache, errors: &mut Vec<FieldError>) {
    if lm_cache.node_local.is_some() {
        errors.push(FieldError::forbidden(NODE, "must be omitted with topology PodLocal"));
    }
    let Some(block) = &lm_cache.pod_local else {
        errors.push(FieldError::required(POD, "topology PodLocal needs it"));
        return;
    };
    let path = format!("{POD}.server");
    let Some(server) = &block.server else {
        errors.push(FieldError::required(path, "the server is what this block is for"));
        return;
    };
    let PodLocalServer { image, port, l1_capacity, max_workers, resources } = server;
    check_image(&path, image, errors);
    check_port(&format!("{path}.port"), *port, errors);
    let taken = match *port {
        KV_EVENT_PORT => Some("is the port of the engine's KV-event publisher"),
        MP_HTTP_PORT => Some("is the port of the MP server's HTTP health listener"),
        _ => None,
    };
    if let Some(owner) = taken {
        errors.push(FieldError::invalid(
            format!("{path}.port"),
            port,
            format!("{owner} in the same Pod; choose another"),
        ));
    }
    at_least_one(&format!("{path}.maxWorkers"), *max_workers, errors);
    check_budget(&path, l1_capacity, resources, Vec::new(), errors);
}

fn node_local(lm_cache: &LmCache, errors: &mut Vec<FieldError>) {
    if lm_cache.pod_local.is_some() {
        errors.push(FieldError::forbidden(POD, "must be omitted with topology NodeLocal"));
    }
    let Some(NodeLocal { idle_retention_seconds: idle, server, .. }) = &lm_cache.node_local else {
        errors.push(FieldError::required(NODE, "topology NodeLocal needs it"));
        return;
    };
    let path = format!("{NODE}.server");
    let Some(server) = server else {
        errors.push(FieldError::required(path, "the server is what this block is for"));
        return;
    };
    if !(0..=MAX_RETENTION).contains(idle) {
        let detail = format!("must be from 0 to {MAX_RETENTION} seconds");
        errors.push(FieldError::invalid(format!("{NODE}.idleRetentionSeconds"), idle, detail));
    }
    let NodeLocalServer { image, port, http_port, l1_capacity, max_gpu_workers, max_cpu_workers, resources } = server;
    check_image(&path, image, errors);
    check_port(&format!("{path}.port"), *port, errors);
    check_port(&format!("{path}.httpPort"), *http_port, errors);
    if http_port == port && is_port(*port) {
        errors.push(FieldError::invalid(format!("{path}.httpPort"), http_port, "must differ from port"));
    }
    at_least_one(&format!("{path}.maxGPUWorkers"), *max_gpu_workers, errors);
    at_least_one(&format!("{path}.maxCPUWorkers"), *max_cpu_workers, errors);
    let gpus = [("requests", &resources.requests), ("limits", &resources.limits)]
        .into_iter()
        .filter(|(_, amounts)| amounts.as_ref().is_some_and(|amounts| amounts.contains_key(GPU)))
        .map(|(list, _)| {
            let detail = "a server on the node shares the engines' GPUs and must not reserve one";
            FieldError::forbidden(format!("{path}.resources.{list}[{GPU}]"), detail)
        })
        .collect();
    check_budget(&path, l1_capacity, resources, gpus, errors);
}

fn check_image(path: &str, image: &str, errors: &mut Vec<FieldError>) {
    let (path, trimmed) = (format!("{path}.image"), image.trim());
    if trimmed.is_empty() {
        errors.push(FieldError::required(path, "name the server's image with its sha256 digest"));
    } else if !is_pinned_image(trimmed) {
        let detail = "must be pinned: REPOSITORY@sha256: and 64 lower-case hexadecimal digits, a tag before it or not";
        errors.push(FieldError::invalid(path, image, detail));
    }
}

fn is_port(port: i32) -> bool {
    (1..=65_535).contains(&port)
}

fn check_port(path: &str, port: i32, errors: &mut Vec<FieldError>) {
    if !is_port(port) {
        errors.push(FieldError::invalid(path, port, "must be a port, 1-65535"));
    }
}

fn at_least_one(path: &str, workers: i32, errors: &mut Vec<FieldError>) {
    if workers < 1 {
        errors.push(FieldError::invalid(path, workers, "must be at least 1"));
    }
}

/// What the server needs must be there: its capacity and 1Gi more in memory, and some CPU. `before` are violations that hide
/// others at the same place.
fn check_budget(
    path: &str,
    l1_capacity: &Quantity,
    resources: &ResourceRequirements,
    before: Vec<FieldError>,
    errors: &mut Vec<FieldError>,
) {
    let capacity = amount(l1_capacity);
    if !capacity.is_positive() {
        errors.push(FieldError::invalid(format!("{path}.l1Capacity"), &l1_capacity.0, "must be greater than zero"));
    }
    let path = format!("{path}.resources");
    let mut found = before;
    let mut tell = |error: FieldError| {
        if !found.iter().any(|told| told.path == error.path) {
            found.push(error);
        }
    };
    check(&path, resources).into_iter().for_each(&mut tell);
    let get = |amounts: &Option<std::collections::BTreeMap<String, Quantity>>, name: &str| {
        amounts.as_ref().and_then(|amounts| amounts.get(name)).cloned()
    };
    let cpu = get(&resources.requests, "cpu");
    if !cpu.is_some_and(|cpu| amount(&cpu).is_positive()) {
        tell(FieldError::required(format!("{path}.requests[cpu]"), "the server needs a CPU request above zero"));
    }
    let budget = capacity.plus(Amount::GIB);
    for (list, amounts) in [("requests", &resources.requests), ("limits", &resources.limits)] {
        let path = format!("{path}.{list}[memory]");
        let memory = get(amounts, "memory");
        match memory {
            Some(memory) if amount(&memory).is_positive() => {
                if capacity.is_positive() && amount(&memory) < budget {
                    let detail =
                        format!("must be at least {budget}: l1Capacity of {} and 1Gi for the server", l1_capacity.0);
                    tell(FieldError::invalid(path, &memory.0, detail));
                }
            }
            _ => {
                let detail = format!("the server needs memory above zero: l1Capacity and 1Gi, that is {budget}");
                tell(FieldError::required(path, detail));
            }
        }
    }
    errors.extend(found);
}
