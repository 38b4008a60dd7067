//! The index: who holds which block, since when, in which tier.
//!
//! ```text
//!   lookups ──> catalog ──> Scope ──> Partition (tables, entries, names)     no lock, no waiting
//!                  ▲           ▲          ▲
//!                  └───────────┴──────────┴── writer: Mutex { tenants, ledgers, orders, counts }
//!                                                 ▲
//!   ingest, events, sweep, reads across partitions ┘
//! ```
//!
//! * One lock for all writers, held for at most 256 blocks at a time. Readers take it only after losing 200 races.
//! * An operation is atomic in each partition it touches; counts that span partitions are exact when no write is in
//!   flight.
//! * Lock order: `writer`, then nothing. The sink is called with no lock but the reporter's own.
//! * Nothing here knows policy beyond the three resolvers, and nothing can fail.

mod api;
mod arena;
mod books;
mod catalog;
mod event;
mod evict;
mod hints;
mod image;
mod ingest;
#[cfg(feature = "testkit")]
mod inspect;
mod ledger;
mod lookup;
mod order;
mod page;
mod partition;
mod read;
mod replicas;
mod report;
mod store;
mod table;
mod walk;
mod writer;

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;

pub use api::{Aggregate, CacheState, IndexApi, ReplicaRow, Snapshot, TenantRow};
pub use image::{ImageSize, RestoreError};
pub use lookup::Scratch;

use crate::index::catalog::Catalog;
use crate::index::report::Report;
use crate::index::writer::{Ground, Writer};
use crate::metrics::{MetricsSink, NoMetrics};
use crate::query::{Lookup, Query};
use crate::rank::{RankConfig, Ranker};
use crate::resolve::Resolvers;
use crate::time::{Clock, Micros, SystemClock};
use crate::update::{Dropped, Event, Update};

/// How an index is built. Start from [`IndexOptions::default`].
#[derive(Debug, Clone)]
pub struct IndexOptions {
    /// Lifetime of entries of tenants without one of their own, in microseconds; not above 0 means the default, 30 min.
    pub ttl: Micros,
    /// Most storage entries of non-reserved tenants; 0 is unbounded. Default 1 000 000.
    pub max_entries: u64,
    /// Most stats rows; 0 is unbounded. Default 65 536. Above it the row with the oldest liveness goes.
    pub max_stats: u64,
    /// Ranker configuration.
    pub rank: RankConfig,
    /// Policy.
    pub resolvers: Resolvers,
    /// Where evictions and gauges are reported.
    pub sink: Arc<dyn MetricsSink>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Tenants that are hidden from counts, caps and snapshots. Empty strings are ignored.
    pub reserved: Vec<String>,
}

/// Default lifetime of entries: 30 minutes, in microseconds.
pub const DEFAULT_TTL: Micros = 30 * 60 * 1_000_000;

impl Default for IndexOptions {
    fn default() -> Self {
        Self {
            ttl: DEFAULT_TTL,
            max_entries: 1_000_000,
            max_stats: 65_536,
            rank: RankConfig::default(),
            resolvers: Resolvers::default(),
            sink: Arc::new(NoMetrics),
            clock: Arc::new(SystemClock::default()),
            reserved: vec![crate::RESERVED_TENANT.to_owned()],
        }
    }
}

/// The embedded implementation of [`IndexApi`].
///
/// ```
/// use inferencecache_core::{Entry, Index, IndexApi, IndexOptions, Lookup, Query, Strategy, Update};
///
/// let index = Index::new(IndexOptions::default());
/// let entries = [Entry { prefix_hash: b"8 bytes!", token_count: 16, ..Entry::default() }];
/// let update = Update { replica: "pod-0", model: "m", tenant: "t", scheme: "vllm", entries: &entries, ..Update::default() };
/// index.ingest(&update);
///
/// let mut answer = Lookup::new();
/// let query = Query { tenant: "t", model: "m", scheme: "vllm", prefix_hash: b"8 bytes!", ..Query::default() };
/// index.lookup_route(&query, &mut answer);
/// assert_eq!(answer.strategy, Strategy::PrefixMatch);
/// assert_eq!(&*answer.rows[0].replica, "pod-0");
/// ```
pub struct Index {
    options: IndexOptions,
    ranker: Ranker,
    ground: Ground,
    writer: Mutex<Writer>,
    reporter: Mutex<()>,
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (entries, reserved) = self.ground.catalog.storage();
        f.debug_struct("Index").field("entries", &entries).field("reserved", &reserved).finish_non_exhaustive()
    }
}

impl Index {
    /// An empty index.
    #[must_use]
    pub fn new(mut options: IndexOptions) -> Self {
        if options.ttl <= 0 {
            options.ttl = DEFAULT_TTL;
        }
        options.reserved.retain(|tenant| !tenant.is_empty());
        Self {
            ranker: Ranker::new(options.rank),
            ground: Ground {
                catalog: Catalog::default(),
                // Against chosen hashes; no answer depends on it.
                seed: RandomState::new().hash_one(0u8),
                reserved: options.reserved.clone(),
                resolvers: options.resolvers.clone(),
                silent: options.sink.is_silent(),
                aged: AtomicU64::new(0),
            },
            writer: Mutex::new(Writer::default()),
            reporter: Mutex::new(()),
            options,
        }
    }

    /// The ranker in use.
    #[must_use]
    pub fn ranker(&self) -> &Ranker {
        &self.ranker
    }

    fn tell(&self, tenant: &str, report: Report) {
        let drained = report.tell(tenant, &*self.options.sink, &self.reporter);
        if !drained.is_empty() {
            self.writer.lock().forget_gauges(&drained);
        }
    }
}

impl IndexApi for Index {
    fn ingest(&self, update: &Update<'_>) -> Dropped {
        self.ingest_update(update)
    }

    fn apply_event(&self, event: &Event<'_>) {
        self.event(event);
    }

    fn lookup(&self, query: &Query<'_>, out: &mut Lookup) {
        self.find_match(query, out);
    }

    fn lookup_route(&self, query: &Query<'_>, out: &mut Lookup) {
        self.find_route(query, out);
    }

    fn affinity_hint(&self, tenant: &str, model: &str, scheme: &str, seed: &[u8]) -> Option<Arc<str>> {
        if seed.is_empty() || scheme.is_empty() {
            return None;
        }
        self.ground.catalog.with_scope(tenant, model, scheme, |scope| {
            let serving = scope.serving.load();
            let pick = crate::affinity::pick_position(seed, serving.len())?;
            serving.nth(pick).map(|replica| replica.id.clone())
        })?
    }

    fn has_any_tenant(&self, tenant: &str) -> bool {
        self.ground.catalog.has_tenant(tenant)
    }

    fn has_any_tenant_model(&self, tenant: &str, model: &str) -> bool {
        self.ground.catalog.has_model(tenant, model)
    }

    fn has_any_tenant_model_scheme(&self, tenant: &str, model: &str, scheme: &str) -> bool {
        self.ground.catalog.has_scope(tenant, model, scheme)
    }

    fn cache_state(&self, tenant: &str, model: &str) -> CacheState {
        self.read_state(tenant, model)
    }

    fn aggregate(&self) -> Aggregate {
        self.read_aggregate()
    }

    fn snapshot(&self) -> Snapshot {
        self.read_snapshot()
    }

    fn entry_counts_by_model(&self) -> BTreeMap<Arc<str>, u64> {
        self.read_counts()
    }

    fn sweep(&self) {
        self.sweep_expired();
    }

    fn storage_entries(&self) -> (u64, u64) {
        self.ground.catalog.storage()
    }
}
