//! NodeLocal: one server on each node that has an owned engine, shared by the engines of the node.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Pod;

use super::{Connector, Covered, pod, summary, unfit};
use crate::adapters::lmcache::node_local::Identity;
use crate::api::backend::Topology;
use crate::api::{CacheBackend, names};
use crate::controller::backend::engines::{annotation, is_owned, is_ready, is_verified, node_of};
use crate::controller::backend::servers::{is_current, servers};
use crate::controller::condition::{Verdict, reasons};

pub(super) fn judge(backend: &CacheBackend, engines: &[&Pod], all: &[Pod]) -> Connector {
    let block = backend.spec.lm_cache.as_ref().and_then(|lm_cache| lm_cache.node_local.as_ref());
    let (Some(server), Ok(identity)) = (block.and_then(|block| block.server.as_ref()), Identity::of(backend)) else {
        return Connector::Kept;
    };
    let servers: Vec<&Pod> = servers(backend, all).filter(|pod| counts(pod, backend, &identity)).collect();
    let pool = Pool::of(backend, engines, &servers, usize::try_from(server.max_gpu_workers).unwrap_or(0));
    let engines: Vec<Covered<'_>> = engines.iter().map(|pod| pool.cover(backend, pod)).collect();
    let ready = pool.desired().filter(|node| pool.healthy_on(node) == 1).count();
    let status = summary(Topology::NodeLocal, &engines, pool.desired().count(), ready);
    let verdict = unfit(&engines).unwrap_or_else(|| pool.verdict(&engines, ready));
    Connector::Is(Box::new(status), verdict)
}

/// Whether a Pod of ours is a server of this object as it is now, and not ending.
fn counts(pod: &Pod, backend: &CacheBackend, identity: &Identity) -> bool {
    let meta = &backend.metadata;
    let owner = annotation(pod, names::NODE_OWNER).and_then(|owner| owner.split_once('/'));
    pod.metadata.deletion_timestamp.is_none()
        && owner == meta.namespace.as_deref().zip(meta.name.as_deref())
        && is_current(pod, backend, identity)
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
    fn of(backend: &CacheBackend, engines: &[&'a Pod], servers: &[&'a Pod], workers: usize) -> Self {
        let mut pool = Self { owned: BTreeMap::new(), healthy: BTreeMap::new(), blocked: BTreeSet::new(), workers };
        for engine in engines.iter().filter(|engine| is_owned(engine, backend)) {
            if let Some(node) = node_of(engine) {
                *pool.owned.entry(node).or_default() += 1;
            }
        }
        for server in servers {
            let Some(target) = annotation(server, names::NODE_TARGET) else { continue };
            let containers = server.status.as_ref().and_then(|status| status.container_statuses.as_ref());
            let serving = pod::is_serving(containers, names::MP_SERVER_CONTAINER);
            if node_of(server) == Some(target) && is_ready(server) && serving {
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
        let owned = node_of(pod).and_then(|node| self.owned.get(node)).copied().unwrap_or(0);
        (1..=self.workers).contains(&owned)
    }

    fn cover<'p>(&self, backend: &CacheBackend, pod: &'p Pod) -> Covered<'p> {
        let verified = is_verified(pod, backend);
        let healthy = node_of(pod).map_or(0, |node| self.healthy_on(node));
        let covered = verified && self.within_workers(pod) && healthy == 1;
        let reason = if !verified {
            reasons::INJECTION_UNVERIFIED
        } else if node_of(pod).is_none() {
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
            engines.iter().find(|engine| node_of(engine.pod).is_some() && !self.within_workers(engine.pod))
        {
            let node = node_of(engine.pod).unwrap_or_default();
            let owned = self.owned.get(node).copied().unwrap_or(0);
            return no(
                reasons::NODE_WORKERS_EXCEEDED,
                format!("node {node} has {owned} engine Pods; its server serves maxGPUWorkers = {}", self.workers),
            );
        }
        if let Some(node) = engines.iter().filter_map(|e| node_of(e.pod)).find(|node| self.healthy_on(node) > 1) {
            return no(reasons::NODE_SERVERS_AMBIGUOUS, format!("node {node} has more than one healthy server"));
        }
        let all = engines.len();
        let good = engines.iter().filter(|engine| engine.covered && is_ready(engine.pod)).count();
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
    pod::condition(pod, "PodScheduled").is_some_and(|scheduled| {
        let message = scheduled.message.as_deref().unwrap_or_default().to_lowercase();
        scheduled.status == "False"
            && scheduled.reason.as_deref() == Some("Unschedulable")
            && ["free ports", "hostport", "host port"].iter().any(|words| message.contains(words))
    })
}
