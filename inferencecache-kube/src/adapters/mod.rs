//! Adapters: how an engine is wired to a cache, and how a store behind it is run.
//!
//! ```text
//!  spec.runtime + spec.type            remoteStorage.provider + .ownership
//!            │                                        │
//!     RuntimeAdapter  (contract)              StorageProvider
//!            └──────────────  Option<Binding>  ───────┘
//!
//!  vllm, sglang   LMCache, over lmcache/        redis   managed and external
//!  hicache        SGLang's own host cache       builtin what ships, composed
//!  subscriber, kernel   containers beside and before the engine
//!  args, pod, defaults, endpoint   helpers that a third party may use too
//! ```
//!
//! 1. Pure: no I/O, clock, randomness or environment. The same input gives the same output, to the byte.
//! 2. All or nothing: a Pod is read by reference and returned anew. On an error nothing has happened.
//! 3. Merge, never clobber: what others wrote keeps its value and its order.
//! 4. Converge: twice is once, also after an API server has filled in its defaults; a changed object leaves no leftovers.
//! 5. Only the binding crosses between the two sides, and Secrets cross as references.
//! 6. No globals: registries are composed ([`builtin`]) and handed around.
//!
//! What is not here: which backend a Pod belongs to, overrides and markers (the linker), and anything that asks a cluster.

pub mod args;
mod builtin;
mod contract;
pub mod defaults;
pub mod endpoint;
mod error;
mod hicache;
pub mod kernel;
pub mod lmcache;
pub mod pod;
mod redis;
mod registry;
mod sglang;
pub mod subscriber;
mod value;
mod vllm;

pub use self::builtin::{Options, Registries, builtin};
pub use self::contract::{MpRuntimeAdapter, RuntimeAdapter, StorageProvider};
pub use self::error::AdapterError;
pub use self::hicache::SglangHiCache;
pub use self::redis::{ExternalRedis, ManagedRedis};
pub use self::registry::{RuntimeRegistry, Selected, StorageRegistry};
pub use self::sglang::SglangLmCache;
pub use self::value::{
    Binding, Protocol, RedisBinding, RenderedStorage, RuntimeId, SupportedPair, binding_for, protocol_for,
};
pub use self::vllm::VllmLmCache;
