//! The brain of InferenceCache: who holds which prompt prefix, and where a prompt should go.
//!
//! ```text
//!            reports, events                      questions
//!                  │                                  │
//!                  ▼                                  ▼
//!   update ──> index::Index <── rank::Ranker    route::Router ──> Answer { reason, scores }
//!                  ▲                                  │
//!                  └── policy resolvers <── policy::PolicyStore
//! ```
//!
//! * [`Index`] keeps soft state: which replica holds which block, since when and in which tier, and answers lookups.
//! * [`Ranker`] turns matches into scores.
//! * [`PolicyStore`] holds per-tenant knobs, swapped whole.
//! * [`Router`] takes one whole question with policies applied and returns the whole answer; an embedder that has it
//!   needs nothing else of this crate.
//! * [`Prober`] tests an index in service, under a tenant of its own.
//!
//! Invariants: nothing here performs I/O, starts a task, or can fail. Malformed input is dropped and counted. Time comes
//! from a [`Clock`]. Losing state costs a cache miss, never a wrong answer.

pub mod affinity;
pub mod fingerprint;
pub mod index;
pub mod metrics;
pub mod policy;
pub mod probe;
pub mod query;
pub mod rank;
pub mod resolve;
pub mod route;
pub mod time;
pub mod tokenizer;
pub mod update;

#[cfg(feature = "testkit")]
pub mod testkit;

pub use index::{Index, IndexApi, IndexOptions};
pub use metrics::{MetricsSink, NoMetrics};
pub use policy::{Effective, Policy, PolicySet, PolicyStore, PolicyView, RoutePolicy, StrategyGates, TenantQuota};
pub use probe::{ProbeOutcome, ProbeTarget, Prober, StageResult, T2Client};
pub use query::{HashList, Lookup, Query, Row, Strategy};
pub use rank::{RankConfig, Ranker};
pub use resolve::{Eviction, Resolvers};
pub use route::{Answer, FailOpen, Pending, Question, ReasonCode, Router, Step};
pub use time::{Clock, ManualClock, SystemClock};
pub use update::{Entry, Event, EventKind, Stats, Update};

/// The tenant reserved for the functional self-test: never visible to a real tenant.
pub const RESERVED_TENANT: &str = "inferencecache.io/probe";
