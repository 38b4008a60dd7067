//! What is asked of an engine Pod: selected, active, wired by this CacheBackend, ready.
//!
//! Said once, because connector, servers and status must agree.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;

use crate::api::backend::Topology;
use crate::api::{CacheBackend, names};

/// Where the LMCache servers of an object run; `None` where it has none: another cache type, events only, no or an unknown
/// topology.
#[must_use]
pub fn topology(backend: &CacheBackend) -> Option<&Topology> {
    use crate::api::backend::CacheType;
    let spec = &backend.spec;
    let topology = &spec.lm_cache.as_ref()?.topology;
    let known = matches!(topology, Topology::PodLocal | Topology::NodeLocal);
    (known && *spec.effective_type() == CacheType::LmCache && !spec.events_only()).then_some(topology)
}

/// Whether the object's selector selects the Pod. An empty selector selects nothing.
#[must_use]
pub fn is_selected(pod: &Pod, backend: &CacheBackend) -> bool {
    backend.spec.selector().is_some_and(|wanted| carries(pod.metadata.labels.as_ref(), wanted))
}

/// Whether labels hold every wanted one.
#[must_use]
pub fn carries(labels: Option<&BTreeMap<String, String>>, wanted: &BTreeMap<String, String>) -> bool {
    wanted.iter().all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value))
}

/// Whether the Pod is neither on its way out nor finished.
#[must_use]
pub fn is_active(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none() && !is_finished(pod)
}

/// Whether the Pod has run to its end.
#[must_use]
pub fn is_finished(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Whether the Pod says of itself that it is ready.
#[must_use]
pub fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// The node that the Pod is on.
#[must_use]
pub fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|node| !node.is_empty())
}

/// Whether the Pod was wired by this object, at any generation of it. An object of the same name and another uid is
/// another one.
#[must_use]
pub fn is_owned(pod: &Pod, backend: &CacheBackend) -> bool {
    let meta = &backend.metadata;
    let (Some(namespace), Some(name)) = (&meta.namespace, &meta.name) else { return false };
    let uid = meta.uid.as_deref().filter(|uid| !uid.is_empty());
    let by = annotation(pod, names::INJECTED_BY).and_then(|by| by.split_once('/'));
    by == Some((namespace, name)) && uid.is_some() && annotation(pod, names::INJECTED_BY_UID) == uid
}

/// Whether the Pod was wired by this object as it is now.
#[must_use]
pub fn is_verified(pod: &Pod, backend: &CacheBackend) -> bool {
    let generation = backend.metadata.generation.unwrap_or_default().to_string();
    is_owned(pod, backend) && annotation(pod, names::INJECTED_GENERATION) == Some(&generation)
}

/// An annotation of the Pod.
#[must_use]
pub fn annotation<'a>(pod: &'a Pod, key: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}
