//! Removing the store's children when the object no longer asks for a store of its own.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, Preconditions, PropagationPolicy};
use kube::{Api, Client};
use serde::de::DeserializeOwned;

use super::super::error::ChildError;
use super::super::ownership;
use super::{ATTEMPTS, PAUSE, is_conflict, is_gone, name_of, namespace_of};
use crate::api::CacheBackend;

/// Deletes the Deployment and the Service of the object's name, each only if the object controls it.
pub(super) async fn workload(client: &Client, backend: &CacheBackend) -> Result<(), ChildError> {
    let namespace = namespace_of(backend);
    one(&Api::<Deployment>::namespaced(client.clone(), namespace), "Deployment", backend).await?;
    one(&Api::<Service>::namespaced(client.clone(), namespace), "Service", backend).await
}

async fn one<K>(api: &Api<K>, kind: &'static str, backend: &CacheBackend) -> Result<(), ChildError>
where
    K: kube::Resource + Clone + std::fmt::Debug + DeserializeOwned,
{
    let name = name_of(backend);
    for attempt in 1.. {
        let found = api.get_metadata_opt(name).await.map_err(ChildError::api("read", kind, name))?;
        let Some(found) = found.filter(|found| ownership::is_ours(&found.metadata, backend)) else { return Ok(()) };
        if found.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        match api.delete(name, &exactly(&found.metadata)).await {
            Err(why) if is_conflict(&why) && attempt < ATTEMPTS => tokio::time::sleep(PAUSE).await,
            Err(why) if !is_gone(&why) => return Err(ChildError::api("delete", kind, name)(why)),
            _ => return Ok(()),
        }
    }
    Ok(())
}

/// Deletes what was read and nothing that has come since.
fn exactly(found: &ObjectMeta) -> DeleteParams {
    DeleteParams {
        preconditions: Some(Preconditions { uid: found.uid.clone(), resource_version: found.resource_version.clone() }),
        propagation_policy: Some(PropagationPolicy::Background),
        ..DeleteParams::default()
    }
}
