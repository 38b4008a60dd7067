//! The functional probe: the server's own test of the path from event to lookup, let into Ready.
//!
//! A verdict against is kept until a later one lifts it; an answer that is none changes nothing but is said. Nothing here calls:
//! [`Next`] tells whether a call is due, and [`View`] what the calls have brought.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::controller::backend::probing::Report;
use crate::controller::condition::{MESSAGE_BYTES, State, Verdict, reasons};
use crate::controller::text::cut;

/// Least time between two calls for one object.
pub(crate) const INTERVAL: Duration = Duration::from_secs(30);

/// What is known of the calls for an object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum View {
    /// Nobody probes.
    Off,
    /// A call may be made now.
    Due,
    /// One is under way.
    Underway,
    /// One has ended and has not been looked at.
    Answered(Result<Report, String>),
    /// One has been looked at; the next may come after this long.
    Resting(Duration),
}

/// What becomes of the condition.
#[derive(Debug, PartialEq)]
pub(crate) enum Change {
    Keep,
    Remove,
    Set(Verdict),
}

/// What becomes of Ready.
#[derive(Debug, PartialEq)]
pub(crate) enum Ready {
    /// It is this.
    Is(Verdict),
    /// The first verdict is not there yet: what was published stays, unless nothing can be published otherwise.
    Held(Verdict),
}

/// What has to be done beside writing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Next {
    /// Make a call.
    pub(crate) call: bool,
    /// The answer was used: once it is published, the object rests.
    pub(crate) used: bool,
    pub(crate) requeue: Option<Duration>,
}

/// Passes Ready through the probe.
pub(crate) fn pass(ready: Verdict, existing: Option<&Condition>, bypassed: bool, view: View) -> (Ready, Change, Next) {
    if view == View::Off {
        return (Ready::Is(ready), Change::Remove, Next::default());
    }
    if !ready.holds() {
        return (Ready::Is(ready), Change::Keep, Next::default());
    }
    if bypassed {
        let verdict = Verdict::new(true, reasons::PROBE_BYPASSED, "waived by an annotation of the object");
        return (Ready::Is(ready), Change::Set(verdict), Next::default());
    }
    let against = existing.filter(|condition| State::read(&condition.status) == State::False).map(Verdict::of);
    let sticky = |ready: Verdict| Ready::Is(against.as_ref().map_or(ready, downgraded));
    let next = Next { requeue: Some(INTERVAL), ..Next::default() };
    match view {
        View::Off => (Ready::Is(ready), Change::Remove, Next::default()),
        View::Resting(rest) => {
            let requeue = Some(if rest.is_zero() { Duration::from_secs(1) } else { rest });
            (sticky(ready), Change::Keep, Next { requeue, ..next })
        }
        View::Due | View::Underway => {
            let next = Next { call: view == View::Due, ..next };
            let ready = if existing.is_none() { Ready::Held(ready) } else { sticky(ready) };
            (ready, Change::Keep, next)
        }
        View::Answered(answer) => {
            let next = Next { used: true, ..next };
            match answer {
                Err(_) if against.is_some() => (sticky(ready), Change::Keep, next),
                Err(why) => (Ready::Is(ready), Change::Set(no_verdict(&why, existing)), next),
                Ok(report) => {
                    let verdict = judge(&report);
                    let ready = if verdict.holds() { ready } else { downgraded(&verdict) };
                    (Ready::Is(ready), Change::Set(verdict), next)
                }
            }
        }
    }
}

fn downgraded(verdict: &Verdict) -> Verdict {
    Verdict {
        state: State::False,
        reason: verdict.reason.clone(),
        message: format!("functional probe failed: {}", verdict.message),
    }
}

/// A call that brought no verdict. A text that differs from the published one in its numbers alone (ports, addresses, times) is
/// the same text: publishing it would wake us up to make the next one.
fn no_verdict(why: &str, existing: Option<&Condition>) -> Verdict {
    let message = cut(&format!("probe call failed: {why}"), MESSAGE_BYTES);
    let published = existing.filter(|old| old.reason == reasons::PROBE_ERROR && old.status == State::Unknown.as_str());
    let message = match published {
        Some(old) if without_numbers(&old.message) == without_numbers(&message) => old.message.clone(),
        _ => message,
    };
    Verdict::new(State::Unknown, reasons::PROBE_ERROR, message)
}

fn without_numbers(text: &str) -> String {
    let mut shape = String::with_capacity(text.len());
    for c in text.chars() {
        if !c.is_ascii_digit() {
            shape.push(c);
        } else if !shape.ends_with('#') {
            shape.push('#');
        }
    }
    shape
}

fn judge(report: &Report) -> Verdict {
    let passes = |outcome: &str| matches!(outcome, "ok" | "skipped");
    let stages = [
        ("ingest", &report.ingest, reasons::PROBE_INGEST, "events of the probe did not reach the index"),
        ("routing", &report.routing, reasons::PROBE_ROUTING, "a lookup did not find what the probe had reported"),
        ("t2", &report.t2, reasons::PROBE_T2, "the shared tier did not answer the probe"),
    ];
    if stages.iter().all(|(_, outcome, ..)| passes(outcome)) {
        return Verdict::new(true, reasons::PROBE_OK, "every stage of the probe passed");
    }
    let Some((stage, _, reason, default)) = stages.iter().find(|(_, outcome, ..)| *outcome == "failed") else {
        let (ingest, routing, t2) = (&report.ingest, &report.routing, &report.t2);
        let message = format!("unrecognized outcome: ingest={ingest:?} routing={routing:?} t2={t2:?}");
        return Verdict::new(false, reasons::PROBE_ERROR, cut(&message, MESSAGE_BYTES));
    };
    let said = report.errors.iter().find(|error| error.stage == *stage && !error.message.trim().is_empty());
    let message = said.map_or(*default, |error| error.message.as_str());
    Verdict::new(false, reason, cut(message, MESSAGE_BYTES))
}
