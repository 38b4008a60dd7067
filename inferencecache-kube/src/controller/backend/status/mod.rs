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
pub(crate) mod probe;
pub(crate) mod shape;
pub(crate) mod storage;

#[cfg(test)]
mod tests;

use crate::api::CacheBackend;
use crate::api::backend::{CacheType, Topology};

/// Where the servers of an object with a connector of ours run; `None` for every other object.
pub(crate) fn typed_topology(backend: &CacheBackend) -> Option<Topology> {
    let spec = &backend.spec;
    let topology = spec.lm_cache.as_ref().map(|lm_cache| &lm_cache.topology)?;
    let ours = *spec.effective_type() == CacheType::LmCache && !spec.events_only();
    match topology {
        Topology::PodLocal | Topology::NodeLocal if ours => Some(topology.clone()),
        _ => None,
    }
}
