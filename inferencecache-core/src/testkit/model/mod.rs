//! The naive index: two flat lists behind one lock, everything recomputed by scanning them.
//!
//! [`Model`] answers like any [`IndexApi`] and stands in wherever one is needed in tests. It keeps no derived table at
//! all, so there is none that could be wrong: a count is a count, a victim is the first of the sorted list. It shares no
//! code with the fast index, not even the scoring formulas.
//!
//! Not here: speed. One operation costs O(n) to O(n log n).

mod apply;
mod evict;
mod formula;
mod lookup;
mod read;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::index::{Aggregate, CacheState, DEFAULT_TTL, IndexApi, IndexOptions, Snapshot};
use crate::query::{CreditTarget, Lookup, Query};
use crate::resolve::Eviction;
use crate::testkit::dump::{Dump, DumpEntry, DumpStats, Inspect};
use crate::time::Micros;
use crate::update::{Dropped, Event, Stats, Update};

/// The oracle.
#[derive(Debug, Clone)]
pub struct Model {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    options: IndexOptions,
    state: Mutex<State>,
    /// Gauge values as last reported. Held while reporting, and taken before `state`, never after it.
    published: Mutex<BTreeMap<Arc<str>, u64>>,
}

/// The two lists.
#[derive(Debug, Default)]
struct State {
    entries: Vec<Held>,
    rows: Vec<StatRow>,
    /// Id of the next entry; ids are never used twice.
    next_id: u64,
}

/// What identifies a distinct prefix. Fields in tie-break order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    tenant: Arc<str>,
    model: Arc<str>,
    scheme: Arc<str>,
    adapter: Arc<str>,
    hash: Arc<[u8]>,
}

/// One storage entry.
#[derive(Debug, Clone)]
struct Held {
    id: u64,
    key: Key,
    replica: Arc<str>,
    token_count: i32,
    last_seen: Micros,
    tier: i32,
    access_count: u64,
}

/// One stats row.
#[derive(Debug, Clone)]
struct StatRow {
    tenant: Arc<str>,
    model: Arc<str>,
    replica: Arc<str>,
    stats: Stats,
    last_seen: Micros,
    stats_reported: Micros,
}

/// What one operation evicted, to be told to the sink afterwards.
#[derive(Debug, Default)]
struct Tally {
    over_quota: u64,
    lru: u64,
    lfu: u64,
}

impl Tally {
    fn add(&mut self, algorithm: Eviction) {
        match algorithm {
            Eviction::Lru => self.lru += 1,
            Eviction::Lfu => self.lfu += 1,
        }
    }
}

// === impl Model ===

impl Model {
    /// An empty oracle.
    #[must_use]
    pub fn new(options: IndexOptions) -> Self {
        Self { inner: Arc::new(Inner { options, state: Mutex::default(), published: Mutex::default() }) }
    }
}

impl IndexApi for Model {
    fn ingest(&self, update: &Update<'_>) -> Dropped {
        self.inner.ingest(update)
    }

    fn apply_event(&self, event: &Event<'_>) {
        self.inner.apply_event(event);
    }

    fn lookup(&self, query: &Query<'_>, out: &mut Lookup) {
        out.clear();
        self.inner.raw_lookup(query, out);
    }

    fn lookup_route(&self, query: &Query<'_>, out: &mut Lookup) {
        out.clear();
        self.inner.lookup_route(query, out);
    }

    fn affinity_hint(&self, tenant: &str, model: &str, scheme: &str, seed: &[u8]) -> Option<Arc<str>> {
        self.inner.affinity_hint(tenant, model, scheme, seed)
    }

    fn has_any_tenant(&self, tenant: &str) -> bool {
        self.inner.any_key(|key| &*key.tenant == tenant)
    }

    fn has_any_tenant_model(&self, tenant: &str, model: &str) -> bool {
        self.inner.any_key(|key| &*key.tenant == tenant && &*key.model == model)
    }

    fn has_any_tenant_model_scheme(&self, tenant: &str, model: &str, scheme: &str) -> bool {
        self.inner.any_key(|key| &*key.tenant == tenant && &*key.model == model && &*key.scheme == scheme)
    }

    fn cache_state(&self, tenant: &str, model: &str) -> CacheState {
        self.inner.cache_state(tenant, model)
    }

    fn aggregate(&self) -> Aggregate {
        self.inner.aggregate()
    }

    fn snapshot(&self) -> Snapshot {
        self.inner.snapshot()
    }

    fn entry_counts_by_model(&self) -> BTreeMap<Arc<str>, u64> {
        self.inner.entry_counts_by_model()
    }

    fn sweep(&self) {
        self.inner.sweep();
    }

    fn storage_entries(&self) -> (u64, u64) {
        let state = self.inner.state.lock();
        let reserved = state.entries.iter().filter(|held| self.inner.is_reserved(&held.key.tenant)).count();
        (state.entries.len() as u64, reserved as u64)
    }
}

impl Inspect for Model {
    fn dump(&self) -> Dump {
        let state = self.inner.state.lock();
        let entries = state.entries.iter().map(|held| DumpEntry {
            tenant: held.key.tenant.clone(),
            model: held.key.model.clone(),
            scheme: held.key.scheme.clone(),
            adapter: held.key.adapter.clone(),
            hash: held.key.hash.to_vec(),
            replica: held.replica.clone(),
            token_count: held.token_count,
            last_seen: held.last_seen,
            tier: held.tier,
            access_count: held.access_count,
        });
        let stats = state.rows.iter().map(|row| DumpStats {
            tenant: row.tenant.clone(),
            model: row.model.clone(),
            replica: row.replica.clone(),
            stats: row.stats,
            last_seen: row.last_seen,
            stats_reported: row.stats_reported,
        });
        Dump::new(entries.collect(), stats.collect())
    }
}

// === impl Inner ===

impl Inner {
    fn now(&self) -> Micros {
        self.options.clock.now()
    }

    fn is_reserved(&self, tenant: &str) -> bool {
        !tenant.is_empty() && self.options.reserved.iter().any(|reserved| reserved == tenant)
    }

    fn ttl(&self, tenant: &str) -> Micros {
        let own = self.options.resolvers.ttl.as_ref().and_then(|resolver| resolver.ttl(tenant));
        match own {
            Some(ttl) if ttl > 0 => ttl,
            _ if self.options.ttl > 0 => self.options.ttl,
            _ => DEFAULT_TTL,
        }
    }

    fn eviction(&self, tenant: &str) -> Eviction {
        match &self.options.resolvers.eviction {
            Some(resolver) => resolver.eviction(tenant),
            None => Eviction::Lru,
        }
    }

    fn any_key(&self, wanted: impl Fn(&Key) -> bool) -> bool {
        self.state.lock().entries.iter().any(|held| wanted(&held.key))
    }
}

impl CreditTarget for Inner {
    /// Slot and generation are the two halves of an entry id, and ids are never reused: nobody else can get the credit.
    fn credit(&self, slot: u32, generation: u32) {
        let id = u64::from(generation) << 32 | u64::from(slot);
        if let Some(held) = self.state.lock().entries.iter_mut().find(|held| held.id == id) {
            held.access_count += 1;
        }
    }
}

// === impl State ===

impl State {
    /// The replicas that hold anything in (tenant, model, scheme), whatever the adapter and however old.
    fn serving(&self, tenant: &str, model: &str, scheme: &str) -> BTreeSet<Arc<str>> {
        self.entries
            .iter()
            .filter(|held| &*held.key.tenant == tenant && &*held.key.model == model && &*held.key.scheme == scheme)
            .map(|held| held.replica.clone())
            .collect()
    }

    fn row(&self, tenant: &str, model: &str, replica: &str) -> Option<&StatRow> {
        self.rows.iter().find(|row| &*row.tenant == tenant && &*row.model == model && &*row.replica == replica)
    }

    fn row_mut(&mut self, tenant: &str, model: &str, replica: &str) -> Option<&mut StatRow> {
        self.rows.iter_mut().find(|row| &*row.tenant == tenant && &*row.model == model && &*row.replica == replica)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::{Clock, ManualClock};
    use crate::update::Entry;

    #[test]
    fn half_aged_hold_scores_half() {
        let clock = ManualClock::at(60 * 60 * 1_000_000);
        let model = Model::new(IndexOptions { clock: Arc::new(clock.clone()), ..IndexOptions::default() });
        let entries = [Entry { prefix_hash: b"p", token_count: 100, ..Entry::default() }];
        let identity = Update { replica: "r1", model: "m", tenant: "t", scheme: "vllm", ..Update::default() };
        model.ingest(&Update { entries: &entries, timestamp: clock.now() - 15 * 60 * 1_000_000, ..identity });

        let mut found = Lookup::new();
        let query = Query { tenant: "t", model: "m", scheme: "vllm", prefix_hash: b"p", ..Query::default() };
        model.lookup_route(&query, &mut found);
        assert_eq!(found.rows.len(), 1);
        assert_eq!((found.rows[0].matched_tokens, found.rows[0].score, found.rows[0].tier), (100, 50.0, 1));
        assert_eq!(model.dump().entries.len(), 1);
    }
}
