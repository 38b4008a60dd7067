//! The linker: wires an engine Pod into the cache of the one backend that selects it, while the Pod is being created.
//!
//! ```text
//!  Pod ── opt_out ── select ── wire: adapter, storage, command, overrides, check, subscriber ── markers ── diff ──> patch
//!                      │
//!   act: live list ────┘   with a deadline, counted, answered
//! ```
//!
//! 1. Never in the way: whatever fails, the Pod is created as its author wrote it. The one refusal is of a Pod that two
//!    backends select.
//! 2. All or nothing: a Pod is wired wholly or not at all.
//! 3. Twice is once: a Pod that comes back is answered without an operation, also after API server and other hooks.
//! 4. The markers are the linker's. What somebody else wrote there goes, and a Pod without them that nobody selects is not
//!    edited.
//! 5. What the types do not know is not touched.
//! 6. The decision is a pure function; nothing is written and nothing is recorded, in a dry run or otherwise.

mod act;
mod command;
mod diff;
mod markers;
mod opt_out;
mod overrides;
mod select;
mod storage;
mod wire;

use k8s_openapi::api::core::v1::Pod;
use kube::core::DynamicObject;

pub(super) use self::act::answer;
pub use self::diff::patch;

use self::select::Match;
use crate::adapters::RuntimeRegistry;
use crate::api::CacheBackend;

/// How a Pod fares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// It is wired.
    Wired,
    /// It asked to be left alone.
    Skipped,
    /// No backend selects it.
    Unmatched,
    /// A backend selects it, but something stands in the way: it is created unwired.
    Released,
    /// Several backends select it: it is refused.
    Ambiguous,
    /// The backends could not be read: it is created unwired.
    Unread,
    /// It is no Pod that can be read: it is left as it is.
    Unreadable,
}

impl Outcome {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Wired, Self::Skipped, Self::Unmatched, Self::Released, Self::Ambiguous, Self::Unread, Self::Unreadable];

    /// As metrics spell it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Wired => "wired",
            Self::Skipped => "skipped",
            Self::Unmatched => "unmatched",
            Self::Released => "released",
            Self::Ambiguous => "ambiguous",
            Self::Unread => "unread",
            Self::Unreadable => "unreadable",
        }
    }
}

/// What is to be done with a Pod.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Decision {
    /// How it fares.
    pub outcome: Outcome,
    /// `NAMESPACE/NAME` of the one backend that selects it.
    pub backend: Option<String>,
    /// Why it is not wired, for people.
    pub note: Option<String>,
    /// The Pod as it is to be; where it is refused, as it came.
    pub pod: Pod,
}

impl Decision {
    fn new(outcome: Outcome, pod: Pod) -> Self {
        Self { outcome, backend: None, note: None, pod }
    }

    /// The Pod as it came, without markers.
    fn released(outcome: Outcome, pod: &Pod, note: Option<String>) -> Self {
        let mut pod = pod.clone();
        markers::scrub(&mut pod.metadata);
        Self { note, ..Self::new(outcome, pod) }
    }
}

/// Whether [`link`] looks at candidates: the Pod does not ask to be left alone and has labels that can be selected.
#[must_use]
pub fn wants_candidates(pod: &Pod) -> bool {
    !opt_out::wanted(&pod.metadata)
        && !opt_out::is_mirror(&pod.metadata)
        && pod.metadata.labels.as_ref().is_some_and(|labels| !labels.is_empty())
}

/// Decides about a Pod that is created in `namespace`, where `candidates` are the CacheBackends. Pure, and total: a panic of
/// an adapter releases the Pod.
#[must_use]
pub fn link(pod: &Pod, namespace: &str, candidates: &[DynamicObject], registry: &RuntimeRegistry) -> Decision {
    if opt_out::is_mirror(&pod.metadata) {
        return Decision::released(Outcome::Unmatched, pod, None);
    }
    if opt_out::wanted(&pod.metadata) {
        let mut pod = pod.clone();
        markers::stamp_skipped(&mut pod.metadata);
        place(&mut pod, namespace);
        return Decision::new(Outcome::Skipped, pod);
    }
    let found = match select::matching(pod.metadata.labels.as_ref(), candidates) {
        Match::None => return Decision::released(Outcome::Unmatched, pod, None),
        Match::One(found) => found,
        Match::Several(names) => {
            let note = format!(
                "several CacheBackends in namespace {namespace} select this Pod: {}; give it one cache domain, owned by one",
                names.join(", ")
            );
            return Decision { note: Some(note), ..Decision::new(Outcome::Ambiguous, pod.clone()) };
        }
    };
    let name = found.metadata.name.as_deref().unwrap_or_default();
    let reference = format!("{}/{name}", found.metadata.namespace.as_deref().unwrap_or(namespace));
    let wired = typed(found).and_then(|backend| {
        let wired = wire::guarded(|| wire::wire(pod, &backend, registry));
        let mut wired = wired.unwrap_or_else(|| Err(failed())).map_err(|why| why.to_string())?;
        markers::stamp_wired(&mut wired.metadata, &backend, &reference);
        place(&mut wired, namespace);
        Ok(wired)
    });
    let decision = match wired {
        Ok(wired) => Decision::new(Outcome::Wired, wired),
        Err(why) => {
            let note = format!("created without the cache of CacheBackend {reference}: {why}");
            Decision::released(Outcome::Released, pod, Some(note))
        }
    };
    Decision { backend: Some(reference), ..decision }
}

/// A Pod that is edited says where it is. From an API server every Pod does.
fn place(pod: &mut Pod, namespace: &str) {
    if pod.metadata.namespace.as_ref().is_none_or(String::is_empty) && !namespace.is_empty() {
        pod.metadata.namespace = Some(namespace.to_owned());
    }
}

fn typed(found: &DynamicObject) -> Result<CacheBackend, String> {
    let value = serde_json::to_value(found).map_err(|why| why.to_string())?;
    serde_json::from_value(value).map_err(|why| format!("the object cannot be read: {why}"))
}

fn failed() -> crate::adapters::AdapterError {
    tracing::error!("linker_adapter_panicked");
    crate::adapters::AdapterError::pod("wiring", "failed; see the controller's log")
}
