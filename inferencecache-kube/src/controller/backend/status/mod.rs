//! The status of a CacheBackend: facts and the time in, the status that should be out.
//!
//! ```text
//!  Pods ──▶ matched, connector ──┐
//!  Deployment, Service ─▶ storage┴▶ base ─▶ gate ─▶ probe ─▶ kernel ─▶ Ready, Progressing, Degraded
//!  Pods ──▶ kernel, compat             first event  server   strict
//!  decide   one pass, one status       events  what changed, told       patch  what changed, written
//! ```
//!
//! 1. Pure: no client and no clock. The same facts give the same status, to the byte, so a pass that finds nothing new writes
//!    nothing.
//! 2. What could not be read stays as it was published.
//! 3. `indexParticipation` is the poller's: read here, never changed.
//! 4. Ready is decided strongest first: a required kernel check, the connector, a tier that may not fail, the first event, the
//!    probe.

pub(crate) mod compat;
pub(crate) mod connector;
pub(crate) mod decide;
pub(crate) mod events;
pub(crate) mod gate;
pub(crate) mod kernel;
pub(crate) mod matched;
pub(crate) mod patch;
mod pod;
pub(crate) mod probe;
pub(crate) mod shape;
pub(crate) mod storage;

#[cfg(test)]
mod tests;
