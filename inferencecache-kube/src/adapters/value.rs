//! The values that cross between storage and engines, and how an object is read where it leaves something out.
//!
//! Only a [`Binding`] crosses: providers know nothing of engines, adapters nothing of who runs a store. No binding has one
//! meaning, host memory only.

use std::fmt;

use k8s_openapi::api::core::v1::{PodSpec, Service};

use super::error::AdapterError;
use crate::api::CacheBackend;
use crate::api::backend::{Provider, RedisAuthentication, RedisTls, RemoteStorage};

/// An engine family, in lower case as hash schemes and messages have it. Empty matches no adapter.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct RuntimeId(String);

impl RuntimeId {
    /// vLLM.
    pub const VLLM: &str = "vllm";
    /// SGLang.
    pub const SGLANG: &str = "sglang";

    /// From `spec.runtime`, or any other spelling of it.
    #[must_use]
    pub fn new(runtime: &str) -> Self {
        Self(runtime.to_lowercase())
    }

    /// Of an object; empty without one.
    #[must_use]
    pub fn of(backend: Option<&CacheBackend>) -> Self {
        Self::new(backend.map(|backend| backend.spec.runtime.as_str()).unwrap_or_default())
    }

    /// In lower case.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RuntimeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a store speaks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Protocol(String);

impl Protocol {
    /// The Redis serialisation protocol, the only one that ships.
    pub const RESP: &str = "resp";

    /// A protocol by its name.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }

    /// Redis.
    #[must_use]
    pub fn resp() -> Self {
        Self::new(Self::RESP)
    }

    /// Its name; empty for none.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A store as an engine may use it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Binding {
    /// What it speaks.
    pub protocol: Protocol,
    /// `host:port` as the caller resolved it. Empty when only the kind of binding is asked about.
    pub endpoint: String,
    /// What is particular to Redis.
    pub redis: Option<RedisBinding>,
}

impl Binding {
    /// A binding without particulars.
    #[must_use]
    pub fn new(protocol: Protocol, endpoint: impl Into<String>) -> Self {
        Self { protocol, endpoint: endpoint.into(), redis: None }
    }
}

/// What an engine has to know of a Redis beside its address. References to Secrets, never their content.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RedisBinding {
    /// Where user and password are.
    pub authentication: Option<RedisAuthentication>,
    /// How to trust it.
    pub tls: Option<RedisTls>,
    /// Which of its databases.
    pub database: Option<i32>,
}

/// What runs a store: the parts that only a provider knows. The reconciler adds names, labels, selector, replicas, placement
/// and owner.
#[derive(Debug, Clone, PartialEq)]
pub struct RenderedStorage {
    /// What the store speaks.
    pub protocol: Protocol,
    /// Containers and volumes; none where somebody else runs the store.
    pub pod: Option<PodSpec>,
    /// Type and ports; none where somebody else runs the store.
    pub service: Option<Service>,
}

/// Something an adapter supports, for messages.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SupportedPair {
    /// Engine family.
    pub runtime: RuntimeId,
    /// Cache type, as objects spell it.
    pub cache_type: String,
}

impl SupportedPair {
    /// A pair.
    #[must_use]
    pub fn new(runtime: &str, cache_type: &str) -> Self {
        Self { runtime: RuntimeId::new(runtime), cache_type: cache_type.to_owned() }
    }
}

impl fmt::Display for SupportedPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.runtime, self.cache_type)
    }
}

/// The protocol of a store: none without storage.
///
/// # Errors
/// A provider that speaks none known here.
pub fn protocol_for(storage: Option<&RemoteStorage>) -> Result<Protocol, AdapterError> {
    match storage {
        None => Ok(Protocol::new("")),
        Some(storage) if storage.provider == Provider::Redis => Ok(Protocol::resp()),
        Some(storage) => Err(no_provider(Some(storage))),
    }
}

/// The binding for a store at an endpoint that the caller resolved; none without storage.
#[must_use]
pub fn binding_for(storage: Option<&RemoteStorage>, protocol: Protocol, endpoint: &str) -> Option<Binding> {
    let storage = storage?;
    let redis = storage.redis.as_ref().filter(|_| storage.provider == Provider::Redis).map(|redis| RedisBinding {
        authentication: redis.authentication.clone(),
        tls: redis.tls.clone(),
        database: redis.database,
    });
    Some(Binding { redis, ..Binding::new(protocol, endpoint) })
}

pub(crate) fn no_provider(storage: Option<&RemoteStorage>) -> AdapterError {
    let text = |value: Option<&str>| value.unwrap_or("<nil>").to_owned();
    AdapterError::NoProvider {
        provider: text(storage.map(|storage| storage.provider.as_str())),
        ownership: text(storage.map(|storage| storage.ownership.as_str())),
    }
}
