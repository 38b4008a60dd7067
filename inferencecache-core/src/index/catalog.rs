//! The way from names to partitions, and the counts that span partitions, for readers that wait for nobody.
//!
//! Each count is exact whenever no write is in flight. Presence of a tenant, model or scope means "holds at least one
//! key", stale or not.

use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use papaya::Equivalent;

use crate::index::partition::{Partition, PartitionKey, WideWords};
use crate::index::replicas::ServingSet;

type Map<K, V> = papaya::HashMap<K, V, foldhash::fast::RandomState>;

/// (tenant, model, scheme): what answers "which replicas serve this engine domain", blind to adapters.
#[derive(Debug, Default)]
pub(super) struct Scope {
    pub(super) serving: ArcSwap<ServingSet>,
}

#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct ScopeKey(pub(super) Arc<str>, pub(super) Arc<str>, pub(super) Arc<str>);

#[derive(Debug, Hash)]
struct ScopeRef<'a>(&'a str, &'a str, &'a str);

impl Equivalent<ScopeKey> for ScopeRef<'_> {
    fn equivalent(&self, key: &ScopeKey) -> bool {
        *key.0 == *self.0 && *key.1 == *self.1 && *key.2 == *self.2
    }
}

#[derive(Debug, Hash)]
struct PartitionRef<'a>(&'a str, &'a str, &'a str, &'a str);

impl Equivalent<PartitionKey> for PartitionRef<'_> {
    fn equivalent(&self, key: &PartitionKey) -> bool {
        *key.tenant == *self.0 && *key.model == *self.1 && *key.scheme == *self.2 && *key.adapter == *self.3
    }
}

#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct ModelKey(pub(super) Arc<str>, pub(super) Arc<str>);

#[derive(Debug, Hash)]
struct ModelRef<'a>(&'a str, &'a str);

impl Equivalent<ModelKey> for ModelRef<'_> {
    fn equivalent(&self, key: &ModelKey) -> bool {
        *key.0 == *self.0 && *key.1 == *self.1
    }
}

/// What readers find by name.
#[derive(Debug, Default)]
pub(super) struct Catalog {
    partitions: Map<PartitionKey, Arc<Partition>>,
    scopes: Map<ScopeKey, Arc<Scope>>,
    pub(super) wide_words: Arc<WideWords>,
    models: Map<ModelKey, ()>,
    tenants: Map<Arc<str>, ()>,
    /// Distinct keys outside reserved tenants.
    real_keys: AtomicU64,
    /// Storage entries, and those of reserved tenants.
    total: AtomicU64,
    reserved: AtomicU64,
}

impl Catalog {
    /// Runs `found` on a partition, if there is one.
    pub(super) fn with_partition(
        &self,
        (tenant, model, scheme, adapter): (&str, &str, &str, &str),
        found: impl FnOnce(&Arc<Partition>),
    ) {
        if let Some(partition) = self.partitions.pin().get(&PartitionRef(tenant, model, scheme, adapter)) {
            found(partition);
        }
    }

    /// Runs `found` on a scope, if there is one.
    pub(super) fn with_scope<T>(
        &self,
        tenant: &str,
        model: &str,
        scheme: &str,
        found: impl FnOnce(&Scope) -> T,
    ) -> Option<T> {
        self.scopes.pin().get(&ScopeRef(tenant, model, scheme)).map(|scope| found(scope))
    }

    pub(super) fn has_tenant(&self, tenant: &str) -> bool {
        self.tenants.pin().contains_key(tenant)
    }

    pub(super) fn has_model(&self, tenant: &str, model: &str) -> bool {
        self.models.pin().contains_key(&ModelRef(tenant, model))
    }

    pub(super) fn has_scope(&self, tenant: &str, model: &str, scheme: &str) -> bool {
        self.with_scope(tenant, model, scheme, |scope| scope.serving.load().len() > 0).unwrap_or(false)
    }

    /// Whether any tenant but the reserved ones holds a key.
    pub(super) fn has_real_keys(&self) -> bool {
        self.real_keys.load(Ordering::Relaxed) > 0
    }

    /// Storage entries: (all, of reserved tenants).
    pub(super) fn storage(&self) -> (u64, u64) {
        (self.total.load(Ordering::Relaxed), self.reserved.load(Ordering::Relaxed))
    }

    // === for the writer ===

    pub(super) fn add_partition(&self, key: &PartitionKey, partition: &Arc<Partition>) {
        self.partitions.pin().insert(key.clone(), partition.clone());
    }

    pub(super) fn remove_partition(&self, key: &PartitionKey) {
        self.partitions.pin().remove(key);
    }

    pub(super) fn add_scope(&self, key: ScopeKey, scope: &Arc<Scope>) {
        self.scopes.pin().insert(key, scope.clone());
    }

    pub(super) fn remove_scope(&self, tenant: &str, model: &str, scheme: &str) {
        self.scopes.pin().remove(&ScopeRef(tenant, model, scheme));
    }

    pub(super) fn set_tenant(&self, tenant: &Arc<str>, present: bool) {
        if present {
            self.tenants.pin().insert(tenant.clone(), ());
        } else {
            self.tenants.pin().remove(tenant);
        }
    }

    pub(super) fn set_model(&self, tenant: &Arc<str>, model: &Arc<str>, present: bool) {
        if present {
            self.models.pin().insert(ModelKey(tenant.clone(), model.clone()), ());
        } else {
            self.models.pin().remove(&ModelRef(tenant, model));
        }
    }

    pub(super) fn count(&self, reserved: bool, holds: i64, keys: i64) {
        // Counters: Relaxed; only the holder of the writer's lock changes them, so nothing comes between load and store.
        let add = |counter: &AtomicU64, change: i64| {
            counter.store(counter.load(Ordering::Relaxed).wrapping_add_signed(change), Ordering::Relaxed);
        };
        add(&self.total, holds);
        if reserved {
            add(&self.reserved, holds);
        } else {
            add(&self.real_keys, keys);
        }
    }
}
