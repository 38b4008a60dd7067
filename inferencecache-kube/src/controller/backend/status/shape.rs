//! Which mode a status was written in, told by its shape: the conditions that each mode sets and removes. A change of mode starts
//! the wait for the first event anew, and no field says the mode.

use crate::api::{CacheBackend, CacheBackendStatus};
use crate::controller::backend::dispatch::Mode;
use crate::controller::backend::engines::topology;
use crate::controller::condition::{find, types};

/// What tells modes apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shape {
    storage: bool,
    /// Only judged without storage: with it, whoever has no connector of ours looks the same.
    connector: bool,
    degraded: bool,
}

/// Whether the status was written in another mode. A status that was never written, or not in a mode with conditions, is no
/// change: there is nothing to start anew.
pub(crate) fn changed(backend: &CacheBackend, mode: Mode, before: &CacheBackendStatus) -> bool {
    let has = |type_| find(&before.conditions, type_).is_some();
    let storage = before.remote_storage.is_some() || has(types::REMOTE_STORAGE_READY);
    if !storage && !has(types::READY) {
        return false;
    }
    let connector = before.connector.is_some() || has(types::CONNECTOR_READY);
    let written = Shape { storage, connector: connector && !storage, degraded: has(types::DEGRADED) };
    let typed = topology(backend).is_some();
    let expected = match mode {
        Mode::Managed => Shape { storage: true, connector: false, degraded: true },
        Mode::External => Shape { storage: true, connector: false, degraded: false },
        Mode::HostOnly => Shape { storage: false, connector: typed, degraded: true },
        Mode::EventsOnly => Shape { storage: false, connector: false, degraded: true },
        Mode::Unmanaged => return false,
    };
    written != expected
}
