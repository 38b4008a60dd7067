//! CacheBackend: from an object and its cluster to children and status.
//!
//! ```text
//!  CacheBackend ─▶ dispatch::decide ─▶ Plan ─▶ children::apply ─▶ Outcome ─▶ status
//!                       │                          │
//!                  adapters, workload         servers (pure), ownership,
//!                  (renders)                  workload (merges)
//!
//!  run (watches, workers) ─▶ reconcile (one pass)      status     pure: facts and time in, status out
//!  triggers  who wakes whom  live  listings            probing    calls of the probe, beside the passes
//! ```
//!
//! 1. Whether something exists is asked of the API server, never of a store that watches feed.
//! 2. Only an object whose controller is this CacheBackend, by uid, is changed or deleted; see [`ownership`].
//! 3. Nothing is written that is there already, and nothing at all once the CacheBackend is being deleted.
//! 4. Children come down with their owner: there are no finalizers.

pub mod children;
pub mod dispatch;
pub mod engines;
pub mod error;
pub mod live;
pub mod metrics;
pub mod ownership;
pub mod probing;
mod reconcile;
pub mod run;
#[cfg(test)]
pub(crate) mod samples;
pub mod servers;
mod status;
mod triggers;
pub mod workload;
