//! PodLocal: the server is a native sidecar of the engine, so each verified engine brings its own.

use k8s_openapi::api::core::v1::Pod;

use super::{Connector, Covered, summary, unfit};
use crate::api::backend::Topology;
use crate::api::names;
use crate::controller::backend::pods::{self, Record};
use crate::controller::condition::{Verdict, reasons};

pub(super) fn judge(record: &Record, engines: &[&Pod]) -> Connector {
    let engines: Vec<Covered<'_>> = engines.iter().map(|pod| cover(record, pod)).collect();
    let ready = engines.iter().filter(|engine| engine.covered).count();
    let status = summary(Topology::PodLocal, &engines, engines.len(), ready);
    let verdict = unfit(&engines).unwrap_or_else(|| {
        let all = engines.len();
        if ready == all && engines.iter().all(|engine| pods::is_ready(engine.pod)) {
            return Verdict::new(
                true,
                reasons::CONNECTOR_READY,
                format!("{all}/{all} engine Pods have a ready server"),
            );
        }
        let message = format!("{ready}/{all} servers and {}/{all} engine Pods are ready", status.ready_engine_pods);
        Verdict::new(false, reasons::MP_SERVERS_NOT_READY, message)
    });
    Connector::Is(Box::new(status), verdict)
}

fn cover<'a>(record: &Record, pod: &'a Pod) -> Covered<'a> {
    let verified = record.verifies(pod);
    let sidecars = pod.status.as_ref().and_then(|status| status.init_container_statuses.as_ref());
    let covered = verified && pods::is_serving(sidecars, names::MP_SERVER_CONTAINER);
    let reason = match (verified, covered) {
        (false, _) => reasons::INJECTION_UNVERIFIED,
        (true, true) => reasons::CONNECTOR_READY,
        (true, false) => reasons::MP_SERVERS_NOT_READY,
    };
    Covered { pod, verified, covered, reason }
}
