//! What the index asks of policy: three resolver traits, each answering for one tenant.
//!
//! Callers may assume that answers come at once; implementers own their synchronisation and may change answers between
//! calls. A resolver is asked once per operation and tenant, never once per entry, and never under the index's lock.

use std::fmt;
use std::sync::Arc;

use crate::time::Micros;

/// Victim order of a tenant's entries under the global cap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Eviction {
    /// Oldest first.
    #[default]
    Lru,
    /// Least credited first, then oldest.
    Lfu,
}

impl Eviction {
    /// `lfu` in any case is LFU; anything else, also the empty string, is LRU.
    #[must_use]
    pub fn parse(name: &str) -> Self {
        if name.eq_ignore_ascii_case("lfu") { Self::Lfu } else { Self::Lru }
    }

    /// The label under which evictions are counted.
    #[must_use]
    pub fn label(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Lfu => "lfu",
        }
    }
}

/// Freshness lifetime of a tenant's entries.
pub trait TtlResolver: Send + Sync + fmt::Debug + 'static {
    /// Lifetime in microseconds; `None` or a value not above 0 means the index's global TTL.
    fn ttl(&self, tenant: &str) -> Option<Micros>;
}

/// Victim order of a tenant.
pub trait EvictionResolver: Send + Sync + fmt::Debug + 'static {
    /// The algorithm in force.
    fn eviction(&self, tenant: &str) -> Eviction;
    /// A number that changes whenever an answer may have changed; `None` when unknown, and then every pass asks anew.
    fn revision(&self) -> Option<u64> {
        None
    }
}

/// Budget of distinct prefixes of a tenant.
pub trait QuotaResolver: Send + Sync + fmt::Debug + 'static {
    /// The budget; `None` is unbounded, 0 is a real budget, negative is not enforced.
    fn quota(&self, tenant: &str) -> Option<i64>;
}

/// The three resolvers together; each absent one stands for the default.
#[derive(Debug, Clone, Default)]
pub struct Resolvers {
    /// Absent: the global TTL for everyone.
    pub ttl: Option<Arc<dyn TtlResolver>>,
    /// Absent: LRU for everyone.
    pub eviction: Option<Arc<dyn EvictionResolver>>,
    /// Absent: unbounded for everyone.
    pub quota: Option<Arc<dyn QuotaResolver>>,
}

impl Resolvers {
    /// One object that answers all three.
    pub fn all<R: TtlResolver + EvictionResolver + QuotaResolver>(resolver: &Arc<R>) -> Self {
        Self { ttl: Some(resolver.clone()), eviction: Some(resolver.clone()), quota: Some(resolver.clone()) }
    }

    /// The effective TTL in microseconds.
    #[must_use]
    pub fn ttl(&self, tenant: &str, global: Micros) -> Micros {
        self.ttl.as_ref().and_then(|r| r.ttl(tenant)).filter(|&ttl| ttl > 0).unwrap_or(global)
    }

    /// The effective victim order.
    #[must_use]
    pub fn eviction(&self, tenant: &str) -> Eviction {
        self.eviction.as_ref().map(|r| r.eviction(tenant)).unwrap_or_default()
    }

    /// The effective budget: `None` when unbounded or negative.
    #[must_use]
    pub fn quota(&self, tenant: &str) -> Option<u64> {
        self.quota.as_ref().and_then(|r| r.quota(tenant)).and_then(|budget| u64::try_from(budget).ok())
    }
}
