//! Stand-ins that misbehave on purpose.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::fmt;
use std::sync::Arc;

use inferencecache_core::index::CacheState;
use inferencecache_core::testkit::{Hooked, Hooks};
use inferencecache_core::tokenizer::{TokenizeError, Tokenizer};
use inferencecache_core::update::Dropped;
use inferencecache_core::{Index, IndexApi, IndexOptions, Lookup, Query, Update};

/// What is done before the index is.
pub(crate) struct First {
    on_lookup: Box<dyn Fn() + Send + Sync>,
    on_ingest: Box<dyn Fn(&Update<'_>) + Send + Sync>,
}

impl fmt::Debug for First {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("First")
    }
}

impl Hooks for First {
    fn ingest(&self, index: &dyn IndexApi, update: &Update<'_>) -> Dropped {
        (self.on_ingest)(update);
        index.ingest(update)
    }

    fn lookup_route(&self, index: &dyn IndexApi, query: &Query<'_>, out: &mut Lookup) {
        (self.on_lookup)();
        index.lookup_route(query, out);
    }

    fn cache_state(&self, index: &dyn IndexApi, tenant: &str, model: &str) -> CacheState {
        assert_ne!(model, "panic", "asked to");
        index.cache_state(tenant, model)
    }
}

/// An index that does something else before each lookup.
pub(crate) fn on_lookup(hook: impl Fn() + Send + Sync + 'static) -> Hooked<First> {
    hooked(First { on_lookup: Box::new(hook), on_ingest: Box::new(|_| ()) })
}

/// An index that does something else before each update.
pub(crate) fn on_ingest(hook: impl Fn(&Update<'_>) + Send + Sync + 'static) -> Hooked<First> {
    hooked(First { on_lookup: Box::new(|| ()), on_ingest: Box::new(hook) })
}

fn hooked(hooks: First) -> Hooked<First> {
    Hooked { index: Arc::new(Index::new(IndexOptions::default())), hooks }
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
