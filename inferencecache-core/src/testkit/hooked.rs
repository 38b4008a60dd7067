//! An index that tests step into: what a hook does not change goes to the index behind it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::index::{Aggregate, CacheState, IndexApi, Snapshot};
use crate::query::{Lookup, Query};
use crate::update::{Dropped, Event, Update};

/// What to do instead of the calls that write or look up. By default they are passed on.
pub trait Hooks: Send + Sync + fmt::Debug + 'static {
    /// Stands for [`IndexApi::ingest`].
    fn ingest(&self, index: &dyn IndexApi, update: &Update<'_>) -> Dropped {
        index.ingest(update)
    }
    /// Stands for [`IndexApi::apply_event`].
    fn apply_event(&self, index: &dyn IndexApi, event: &Event<'_>) {
        index.apply_event(event);
    }
    /// Stands for [`IndexApi::lookup`].
    fn lookup(&self, index: &dyn IndexApi, query: &Query<'_>, out: &mut Lookup) {
        index.lookup(query, out);
    }
    /// Stands for [`IndexApi::lookup_route`].
    fn lookup_route(&self, index: &dyn IndexApi, query: &Query<'_>, out: &mut Lookup) {
        index.lookup_route(query, out);
    }
    /// Stands for [`IndexApi::affinity_hint`].
    fn affinity_hint(
        &self,
        index: &dyn IndexApi,
        tenant: &str,
        model: &str,
        scheme: &str,
        seed: &[u8],
    ) -> Option<Arc<str>> {
        index.affinity_hint(tenant, model, scheme, seed)
    }
    /// Stands for [`IndexApi::cache_state`].
    fn cache_state(&self, index: &dyn IndexApi, tenant: &str, model: &str) -> CacheState {
        index.cache_state(tenant, model)
    }
}

/// An index behind hooks.
#[derive(Debug)]
pub struct Hooked<H> {
    /// The index.
    pub index: Arc<dyn IndexApi>,
    /// The hooks.
    pub hooks: H,
}

impl<H: Hooks> IndexApi for Hooked<H> {
    fn ingest(&self, update: &Update<'_>) -> Dropped {
        self.hooks.ingest(&*self.index, update)
    }

    fn apply_event(&self, event: &Event<'_>) {
        self.hooks.apply_event(&*self.index, event);
    }

    fn lookup(&self, query: &Query<'_>, out: &mut Lookup) {
        self.hooks.lookup(&*self.index, query, out);
    }

    fn lookup_route(&self, query: &Query<'_>, out: &mut Lookup) {
        self.hooks.lookup_route(&*self.index, query, out);
    }

    fn affinity_hint(&self, tenant: &str, model: &str, scheme: &str, seed: &[u8]) -> Option<Arc<str>> {
        self.hooks.affinity_hint(&*self.index, tenant, model, scheme, seed)
    }

    fn has_any_tenant(&self, tenant: &str) -> bool {
        self.index.has_any_tenant(tenant)
    }

    fn has_any_tenant_model(&self, tenant: &str, model: &str) -> bool {
        self.index.has_any_tenant_model(tenant, model)
    }

    fn has_any_tenant_model_scheme(&self, tenant: &str, model: &str, scheme: &str) -> bool {
        self.index.has_any_tenant_model_scheme(tenant, model, scheme)
    }

    fn cache_state(&self, tenant: &str, model: &str) -> CacheState {
        self.hooks.cache_state(&*self.index, tenant, model)
    }

    fn aggregate(&self) -> Aggregate {
        self.index.aggregate()
    }

    fn snapshot(&self) -> Snapshot {
        self.index.snapshot()
    }

    fn entry_counts_by_model(&self) -> BTreeMap<Arc<str>, u64> {
        self.index.entry_counts_by_model()
    }

    fn sweep(&self) {
        self.index.sweep();
    }

    fn storage_entries(&self) -> (u64, u64) {
        self.index.storage_entries()
    }
}
