//! Which adapter and which provider an object gets: the first that says yes, in the order of registration.
//!
//! A registry is built once at start and handed to admission, linker and reconcilers; nobody builds another. There is no
//! global one and none is discovered: a third party composes its own and builds its own controller.

use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::PodSpec;

use super::contract::{RuntimeAdapter, StorageProvider};
use super::error::AdapterError;
use super::kernel::{self, EngineCheck};
use super::value::{RuntimeId, SupportedPair, no_provider};
use crate::api::CacheBackend;
use crate::api::backend::RemoteStorage;

/// Runtime adapters, specific before generic.
#[derive(Clone, Default)]
pub struct RuntimeRegistry {
    entries: Vec<Entry>,
}

#[derive(Clone)]
struct Entry {
    adapter: Arc<dyn RuntimeAdapter>,
    /// Beside the contract: what this repository's own adapters can do in addition.
    check: Option<EngineCheck>,
}

/// The adapter that an object got.
#[derive(Clone, Copy)]
pub struct Selected<'a> {
    entry: &'a Entry,
}

impl RuntimeRegistry {
    /// One without adapters.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends an adapter; nothing is appended for nothing.
    pub fn register(&mut self, adapter: impl Into<Option<Arc<dyn RuntimeAdapter>>>) {
        self.entries.extend(adapter.into().map(|adapter| Entry { adapter, check: None }));
    }

    pub(super) fn register_with_check(&mut self, adapter: Arc<dyn RuntimeAdapter>, check: EngineCheck) {
        self.entries.push(Entry { adapter, check: Some(check) });
    }

    /// The first adapter that takes the object.
    ///
    /// # Errors
    /// None does, or there is no object.
    pub fn select(&self, runtime: &RuntimeId, backend: Option<&CacheBackend>) -> Result<Selected<'_>, AdapterError> {
        let found =
            backend.and_then(|object| self.entries.iter().find(|entry| entry.adapter.supports(runtime, object)));
        found.map(|entry| Selected { entry }).ok_or_else(|| AdapterError::NoAdapter {
            runtime: backend.map_or("<nil>", |_| runtime.as_str()).to_owned(),
            cache_type: backend.map_or("<nil>".to_owned(), |object| object.spec.effective_type().to_string()),
            supported: self.supported_pairs(),
        })
    }

    /// What the adapters say they support, each once, in order.
    #[must_use]
    pub fn supported_pairs(&self) -> Vec<SupportedPair> {
        let mut pairs = Vec::new();
        for pair in self.entries.iter().flat_map(|entry| entry.adapter.supported_pairs()) {
            if !pairs.contains(&pair) {
                pairs.push(pair);
            }
        }
        pairs
    }

    /// The adapters, in order.
    pub fn iter(&self) -> impl Iterator<Item = &dyn RuntimeAdapter> {
        self.entries.iter().map(|entry| &*entry.adapter)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl<'a> Selected<'a> {
    /// The adapter.
    #[must_use]
    pub fn adapter(self) -> &'a dyn RuntimeAdapter {
        &*self.entry.adapter
    }

    /// The Pod with the check of the engine's native code as it should be: added, replaced or taken away. The name belongs
    /// to the check. Pods of adapters that have none come back as they are.
    ///
    /// # Errors
    /// The check cannot be rendered; leave the Pod as it is.
    pub fn reconcile_engine_check(self, pod: &PodSpec, backend: &CacheBackend) -> Result<PodSpec, AdapterError> {
        match self.entry.check {
            Some(check) => kernel::reconcile(pod, backend, check, self.adapter()),
            None => Ok(pod.clone()),
        }
    }
}

/// Storage providers, specific before generic.
#[derive(Clone, Default)]
pub struct StorageRegistry {
    providers: Vec<Arc<dyn StorageProvider>>,
}

impl StorageRegistry {
    /// One without providers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends a provider; nothing is appended for nothing.
    pub fn register(&mut self, provider: impl Into<Option<Arc<dyn StorageProvider>>>) {
        self.providers.extend(provider.into());
    }

    /// The first provider that is meant.
    ///
    /// # Errors
    /// None is, or there is no storage.
    pub fn select(&self, storage: Option<&RemoteStorage>) -> Result<&dyn StorageProvider, AdapterError> {
        let found = storage.and_then(|storage| self.providers.iter().find(|provider| provider.supports(storage)));
        found.map(|provider| &**provider).ok_or_else(|| no_provider(storage))
    }

    /// The providers, in order.
    pub fn iter(&self) -> impl Iterator<Item = &dyn StorageProvider> {
        self.providers.iter().map(|provider| &**provider)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.providers.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.providers.is_empty()
    }
}

impl fmt::Debug for RuntimeRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RuntimeRegistry").field("pairs", &self.supported_pairs()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Selected<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Selected").field("pairs", &self.adapter().supported_pairs()).finish_non_exhaustive()
    }
}

impl fmt::Debug for StorageRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StorageRegistry").field("len", &self.len()).finish_non_exhaustive()
    }
}
