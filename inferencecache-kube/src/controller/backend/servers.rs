//! LMCache servers on nodes: where one is needed, which of those that live may stay, what to do.
//!
//! ```text
//!  Pods of the namespace ─▶ demand: node → its first engine ─┐
//!                        └▶ servers of ours ─────────────────┴─▶ Steps
//!
//!  not current ─ delete      current, no engine ─ mark idle ─ … retention … ─ delete
//!  no server ─── create      current, engine back ─ unmark
//! ```
//!
//! A server follows engines that are on a node already; nothing is placed ahead of them. Names follow from backend and node,
//! so two servers of one node cannot be.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, Volume};
use k8s_openapi::jiff::Timestamp;

use super::engines::{annotation, is_active, is_finished, is_owned, is_selected, node_of};
use super::ownership::is_ours;
use crate::adapters::lmcache::node_local::Identity;
use crate::adapters::lmcache::node_server::pod_name;
use crate::api::{CacheBackend, names};

/// Where the shared memory is mounted.
const SHM_PATH: &str = "/dev/shm";

/// One thing to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Step<'a> {
    /// The server is not, or no longer, what should run.
    Delete(&'a Pod),
    /// Its node has no engine any more; the wait for another one begins.
    MarkIdle(&'a Pod),
    /// Its node has an engine again.
    Unmark(&'a Pod),
    /// The node has an engine and no server.
    Create {
        /// The node.
        node: &'a str,
        /// The engine that the server takes after.
        source: &'a Pod,
    },
    /// As [`Step::Create`], but somebody else's Pod has the name. It is left alone.
    Taken(&'a Pod),
}

/// What to do, in that order, and when to look again.
#[derive(Debug, Default, PartialEq)]
pub struct Steps<'a> {
    /// What to do.
    pub steps: Vec<Step<'a>>,
    /// Until the first of the idle servers has been idle for long enough.
    pub next: Option<Duration>,
}

/// Nodes with an engine of this object, and the first engine by name of each. Which generation wired the engine does not
/// matter: it needs its server either way.
#[must_use]
pub fn demand<'a>(backend: &CacheBackend, pods: &'a [Pod]) -> BTreeMap<&'a str, &'a Pod> {
    let mut nodes: BTreeMap<&str, &Pod> = BTreeMap::new();
    for pod in pods.iter().filter(|pod| is_selected(pod, backend) && is_active(pod) && is_owned(pod, backend)) {
        let Some(node) = node_of(pod) else { continue };
        nodes
            .entry(node)
            .and_modify(|first| {
                if pod.metadata.name < first.metadata.name {
                    *first = pod;
                }
            })
            .or_insert(pod);
    }
    nodes
}

/// Servers of this object: labelled as such, and controlled by it.
pub fn servers<'a>(backend: &CacheBackend, pods: &'a [Pod]) -> impl Iterator<Item = &'a Pod> {
    pods.iter().filter(move |pod| {
        let label = |key: &str| pod.metadata.labels.as_ref().and_then(|labels| labels.get(key)).map(String::as_str);
        label(names::NODE_SERVER) == Some("true")
            && label(names::BACKEND_UID) == backend.metadata.uid.as_deref()
            && is_ours(&pod.metadata, backend)
    })
}

/// Whether the Pod uses the shared memory of this object, whole and writable, and was rendered for it as it is now.
#[must_use]
pub fn is_current(pod: &Pod, backend: &CacheBackend, identity: &Identity) -> bool {
    let generation = backend.metadata.generation.unwrap_or_default().to_string();
    annotation(pod, names::NODE_OWNER_UID) == backend.metadata.uid.as_deref()
        && annotation(pod, names::NODE_GENERATION) == Some(&generation)
        && annotation(pod, names::NODE_SHM_NAME) == Some(&identity.shm_name)
        && pod.spec.as_ref().is_some_and(|spec| shares_memory(spec, identity))
}

fn shares_memory(spec: &PodSpec, identity: &Identity) -> bool {
    let server = spec.containers.iter().find(|container| container.name == names::MP_SERVER_CONTAINER);
    server.is_some_and(|server| {
        let args = server.args.as_deref().unwrap_or_default();
        args.windows(2).any(|pair| matches!(pair, [flag, name] if flag == "--shm-name" && *name == identity.shm_name))
            && mounted(server, spec.volumes.as_deref().unwrap_or_default(), identity)
    })
}

fn mounted(server: &Container, volumes: &[Volume], identity: &Identity) -> bool {
    let part = |path: &Option<String>| path.as_ref().is_some_and(|path| !path.is_empty());
    let mount = server.volume_mounts.iter().flatten().find(|mount| mount.mount_path == SHM_PATH);
    mount.is_some_and(|mount| {
        let source =
            volumes.iter().find(|volume| volume.name == mount.name).and_then(|volume| volume.host_path.as_ref());
        mount.read_only != Some(true)
            && !part(&mount.sub_path)
            && !part(&mount.sub_path_expr)
            && source.is_some_and(|source| {
                source.path == identity.host_directory && source.type_.as_deref() == Some("DirectoryOrCreate")
            })
    })
}

/// What to do about the servers, given every Pod of the namespace.
#[must_use]
pub fn plan<'a>(backend: &CacheBackend, identity: &Identity, pods: &'a [Pod], now: Timestamp) -> Steps<'a> {
    let demand = demand(backend, pods);
    let name = backend.metadata.name.as_deref().unwrap_or_default();
    let mut plan = Steps::default();
    let mut served: Vec<&str> = Vec::new();
    for pod in servers(backend, pods).filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
        // One that has ended serves nobody and does not come back: kubelets restart containers, not evicted Pods.
        let node = annotation(pod, names::NODE_TARGET)
            .filter(|node| pod.metadata.name == Some(pod_name(name, node)))
            .filter(|_| is_current(pod, backend, identity) && !is_finished(pod));
        match node {
            None => plan.steps.push(Step::Delete(pod)),
            Some(node) if demand.contains_key(node) => {
                served.push(node);
                if annotation(pod, names::NODE_IDLE_SINCE).is_some() {
                    plan.steps.push(Step::Unmark(pod));
                }
            }
            Some(_) => plan.idle(pod, retention(backend), now),
        }
    }
    for (node, source) in demand {
        if served.contains(&node) {
            continue;
        }
        let wanted = Some(pod_name(name, node));
        match pods.iter().find(|pod| pod.metadata.name == wanted) {
            Some(pod) if !is_ours(&pod.metadata, backend) => plan.steps.push(Step::Taken(pod)),
            // The end of it is an event of its own.
            Some(pod) if pod.metadata.deletion_timestamp.is_some() => {}
            Some(pod) => {
                if !plan.steps.contains(&Step::Delete(pod)) {
                    plan.steps.push(Step::Delete(pod));
                }
                plan.steps.push(Step::Create { node, source });
            }
            None => plan.steps.push(Step::Create { node, source }),
        }
    }
    plan
}

impl<'a> Steps<'a> {
    /// A server without an engine on its node: it stays for a while, warm.
    fn idle(&mut self, pod: &'a Pod, retention: Duration, now: Timestamp) {
        if retention.is_zero() {
            return self.steps.push(Step::Delete(pod));
        }
        // A time that is yet to come was written by a clock that went wrong, and would keep the server for as long.
        let since = annotation(pod, names::NODE_IDLE_SINCE)
            .and_then(|since| since.parse::<Timestamp>().ok())
            .and_then(|since| Duration::try_from(now.duration_since(since)).ok());
        let left = match since {
            None => {
                self.steps.push(Step::MarkIdle(pod));
                retention
            }
            Some(idle) if idle >= retention => return self.steps.push(Step::Delete(pod)),
            Some(idle) => retention.saturating_sub(idle),
        };
        self.next = Some(self.next.map_or(left, |next| next.min(left)));
    }
}

fn retention(backend: &CacheBackend) -> Duration {
    let seconds = backend.spec.lm_cache.as_ref().and_then(|l| Some(l.node_local.as_ref()?.idle_retention_seconds));
    Duration::from_secs(seconds.unwrap_or_default().try_into().unwrap_or_default())
}
