//! The adapters that ship, composed. Naming a concrete adapter is this file's alone.

use std::sync::Arc;

use super::hicache::SglangHiCache;
use super::kernel::EngineCheck;
use super::redis::{ExternalRedis, ManagedRedis};
use super::registry::{RuntimeRegistry, StorageRegistry};
use super::sglang::SglangLmCache;
use super::subscriber::Subscriber;
use super::vllm::VllmLmCache;

/// What the shipped adapters need to know of the installation.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Options {
    /// Image of the subscriber. Empty: no Pod gets one. There is no default: what runs beside an engine is the operator's
    /// choice.
    pub subscriber_image: String,
    /// `host:port` of the policy server for the subscribers. Empty: the Service of a default installation.
    pub policy_server_grpc_address: String,
}

impl Options {
    /// With a subscriber image.
    #[must_use]
    pub fn with_subscriber(image: impl Into<String>) -> Self {
        Self { subscriber_image: image.into(), ..Self::default() }
    }
}

/// Both registries.
#[derive(Debug, Clone, Default)]
pub struct Registries {
    /// Engines.
    pub runtime: RuntimeRegistry,
    /// Stores.
    pub storage: StorageRegistry,
}

/// vLLM and SGLang with LMCache, SGLang with HiCache; Redis managed and external.
///
/// To add adapters of your own, register them on the result, before it is shared.
#[must_use]
pub fn builtin(options: &Options) -> Registries {
    let subscriber = Subscriber::new(options);
    let mut runtime = RuntimeRegistry::new();
    runtime.register_with_check(Arc::new(VllmLmCache::new(subscriber.clone())), EngineCheck::LmCacheKernels);
    runtime.register(Some(Arc::new(SglangLmCache::new(subscriber.clone())) as _));
    runtime.register(Some(Arc::new(SglangHiCache::new(subscriber)) as _));
    let mut storage = StorageRegistry::new();
    storage.register(Some(Arc::new(ManagedRedis) as _));
    storage.register(Some(Arc::new(ExternalRedis) as _));
    Registries { runtime, storage }
}
