//! The index: who holds which block, since when, in which tier.

mod api;

pub use api::{Aggregate, CacheState, IndexApi, ReplicaRow, Snapshot, TenantRow};

use std::sync::Arc;

use crate::metrics::{MetricsSink, NoMetrics};
use crate::rank::RankConfig;
use crate::resolve::Resolvers;
use crate::time::{Clock, Micros, SystemClock};

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

/// Working memory of lookups, private to the index.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(crate) moved: Vec<u32>,
}

/// The embedded implementation of [`IndexApi`].
#[derive(Debug)]
pub struct Index {
    _options: IndexOptions,
}
