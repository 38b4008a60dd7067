//! The shared tier: what its Deployment says, what its address is, and the verdict RemoteStorageReady.

use k8s_openapi::api::apps::v1::Deployment;

use crate::adapters::endpoint::host_port;
use crate::api::backend::{RemoteStorage, RemoteStorageStatus};
use crate::controller::condition::{MESSAGE_BYTES, State, Verdict, reasons};
use crate::controller::text::cut;

/// What is known of a managed tier.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Managed<'a> {
    /// The live Deployment, if it is this object's.
    pub(crate) deployment: Option<&'a Deployment>,
    /// Address of the live Service, if it is this object's and has a port.
    pub(crate) endpoint: Option<&'a str>,
    /// Why not everything could be brought about.
    pub(crate) failure: Option<&'a str>,
}

/// Whether a Deployment has what it should have.
pub(crate) fn rollout(deployment: &Deployment) -> Verdict {
    let want = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let status = deployment.status.clone().unwrap_or_default();
    let updated = status.updated_replicas.unwrap_or(0);
    let available = status.available_replicas.unwrap_or(0);
    let is_behind = status.observed_generation.unwrap_or(0) < deployment.metadata.generation.unwrap_or(0);
    if want == 0 {
        return Verdict::new(false, reasons::SCALED_TO_ZERO, "the workload is scaled to zero");
    }
    if is_behind || updated < want {
        return Verdict::new(false, reasons::ROLLOUT, format!("{updated}/{want} replicas updated"));
    }
    let message = format!("{available}/{want} replicas available");
    if available >= want {
        Verdict::new(true, reasons::BACKEND_READY, message)
    } else {
        Verdict::new(false, reasons::REPLICAS_UNAVAILABLE, message)
    }
}

/// The verdict on a managed tier.
pub(crate) fn managed(tier: &Managed<'_>) -> Verdict {
    let failure = tier.failure.unwrap_or_default();
    let Some(deployment) = tier.deployment else {
        let why = if failure.is_empty() { "its Deployment does not exist" } else { failure };
        return Verdict::new(false, reasons::STORAGE_UNAVAILABLE, cut(why, MESSAGE_BYTES));
    };
    let rollout = rollout(deployment);
    let verdict = if rollout.reason == reasons::ROLLOUT {
        Verdict::new(State::Unknown, reasons::STORAGE_PENDING, rollout.message)
    } else if tier.endpoint.is_none() {
        Verdict::new(false, reasons::STORAGE_UNAVAILABLE, "it has no Service with a port")
    } else if rollout.holds() {
        return Verdict::new(true, reasons::STORAGE_READY, rollout.message);
    } else {
        Verdict::new(false, reasons::STORAGE_UNAVAILABLE, rollout.message)
    };
    if failure.is_empty() {
        return verdict;
    }
    Verdict { message: cut(&format!("{}; {failure}", verdict.message), MESSAGE_BYTES), ..verdict }
}

/// The verdict on somebody else's tier: the shape of its address. Nobody calls it.
pub(crate) fn external(endpoint: Option<&str>) -> Verdict {
    let Some(endpoint) = endpoint else {
        let message = "spec.remoteStorage.endpoint is empty";
        return Verdict::new(false, reasons::ENDPOINT_MISSING, message);
    };
    match host_port(endpoint) {
        Ok(_) => Verdict::new(true, reasons::STORAGE_READY, "the address is accepted; nobody has called it"),
        Err(why) => {
            let message = cut(&format!("spec.remoteStorage.endpoint: {why}"), MESSAGE_BYTES);
            Verdict::new(false, reasons::ENDPOINT_INVALID, message)
        }
    }
}

/// What is published beside the condition.
pub(crate) fn published(storage: &RemoteStorage, endpoint: Option<&str>, verdict: &Verdict) -> RemoteStorageStatus {
    RemoteStorageStatus {
        provider: Some(storage.provider.clone()).filter(|provider| !provider.is_empty()),
        endpoint: endpoint.map(ToOwned::to_owned),
        ready: Some(verdict.state.as_str().to_owned()),
    }
}
