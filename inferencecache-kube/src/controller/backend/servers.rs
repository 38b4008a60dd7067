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

#[cfg(test)]
mod tests {
    use super::super::ownership::reference;
    use super::super::samples::{backend, engine, merge, object};
    use super::*;
    use crate::adapters::lmcache::node_server;
    use serde_json::{Value, json};

    const NOW: &str = "2026-01-02T03:04:05Z";

    fn now() -> Timestamp {
        NOW.parse().expect("a time")
    }

    fn node_local() -> CacheBackend {
        backend("node-local", &json!({}))
    }

    /// The server of `node` as an API server has it, with a merge patch.
    fn server(node: &str, patch: &Value) -> Pod {
        let backend = node_local();
        let mut pod = node_server::render(&backend, None, node, &engine("e", node, &json!({}))).expect("a server");
        pod.metadata.owner_references = Some(vec![reference(&backend).expect("an owner")]);
        pod.metadata.uid = Some(format!("uid-{node}"));
        let mut pod = serde_json::to_value(pod).expect("JSON");
        merge(&mut pod, patch);
        serde_json::from_value(pod).expect("a Pod")
    }

    fn name(pod: &Pod) -> &str {
        pod.metadata.name.as_deref().unwrap_or_default()
    }

    /// The steps in words, and when to look again in seconds.
    fn steps(backend: &CacheBackend, pods: &[Pod]) -> (Vec<String>, Option<u64>) {
        let plan = plan(backend, &Identity::of(backend).expect("an identity"), pods, now());
        let word = |step: &Step<'_>| match step {
            Step::Delete(pod) => format!("delete {}", name(pod)),
            Step::MarkIdle(pod) => format!("mark {}", name(pod)),
            Step::Unmark(pod) => format!("unmark {}", name(pod)),
            Step::Create { node, source } => format!("create on {node} after {}", name(source)),
            Step::Taken(pod) => format!("taken {}", name(pod)),
        };
        (plan.steps.iter().map(word).collect(), plan.next.map(|next| next.as_secs()))
    }

    #[track_caller]
    fn check(rule: &str, pods: &[Pod], expected: &[&str], next: Option<u64>) {
        let (found, when) = steps(&node_local(), pods);
        assert_eq!(
            (found.as_slice(), when),
            (expected.iter().map(ToString::to_string).collect::<Vec<_>>().as_slice(), next),
            "{rule}"
        );
    }

    const A: &str = "cache-66570ff05a20";

    fn on(node: &str) -> Pod {
        engine("e1", node, &json!({}))
    }

    fn idle_since(time: &str) -> Value {
        json!({"metadata": {"annotations": {names::NODE_IDLE_SINCE: time}}})
    }

    /// controller:51,52,57,58
    #[test]
    fn servers_follow_engines_that_are_on_a_node() {
        let patched = |patch: Value| vec![engine("e", "node-a", &patch)];
        check("no engine", &[], &[], None);
        let three = [on("node-b"), engine("b", "node-a", &json!({})), engine("a", "node-a", &json!({}))];
        check(
            "one on each node, after its first engine",
            &three,
            &["create on node-a after a", "create on node-b after e1"],
            None,
        );
        check("no node", &patched(json!({"spec": {"nodeName": null}})), &[], None);
        let annotated = |key: &str, value: Value| patched(json!({"metadata": {"annotations": {key: value}}}));
        check("of another backend", &annotated("inferencecache.io/injected-by", json!("ns/other")), &[], None);
        check("of an older one", &annotated("inferencecache.io/injected-by-uid", json!("u0")), &[], None);
        check("without uid", &annotated("inferencecache.io/injected-by-uid", json!(null)), &[], None);
        check(
            "an older generation",
            &annotated("inferencecache.io/injected-generation", json!("0")),
            &["create on node-a after e"],
            None,
        );
        check(
            "not selected",
            &patched(json!({"metadata": {"labels": {"inferencecache.io/cache-domain": "d2"}}})),
            &[],
            None,
        );
        check("ending", &patched(json!({"metadata": {"deletionTimestamp": NOW}})), &[], None);
        for phase in ["Succeeded", "Failed"] {
            check(phase, &patched(json!({"status": {"phase": phase}})), &[], None);
        }
        let none = backend("node-local", &json!({"engineSelector": null}));
        assert_eq!(steps(&none, &[on("node-a")]).0, Vec::<String>::new(), "an empty selector selects nothing");
    }

    /// controller:61-64
    #[test]
    fn a_server_without_engines_waits_and_goes() {
        check("marked once", &[server("node-a", &json!({}))], &[&format!("mark {A}")], Some(300));
        check("kept", &[server("node-a", &idle_since("2026-01-02T03:01:05Z"))], &[], Some(120));
        check("time is up", &[server("node-a", &idle_since("2026-01-02T02:59:04Z"))], &[&format!("delete {A}")], None);
        check("no time", &[server("node-a", &idle_since("soon"))], &[&format!("mark {A}")], Some(300));
        check(
            "a time to come",
            &[server("node-a", &idle_since("2027-01-01T00:00:00Z"))],
            &[&format!("mark {A}")],
            Some(300),
        );
        check(
            "reused",
            &[on("node-a"), server("node-a", &idle_since("2020-01-01T00:00:00Z"))],
            &[&format!("unmark {A}")],
            None,
        );
        check("in use", &[on("node-a"), server("node-a", &json!({}))], &[], None);
        let two = [
            server("node-a", &idle_since("2026-01-02T03:01:05Z")),
            server("node-b", &idle_since("2026-01-02T03:00:05Z")),
        ];
        check("the first to go counts", &two, &[], Some(60));
        for seconds in [0, -1] {
            let at_once = backend("node-local", &json!({"lmCache": {"nodeLocal": {"idleRetentionSeconds": seconds}}}));
            assert_eq!(steps(&at_once, &[server("node-a", &json!({}))]), (vec![format!("delete {A}")], None));
        }
    }

    /// controller:65,66,70
    #[test]
    fn a_server_that_is_not_the_right_one_is_replaced() {
        let annotation = |key: &str, value: Value| json!({"metadata": {"annotations": {key: value}}});
        let spec = |change: &dyn Fn(&mut Value)| {
            let mut pod = serde_json::to_value(server("node-a", &json!({}))).expect("JSON");
            change(&mut pod["spec"]);
            pod
        };
        let mut wrong = vec![
            annotation(names::NODE_GENERATION, json!("2")),
            annotation(names::NODE_OWNER_UID, json!("u0")),
            annotation(names::NODE_SHM_NAME, json!(null)),
            annotation(names::NODE_SHM_NAME, json!("other")),
            json!({"status": {"phase": "Failed"}}),
            json!({"status": {"phase": "Succeeded"}}),
        ];
        wrong.extend([
            spec(&|pod| pod["volumes"][0]["hostPath"]["path"] = json!("/dev/shm")),
            spec(&|pod| pod["volumes"][0]["hostPath"]["type"] = json!("Directory")),
            spec(&|pod| pod["volumes"] = json!([{"name": "lmcache-node-shm", "emptyDir": {}}])),
            spec(&|pod| pod["containers"][0]["volumeMounts"][0]["readOnly"] = json!(true)),
            spec(&|pod| pod["containers"][0]["volumeMounts"][0]["subPath"] = json!("x")),
            spec(&|pod| pod["containers"][0]["volumeMounts"] = json!([])),
            spec(&|pod| pod["containers"][0]["args"] = json!(["server"])),
            spec(&|pod| pod["containers"][0]["name"] = json!("other")),
        ]);
        for patch in wrong {
            let pods = [on("node-a"), server("node-a", &patch)];
            check(&patch.to_string(), &pods, &[&format!("delete {A}"), "create on node-a after e1"], None);
            check(&patch.to_string(), &pods[1..], &[&format!("delete {A}")], None);
        }
        let moved = server("node-a", &annotation(names::NODE_TARGET, json!("node-b")));
        check(
            "another node than its name",
            &[on("node-b"), moved],
            &[&format!("delete {A}"), "create on node-b after e1"],
            None,
        );
        let ending = server("node-a", &json!({"metadata": {"deletionTimestamp": NOW}}));
        check("its end is awaited", &[on("node-a"), ending], &[], None);
        let unlabelled = server("node-a", &json!({"metadata": {"labels": null}}));
        check(
            "ours by name alone",
            &[on("node-a"), unlabelled],
            &[&format!("delete {A}"), "create on node-a after e1"],
            None,
        );
    }

    /// controller:60,69
    #[test]
    fn what_others_control_is_left_alone() {
        for owners in [
            json!(null),
            json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "u9", "controller": true}]),
        ] {
            let foreign = server("node-a", &json!({"metadata": {"ownerReferences": owners}}));
            check("no engine", std::slice::from_ref(&foreign), &[], None);
            let pods = [on("node-a"), engine("e2", "node-b", &json!({})), foreign];
            check("the name is taken", &pods, &[&format!("taken {A}"), "create on node-b after e2"], None);
        }
    }

    /// A generation is part of a server's identity, so an edit replaces it.
    #[test]
    fn an_edit_replaces_servers() {
        let edited = object(
            &json!({"name": "cache", "namespace": "ns", "uid": "u1", "generation": 2}),
            &serde_json::to_value(&node_local().spec).expect("JSON"),
        );
        let pods = [on("node-a"), server("node-a", &json!({}))];
        assert_eq!(steps(&edited, &pods).0, [format!("delete {A}"), "create on node-a after e1".to_owned()]);
    }
}
