//! One pass: every fact about an object, and the status that follows from them.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::jiff::Timestamp;

use super::connector::{self, Connector};
use super::gate::{self, Gated};
use super::kernel::Kernels;
use super::matched::{self, Wanted};
use super::storage::{self, Managed};
use super::{compat, kernel, probe, shape};
use crate::api::backend::RemoteStorage;
use crate::api::{CacheBackend, CacheBackendStatus, names};
use crate::controller::backend::dispatch::Mode;
use crate::controller::backend::engines::{is_owned, is_selected, topology};
use crate::controller::condition::{MESSAGE_BYTES, State, Verdict, find, reasons, remove, set, types};
use crate::controller::text::{cut, stamp};

/// Patience for the first event where the object names none.
pub(crate) const PATIENCE: Duration = Duration::from_mins(5);
/// How often a managed object, and one with a selector, is looked at without a trigger.
pub(crate) const CADENCE: Duration = Duration::from_secs(30);
/// The same while Pods come and go.
pub(crate) const CHURN_CADENCE: Duration = Duration::from_secs(5);

/// Everything that a pass knows.
#[derive(Debug)]
pub(crate) struct Facts<'a> {
    /// The object as it was read, with its status.
    pub(crate) backend: &'a CacheBackend,
    pub(crate) mode: Mode,
    /// Whether this pass came as far as the children. If not, only what is told of Pods is published.
    pub(crate) dispatched: bool,
    /// Whether the children are as the object wants them.
    pub(crate) applied: bool,
    /// The managed tier; ignored in other modes.
    pub(crate) managed: Managed<'a>,
    /// Why the servers on nodes are not as they should be.
    pub(crate) nodes_failure: Option<&'a str>,
    /// Name of the engine's container; empty where there is no adapter.
    pub(crate) engine_container: &'a str,
    /// Pods of the namespace, as far as they matter; `None`: they could not be read.
    pub(crate) pods: Option<&'a [Pod]>,
    /// What Deployments want; `None`: they could not be read.
    pub(crate) wanted: Option<Wanted>,
    pub(crate) probe: probe::View,
    pub(crate) now: Timestamp,
}

/// What follows.
#[derive(Debug, PartialEq)]
pub(crate) struct Decision {
    pub(crate) status: CacheBackendStatus,
    /// When to look again without a trigger.
    pub(crate) requeue: Option<Duration>,
    pub(crate) probe: probe::Next,
    /// What is known of probes belongs to another mode.
    pub(crate) forget_probe: bool,
    /// Note of an Event: nobody matches, since now.
    pub(crate) unmatched: Option<String>,
}

/// Decides.
pub(crate) fn decide(facts: &Facts<'_>) -> Decision {
    let before = facts.backend.status.clone().unwrap_or_default();
    let mut pass = Pass { facts, after: before.clone(), before: &before, next: probe::Next::default(), wait: None };
    let matched = matched::count(facts.backend, &before, facts.pods, facts.wanted);
    pass.after.matched_engine_pods = matched.count;
    pass.after.engine_selector_message = matched.message;
    pass.connector();
    if facts.dispatched {
        match facts.mode {
            Mode::Managed => pass.managed(),
            Mode::External => pass.external(),
            Mode::HostOnly | Mode::EventsOnly => pass.serverless(),
            Mode::Unmanaged => pass.unmanaged(),
        }
    }
    let cadence = if matched.churn { CHURN_CADENCE } else { CADENCE };
    let matches = facts.backend.spec.selector().is_some() || pass.after.matched_engine_pods.is_some();
    let requeue =
        [pass.wait, pass.next.requeue, (facts.mode == Mode::Managed).then_some(CADENCE), matches.then_some(cadence)];
    Decision {
        requeue: requeue.into_iter().flatten().min(),
        probe: pass.next,
        forget_probe: facts.mode != Mode::Managed,
        unmatched: matched.unmatched,
        status: pass.after,
    }
}

struct Pass<'a> {
    facts: &'a Facts<'a>,
    before: &'a CacheBackendStatus,
    after: CacheBackendStatus,
    next: probe::Next,
    /// Until the wait for the first event ends.
    wait: Option<Duration>,
}

impl Pass<'_> {
    fn set(&mut self, type_: &str, verdict: Verdict, generation: i64) {
        set(&mut self.after.conditions, type_, verdict, generation, self.facts.now);
    }

    fn set_or_remove(&mut self, type_: &str, verdict: Option<Verdict>, generation: i64) {
        match verdict {
            Some(verdict) => self.set(type_, verdict, generation),
            None => self.remove(type_),
        }
    }

    fn remove(&mut self, type_: &str) {
        remove(&mut self.after.conditions, type_);
    }

    fn generation(&self) -> i64 {
        self.facts.backend.metadata.generation.unwrap_or_default()
    }

    /// The generation that is published: where the children could not be brought about, still the one before.
    fn published(&mut self) -> i64 {
        self.after.fail_open = Some(self.facts.backend.spec.effective_fail_open());
        if self.facts.applied {
            self.after.observed_generation = Some(self.generation());
        }
        self.after.observed_generation.unwrap_or_default()
    }

    fn connector(&mut self) {
        let with_connector = matches!(self.facts.mode, Mode::Managed | Mode::External | Mode::HostOnly);
        let judged =
            if with_connector { connector::judge(self.facts.backend, self.facts.pods) } else { Connector::Absent };
        match judged {
            Connector::Kept => {}
            Connector::Absent => {
                self.after.connector = None;
                self.remove(types::CONNECTOR_READY);
            }
            Connector::Is(status, mut verdict) => {
                if let Some(failure) = self.facts.nodes_failure.filter(|_| !verdict.holds()) {
                    verdict.message = cut(&format!("{}; {failure}", verdict.message), MESSAGE_BYTES);
                }
                self.after.connector = Some(*status);
                self.set(types::CONNECTOR_READY, verdict, self.generation());
            }
        }
    }

    /// Ready before gate and probe, of objects with a connector of ours; others start from `other`.
    fn base(&self, other: Verdict, tier: Option<&Verdict>) -> Verdict {
        if topology(self.facts.backend).is_none() {
            return other;
        }
        let connector = find(&self.after.conditions, types::CONNECTOR_READY)
            .filter(|condition| condition.observed_generation == Some(self.generation()));
        let Some(connector) = connector.map(Verdict::of) else {
            let message = "the connector has not been observed at this generation";
            return Verdict::new(State::Unknown, reasons::INJECTION_UNVERIFIED, message);
        };
        if !connector.holds() {
            return connector;
        }
        let fail_open = self.facts.backend.spec.effective_fail_open();
        match tier.filter(|tier| !tier.holds()) {
            None => connector,
            Some(tier) if !fail_open => tier.clone(),
            Some(tier) => Verdict {
                message: cut(
                    &format!(
                        "{}; the remote tier is degraded and does not gate Ready: {}",
                        connector.message, tier.message
                    ),
                    MESSAGE_BYTES,
                ),
                ..connector
            },
        }
    }

    fn managed(&mut self) {
        let facts = self.facts;
        let generation = self.published();
        let tier = storage::managed(&facts.managed);
        let endpoint = facts.managed.endpoint;
        self.tier(&tier, endpoint, generation);
        let workload = facts.managed.deployment.map_or_else(|| tier.clone(), storage::rollout);
        let base = self.base(workload, Some(&tier));
        let fresh = shape::changed(facts.backend, facts.mode, self.before);
        self.latch_availability(base.holds(), fresh);
        let gated = self.gate(base, fresh, "the workload became available");
        let kernels = self.kernels();
        self.wait = gated.requeue;
        let bypassed = self.annotation(names::SKIP_FUNCTIONAL_PROBE) == Some("true");
        let existing = find(&self.after.conditions, types::FUNCTIONAL_PROBE_OK).cloned();
        let (ready, change, next) = probe::pass(gated.ready, existing.as_ref(), bypassed, facts.probe.clone());
        self.next = next;
        match change {
            probe::Change::Keep => {}
            probe::Change::Remove => self.remove(types::FUNCTIONAL_PROBE_OK),
            probe::Change::Set(verdict) => self.set(types::FUNCTIONAL_PROBE_OK, verdict, generation),
        }
        let rate = self.before.index_participation.as_ref().and_then(|index| index.t2_hit_rate.as_deref());
        self.set_or_remove(types::T2_DEGRADED, compat::tier_two(rate), generation);
        self.compatibility(generation);
        self.set(types::DEGRADED, gated.degraded, generation);
        let downgrade = self.kernel_condition(kernels, generation);
        match (downgrade, ready) {
            (Some(downgrade), _) => self.ready(downgrade, generation),
            (None, probe::Ready::Is(ready)) => self.ready(ready, generation),
            (None, probe::Ready::Held(_)) => {}
        }
    }

    fn external(&mut self) {
        let generation = self.published();
        let storage = self.facts.backend.spec.remote_storage.as_ref();
        let endpoint = storage.and_then(RemoteStorage::endpoint);
        let tier = storage::external(endpoint);
        self.tier(&tier, endpoint, generation);
        let accepted = if tier.holds() {
            Verdict::new(true, reasons::ENDPOINT_ACCEPTED, tier.message.clone())
        } else {
            tier.clone()
        };
        let ready = self.base(accepted, Some(&tier));
        for type_ in [
            types::DEGRADED,
            types::FUNCTIONAL_PROBE_OK,
            types::ENGINE_KERNELS_HEALTHY,
            types::T2_DEGRADED,
            types::ENGINE_COMPATIBILITY,
        ] {
            self.remove(type_);
        }
        self.ready(ready, generation);
    }

    fn serverless(&mut self) {
        let host_only = self.facts.mode == Mode::HostOnly;
        let generation = self.published();
        let fresh = shape::changed(self.facts.backend, self.facts.mode, self.before);
        self.after.remote_storage = None;
        for type_ in [types::REMOTE_STORAGE_READY, types::FUNCTIONAL_PROBE_OK, types::T2_DEGRADED] {
            self.remove(type_);
        }
        let (base, anchor) = if host_only {
            let other = Verdict::new(true, reasons::HOST_ONLY_ACTIVE, "engines cache in their own host memory");
            (self.base(other, None), "the engines became available")
        } else {
            let message = "KV events alone: no cache is wired";
            (Verdict::new(true, reasons::EVENTS_ONLY_ACTIVE, message), "it was wired")
        };
        self.latch_availability(base.holds(), fresh);
        let gated = self.gate(base, fresh, anchor);
        self.wait = gated.requeue;
        self.set(types::DEGRADED, gated.degraded, generation);
        let mut ready = gated.ready;
        if host_only {
            self.compatibility(generation);
            let kernels = self.kernels();
            ready = self.kernel_condition(kernels, generation).unwrap_or(ready);
        } else {
            self.remove(types::ENGINE_COMPATIBILITY);
            self.remove(types::ENGINE_KERNELS_HEALTHY);
        }
        self.ready(ready, generation);
    }

    fn unmanaged(&mut self) {
        self.published();
        self.after.connector = None;
        self.after.remote_storage = None;
        self.after.first_available_at = None;
        for type_ in types::OF_BACKENDS {
            self.remove(type_);
        }
    }

    /// Ready and, derived from it, Progressing.
    fn ready(&mut self, ready: Verdict, generation: i64) {
        let progressing = match ready.reason.as_ref() {
            _ if ready.holds() => Verdict::new(false, reasons::SYNCED, "nothing is under way"),
            reasons::ROLLOUT | reasons::AWAITING_EVENT => Verdict { state: State::True, ..ready.clone() },
            reasons::REPLICAS_UNAVAILABLE => Verdict::new(false, reasons::DEGRADED, ready.message.clone()),
            _ => Verdict { state: State::False, ..ready.clone() },
        };
        self.set(types::READY, ready, generation);
        self.set(types::PROGRESSING, progressing, generation);
    }

    fn tier(&mut self, tier: &Verdict, endpoint: Option<&str>, generation: i64) {
        if let Some(storage) = &self.facts.backend.spec.remote_storage {
            self.after.remote_storage = Some(storage::published(storage, endpoint, tier));
        }
        self.set(types::REMOTE_STORAGE_READY, tier.clone(), generation);
    }

    /// Remembers when everything was ready for the first time in this mode.
    fn latch_availability(&mut self, available: bool, fresh: bool) {
        if available && (fresh || self.after.first_available_at.is_none()) {
            self.after.first_available_at = Some(stamp(self.facts.now));
        } else if fresh && !available {
            self.after.first_available_at = None;
        }
    }

    fn gate(&mut self, base: Verdict, fresh: bool, anchor: &str) -> Gated {
        if self.after.first_kv_event_observed_at.is_none() {
            let seen = self.before.index_participation.as_ref().and_then(|index| index.last_event_at.clone());
            self.after.first_kv_event_observed_at = seen;
        }
        let (patience, remark) = self.patience();
        // On the first pass the wait begins now; the stamp that is written has lost its fraction.
        let begins = fresh || self.before.first_available_at.is_none();
        let since = match &self.after.first_available_at {
            Some(latched) if !begins => latched.0,
            _ => self.facts.now,
        };
        let watch = gate::Watch {
            required: self.annotation(names::REQUIRE_KV_EVENTS) != Some("false"),
            seen: self.after.first_kv_event_observed_at.is_some(),
            late: if fresh { None } else { was_late(&self.before.conditions) },
            since,
            anchor,
            patience,
            remark: &remark,
        };
        gate::pass(base, &watch, self.facts.now)
    }

    /// How long the first event may take, and why it is not what the object says.
    fn patience(&self) -> (Duration, String) {
        let wanted = self.facts.backend.spec.observation.as_ref().and_then(|o| o.first_event_timeout.as_ref());
        let Some(wanted) = wanted else { return (PATIENCE, String::new()) };
        match wanted.nanos() {
            Ok(nanos) => match u64::try_from(nanos) {
                Ok(nanos @ 1..) => (Duration::from_nanos(nanos), String::new()),
                _ => (PATIENCE, String::new()),
            },
            Err(why) => (PATIENCE, format!(" (firstEventTimeout {:?} is {why})", cut(wanted.as_str(), 64))),
        }
    }

    /// The check of the engines' native code; `None` where the Pods could not be read.
    fn kernels(&self) -> Option<Kernels> {
        let facts = self.facts;
        let all = facts.pods?;
        let engines = all.iter().filter(|pod| is_selected(pod, facts.backend) && is_owned(pod, facts.backend));
        Some(kernel::judge(engines))
    }

    /// Publishes it; what Ready becomes for its sake.
    fn kernel_condition(&mut self, kernels: Option<Kernels>, generation: i64) -> Option<Verdict> {
        let kernels = kernels?;
        self.set_or_remove(types::ENGINE_KERNELS_HEALTHY, kernels.verdict, generation);
        kernels.downgrade
    }

    fn compatibility(&mut self, generation: i64) {
        let Some(all) = self.facts.pods else { return };
        let owned = all.iter().filter(|pod| is_owned(pod, self.facts.backend));
        let verdict = compat::crash_looping(owned, self.facts.engine_container);
        self.set_or_remove(types::ENGINE_COMPATIBILITY, verdict, generation);
    }

    fn annotation(&self, key: &str) -> Option<&str> {
        self.facts.backend.metadata.annotations.as_ref()?.get(key).map(String::as_str)
    }
}

/// The message of the verdict that no event came in time, if that is how the object stands.
fn was_late(conditions: &[Condition]) -> Option<&str> {
    let degraded = find(conditions, types::DEGRADED).filter(|c| c.status == "True" && c.reason == reasons::NO_EVENTS);
    let ready = || find(conditions, types::READY).filter(|c| c.reason == reasons::NO_EVENTS);
    degraded.or_else(ready).map(|condition| condition.message.as_str())
}
