//! Indexes with one fault each, to prove that the suites here notice.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::dump::{Dump, Inspect};
use super::model::Model;
use crate::index::{Aggregate, CacheState, IndexApi, IndexOptions, Snapshot};
use crate::query::{HashList, Lookup, Query};
use crate::resolve::{Eviction, EvictionResolver, QuotaResolver, Resolvers, TtlResolver};
use crate::time::Micros;
use crate::update::{Dropped, Event, EventKind, Update};

/// What is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Evicted prefixes stay.
    LosesRemovals,
    /// An eviction acts on every adapter.
    EvictsEveryAdapter,
    /// A clear acts as a refresh.
    IgnoresClears,
    /// Rows of equal score come in the wrong order.
    BreaksTies,
    /// Scores are off by one part in a million.
    RoundsScores,
    /// The last block of a chain is not matched.
    ForgetsLastBlock,
    /// Every hit is credited twice.
    CreditsTwice,
    /// One entry too many is kept under the cap.
    CapIsLate,
    /// An entry exactly as old as the TTL is fresh.
    TtlIsLate,
    /// A budget of nothing is no budget.
    NothingIsUnbounded,
    /// Use is not looked at when the cap binds.
    IgnoresUse,
    /// An unset tier is stored as the second.
    GuessesTier,
    /// Reserved tenants are counted.
    ShowsReserved,
    /// The pick depends on the tenant.
    SeedsWithTenant,
    /// Nothing is swept.
    NeverSweeps,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::LosesRemovals,
        Self::EvictsEveryAdapter,
        Self::IgnoresClears,
        Self::BreaksTies,
        Self::RoundsScores,
        Self::ForgetsLastBlock,
        Self::CreditsTwice,
        Self::CapIsLate,
        Self::TtlIsLate,
        Self::NothingIsUnbounded,
        Self::IgnoresUse,
        Self::GuessesTier,
        Self::ShowsReserved,
        Self::SeedsWithTenant,
        Self::NeverSweeps,
    ];
}

/// The oracle with one fault.
#[derive(Debug)]
pub struct Broken {
    model: Model,
    fault: Fault,
}

/// Resolvers with one fault.
#[derive(Debug)]
struct Bent {
    resolvers: Resolvers,
    fault: Fault,
}

// === impl Broken ===

impl Broken {
    /// An index with this fault.
    #[must_use]
    pub fn new(mut options: IndexOptions, fault: Fault) -> Self {
        if fault == Fault::CapIsLate && options.max_entries > 0 {
            options.max_entries += 1;
        }
        if fault == Fault::ShowsReserved {
            options.reserved.clear();
        }
        if fault == Fault::TtlIsLate {
            options.ttl = if options.ttl > 0 { options.ttl } else { crate::index::DEFAULT_TTL } + 1;
        }
        options.resolvers = Resolvers::all(&Arc::new(Bent { resolvers: options.resolvers, fault }));
        Self { model: Model::new(options), fault }
    }

    fn spoil(&self, out: &mut Lookup) {
        match self.fault {
            Fault::BreaksTies => {
                // Stable, so that only rows of equal score change places; captures go by position and stay behind.
                out.rows.reverse();
                out.rows.sort_by(|a, b| b.score.total_cmp(&a.score));
            }
            Fault::RoundsScores => out.rows.iter_mut().for_each(|row| row.score *= 1.000_001),
            Fault::CreditsTwice => out.captures.extend_from_within(..),
            _ => {}
        }
    }

    fn ask(&self, query: &Query<'_>, ask: impl FnOnce(&Query<'_>)) {
        let chain: Vec<&[u8]> = query.block_hashes.iter().collect();
        match self.fault {
            Fault::ForgetsLastBlock if chain.len() > 1 && query.block_token_counts.len() == chain.len() => {
                let shorter = chain.len() - 1;
                let block_hashes = HashList::Slices(&chain[..shorter]);
                ask(&Query { block_hashes, block_token_counts: &query.block_token_counts[..shorter], ..*query });
            }
            _ => ask(query),
        }
    }
}

impl IndexApi for Broken {
    fn ingest(&self, update: &Update<'_>) -> Dropped {
        if self.fault != Fault::GuessesTier {
            return self.model.ingest(update);
        }
        let mut entries = update.entries.to_vec();
        entries.iter_mut().filter(|entry| entry.tier == 0).for_each(|entry| entry.tier = 2);
        self.model.ingest(&Update { entries: &entries, ..*update })
    }

    fn apply_event(&self, event: &Event<'_>) {
        let bent = match (self.fault, event.kind) {
            (Fault::LosesRemovals, EventKind::PrefixEvicted) => return,
            (Fault::EvictsEveryAdapter, EventKind::PrefixEvicted) => Event { adapter: "", ..*event },
            (Fault::IgnoresClears, EventKind::AllCleared) => Event { kind: EventKind::ReplicaUpdated, ..*event },
            _ => *event,
        };
        self.model.apply_event(&bent);
    }

    fn lookup(&self, query: &Query<'_>, out: &mut Lookup) {
        self.ask(query, |query| self.model.lookup(query, out));
        self.spoil(out);
    }

    fn lookup_route(&self, query: &Query<'_>, out: &mut Lookup) {
        self.ask(query, |query| self.model.lookup_route(query, out));
        self.spoil(out);
    }

    fn affinity_hint(&self, tenant: &str, model: &str, scheme: &str, seed: &[u8]) -> Option<Arc<str>> {
        if self.fault == Fault::SeedsWithTenant && !seed.is_empty() {
            return self.model.affinity_hint(tenant, model, scheme, &[tenant.as_bytes(), seed].concat());
        }
        self.model.affinity_hint(tenant, model, scheme, seed)
    }

    fn has_any_tenant(&self, tenant: &str) -> bool {
        self.model.has_any_tenant(tenant)
    }

    fn has_any_tenant_model(&self, tenant: &str, model: &str) -> bool {
        self.model.has_any_tenant_model(tenant, model)
    }

    fn has_any_tenant_model_scheme(&self, tenant: &str, model: &str, scheme: &str) -> bool {
        self.model.has_any_tenant_model_scheme(tenant, model, scheme)
    }

    fn cache_state(&self, tenant: &str, model: &str) -> CacheState {
        self.model.cache_state(tenant, model)
    }

    fn aggregate(&self) -> Aggregate {
        self.model.aggregate()
    }

    fn snapshot(&self) -> Snapshot {
        self.model.snapshot()
    }

    fn entry_counts_by_model(&self) -> BTreeMap<Arc<str>, u64> {
        self.model.entry_counts_by_model()
    }

    fn sweep(&self) {
        if self.fault != Fault::NeverSweeps {
            self.model.sweep();
        }
    }

    fn storage_entries(&self) -> (u64, u64) {
        self.model.storage_entries()
    }
}

impl Inspect for Broken {
    fn dump(&self) -> Dump {
        self.model.dump()
    }
}

// === impl Bent ===

impl TtlResolver for Bent {
    fn ttl(&self, tenant: &str) -> Option<Micros> {
        let ttl = self.resolvers.ttl.as_ref()?.ttl(tenant)?;
        Some(if self.fault == Fault::TtlIsLate && ttl > 0 { ttl.saturating_add(1) } else { ttl })
    }
}

impl EvictionResolver for Bent {
    fn eviction(&self, tenant: &str) -> Eviction {
        if self.fault == Fault::IgnoresUse { Eviction::Lru } else { self.resolvers.eviction(tenant) }
    }
}

impl QuotaResolver for Bent {
    fn quota(&self, tenant: &str) -> Option<i64> {
        let budget = self.resolvers.quota.as_ref()?.quota(tenant)?;
        (self.fault != Fault::NothingIsUnbounded || budget != 0).then_some(budget)
    }
}
