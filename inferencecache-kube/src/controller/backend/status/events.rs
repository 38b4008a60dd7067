//! What a status that was accepted tells by Events, against the one before it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::api::CacheBackendStatus;
use crate::controller::condition::{State, find, reasons, types};
use crate::controller::recorder::Severity;

/// An Event about the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Transition {
    pub(crate) severity: Severity,
    pub(crate) reason: String,
    pub(crate) note: String,
}

impl Transition {
    fn new(severity: Severity, reason: &str, note: impl Into<String>) -> Self {
        Self { severity, reason: reason.to_owned(), note: note.into() }
    }
}

/// Every transition, in the order that they are told.
pub(crate) fn between(before: &CacheBackendStatus, after: &CacheBackendStatus) -> Vec<Transition> {
    let mut told = Vec::new();
    for type_ in [types::REMOTE_STORAGE_READY, types::CONNECTOR_READY] {
        told.extend(turned(find(&before.conditions, type_), find(&after.conditions, type_)));
    }
    told.extend(degraded(before, after));
    told.extend(waiting(before, after));
    told.extend(fail_open(before.fail_open, after.fail_open));
    let crashing = |status: &CacheBackendStatus| {
        find(&status.conditions, types::ENGINE_COMPATIBILITY).filter(|c| c.status == "False").cloned()
    };
    if let (None, Some(crash)) = (crashing(before), crashing(after)) {
        told.push(Transition::new(Severity::Warning, reasons::CRASH_LOOPING, crash.message));
    }
    told
}

/// A condition that says something else, or the same of another generation. A new message alone is not told.
fn turned(before: Option<&Condition>, after: Option<&Condition>) -> Option<Transition> {
    let after = after?;
    let same = before.is_some_and(|before| {
        before.status == after.status
            && before.reason == after.reason
            && before.observed_generation == after.observed_generation
    });
    let severity = if State::read(&after.status) == State::True { Severity::Normal } else { Severity::Warning };
    (!same).then(|| Transition::new(severity, &after.reason, after.message.clone()))
}

/// Whether the object is degraded for another reason than events that never came, which has Events of its own.
fn is_degraded(status: &CacheBackendStatus) -> bool {
    find(&status.conditions, types::DEGRADED).is_some_and(|c| c.status == "True" && c.reason != reasons::NO_EVENTS)
}

fn degraded(before: &CacheBackendStatus, after: &CacheBackendStatus) -> Option<Transition> {
    let ready = find(&after.conditions, types::READY)?;
    match (is_degraded(before), is_degraded(after)) {
        (false, true) if ready.reason != reasons::NO_EVENTS => {
            Some(Transition::new(Severity::Warning, "BackendDegraded", format!("degraded: {}", ready.message)))
        }
        (true, _) if ready.status == "True" && reason_of(before) != Some(reasons::NO_EVENTS) => {
            Some(Transition::new(Severity::Normal, "BackendRecovered", format!("recovered: {}", ready.message)))
        }
        _ => None,
    }
}

fn reason_of(status: &CacheBackendStatus) -> Option<&str> {
    find(&status.conditions, types::READY).map(|ready| ready.reason.as_str())
}

/// The wait for the first event.
fn waiting(before: &CacheBackendStatus, after: &CacheBackendStatus) -> Vec<Transition> {
    let mut told = Vec::new();
    for (reason, severity) in [(reasons::AWAITING_EVENT, Severity::Normal), (reasons::NO_EVENTS, Severity::Warning)] {
        if let Some(ready) = find(&after.conditions, types::READY)
            && ready.reason == reason
            && reason_of(before) != Some(reason)
        {
            told.push(Transition::new(severity, reason, ready.message.clone()));
        }
    }
    if before.first_kv_event_observed_at.is_none() && after.first_kv_event_observed_at.is_some() {
        let note = "the first KV event of this object's engines has been observed";
        told.push(Transition::new(Severity::Normal, reasons::EVENTS_OBSERVED, note));
    }
    told
}

fn fail_open(before: Option<bool>, after: Option<bool>) -> Option<Transition> {
    match (before.unwrap_or(true), after.unwrap_or(true)) {
        (true, false) => {
            let note = "failOpen is false: the remote tier is a serving dependency and gates Ready";
            Some(Transition::new(Severity::Warning, "FailClosedEnabled", note))
        }
        (false, true) => {
            let note = "failOpen is true: engines serve on without the remote tier";
            Some(Transition::new(Severity::Normal, "FailOpenRestored", note))
        }
        _ => None,
    }
}
