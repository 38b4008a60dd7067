//! LMCache's multiprocess server, apart from the engine that uses it.
//!
//! ```text
//!            spec.lmCache.podLocal                     spec.lmCache.nodeLocal
//!                    │                                          │
//!         pod_local::wire                            node_local::wire          node_server::render
//!   engine Pod + server beside the engine     engine Pod + gate that waits  →  the node's server Pod
//! ```
//!
//! Both `wire` functions take the Pod by reference and return a new one: on an error nothing has happened. What they add
//! carries a mark (a variable on the init container), so that a later pass recognises its own and replaces it, and so that
//! somebody else's object of the same name is refused instead of overwritten. Each removes what the other topology left.

pub mod gate;
pub mod node_local;
pub mod node_server;
pub mod pod_local;
pub(crate) mod server;
pub mod settings;
pub(crate) mod topology;

use crate::api::CacheBackend;
use crate::api::backend::Topology;

/// The names that overrides may not touch; the last of `all` is the node's address, which only NodeLocal injects.
pub(crate) fn reserved_env<'a>(backend: &CacheBackend, all: &'a [&'static str]) -> &'a [&'static str] {
    let on_node = backend.spec.lm_cache.as_ref().is_some_and(|lm_cache| lm_cache.topology == Topology::NodeLocal);
    let count = if on_node { all.len() } else { all.len().saturating_sub(1) };
    all.get(..count).unwrap_or(all)
}
