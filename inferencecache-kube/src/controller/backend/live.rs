//! Live reads of a pass: the Pods of the namespace, and what its Deployments want.
//!
//! Every read is answered by the API server. A namespace may be full of finished Pods, so they are read page by page, and of a
//! Pod that is neither selected nor wired nor a server of this object only name, uid and owners are kept.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};

use super::engines;
use super::servers;
use super::status::matched::Wanted;
use crate::api::{CacheBackend, names};

/// Objects asked for at a time.
const PAGE: u32 = 200;
/// Objects of a kind looked at in one namespace; with more, the listing counts as failed.
pub const MOST: usize = 50_000;

/// A listing that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListError {
    /// The API server refused, or did not answer.
    #[error("cannot list {0}")]
    Failed(&'static str, #[source] kube::Error),
    /// There are more than [`MOST`].
    #[error("the namespace holds more than {MOST} {0}")]
    TooMany(&'static str),
}

/// The Pods of the object's namespace.
///
/// # Errors
/// [`ListError`].
pub(super) async fn pods(client: &Client, backend: &CacheBackend) -> Result<Vec<Pod>, ListError> {
    let api: Api<Pod> = Api::namespaced(client.clone(), &backend.namespace().unwrap_or_default());
    let mut kept = Vec::new();
    each(&api, "Pods", |pod| kept.push(slim(pod, backend))).await?;
    Ok(kept)
}

/// What the Deployments of the namespace want of Pods that the object selects.
///
/// # Errors
/// [`ListError`].
pub(super) async fn wanted(client: &Client, backend: &CacheBackend) -> Result<Wanted, ListError> {
    let Some(selector) = backend.spec.selector() else { return Ok(Wanted::Nobody) };
    let api: Api<Deployment> = Api::namespaced(client.clone(), &backend.namespace().unwrap_or_default());
    let mut sum = None;
    each(&api, "Deployments", |deployment| {
        let Some(spec) = deployment.spec else { return };
        let labels = spec.template.metadata.and_then(|meta| meta.labels);
        if engines::carries(labels.as_ref(), selector) {
            *sum.get_or_insert(0) += i64::from(spec.replicas.unwrap_or(1));
        }
    })
    .await?;
    Ok(sum.map_or(Wanted::Nobody, Wanted::Replicas))
}

async fn each<K>(api: &Api<K>, kind: &'static str, mut take: impl FnMut(K)) -> Result<(), ListError>
where
    K: Clone + serde::de::DeserializeOwned + std::fmt::Debug,
{
    let mut params = ListParams::default().limit(PAGE);
    let mut seen = 0;
    loop {
        let page = api.list(&params).await.map_err(|why| ListError::Failed(kind, why))?;
        seen += page.items.len();
        if seen > MOST {
            return Err(ListError::TooMany(kind));
        }
        page.items.into_iter().for_each(&mut take);
        match page.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => params.continue_token = Some(token),
            None => return Ok(()),
        }
    }
}

/// A Pod without what nobody here asks for.
fn slim(mut pod: Pod, backend: &CacheBackend) -> Pod {
    let matters = engines::is_selected(&pod, backend)
        || engines::is_owned(&pod, backend)
        || servers::servers(backend, std::slice::from_ref(&pod)).next().is_some();
    if !matters {
        let ObjectMeta { name, namespace, uid, owner_references, deletion_timestamp, resource_version, .. } =
            pod.metadata;
        let metadata = ObjectMeta {
            name,
            namespace,
            uid,
            owner_references,
            deletion_timestamp,
            resource_version,
            ..ObjectMeta::default()
        };
        return Pod { metadata, ..Pod::default() };
    }
    pod.metadata.managed_fields = None;
    if let Some(annotations) = &mut pod.metadata.annotations {
        annotations.retain(|key, _| key.split_once('/').is_some_and(|(group, _)| group == names::GROUP));
    }
    pod
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_matters_of_a_pod_is_kept() {
        let backend: CacheBackend = serde_json::from_value(json!({
            "metadata": {"name": "cache", "namespace": "ns", "uid": "u"},
            "spec": {"engineSelector": {"matchLabels": {"d": "1"}}},
        }))
        .expect("a backend");
        let pod = |labels: serde_json::Value| -> Pod {
            serde_json::from_value(json!({
                "metadata": {"name": "p", "labels": labels, "managedFields": [{"manager": "m"}], "annotations": {
                    "inferencecache.io/injected-by": "ns/other", "example.com/big": "x".repeat(20_000),
                }},
                "spec": {"containers": [{"name": "c"}]},
                "status": {"phase": "Running"},
            }))
            .expect("a Pod")
        };
        let selected = slim(pod(json!({"d": "1"})), &backend);
        assert!(selected.spec.is_some() && selected.metadata.managed_fields.is_none());
        let annotations = selected.metadata.annotations.expect("annotations");
        assert_eq!(annotations.keys().collect::<Vec<_>>(), ["inferencecache.io/injected-by"]);
        let stranger = slim(pod(json!({"d": "2"})), &backend);
        assert_eq!(stranger.metadata.name.as_deref(), Some("p"));
        assert!(stranger.spec.is_none() && stranger.status.is_none() && stranger.metadata.annotations.is_none());
    }
}
