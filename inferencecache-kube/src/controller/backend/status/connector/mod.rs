//! `status.connector` and ConnectorReady: whether every active engine is covered by a server of this object.
//!
//! *Active* are the selected Pods that are neither ending nor finished. Both topologies fill the same counters and rows; they
//! differ in what a server is and in what can go wrong with it.

mod node_local;
mod pod_local;

use k8s_openapi::api::core::v1::Pod;

use super::pod;
use crate::api::CacheBackend;
use crate::api::backend::{ConnectorMode, ConnectorStatus, EnginePodCoverage, Topology};
use crate::controller::backend::engines::{is_active, is_ready, is_selected, node_of, topology};
use crate::controller::condition::{State, Verdict, reasons};

/// What becomes of the connector's part of the status.
#[derive(Debug, PartialEq)]
pub(crate) enum Connector {
    /// The object has no connector of ours.
    Absent,
    /// It cannot be judged: what was published stays.
    Kept,
    /// It is this.
    Is(Box<ConnectorStatus>, Verdict),
}

/// Judges the Pods of a namespace; `None` where they could not be read.
pub(crate) fn judge(backend: &CacheBackend, pods: Option<&[Pod]>) -> Connector {
    let Some(topology) = topology(backend) else { return Connector::Absent };
    let Some(all) = pods else { return Connector::Kept };
    let engines = active(backend, all);
    match topology {
        Topology::NodeLocal => node_local::judge(backend, &engines, all),
        _ => pod_local::judge(backend, &engines),
    }
}

/// The active engines, by name.
fn active<'a>(backend: &CacheBackend, all: &'a [Pod]) -> Vec<&'a Pod> {
    let mut engines: Vec<&Pod> = all.iter().filter(|pod| is_selected(pod, backend) && is_active(pod)).collect();
    engines.sort_by(|one, other| one.metadata.name.cmp(&other.metadata.name));
    engines
}

/// One engine, judged.
struct Covered<'a> {
    pod: &'a Pod,
    verified: bool,
    covered: bool,
    reason: &'static str,
}

/// The counters and rows that both topologies share.
fn summary(topology: Topology, engines: &[Covered<'_>], desired: usize, ready: usize) -> ConnectorStatus {
    let count = |wanted: &dyn Fn(&Covered<'_>) -> bool| number(engines.iter().filter(|engine| wanted(engine)).count());
    ConnectorStatus {
        mode: Some(ConnectorMode::Multiprocess),
        topology: Some(topology),
        matched_engine_pods: number(engines.len()),
        ready_engine_pods: count(&|engine| engine.covered && is_ready(engine.pod)),
        desired_servers: number(desired),
        ready_servers: number(ready),
        covered_engine_pods: count(&|engine| engine.covered),
        uncovered_engine_pods: count(&|engine| !engine.covered),
        engine_pod_coverage: engines
            .iter()
            .map(|engine| EnginePodCoverage {
                name: pod::name(engine.pod).to_owned(),
                node_name: node_of(engine.pod).map(ToOwned::to_owned),
                ready: is_ready(engine.pod),
                covered: engine.covered,
                reason: engine.reason.to_owned(),
            })
            .collect(),
    }
}

/// What stops before servers are looked at: no engines, or engines that this object did not wire as it is now.
fn unfit(engines: &[Covered<'_>]) -> Option<Verdict> {
    if engines.is_empty() {
        return Some(Verdict::new(false, reasons::NO_ENGINE_PODS, "no active Pod matches spec.engineSelector"));
    }
    let unverified = engines.iter().filter(|engine| !engine.verified).count();
    (unverified > 0).then(|| {
        let message = format!(
            "{unverified} of {} engine Pods were not wired by this object at its current generation; recreate them",
            engines.len()
        );
        Verdict::new(State::Unknown, reasons::INJECTION_UNVERIFIED, message)
    })
}

fn number(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
