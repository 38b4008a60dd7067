//! Children as they should be: reads, decisions of others, writes.
//!
//! Every read is live. A write is made only where what was read differs from what should be, conditioned on what was read:
//! an update by resource version, a deletion by uid as well. A conflict is answered by reading again, a few times.
//!
//! Store and servers fail apart: a server that cannot be made does not keep the store from being applied, nor either of them
//! the status from being published.

mod servers;
mod shed;
mod workload;

use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::Client;

use super::dispatch::{Plan, Servers};
use super::error::ChildError;
use crate::api::CacheBackend;

/// Attempts at a write that others get in the way of.
const ATTEMPTS: u32 = 5;
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_millis(10);

/// How the children fare.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The live Deployment, if the object controls it; in mode Managed alone. Without it nothing may be said of the store
    /// but why.
    pub deployment: Option<Deployment>,
    /// `host:port` of the live Service, if the object controls it and it has a port.
    pub endpoint: Option<String>,
    /// What kept the store's children from being as they should be. The generation that was applied is then the one before.
    pub storage: Option<ChildError>,
    /// What kept a server from being as it should be, the first of several.
    pub servers: Option<ChildError>,
    /// When to look again even if nothing happens: the first idle server may go then.
    pub next: Option<Duration>,
}

impl Outcome {
    /// What failed, if anything did: the reconcile is to be repeated with back-off.
    #[must_use]
    pub fn failure(self) -> Option<ChildError> {
        self.storage.or(self.servers)
    }
}

/// Makes the children what the plan says. `pods` is every Pod of the object's namespace, listed live in this pass, or nothing
/// where that failed.
///
/// Once the object is being deleted nothing is done: its children go with it.
///
/// # Errors
/// The children that should not be could not be removed, or those that should be could not be read: nothing is known that
/// could be published.
pub async fn apply(
    client: &Client,
    backend: &CacheBackend,
    plan: &Plan,
    pods: Option<&[Pod]>,
    now: Timestamp,
) -> Result<Outcome, ChildError> {
    if backend.metadata.deletion_timestamp.is_some() {
        return Ok(Outcome::default());
    }
    let mut outcome = match &plan.storage {
        Some(desired) => workload::apply(client, backend, desired.as_ref()).await?,
        None => {
            shed::workload(client, backend).await?;
            Outcome::default()
        }
    };
    match &plan.servers {
        Servers::Leave => {}
        Servers::None => outcome.servers = servers::remove_all(client, backend, pods.unwrap_or_default()).await.err(),
        Servers::Follow(binding) => match pods {
            None => outcome.servers = Some(ChildError::PodsUnknown),
            Some(pods) => {
                let (next, failed) = servers::follow(client, backend, binding.as_deref(), pods, now).await;
                outcome.next = next;
                outcome.servers = failed;
            }
        },
    }
    Ok(outcome)
}

/// Whether somebody else wrote in between: the object has another version, or the name was taken.
fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

fn name_of(backend: &CacheBackend) -> &str {
    backend.metadata.name.as_deref().unwrap_or_default()
}

fn namespace_of(backend: &CacheBackend) -> &str {
    backend.metadata.namespace.as_deref().unwrap_or_default()
}
