//! What producers tell the index: additive updates and events, borrowed from the caller's buffers.

use crate::query::HashList;
use crate::time::Micros;

/// One report of a replica: prefixes it holds now, and optionally its load figures. Absence removes nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Update<'a> {
    /// Reporter. Empty: the whole update is dropped.
    pub replica: &'a str,
    /// Model. May be empty; then no route ever finds it.
    pub model: &'a str,
    /// Tenant. May be empty; then no route ever finds it.
    pub tenant: &'a str,
    /// Engine compatibility tag. Empty: prefixes are dropped, stats kept.
    pub scheme: &'a str,
    /// Partition of the entries that name none.
    pub adapter: &'a str,
    /// Unix microseconds; exactly 0 means "now".
    pub timestamp: Micros,
    /// Prefixes, applied in order.
    pub entries: &'a [Entry<'a>],
    /// Load figures; replace the replica's whole row.
    pub stats: Option<Stats>,
}

/// One prefix, in single form (`prefix_hash`) or chain form (`block_hashes` with `block_token_counts`), or both.
#[derive(Debug, Clone, Copy, Default)]
pub struct Entry<'a> {
    /// Partition; empty falls back to the update's.
    pub adapter: &'a str,
    /// Wire value: 0 unspecified (stored as T1), 1 T1, 2 T2, 3 T3; larger is colder, negative is coldest.
    pub tier: i32,
    /// Single key. Empty when absent.
    pub prefix_hash: &'a [u8],
    /// Tokens that `prefix_hash` covers. Negative drops the entry.
    pub token_count: i32,
    /// Chain form, root first.
    pub block_hashes: HashList<'a>,
    /// Tokens of each block; parallel to `block_hashes`, otherwise the entry is dropped.
    pub block_token_counts: &'a [i32],
}

/// Load figures of one replica.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Stats {
    /// Bytes of KV cache in use, over all tenants.
    pub cache_memory_bytes: i64,
    /// Share of prompt tokens served from cache, 0 to 1. NaN and infinities become 0.
    pub hit_rate: f32,
    /// Load, 0 to 1, higher is busier. NaN and infinities become 0.
    pub pressure: f32,
    /// Lifetime tokens served by the second tier.
    pub t2_hit_tokens: i64,
    /// Lifetime tokens asked of the second tier.
    pub t2_query_tokens: i64,
}

impl Stats {
    /// The same figures with NaN and infinite rates replaced by 0, as they are stored.
    #[must_use]
    pub fn sanitised(self) -> Self {
        let finite = |x: f32| if x.is_finite() { x } else { 0.0 };
        Self { hit_rate: finite(self.hit_rate), pressure: finite(self.pressure), ..self }
    }
}

/// What happened to a replica. Events carry no scheme, so they act on all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum EventKind {
    /// Unspecified or unknown: no effect.
    #[default]
    Unspecified,
    /// No effect: neither creates nor refreshes.
    PrefixAdded,
    /// The replica no longer holds the hash.
    PrefixEvicted,
    /// The replica is alive: refreshes the liveness of an existing stats row.
    ReplicaUpdated,
    /// The replica holds nothing of the model any more; its stats row goes too.
    AllCleared,
}

/// One event.
#[derive(Debug, Clone, Copy, Default)]
pub struct Event<'a> {
    /// What happened.
    pub kind: EventKind,
    /// To which replica.
    pub replica: &'a str,
    /// Model.
    pub model: &'a str,
    /// Tenant.
    pub tenant: &'a str,
    /// The hash, for `PrefixEvicted`.
    pub prefix_hash: &'a [u8],
    /// Narrows `PrefixEvicted`; empty is every partition.
    pub adapter: &'a str,
    /// Unix microseconds; exactly 0 means "now".
    pub timestamp: Micros,
}

/// What the index refused of one update, by cause. Everything else was applied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Updates without a replica id.
    pub no_replica: u32,
    /// Entries of an update without a hash scheme.
    pub no_scheme: u32,
    /// Entries whose chain arrays differ in length.
    pub unbalanced: u32,
    /// Entries without any hash, or with an empty hash in the chain.
    pub empty_hash: u32,
    /// Entries with a negative token count.
    pub negative_count: u32,
    /// Blocks for which a partition had no page or line left.
    pub no_room: u32,
}

impl Dropped {
    /// All refusals together.
    #[must_use]
    pub fn total(&self) -> u32 {
        let Self { no_replica, no_scheme, unbalanced, empty_hash, negative_count, no_room } = *self;
        no_replica + no_scheme + unbalanced + empty_hash + negative_count + no_room
    }
}
