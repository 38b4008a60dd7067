//! Conditions of the custom resources: their types and reasons, each spelled once, and how one is changed.
//!
//! `lastTransitionTime` moves when `status` does, and never else; reason, message and generation are always the newest.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

use super::text;

/// Longest message of a condition that repeats somebody else's words, in bytes.
pub const MESSAGE_BYTES: usize = 512;

/// Types of conditions.
pub mod types {
    /// Whether engines can be served as the object wants it.
    pub const READY: &str = "Ready";
    /// Whether something is under way.
    pub const PROGRESSING: &str = "Progressing";
    /// Whether it runs, but not as it should.
    pub const DEGRADED: &str = "Degraded";
    /// Whether the engines are covered by LMCache servers.
    pub const CONNECTOR_READY: &str = "ConnectorReady";
    /// Whether the shared tier is there.
    pub const REMOTE_STORAGE_READY: &str = "RemoteStorageReady";
    /// What the server's own test of the path says.
    pub const FUNCTIONAL_PROBE_OK: &str = "FunctionalProbeOK";
    /// What the engines' check of their native code says.
    pub const ENGINE_KERNELS_HEALTHY: &str = "EngineKernelsHealthy";
    /// Whether the shared tier is asked and never answers. Advice.
    pub const T2_DEGRADED: &str = "T2Degraded";
    /// Whether wired engines keep crashing. Advice.
    pub const ENGINE_COMPATIBILITY: &str = "EngineCompatibility";
    /// CacheTenant: whether a budget is used up.
    pub const QUOTA_EXCEEDED: &str = "QuotaExceeded";

    /// All that the reconciler of CacheBackends sets or removes.
    pub const OF_BACKENDS: [&str; 9] = [
        READY,
        PROGRESSING,
        DEGRADED,
        CONNECTOR_READY,
        REMOTE_STORAGE_READY,
        FUNCTIONAL_PROBE_OK,
        ENGINE_KERNELS_HEALTHY,
        T2_DEGRADED,
        ENGINE_COMPATIBILITY,
    ];
}

/// Reasons of conditions of CacheBackends.
pub mod reasons {
    /// Every active engine is covered.
    pub const CONNECTOR_READY: &str = "ConnectorReady";
    /// A selected Pod was not wired by this object at this generation.
    pub const INJECTION_UNVERIFIED: &str = "ConnectorInjectionUnverified";
    /// No active Pod is selected.
    pub const NO_ENGINE_PODS: &str = "NoEnginePods";
    /// A server beside an engine is not ready.
    pub const MP_SERVERS_NOT_READY: &str = "MPServersNotReady";
    /// An engine is on no node yet.
    pub const ENGINE_SCHEDULING_PENDING: &str = "EngineSchedulingPending";
    /// A node's server is not there yet.
    pub const NODE_POOL_PENDING: &str = "NodeLocalServerPoolPending";
    /// A node's server does not get its host ports.
    pub const NODE_PORT_CONFLICT: &str = "NodeLocalHostPortConflict";
    /// More engines on a node than its server serves.
    pub const NODE_WORKERS_EXCEEDED: &str = "NodeLocalWorkerCapacityExceeded";
    /// More than one healthy server on a node.
    pub const NODE_SERVERS_AMBIGUOUS: &str = "AmbiguousNodeLocalServers";

    /// The shared tier is being rolled out.
    pub const STORAGE_PENDING: &str = "RemoteStoragePending";
    /// The shared tier is not there.
    pub const STORAGE_UNAVAILABLE: &str = "RemoteStorageUnavailable";
    /// The shared tier is there.
    pub const STORAGE_READY: &str = "RemoteStorageReady";
    /// An external tier without an address.
    pub const ENDPOINT_MISSING: &str = "ExternalEndpointMissing";
    /// An external tier whose address is none.
    pub const ENDPOINT_INVALID: &str = "ExternalEndpointInvalid";
    /// An external tier, of an object without a connector of ours.
    pub const ENDPOINT_ACCEPTED: &str = "ExternalEndpointAccepted";

    /// Events alone, and nobody waits for the first.
    pub const EVENTS_ONLY_ACTIVE: &str = "EventsOnlyActive";
    /// Host memory alone, of an object without a connector of ours.
    pub const HOST_ONLY_ACTIVE: &str = "HostOnlyActive";
    /// The workload runs, of an object without a connector of ours.
    pub const BACKEND_READY: &str = "BackendReady";
    /// The workload was scaled to zero.
    pub const SCALED_TO_ZERO: &str = "ScaledToZero";
    /// The workload is being rolled out.
    pub const ROLLOUT: &str = "RolloutInProgress";
    /// The workload lacks replicas.
    pub const REPLICAS_UNAVAILABLE: &str = "ReplicasUnavailable";

    /// No event yet, and there is still time.
    pub const AWAITING_EVENT: &str = "AwaitingFirstKVEvent";
    /// Events have been seen.
    pub const EVENTS_OBSERVED: &str = "KVEventsObserved";
    /// No event in time.
    pub const NO_EVENTS: &str = "NoKVEventsObserved";

    /// The probe passed.
    pub const PROBE_OK: &str = "ProbeOK";
    /// The object waives the probe.
    pub const PROBE_BYPASSED: &str = "ProbeBypassed";
    /// There is no verdict.
    pub const PROBE_ERROR: &str = "ProbeError";
    /// Events do not arrive.
    pub const PROBE_INGEST: &str = "ProbeIngestFailed";
    /// Lookups do not find what arrived.
    pub const PROBE_ROUTING: &str = "ProbeRoutingFailed";
    /// The shared tier does not answer.
    pub const PROBE_T2: &str = "ProbeT2Failed";

    /// Native code loads on every engine.
    pub const KERNELS_HEALTHY: &str = "KernelsHealthy";
    /// Native code does not load.
    pub const KERNEL_FAILED: &str = "KernelLoadFailed";
    /// The check itself failed.
    pub const KERNEL_ERROR: &str = "KernelCheckError";
    /// The check has not ended.
    pub const KERNEL_PENDING: &str = "KernelCheckPending";
    /// Native code does not load where that is required.
    pub const KERNEL_DEGRADED: &str = "EngineKernelDegraded";

    /// The shared tier was asked and never had anything.
    pub const T2_ZERO: &str = "T2ZeroHitRate";
    /// The shared tier has hits.
    pub const T2_SERVING: &str = "T2Serving";
    /// A wired engine crashes again and again.
    pub const CRASH_LOOPING: &str = "InjectedEngineCrashLooping";

    /// Nothing to do.
    pub const SYNCED: &str = "Synced";
    /// Nothing wrong.
    pub const NOT_DEGRADED: &str = "NotDegraded";
    /// Of Progressing, where replicas are missing.
    pub const DEGRADED: &str = "Degraded";
}

/// What a condition says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It holds.
    True,
    /// It does not.
    False,
    /// It cannot be said.
    Unknown,
}

impl State {
    /// As objects spell it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }

    /// As objects spell it; anything else is unknown.
    #[must_use]
    pub fn read(text: &str) -> Self {
        match text {
            "True" => Self::True,
            "False" => Self::False,
            _ => Self::Unknown,
        }
    }
}

impl From<bool> for State {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

/// A condition without its type and its times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What it says.
    pub state: State,
    /// Why, in one word.
    pub reason: Cow<'static, str>,
    /// Why, for people.
    pub message: String,
}

impl Verdict {
    /// From its parts.
    pub fn new(state: impl Into<State>, reason: &'static str, message: impl Into<String>) -> Self {
        Self { state: state.into(), reason: Cow::Borrowed(reason), message: message.into() }
    }

    /// What a stored condition says.
    #[must_use]
    pub fn of(condition: &Condition) -> Self {
        Self {
            state: State::read(&condition.status),
            reason: Cow::Owned(condition.reason.clone()),
            message: condition.message.clone(),
        }
    }

    /// Whether it says that it holds.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.state == State::True
    }
}

/// The condition of that type.
#[must_use]
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Sets a condition, as seen at `generation`; zero is written as absent.
pub fn set(conditions: &mut Vec<Condition>, type_: &str, verdict: Verdict, generation: i64, now: Timestamp) {
    let status = verdict.state.as_str();
    let generation = (generation != 0).then_some(generation);
    let fresh = |transition: Time| Condition {
        type_: type_.to_owned(),
        status: status.to_owned(),
        reason: verdict.reason.into_owned(),
        message: verdict.message,
        observed_generation: generation,
        last_transition_time: transition,
    };
    match conditions.iter_mut().find(|condition| condition.type_ == type_) {
        Some(old) => {
            let transition = if old.status == status { old.last_transition_time.clone() } else { text::stamp(now) };
            *old = fresh(transition);
        }
        None => conditions.push(fresh(text::stamp(now))),
    }
}

/// Removes a condition, if it is there.
pub fn remove(conditions: &mut Vec<Condition>, type_: &str) {
    conditions.retain(|condition| condition.type_ != type_);
}

#[cfg(test)]
mod tests {
    use k8s_openapi::jiff::Timestamp;

    use super::{Verdict, find, remove, set};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    #[test]
    fn the_transition_time_follows_the_status_alone() {
        let mut list = Vec::new();
        set(&mut list, "Ready", Verdict::new(false, "A", "a"), 1, at(10));
        set(&mut list, "Ready", Verdict::new(false, "B", "b"), 2, at(20));
        let ready = find(&list, "Ready").expect("it is there");
        assert_eq!((ready.reason.as_str(), ready.message.as_str(), ready.observed_generation), ("B", "b", Some(2)));
        assert_eq!(ready.last_transition_time.0, at(10));
        set(&mut list, "Ready", Verdict::new(true, "B", "b"), 0, at(30));
        let ready = find(&list, "Ready").expect("it is there");
        assert_eq!((ready.last_transition_time.0, ready.observed_generation), (at(30), None));
        assert_eq!(list.len(), 1);
        remove(&mut list, "Ready");
        assert!(list.is_empty());
    }
}
