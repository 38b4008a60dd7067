//! EngineCompatibility and T2Degraded: advice, which never touches Ready.

use k8s_openapi::api::core::v1::{ContainerStatus, Pod};

use super::pod;
use crate::api::names;
use crate::controller::condition::{MESSAGE_BYTES, Verdict, reasons};
use crate::controller::text::cut;

const CRASH_LOOP: &str = "CrashLoopBackOff";

/// The first wired engine, by name, that crashes again and again; `None` where none does.
pub(crate) fn crash_looping<'a>(owned: impl Iterator<Item = &'a Pod>, engine_container: &str) -> Option<Verdict> {
    let looping = |pod: &&Pod| engine(pod, engine_container).is_some_and(is_looping);
    let found = owned.filter(looping).min_by(|one, other| one.metadata.name.cmp(&other.metadata.name))?;
    let container = engine(found, engine_container).map(|status| status.name.as_str()).unwrap_or_default();
    let message = format!(
        "container {container} of wired Pod {} is in {CRASH_LOOP}; the wiring may be the cause, or not. Annotation {} on its \
         Pods leaves them unwired, and takes them out of routing too",
        pod::name(found),
        names::SKIP_INJECT
    );
    Some(Verdict::new(false, reasons::CRASH_LOOPING, cut(&message, MESSAGE_BYTES)))
}

/// The status of the engine: by name, else the only one besides ours.
fn engine<'a>(pod: &'a Pod, name: &str) -> Option<&'a ContainerStatus> {
    let statuses = pod.status.as_ref()?.container_statuses.as_ref()?;
    if let Some(named) = statuses.iter().find(|status| status.name == name && !name.is_empty()) {
        return Some(named);
    }
    let mut others = statuses.iter().filter(|status| status.name != names::SUBSCRIBER_CONTAINER);
    let only = others.next()?;
    others.next().is_none().then_some(only)
}

fn is_looping(status: &ContainerStatus) -> bool {
    let waiting = status.state.as_ref().and_then(|state| state.waiting.as_ref());
    waiting.is_some_and(|waiting| waiting.reason.as_deref() == Some(CRASH_LOOP))
}

/// Whether the shared tier ever had what was asked; `None` where it was never asked.
pub(crate) fn tier_two(hit_rate: Option<&str>) -> Option<Verdict> {
    let rate = hit_rate?;
    Some(if rate == "0" {
        Verdict::new(true, reasons::T2_ZERO, "the shared tier was asked and never had a block")
    } else {
        Verdict::new(false, reasons::T2_SERVING, format!("hit rate of the shared tier: {rate}"))
    })
}
