//! What a service needs of an index. [`Index`](super::Index) implements it; so does the oracle of the test kit, and so may you.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::query::{Lookup, Query};
use crate::time::Micros;
use crate::update::{Dropped, Event, Stats, Update};

/// An index of who holds what.
///
/// Purpose: the only thing services, the router and the prober know of an index. *Callers may assume* that no operation
/// fails, blocks for long or panics, on any input. *Implementers must* keep each operation atomic within every partition
/// (tenant, model, scheme, adapter) it touches. The conformance suite is `testkit::conformance`.
pub trait IndexApi: Send + Sync + fmt::Debug + 'static {
    /// Applies one update: prefixes, then stats, then the tenant's quota, then the cap. Says what it refused.
    fn ingest(&self, update: &Update<'_>) -> Dropped;
    /// Applies one event.
    fn apply_event(&self, event: &Event<'_>);
    /// Raw lookup: the exact or chain match alone, without fallback or classification, also of empty tenants and models.
    fn lookup(&self, query: &Query<'_>, out: &mut Lookup);
    /// The orchestrated lookup: match, else tenant-hot (exact form only), else the miss class.
    fn lookup_route(&self, query: &Query<'_>, out: &mut Lookup);
    /// The affinity pick for `seed` over the replicas that serve the scope; `None` without seed, scheme or replica.
    fn affinity_hint(&self, tenant: &str, model: &str, scheme: &str, seed: &[u8]) -> Option<Arc<str>>;
    /// Whether any key is stored for the tenant (reserved tenants included, stale keys too).
    fn has_any_tenant(&self, tenant: &str) -> bool;
    /// The same for (tenant, model).
    fn has_any_tenant_model(&self, tenant: &str, model: &str) -> bool;
    /// The same for (tenant, model, scheme).
    fn has_any_tenant_model_scheme(&self, tenant: &str, model: &str, scheme: &str) -> bool;
    /// Stats of the replicas of (tenant, model) and its number of distinct keys.
    fn cache_state(&self, tenant: &str, model: &str) -> CacheState;
    /// Distinct keys by tenant, reserved tenants excluded.
    fn aggregate(&self) -> Aggregate;
    /// Everything the bridge publishes, reserved tenants excluded.
    fn snapshot(&self) -> Snapshot;
    /// Distinct keys by model, reserved tenants excluded.
    fn entry_counts_by_model(&self) -> BTreeMap<Arc<str>, u64>;
    /// Removes what has outlived its TTL.
    fn sweep(&self);
    /// Storage entries: (all, of reserved tenants).
    fn storage_entries(&self) -> (u64, u64);
}

/// Answer of [`IndexApi::cache_state`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CacheState {
    /// By replica id, ascending bytewise.
    pub replicas: Vec<(Arc<str>, Stats)>,
    /// Distinct keys over all schemes and adapters.
    pub total_prefixes: u64,
}

/// Answer of [`IndexApi::aggregate`]. `total` is the sum of `by_tenant`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Aggregate {
    /// Distinct keys.
    pub total: u64,
    /// Distinct keys of each tenant that has any.
    pub by_tenant: BTreeMap<Arc<str>, u64>,
}

/// Answer of [`IndexApi::snapshot`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Snapshot {
    /// Sorted by (tenant, replica).
    pub replicas: Vec<ReplicaRow>,
    /// Sorted by tenant.
    pub tenants: Vec<TenantRow>,
    /// Distinct keys.
    pub total_prefixes: u64,
}

/// One (tenant, replica); models, schemes and adapters merged.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplicaRow {
    /// Tenant, may be empty.
    pub tenant: Arc<str>,
    /// Replica.
    pub replica: Arc<str>,
    /// The stats row with the newest liveness over the models (ties: newest report, then smallest model id) and its
    /// liveness; `None` when there is none.
    pub stats: Option<(Stats, Micros)>,
    /// Storage entries held.
    pub prefix_count: u64,
    /// Newest `last_seen` among them.
    pub last_event_at: Option<Micros>,
}

/// One tenant that has keys or stats.
#[derive(Debug, Clone, PartialEq)]
pub struct TenantRow {
    /// Tenant, may be empty.
    pub tenant: Arc<str>,
    /// Distinct keys.
    pub index_entries: u64,
    /// Mean hit rate over the tenant's replicas that report stats; `None` when none does.
    pub hit_rate: Option<f32>,
}
