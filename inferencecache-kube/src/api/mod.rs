//! The custom resources of group `inferencecache.io`, version `v1alpha1`.
//!
//! ```text
//!  backend/  CacheBackend   engines of one domain bound to one cache hierarchy
//!  policy    CachePolicy    lookup and eviction of one namespace
//!  tenant    CacheTenant    an external identity and its budget
//!  index     CacheIndex     the server's aggregate, read-only, one for the cluster
//!  topology  PDTopology     prefill and decode pools
//!  template  PromptTemplate stable and mutable parts of a prompt
//!
//!  quantity, duration       texts of Kubernetes and Go, and what they are worth
//!  crd, schema              types -> CustomResourceDefinitions
//! ```
//!
//! 1. Reading is tolerant: what an older release stored is read, member by member, whatever is missing or no longer known.
//!    A missing required member reads as its empty value. So a type says what is *there*; what is *allowed* is said by the
//!    schema and by the admission rules.
//! 2. Text stays as its author wrote it. Quantities and durations are parsed where they are used, never rewritten.
//! 3. A stored object is never answered or patched by writing one of these types back: that would drop what they do not know.
//!
//! Here are no rules, no defaults beyond what an absent member means, and no client.

#![expect(clippy::duplicated_attributes, reason = "columns of one type name it each")]

pub mod backend;
mod crd;
mod duration;
mod index;
pub mod names;
mod open_enum;
mod policy;
mod quantity;
mod schema;
mod template;
mod tenant;
mod topology;

pub use self::backend::{CacheBackend, CacheBackendSpec, CacheBackendStatus};
pub use self::crd::{crd_json, crds};
pub use self::duration::{DurationError, GoDuration};
pub use self::index::{
    CacheIndex, CacheIndexSpec, CacheIndexStatus, IndexReplica, IndexTenant, PrefixSummary, Prefixes,
};
pub use self::policy::{AffinityRouting, CachePolicy, CachePolicySpec, CachePolicyStatus, Eviction, Strategy};
pub use self::quantity::{Amount, QuantityError};
pub use self::template::{PromptTemplate, PromptTemplateSpec, PromptTemplateStatus, Slot, SlotType};
pub use self::tenant::{CacheTenant, CacheTenantSpec, CacheTenantStatus, IsolationMode, TenantQuota};
pub use self::topology::{AcceleratorType, PDTopology, PDTopologySpec, PDTopologyStatus, Pool};

pub use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
pub use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
