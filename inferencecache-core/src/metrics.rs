//! Where the index reports what it did. All calls happen with the index's lock released.

use std::fmt;

use crate::resolve::Eviction;

/// Why storage entries were evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EvictionCause {
    /// The global cap.
    Cap,
    /// Their age.
    Ttl,
}

impl EvictionCause {
    /// The label under which they are counted.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Cap => "cap",
            Self::Ttl => "ttl",
        }
    }
}

/// Receives gauges and counters. Implementers must return quickly and may be called from any thread.
pub trait MetricsSink: Send + Sync + fmt::Debug + 'static {
    /// Distinct prefixes of `model` over all tenants but the reserved ones. A drained model is set to 0 once.
    fn set_index_entries(&self, model: &str, entries: u64);
    /// Distinct prefixes of `tenant` evicted for its quota (reason `over_entries`).
    fn add_tenant_evictions(&self, tenant: &str, prefixes: u64);
    /// Storage entries evicted.
    fn add_index_evictions(&self, algorithm: Eviction, cause: EvictionCause, entries: u64);
    /// Whether nobody listens: then an index may leave the calls out. Asked once.
    fn is_silent(&self) -> bool {
        false
    }
}

/// The sink that is silent.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoMetrics;

impl MetricsSink for NoMetrics {
    fn set_index_entries(&self, _model: &str, _entries: u64) {}
    fn add_tenant_evictions(&self, _tenant: &str, _prefixes: u64) {}
    fn add_index_evictions(&self, _algorithm: Eviction, _cause: EvictionCause, _entries: u64) {}
    fn is_silent(&self) -> bool {
        true
    }
}
