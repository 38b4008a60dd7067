//! Conformance of adapters and providers: suites for your own.
//!
//! ```
//! use inferencecache_kube::adapters::ExternalRedis;
//! use inferencecache_kube::testkit::adapters::{StorageFixture, storage_provider};
//!
//! let backend = serde_json::from_value(serde_json::json!({
//!     "apiVersion": "inferencecache.io/v1alpha1", "kind": "CacheBackend", "metadata": {"name": "a"},
//!     "spec": {"runtime": "VLLM", "remoteStorage": {"provider": "Redis", "ownership": "External", "endpoint": "h:1"}},
//! })).unwrap();
//! storage_provider(&ExternalRedis, &[StorageFixture::new("plain", backend)]).assert_conforms();
//! ```
//!
//! A suite needs fixtures: objects, Pods and bindings that the adapter accepts, edits of them, and what it must refuse. From
//! these it derives the rest: busy Pods, foreign objects under each name that the adapter added, Pods as an API server hands
//! them back. Each [`Rule`] is checked on every fixture and a [`Report`] names rule, fixture and difference.
//!
//! [`BrokenRuntime`] and [`BrokenStorage`] are adapters with one fault each, to prove that the suites notice.
//!
//! Two rules hold by the signatures and need no check: A4, that an error leaves the Pod alone, and P3, that a result shares
//! nothing with the object.

mod broken;
mod broken_storage;
mod defaulted;
mod fixture;
mod pods;
mod report;
mod rules;
mod runtime;
mod samples;
mod storage;
mod structure;
mod wiring;

pub use self::broken::{BrokenRuntime, RuntimeFault};
pub use self::broken_storage::{BrokenStorage, StorageFault};
pub use self::defaulted::defaulted;
pub use self::fixture::{Edit, RuntimeFixture};
pub use self::report::{Finding, Report};
pub use self::rules::Rule;
pub use self::runtime::{RuntimeSuite, runtime_adapter};
pub use self::samples::shipped_samples;
pub use self::storage::{StorageFixture, storage_provider};
pub use self::structure::structure;
