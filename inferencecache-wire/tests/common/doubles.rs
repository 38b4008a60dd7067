//! Stand-ins that misbehave on purpose.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use inferencecache_core::index::{Aggregate, CacheState, Snapshot};
use inferencecache_core::tokenizer::{TokenizeError, Tokenizer};
use inferencecache_core::update::Dropped;
use inferencecache_core::{Event, Index, IndexApi, IndexOptions, Lookup, Query, Update};

/// An index that does something else first.
pub(crate) struct Hooked {
    pub(crate) inner: Index,
    pub(crate) on_lookup: Box<dyn Fn() + Send + Sync>,
    pub(crate) on_ingest: Box<dyn Fn(&Update<'_>) + Send + Sync>,
}

impl Hooked {
    pub(crate) fn new(index: IndexOptions) -> Self {
        Self { inner: Index::new(index), on_lookup: Box::new(|| ()), on_ingest: Box::new(|_| ()) }
    }

    pub(crate) fn on_lookup(hook: impl Fn() + Send + Sync + 'static) -> Self {
        Self { on_lookup: Box::new(hook), ..Self::new(IndexOptions::default()) }
    }
}

impl fmt::Debug for Hooked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hooked")
    }
}

impl IndexApi for Hooked {
    fn ingest(&self, update: &Update<'_>) -> Dropped {
        (self.on_ingest)(update);
        self.inner.ingest(update)
    }
    fn apply_event(&self, event: &Event<'_>) {
        self.inner.apply_event(event);
    }
    fn lookup(&self, query: &Query<'_>, out: &mut Lookup) {
        self.inner.lookup(query, out);
    }
    fn lookup_route(&self, query: &Query<'_>, out: &mut Lookup) {
        (self.on_lookup)();
        self.inner.lookup_route(query, out);
    }
    fn affinity_hint(&self, tenant: &str, model: &str, scheme: &str, seed: &[u8]) -> Option<Arc<str>> {
        self.inner.affinity_hint(tenant, model, scheme, seed)
    }
    fn has_any_tenant(&self, tenant: &str) -> bool {
        self.inner.has_any_tenant(tenant)
    }
    fn has_any_tenant_model(&self, tenant: &str, model: &str) -> bool {
        self.inner.has_any_tenant_model(tenant, model)
    }
    fn has_any_tenant_model_scheme(&self, tenant: &str, model: &str, scheme: &str) -> bool {
        self.inner.has_any_tenant_model_scheme(tenant, model, scheme)
    }
    fn cache_state(&self, tenant: &str, model: &str) -> CacheState {
        assert_ne!(model, "panic", "asked to");
        self.inner.cache_state(tenant, model)
    }
    fn aggregate(&self) -> Aggregate {
        self.inner.aggregate()
    }
    fn snapshot(&self) -> Snapshot {
        self.inner.snapshot()
    }
    fn entry_counts_by_model(&self) -> BTreeMap<Arc<str>, u64> {
        self.inner.entry_counts_by_model()
    }
    fn sweep(&self) {
        self.inner.sweep();
    }
    fn storage_entries(&self) -> (u64, u64) {
        self.inner.storage_entries()
    }
}

/// What a scripted tokenizer is asked, and what it answers.
type Script = Box<dyn Fn(&str, &str) -> Result<Vec<u32>, TokenizeError> + Send + Sync>;

/// A tokenizer that answers as it is told.
pub(crate) struct Scripted(pub(crate) Script);

impl Scripted {
    pub(crate) fn tokenizer(
        script: impl Fn(&str, &str) -> Result<Vec<u32>, TokenizeError> + Send + Sync + 'static,
    ) -> Arc<dyn Tokenizer> {
        Arc::new(Self(Box::new(script)))
    }
}

impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scripted")
    }
}

impl Tokenizer for Scripted {
    fn encode_chat(&self, model: &str, text: &str) -> Result<Vec<u32>, TokenizeError> {
        (self.0)(model, text)
    }
}
