//! NodeLocal: one server on each node that has an owned engine, shared by the engines of the node.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Pod, PodSpec};

use super::{Connector, Covered, summary, unfit};
use crate::adapters::lmcache::node_local::Identity;
use crate::api::backend::Topology;
use crate::api::{CacheBackend, names};
use crate::controller::backend::pods::{self, Record};
use crate::controller::condition::{Verdict, reasons};

const SHM: &str = "/dev/shm";

pub(super) fn judge(backend: &CacheBackend, record: &Record, engines: &[&Pod], all: &[Pod]) -> Connector {
    let block = backend.spec.lm_cache.as_ref().and_then(|lm_cache| lm_cache.node_local.as_ref());
    let (Some(server), Ok(identity)) = (block.and_then(|block| block.server.as_ref()), Identity::of(backend)) else {
        return Connector::Kept;
    };
    let servers: Vec<&Pod> = all.iter().filter(|pod| is_current(pod, record, &identity)).collect();
    let pool = Pool::of(record, engines, &servers, usize::try_from(server.max_gpu_workers).unwrap_or(0));
    let engines: Vec<Covered<'_>> = engines.iter().map(|pod| pool.cover(record, pod)).collect();
    let ready = pool.desired().filter(|node| pool.healthy_on(node) == 1).count();
    let status = summary(Topology::NodeLocal, &engines, pool.desired().count(), ready);
    let verdict = unfit(&engines).unwrap_or_else(|| pool.verdict(&engines, ready));
    Connector::Is(Box::new(status), verdict)
}

/// Whether a Pod is a server of this object as it is now, and not ending.
fn is_current(pod: &Pod, record: &Record, identity: &Identity) -> bool {
    let is = |key: &str, value: &str| pods::annotation(&pod.metadata, key) == Some(value);
    record.serves(pod)
        && pod.metadata.deletion_timestamp.is_none()
        && is(names::NODE_OWNER, &record.owner)
        && is(names::NODE_OWNER_UID, &record.uid)
        && is(names::NODE_GENERATION, &record.generation)
        && is(names::NODE_SHM_NAME, &identity.shm_name)
        && pod.spec.as_ref().is_some_and(|spec| shares_memory(spec, identity))
}

/// Whether the server works on the node's shared memory of this object, whole and writable, under its name.
fn shares_memory(spec: &PodSpec, identity: &Identity) -> bool {
    let Some(server) = spec.containers.iter().find(|container| container.name == names::MP_SERVER_CONTAINER) else {
        return false;
    };
    let blank = |path: &Option<String>| path.as_deref().unwrap_or_default().is_empty();
    let mount = server.volume_mounts.iter().flatten().find(|mount| mount.mount_path == SHM);
    let Some(mount) = mount.filter(|mount| mount.read_only != Some(true)) else { return false };
    let volume = spec.volumes.iter().flatten().find(|volume| volume.name == mount.name);
    let path = volume.and_then(|volume| volume.host_path.as_ref());
    let named = |pair: &[String]| matches!(pair, [flag, name] if flag == "--shm-name" && *name == identity.shm_name);
    blank(&mount.sub_path)
        && blank(&mount.sub_path_expr)
        && path.is_some_and(|path| {
            path.path == identity.host_directory && path.type_.as_deref() == Some("DirectoryOrCreate")
        })
        && server.args.as_deref().unwrap_or_default().windows(2).any(named)
}

/// Nodes with owned engines, and what serves them.
struct Pool<'a> {
    /// Owned active engines of a node.
    owned: BTreeMap<&'a str, usize>,
    /// Healthy servers of a node.
    healthy: BTreeMap<&'a str, usize>,
    /// Nodes whose server does not get its host ports.
    blocked: BTreeSet<&'a str>,
    workers: usize,
}

impl<'a> Pool<'a> {
    fn of(record: &Record, engines: &[&'a Pod], servers: &[&'a Pod], workers: usize) -> Self {
        let mut pool = Self { owned: BTreeMap::new(), healthy: BTreeMap::new(), blocked: BTreeSet::new(), workers };
        for engine in engines.iter().filter(|engine| record.owns(engine)) {
            if let Some(node) = pods::node(engine) {
                *pool.owned.entry(node).or_default() += 1;
            }
        }
        for server in servers {
            let Some(target) = pods::annotation(&server.metadata, names::NODE_TARGET) else { continue };
            let containers = server.status.as_ref().and_then(|status| status.container_statuses.as_ref());
            let serving = pods::is_serving(containers, names::MP_SERVER_CONTAINER);
            if pods::node(server) == Some(target) && pods::is_ready(server) && serving {
                *pool.healthy.entry(target).or_default() += 1;
            }
            if lacks_ports(server) {
                pool.blocked.insert(target);
            }
        }
        pool
    }

    fn desired(&self) -> impl Iterator<Item = &'a str> {
        self.owned.keys().copied()
    }

    fn healthy_on(&self, node: &str) -> usize {
        self.healthy.get(node).copied().unwrap_or(0)
    }

    fn within_workers(&self, pod: &Pod) -> bool {
        let owned = pods::node(pod).and_then(|node| self.owned.get(node)).copied().unwrap_or(0);
        (1..=self.workers).contains(&owned)
    }

    fn cover<'p>(&self, record: &Record, pod: &'p Pod) -> Covered<'p> {
        let verified = record.verifies(pod);
        let healthy = pods::node(pod).map_or(0, |node| self.healthy_on(node));
        let covered = verified && self.within_workers(pod) && healthy == 1;
        let reason = if !verified {
            reasons::INJECTION_UNVERIFIED
        } else if pods::node(pod).is_none() {
            reasons::ENGINE_SCHEDULING_PENDING
        } else if !self.within_workers(pod) {
            reasons::NODE_WORKERS_EXCEEDED
        } else if healthy > 1 {
            reasons::NODE_SERVERS_AMBIGUOUS
        } else if covered {
            reasons::CONNECTOR_READY
        } else {
            reasons::MP_SERVERS_NOT_READY
        };
        Covered { pod, verified, covered, reason }
    }

    /// Of engines that are all verified.
    fn verdict(&self, engines: &[Covered<'_>], ready: usize) -> Verdict {
        let desired = self.owned.len();
        let no = |reason, message: String| Verdict::new(false, reason, message);
        if desired == 0 {
            return no(reasons::NODE_POOL_PENDING, "no engine Pod is on a node yet".to_owned());
        }
        if let Some(node) = self.desired().find(|node| self.blocked.contains(node)) {
            return no(reasons::NODE_PORT_CONFLICT, format!("the server of node {node} does not get its host ports"));
        }
        if let Some(engine) =
            engines.iter().find(|engine| pods::node(engine.pod).is_some() && !self.within_workers(engine.pod))
        {
            let node = pods::node(engine.pod).unwrap_or_default();
            let owned = self.owned.get(node).copied().unwrap_or(0);
            return no(
                reasons::NODE_WORKERS_EXCEEDED,
                format!("node {node} has {owned} engine Pods; its server serves maxGPUWorkers = {}", self.workers),
            );
        }
        if let Some(node) = engines.iter().filter_map(|e| pods::node(e.pod)).find(|node| self.healthy_on(node) > 1) {
            return no(reasons::NODE_SERVERS_AMBIGUOUS, format!("node {node} has more than one healthy server"));
        }
        let all = engines.len();
        let good = engines.iter().filter(|engine| engine.covered && pods::is_ready(engine.pod)).count();
        if ready == desired && good == all {
            let message = format!("{all}/{all} engine Pods are served by {desired} node servers");
            return Verdict::new(true, reasons::CONNECTOR_READY, message);
        }
        no(
            reasons::NODE_POOL_PENDING,
            format!("{ready}/{desired} node servers are ready, {good}/{all} engine Pods are ready and served"),
        )
    }
}

/// Whether the scheduler says that the ports are taken.
fn lacks_ports(pod: &Pod) -> bool {
    pods::condition(pod, "PodScheduled").is_some_and(|scheduled| {
        let message = scheduled.message.as_deref().unwrap_or_default().to_lowercase();
        scheduled.status == "False"
            && scheduled.reason.as_deref() == Some("Unschedulable")
            && ["free ports", "hostport", "host port"].iter().any(|words| message.contains(words))
    })
}
