//! Stand-ins for what surrounds an index: a sink that remembers and a policy that can be changed in mid-flight.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::metrics::{EvictionCause, MetricsSink};
use crate::resolve::{Eviction, EvictionResolver, QuotaResolver, TtlResolver};
use crate::time::Micros;

// ---- sink ----

/// A sink that remembers every call.
#[derive(Debug, Default)]
pub struct RecordingSink {
    calls: Mutex<Vec<Call>>,
    totals: Mutex<Totals>,
}

/// One call of a [`MetricsSink`], printed as the tests write it.
#[derive(Clone, PartialEq, Eq)]
pub enum Call {
    /// `set_index_entries`.
    Set(String, u64),
    /// `add_tenant_evictions`.
    Tenant(String, u64),
    /// `add_index_evictions`.
    Index(Eviction, EvictionCause, u64),
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Set(model, entries) => write!(f, "set({model},{entries})"),
            Self::Tenant(tenant, prefixes) => write!(f, "ten({tenant},over_entries,{prefixes})"),
            Self::Index(algorithm, cause, entries) => {
                write!(f, "idx({},{},{entries})", algorithm.label(), cause.label())
            }
        }
    }
}

/// What the calls add up to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Totals {
    /// Last value of each gauge.
    pub gauges: BTreeMap<String, u64>,
    /// Prefixes evicted for each tenant's quota.
    pub over_quota: BTreeMap<String, u64>,
    /// Storage entries evicted, by (algorithm, cause).
    pub evicted: BTreeMap<(&'static str, &'static str), u64>,
}

impl RecordingSink {
    /// The calls since the last time this was asked.
    #[must_use]
    pub fn take_calls(&self) -> Vec<Call> {
        std::mem::take(&mut *self.calls.lock())
    }

    /// What all calls so far add up to.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.totals.lock().clone()
    }

    /// Runs `look` on the totals without copying them.
    pub fn with_totals<T>(&self, look: impl FnOnce(&Totals) -> T) -> T {
        look(&self.totals.lock())
    }

    fn record(&self, call: Call) {
        let mut calls = self.calls.lock();
        // Long runs read the totals alone: the list of calls is for short stories.
        if calls.len() < 10_000 {
            calls.push(call);
        }
    }
}

impl MetricsSink for RecordingSink {
    fn set_index_entries(&self, model: &str, entries: u64) {
        self.totals.lock().gauges.insert(model.to_owned(), entries);
        self.record(Call::Set(model.to_owned(), entries));
    }

    fn add_tenant_evictions(&self, tenant: &str, prefixes: u64) {
        *self.totals.lock().over_quota.entry(tenant.to_owned()).or_default() += prefixes;
        self.record(Call::Tenant(tenant.to_owned(), prefixes));
    }

    fn add_index_evictions(&self, algorithm: Eviction, cause: EvictionCause, entries: u64) {
        *self.totals.lock().evicted.entry((algorithm.label(), cause.label())).or_default() += entries;
        self.record(Call::Index(algorithm, cause, entries));
    }
}

// ---- policy ----

/// What one tenant may have set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Knobs {
    /// Lifetime of entries.
    pub ttl: Option<Micros>,
    /// Victim order.
    pub eviction: Option<Eviction>,
    /// Budget of distinct prefixes.
    pub quota: Option<i64>,
}

/// A table of knobs by tenant that tests change between operations.
#[derive(Debug, Default)]
pub struct PolicyTable {
    knobs: Mutex<BTreeMap<String, Knobs>>,
    revision: AtomicU64,
    /// Whether the revision is kept to itself, so that callers have to ask anew each time.
    secretive: bool,
}

impl PolicyTable {
    /// A table that does not tell its revision.
    #[must_use]
    pub fn secretive() -> Self {
        Self { secretive: true, ..Self::default() }
    }

    /// Replaces the knobs of `tenant`.
    pub fn set(&self, tenant: &str, knobs: Knobs) {
        self.knobs.lock().insert(tenant.to_owned(), knobs);
        self.revision.fetch_add(1, Ordering::SeqCst);
    }

    /// Changes the knobs of `tenant`.
    pub fn edit(&self, tenant: &str, change: impl FnOnce(&mut Knobs)) {
        change(self.knobs.lock().entry(tenant.to_owned()).or_default());
        self.revision.fetch_add(1, Ordering::SeqCst);
    }

    fn of(&self, tenant: &str) -> Knobs {
        self.knobs.lock().get(tenant).copied().unwrap_or_default()
    }
}

impl TtlResolver for PolicyTable {
    fn ttl(&self, tenant: &str) -> Option<Micros> {
        self.of(tenant).ttl
    }
}

impl EvictionResolver for PolicyTable {
    fn eviction(&self, tenant: &str) -> Eviction {
        self.of(tenant).eviction.unwrap_or_default()
    }

    fn revision(&self) -> Option<u64> {
        (!self.secretive).then(|| self.revision.load(Ordering::SeqCst))
    }
}

impl QuotaResolver for PolicyTable {
    fn quota(&self, tenant: &str) -> Option<i64> {
        self.of(tenant).quota
    }
}
