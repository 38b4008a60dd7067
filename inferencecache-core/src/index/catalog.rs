//! The way from names to partitions, and the counts that span partitions, for readers that wait for nobody.
//!
//! Each count is exact whenever no write is in flight. Presence of a tenant, model or scope means "holds at least one
//! key", stale or not.

use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use papaya::Equivalent;

use crate::index::books::Totals;
use crate::index::partition::{Partition, PartitionKey, WideWords};
use crate::index::replicas::ServingSet;

type Map<K, V> = papaya::HashMap<K, V, foldhash::fast::RandomState>;

/// (tenant, model, scheme): what answers "which replicas serve this engine domain", blind to adapters.
#[derive(Debug, Default)]
pub(super) struct Scope {
    pub(super) serving: ArcSwap<ServingSet>,
    /// How many serve it, for those who want no more.
    number: AtomicUsize,
}

impl Scope {
    pub(super) fn number(&self) -> usize {
        self.number.load(Ordering::Relaxed)
    }

    /// For the writer.
    pub(super) fn serve(&self, serving: ServingSet) {
        let number = serving.len();
        self.serving.store(Arc::new(serving));
        self.number.store(number, Ordering::Relaxed);
    }
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

/// Partitions that a reader visited lately. What is forgotten meanwhile keeps no more than its names.
#[derive(Debug, Default)]
pub(super) struct Visited([Option<Arc<Partition>>; 8]);

impl Visited {
    /// Where a partition is kept; any choice will do.
    fn place((tenant, model, scheme, adapter): (&str, &str, &str, &str)) -> usize {
        let last = |name: &str| name.as_bytes().last().map_or(0, |&byte| usize::from(byte));
        (last(tenant) ^ last(model) ^ last(scheme) ^ last(adapter) ^ tenant.len() ^ adapter.len()) & 7
    }

    fn take(&mut self, names: (&str, &str, &str, &str)) -> Option<Arc<Partition>> {
        self.0[Self::place(names)].take()
    }

    pub(super) fn put_back(&mut self, partition: Arc<Partition>) {
        let place = Self::place(partition.key.names());
        self.0[place] = Some(partition);
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
    pub(super) totals: Arc<Totals>,
}

impl Catalog {
    /// A partition, if there is one: out of those visited lately, to be put back there.
    pub(super) fn visit(&self, names: (&str, &str, &str, &str), visited: &mut Visited) -> Option<Arc<Partition>> {
        let (tenant, model, scheme, adapter) = names;
        let known = visited.take(names).filter(|partition| partition.is_of(&self.wide_words, names));
        known.or_else(|| self.partitions.pin().get(&PartitionRef(tenant, model, scheme, adapter)).cloned())
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
        self.with_scope(tenant, model, scheme, |scope| scope.number() > 0).unwrap_or(false)
    }

    /// Whether any tenant but the reserved ones holds a key.
    pub(super) fn has_real_keys(&self) -> bool {
        self.totals.real_keys.get() > 0
    }

    /// Storage entries: (all, of reserved tenants).
    pub(super) fn storage(&self) -> (u64, u64) {
        (self.totals.entries.get(), self.totals.reserved.get())
    }

    // === for the writer ===

    pub(super) fn add_partition(&self, key: &PartitionKey, partition: &Arc<Partition>) {
        self.partitions.pin().insert(key.clone(), partition.clone());
    }

    pub(super) fn remove_partition(&self, key: &PartitionKey) {
        if let Some(partition) = self.partitions.pin().remove(key) {
            partition.leave();
        }
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
}
