//! What is read off a Pod's status, beyond what [`engines`](crate::controller::backend::engines) asks.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodCondition};

/// Name of a Pod.
pub(super) fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

/// A condition of a Pod.
pub(super) fn condition<'a>(pod: &'a Pod, type_: &str) -> Option<&'a PodCondition> {
    pod.status.as_ref()?.conditions.iter().flatten().find(|condition| condition.type_ == type_)
}

/// Whether the container of that name is ready and running.
pub(super) fn is_serving(statuses: Option<&Vec<ContainerStatus>>, container: &str) -> bool {
    statuses.into_iter().flatten().any(|status| {
        let running = status.state.as_ref().is_some_and(|state| state.running.is_some());
        status.name == container && status.ready && running
    })
}
