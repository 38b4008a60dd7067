//! PodLocal: the server is a native sidecar of the engine, so each verified engine brings its own.

use k8s_openapi::api::core::v1::Pod;

use super::{Connector, Covered, pod, summary, unfit};
use crate::api::backend::Topology;
use crate::api::{CacheBackend, names};
use crate::controller::backend::engines::{is_ready, is_verified};
use crate::controller::condition::{Verdict, reasons};

pub(super) fn judge(backend: &CacheBackend, engines: &[&Pod]) -> Connector {
    let engines: Vec<Covered<'_>> = engines.iter().map(|pod| cover(backend, pod)).collect();
    let ready = engines.iter().filter(|engine| engine.covered).count();
    let status = summary(Topology::PodLocal, &engines, engines.len(), ready);
    let verdict = unfit(&engines).unwrap_or_else(|| {
        let all = engines.len();
        if ready == all && engines.iter().all(|engine| is_ready(engine.pod)) {
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

fn cover<'a>(backend: &CacheBackend, pod: &'a Pod) -> Covered<'a> {
    let verified = is_verified(pod, backend);
    let sidecars = pod.status.as_ref().and_then(|status| status.init_container_statuses.as_ref());
    let covered = verified && pod::is_serving(sidecars, names::MP_SERVER_CONTAINER);
    let reason = match (verified, covered) {
        (false, _) => reasons::INJECTION_UNVERIFIED,
        (true, true) => reasons::CONNECTOR_READY,
        (true, false) => reasons::MP_SERVERS_NOT_READY,
    };
    Covered { pod, verified, covered, reason }
}
