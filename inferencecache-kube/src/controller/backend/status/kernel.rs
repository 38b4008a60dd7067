//! EngineKernelsHealthy: what the check in front of the engines said, Pod by Pod.

use k8s_openapi::api::core::v1::{ContainerStateTerminated, Pod};

use super::pod;
use crate::api::names;
use crate::controller::condition::{MESSAGE_BYTES, State, Verdict, reasons};
use crate::controller::text::cut;

/// Variable of the check: it was admitted as a requirement. Read from the Pod, because the object may have changed since.
const STRICT: &str = "KERNEL_CHECK_STRICT";

/// What the checks of all Pods come to.
#[derive(Debug, PartialEq)]
pub(crate) struct Kernels {
    /// The condition; `None` where no Pod is checked.
    pub(crate) verdict: Option<Verdict>,
    /// Ready instead of anything else, where a check failed that is required.
    pub(crate) downgrade: Option<Verdict>,
}

#[derive(Debug)]
enum Outcome {
    Pending,
    Ok,
    Failed { text: String, strict: bool },
    Error(String),
}

/// Judges the engines of this object.
pub(crate) fn judge<'a>(engines: impl Iterator<Item = &'a Pod>) -> Kernels {
    let outcomes: Vec<(&str, Outcome)> =
        engines.filter_map(|engine| Some((pod::name(engine), outcome(engine)?))).collect();
    let all = outcomes.len();
    let failed: Vec<&str> = outcomes
        .iter()
        .filter_map(|(_, outcome)| if let Outcome::Failed { text, .. } = outcome { Some(text.as_str()) } else { None })
        .collect();
    let error = outcomes.iter().find_map(|(pod, outcome)| match outcome {
        Outcome::Error(text) => Some(format!("Pod {pod}: {text}")),
        _ => None,
    });
    let pending = outcomes.iter().any(|(_, outcome)| matches!(outcome, Outcome::Pending));
    let verdict = if all == 0 {
        None
    } else if let Some(first) = failed.first() {
        let message = cut(&format!("{} of {all} engine Pods: {first}", failed.len()), MESSAGE_BYTES);
        Some(Verdict::new(false, reasons::KERNEL_FAILED, message))
    } else if let Some(error) = error {
        Some(Verdict::new(State::Unknown, reasons::KERNEL_ERROR, cut(&error, MESSAGE_BYTES)))
    } else if pending {
        Some(Verdict::new(State::Unknown, reasons::KERNEL_PENDING, "the check of an engine Pod has not ended"))
    } else {
        Some(Verdict::new(true, reasons::KERNELS_HEALTHY, format!("{all} of {all} engine Pods load their kernels")))
    };
    let strict = outcomes.iter().any(|(_, outcome)| matches!(outcome, Outcome::Failed { strict: true, .. }));
    let downgrade = verdict.as_ref().filter(|_| strict).map(|verdict| {
        let message = format!("required by annotation {}: {}", names::KERNEL_CHECK, verdict.message);
        Verdict::new(false, reasons::KERNEL_DEGRADED, cut(&message, MESSAGE_BYTES))
    });
    Kernels { verdict, downgrade }
}

/// What the check of a Pod said; `None` where there is none.
fn outcome(pod: &Pod) -> Option<Outcome> {
    let init = pod.spec.as_ref()?.init_containers.as_ref()?;
    let check = init.iter().find(|container| container.name == names::KERNEL_CHECK_CONTAINER)?;
    let statuses = pod.status.as_ref().and_then(|status| status.init_container_statuses.as_ref());
    let status = statuses.and_then(|list| list.iter().find(|status| status.name == names::KERNEL_CHECK_CONTAINER));
    let ended = status.and_then(|status| {
        let now = status.state.as_ref().and_then(|state| state.terminated.as_ref());
        now.or_else(|| status.last_state.as_ref().and_then(|state| state.terminated.as_ref()))
    });
    let Some(ended) = ended else { return Some(Outcome::Pending) };
    let message = ended.message.as_deref().unwrap_or_default();
    if message.trim().starts_with("FAIL:") {
        let strict = check.env.iter().flatten().any(|var| var.name == STRICT && var.value.as_deref() == Some("1"));
        return Some(Outcome::Failed { text: message.trim().to_owned(), strict });
    }
    if message == "OK" && ended.exit_code == 0 {
        return Some(Outcome::Ok);
    }
    Some(Outcome::Error(describe(ended, message)))
}

fn describe(ended: &ContainerStateTerminated, message: &str) -> String {
    let reason = ended.reason.as_deref().unwrap_or_default();
    let mut text = format!("exit {}", ended.exit_code);
    for part in [reason, message].into_iter().filter(|part| !part.is_empty()) {
        text.push_str(if text.contains(": ") { ", " } else { ": " });
        text.push_str(part);
    }
    text
}
