//! What Pods say about themselves, and whose they are.
//!
//! A wired engine carries the record of its wiring: who, which uid, which generation. *Owned* means that the first two are this
//! object's, *verified* that all three are. Records are never changed after admission, so an edit of the object leaves its
//! engines owned and no longer verified.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::api::{CacheBackend, names};

/// Whether the labels hold everything that the selector asks for.
#[must_use]
pub fn selects(selector: &BTreeMap<String, String>, labels: Option<&BTreeMap<String, String>>) -> bool {
    selector.iter().all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value))
}

/// An annotation of an object.
#[must_use]
pub fn annotation<'a>(meta: &'a ObjectMeta, key: &str) -> Option<&'a str> {
    meta.annotations.as_ref()?.get(key).map(String::as_str)
}

/// Whether the object with that uid is the controller of this one.
#[must_use]
pub fn is_controlled_by(meta: &ObjectMeta, uid: &str) -> bool {
    meta.owner_references.iter().flatten().any(|owner| owner.controller == Some(true) && owner.uid == uid)
}

/// Whether a Pod is neither ending nor finished.
#[must_use]
pub fn is_active(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_none() && !is_finished(pod)
}

/// Whether a Pod has run to its end.
#[must_use]
pub fn is_finished(pod: &Pod) -> bool {
    matches!(pod.status.as_ref().and_then(|status| status.phase.as_deref()), Some("Succeeded" | "Failed"))
}

/// A condition of a Pod.
#[must_use]
pub fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.iter().flatten().find(|condition| condition.type_ == type_)
}

/// Whether a Pod is ready.
#[must_use]
pub fn is_ready(pod: &Pod) -> bool {
    condition(pod, "Ready").is_some_and(|ready| ready.status == "True")
}

/// The node that a Pod is on.
#[must_use]
pub fn node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref().filter(|node| !node.is_empty())
}

/// Name of an object.
#[must_use]
pub fn name(meta: &ObjectMeta) -> &str {
    meta.name.as_deref().unwrap_or_default()
}

/// Whether the container of that name is ready and running.
#[must_use]
pub fn is_serving(statuses: Option<&Vec<ContainerStatus>>, container: &str) -> bool {
    statuses.into_iter().flatten().any(|status| {
        let running = status.state.as_ref().is_some_and(|state| state.running.is_some());
        status.name == container && status.ready && running
    })
}

/// An object as the records of Pods name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// `NAMESPACE/NAME`.
    pub owner: String,
    /// Its uid; empty in an object that was never stored, which owns nothing.
    pub uid: String,
    /// Its generation, in decimal.
    pub generation: String,
}

impl Record {
    /// Of an object, as it is now.
    #[must_use]
    pub fn of(backend: &CacheBackend) -> Self {
        let meta = &backend.metadata;
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        Self {
            owner: format!("{}/{}", text(&meta.namespace), text(&meta.name)),
            uid: text(&meta.uid),
            generation: meta.generation.unwrap_or_default().to_string(),
        }
    }

    /// Whether the Pod was wired by this object.
    #[must_use]
    pub fn owns(&self, pod: &Pod) -> bool {
        !self.uid.is_empty()
            && annotation(&pod.metadata, names::INJECTED_BY) == Some(&self.owner)
            && annotation(&pod.metadata, names::INJECTED_BY_UID) == Some(&self.uid)
    }

    /// Whether the Pod was wired by this object as it is now.
    #[must_use]
    pub fn verifies(&self, pod: &Pod) -> bool {
        self.owns(pod) && annotation(&pod.metadata, names::INJECTED_GENERATION) == Some(&self.generation)
    }

    /// Whether the Pod is a node's server of this object, at any generation.
    #[must_use]
    pub fn serves(&self, pod: &Pod) -> bool {
        let label = |key: &str| pod.metadata.labels.as_ref().and_then(|labels| labels.get(key)).map(String::as_str);
        label(names::NODE_SERVER) == Some("true")
            && label(names::BACKEND_UID) == Some(&self.uid)
            && is_controlled_by(&pod.metadata, &self.uid)
    }
}
