//! Acting on what [`servers`](super::super::servers) decides.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::super::error::ChildError;
use super::super::ownership::{self, Standing};
use super::super::servers::{Step, plan, servers};
use super::{is_conflict, is_gone, namespace_of};
use crate::adapters::Binding;
use crate::adapters::lmcache::node_local::Identity;
use crate::adapters::lmcache::node_server;
use crate::api::{CacheBackend, names};

const POD: &str = "Pod";

/// Removes every server of the object.
pub(super) async fn remove_all(client: &Client, backend: &CacheBackend, pods: &[Pod]) -> Result<(), ChildError> {
    let api = Api::namespaced(client.clone(), namespace_of(backend));
    let mut failed = Ok(());
    for pod in servers(backend, pods).filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
        failed = failed.and(delete(&api, pod).await);
    }
    failed
}

/// Makes servers follow the engines. One that fails does not keep the others waiting. Says when to look again and what
/// failed first.
pub(super) async fn follow(
    client: &Client,
    backend: &CacheBackend,
    binding: Option<&Binding>,
    pods: &[Pod],
    now: Timestamp,
) -> (Option<Duration>, Option<ChildError>) {
    let identity = match Identity::of(backend) {
        Ok(identity) => identity,
        Err(why) => return (None, Some(why.into())),
    };
    let api = Api::namespaced(client.clone(), namespace_of(backend));
    let plan = plan(backend, &identity, pods, now);
    let mut failed = None;
    for step in plan.steps {
        let done = match step {
            Step::Delete(pod) => delete(&api, pod).await,
            Step::MarkIdle(pod) => annotate(&api, pod, json!(now.to_string())).await,
            Step::Unmark(pod) => annotate(&api, pod, Value::Null).await,
            Step::Create { node, source } => create(&api, backend, binding, node, source).await,
            Step::Taken(pod) => Err(taken(pod, backend)),
        };
        failed = failed.or(done.err());
    }
    (plan.next, failed)
}

async fn delete(api: &Api<Pod>, pod: &Pod) -> Result<(), ChildError> {
    let name = name(pod);
    let uid = pod.metadata.uid.clone();
    let exactly = Preconditions { uid, resource_version: None };
    let parameters = DeleteParams { preconditions: Some(exactly), ..DeleteParams::default() };
    match api.delete(name, &parameters).await {
        // Of that uid there is none left.
        Err(why) if !is_gone(&why) && !is_conflict(&why) => Err(ChildError::api("delete", POD, name)(why)),
        _ => Ok(()),
    }
}

/// Since when the server has been idle, or no longer.
async fn annotate(api: &Api<Pod>, pod: &Pod, since: Value) -> Result<(), ChildError> {
    let name = name(pod);
    let patch = json!({"metadata": {"uid": pod.metadata.uid, "annotations": {names::NODE_IDLE_SINCE: since}}});
    let by = PatchParams { field_manager: Some(names::CONTROLLER.to_owned()), ..PatchParams::default() };
    match api.patch(name, &by, &Patch::Merge(patch)).await {
        Err(why) if !is_gone(&why) => Err(ChildError::api("update", POD, name)(why)),
        _ => Ok(()),
    }
}

async fn create(
    api: &Api<Pod>,
    backend: &CacheBackend,
    binding: Option<&Binding>,
    node: &str,
    source: &Pod,
) -> Result<(), ChildError> {
    let mut pod = node_server::render(backend, binding, node, source)?;
    pod.metadata.owner_references = Some(vec![ownership::reference(backend)?]);
    let name = name(&pod).to_owned();
    let by = PostParams { field_manager: Some(names::CONTROLLER.to_owned()), ..PostParams::default() };
    match api.create(&by, &pod).await {
        Ok(_) => Ok(()),
        Err(why) if is_conflict(&why) => {
            let found = api.get_opt(&name).await.map_err(ChildError::api("read", POD, &name))?;
            match found {
                // It ends, and its end is an event; or it has just ended, and that was one.
                None => Ok(()),
                Some(found)
                    if found.metadata.deletion_timestamp.is_some() && ownership::is_ours(&found.metadata, backend) =>
                {
                    Ok(())
                }
                Some(found) => Err(taken(&found, backend)),
            }
        }
        Err(why) => Err(ChildError::api("create", POD, &name)(why)),
    }
}

/// The name of a server has another Pod.
fn taken(pod: &Pod, backend: &CacheBackend) -> ChildError {
    let name = name(pod).to_owned();
    match ownership::standing(&pod.metadata, backend) {
        Standing::Foreign(owner) => ChildError::Foreign { kind: POD, name, owner },
        Standing::Unowned => ChildError::Occupied { kind: POD, name, problem: "a server's Pod is never adopted" },
        Standing::Ours => ChildError::Occupied { kind: POD, name, problem: "it appeared while one was being made" },
    }
}

fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}
