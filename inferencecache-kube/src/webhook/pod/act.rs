//! From a review of a Pod to its answer.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::core::DynamicObject;

use super::{Decision, Outcome, diff, link, wants_candidates};
use crate::adapters::RuntimeRegistry;
use crate::webhook::decode::without_nulls;
use crate::webhook::metrics::Metrics;
use crate::webhook::names::Kind;
use crate::webhook::review::{Answer, Request};
use crate::webhook::siblings::Siblings;

/// Longest wait for the backends of a namespace. The API server waits 3 s for the whole review.
pub(super) const DEADLINE: Duration = Duration::from_secs(2);

/// Answers. What cannot be decided lets the Pod be created as it is.
pub(in crate::webhook) async fn answer(
    request: &Request,
    siblings: &dyn Siblings,
    registry: &RuntimeRegistry,
    metrics: &Metrics,
) -> Answer {
    if request.operation.is_empty() {
        return Answer::Allowed;
    }
    let Ok(pod) = serde_json::from_value::<Pod>(without_nulls(&request.object)) else {
        metrics.linked(Outcome::Unreadable, None);
        return Answer::Allowed;
    };
    let namespace = request.object_namespace();
    let decision = match candidates(&pod, namespace, siblings).await {
        Ok(candidates) => link(&pod, namespace, &candidates, registry),
        Err(why) => {
            tracing::warn!(namespace, err = why, "linker_backends_unread");
            Decision::released(Outcome::Unread, &pod, Some(format!("created without a cache: {why}")))
        }
    };
    metrics.linked(decision.outcome, decision.backend.as_deref());
    if decision.backend.is_some() {
        let (name, outcome) = (request.object_name(), decision.outcome.name());
        let (backend, note) = (decision.backend.as_deref(), decision.note.as_deref());
        tracing::info!(namespace, name, outcome, backend, note, "linker_pod");
    }
    let operations = diff::patch(&request.object, &pod, &decision.pod);
    match (decision.outcome, decision.note) {
        (Outcome::Ambiguous, Some(note)) => Answer::Denied(note),
        (_, Some(note)) => Answer::Noted(operations, note),
        (_, None) => Answer::Patched(operations),
    }
}

/// The backends of the namespace, read now; none where none is asked for.
async fn candidates(pod: &Pod, namespace: &str, siblings: &dyn Siblings) -> Result<Vec<DynamicObject>, String> {
    // Without a namespace the question would be about all of them.
    if namespace.is_empty() || !wants_candidates(pod) {
        return Ok(Vec::new());
    }
    match tokio::time::timeout(DEADLINE, siblings.list(Kind::Backend, namespace)).await {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(why)) => Err(why.to_string()),
        Err(_) => Err(format!("listing {} took longer than {DEADLINE:?}", Kind::Backend.plural())),
    }
}
