//! `matchedEnginePods`: every Pod that the selector finds, ending and finished ones included, and whether that surprises.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;

use crate::api::{CacheBackend, CacheBackendStatus};
use crate::controller::backend::engines::{is_finished, is_selected};

/// Replicas that the namespace's Deployments want of Pods which the selector would find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// No such Deployment.
    Nobody,
    /// Their sum.
    Replicas(i64),
}

/// What was counted.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Matched {
    pub(crate) count: Option<i32>,
    pub(crate) message: Option<String>,
    /// Pods are about to come or go.
    pub(crate) churn: bool,
    /// It has just turned out that nobody matches: the note of an Event.
    pub(crate) unmatched: Option<String>,
}

/// Counts. What could not be read (`None`) stays as it was.
pub(crate) fn count(
    backend: &CacheBackend,
    before: &CacheBackendStatus,
    pods: Option<&[Pod]>,
    wanted: Option<Wanted>,
) -> Matched {
    let Some(selector) = backend.spec.selector() else { return Matched::default() };
    let Some(all) = pods else {
        return Matched {
            count: before.matched_engine_pods,
            message: before.engine_selector_message.clone(),
            ..Matched::default()
        };
    };
    let found: Vec<&Pod> = all.iter().filter(|pod| is_selected(pod, backend)).collect();
    let count = i32::try_from(found.len()).unwrap_or(i32::MAX);
    let unfinished = found.iter().filter(|pod| !is_finished(pod)).count();
    let churn = match wanted {
        Some(Wanted::Replicas(replicas)) => i64::try_from(unfinished) != Ok(replicas),
        Some(Wanted::Nobody) | None => false,
    };
    let message = match (count, wanted) {
        (1.., _) | (_, Some(Wanted::Replicas(..=0))) => None,
        (_, None) => before.engine_selector_message.clone(),
        (_, Some(Wanted::Nobody | Wanted::Replicas(_))) => Some(nobody(selector)),
    };
    let was_known = before.matched_engine_pods == Some(0) && before.engine_selector_message.is_some();
    let unmatched = message.clone().filter(|_| count == 0 && wanted.is_some() && !was_known);
    Matched { count: Some(count), message, churn, unmatched }
}

fn nobody(selector: &BTreeMap<String, String>) -> String {
    let labels: Vec<String> = selector.iter().map(|(key, value)| format!("{key}:{value}")).collect();
    format!("spec.engineSelector.matchLabels={{{}}}; no Pods in namespace match", labels.join(","))
}
