//! The wait for the first KV event: an engine that is wired and never reports is not ready.
//!
//! The clock starts when everything else is ready for the first time and is never set back by a flap; only a change of mode
//! starts it anew. Once late, an object stays late until an event comes, whatever happens in between. Once an event came, the
//! gate is open for the object's life: it says that events did flow, not that they do.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;

use crate::controller::condition::{Verdict, reasons};
use crate::controller::text::go_duration;

/// What the gate goes by.
#[derive(Clone, Debug)]
pub(crate) struct Watch<'a> {
    /// Whether the object waits at all.
    pub(crate) required: bool,
    /// Whether an event has ever been seen.
    pub(crate) seen: bool,
    /// The message of the verdict that it was late, where it was and nothing has ended it since.
    pub(crate) late: Option<&'a str>,
    /// When the wait began.
    pub(crate) since: Timestamp,
    /// What began then, for messages.
    pub(crate) anchor: &'a str,
    /// How long it waits.
    pub(crate) patience: Duration,
    /// Why it is not what the object says, for messages; empty if it is.
    pub(crate) remark: &'a str,
}

/// What the gate makes of it.
#[derive(Debug, PartialEq)]
pub(crate) struct Gated {
    pub(crate) ready: Verdict,
    pub(crate) degraded: Verdict,
    /// When it has to be looked at again.
    pub(crate) requeue: Option<Duration>,
}

/// Passes Ready through the gate.
pub(crate) fn pass(base: Verdict, watch: &Watch<'_>, now: Timestamp) -> Gated {
    let fine = || Verdict::new(false, reasons::NOT_DEGRADED, "nothing is degraded");
    let late = |message: &str| Verdict::new(true, reasons::NO_EVENTS, message);
    if !watch.required || watch.seen || !base.holds() {
        let remembered = watch.late.filter(|_| watch.required && !watch.seen);
        let degraded = match remembered {
            Some(message) => late(message),
            None if base.reason == reasons::REPLICAS_UNAVAILABLE && !base.holds() => {
                Verdict::new(true, reasons::REPLICAS_UNAVAILABLE, base.message.clone())
            }
            None => fine(),
        };
        let opened = watch.required && watch.seen && base.holds();
        let ready =
            if opened { Verdict::new(true, reasons::EVENTS_OBSERVED, "KV events have been observed") } else { base };
        return Gated { ready, degraded, requeue: None };
    }
    let patience = go_duration(watch.patience);
    // A stamp has whole seconds and a clock may step back: a negative wait is none.
    let waited = Duration::try_from(now.duration_since(watch.since)).unwrap_or_default();
    if watch.late.is_none() && waited < watch.patience {
        let message = format!("no KV event yet; waiting {patience} from when {}{}", watch.anchor, watch.remark);
        return Gated {
            ready: Verdict::new(false, reasons::AWAITING_EVENT, message),
            degraded: fine(),
            requeue: Some(watch.patience.saturating_sub(waited)),
        };
    }
    let message = match watch.late {
        Some(message) => message.to_owned(),
        None => format!("no KV event within {patience} from when {}{}", watch.anchor, watch.remark),
    };
    Gated { ready: Verdict::new(false, reasons::NO_EVENTS, message.clone()), degraded: late(&message), requeue: None }
}
