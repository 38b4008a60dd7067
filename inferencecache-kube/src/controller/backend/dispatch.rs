//! What an object asks for: which mode it is in, what runs its store, where its servers go.
//!
//! Events only beats everything: an object that also names a store must not publish an endpoint. Then a store decides, if one
//! is declared; it is never inferred.

use crate::adapters::{AdapterError, Binding, Registries, RuntimeId, binding_for, protocol_for};
use crate::api::CacheBackend;
use crate::api::backend::{CacheType, Ownership, RemoteStorage, Topology};

use super::engines::topology;
use super::workload::{self, Desired};

/// What an object is reconciled as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Nothing here can serve it: no adapter, no provider, or the two do not fit. No conditions are published.
    Unmanaged,
    /// Engines are observed; there is no tier behind them.
    EventsOnly,
    /// The store is somebody else's.
    External,
    /// There is no store: host memory alone.
    HostOnly,
    /// The controller runs the store.
    Managed,
}

/// The LMCache servers on nodes.
#[derive(Debug, Clone, PartialEq)]
pub enum Servers {
    /// There should be none.
    None,
    /// One on each node with an engine, and this store behind them.
    Follow(Option<Box<Binding>>),
    /// They stay as they are: what they should be cannot be said while the store cannot be rendered.
    Leave,
}

/// What should be, as far as the object alone says it.
#[derive(Debug)]
pub struct Plan {
    /// What the object is reconciled as.
    pub mode: Mode,
    /// Its servers on nodes.
    pub servers: Servers,
    /// What runs its store, in mode Managed alone; an error where it cannot be rendered.
    pub storage: Option<Result<Desired, AdapterError>>,
}

impl Plan {
    fn bare(mode: Mode) -> Self {
        Self { mode, servers: Servers::None, storage: None }
    }
}

/// What an object asks for.
#[must_use]
pub fn decide(backend: &CacheBackend, registries: &Registries) -> Plan {
    let spec = &backend.spec;
    let Ok(selected) = registries.runtime.select(&RuntimeId::of(Some(backend)), Some(backend)) else {
        return Plan::bare(Mode::Unmanaged);
    };
    let takes = |binding: Option<&Binding>| selected.adapter().supports_binding(binding);
    let mode = match &spec.remote_storage {
        _ if spec.events_only() && takes(None) => return Plan::bare(Mode::EventsOnly),
        _ if spec.events_only() => None,
        None => (takes(None) && *spec.effective_type() != CacheType::SgLangHiCache)
            .then(|| Plan { servers: servers(backend, None), ..Plan::bare(Mode::HostOnly) }),
        Some(storage) if storage.ownership == Ownership::External => external(backend, storage, takes),
        Some(storage) => managed(backend, storage, registries, takes),
    };
    mode.unwrap_or_else(|| Plan::bare(Mode::Unmanaged))
}

fn external(backend: &CacheBackend, storage: &RemoteStorage, takes: impl Fn(Option<&Binding>) -> bool) -> Option<Plan> {
    let protocol = protocol_for(Some(storage)).ok()?;
    let binding = binding_for(Some(storage), protocol, storage.endpoint.as_deref().unwrap_or_default());
    takes(binding.as_ref()).then(|| Plan { servers: servers(backend, binding), ..Plan::bare(Mode::External) })
}

fn managed(
    backend: &CacheBackend,
    storage: &RemoteStorage,
    registries: &Registries,
    takes: impl Fn(Option<&Binding>) -> bool,
) -> Option<Plan> {
    let rendered = registries.storage.select(Some(storage)).ok()?.render(backend);
    // What cannot be rendered is still a managed store, as long as its engine could use it: the object says what is wrong.
    let protocol = match &rendered {
        Ok(rendered) => Some(rendered.protocol.clone()),
        Err(_) => protocol_for(Some(storage)).ok(),
    };
    let desired = rendered.and_then(|rendered| workload::render(backend, rendered));
    let endpoint = desired.as_ref().ok().and_then(|desired| workload::endpoint(&desired.service));
    let binding = binding_for(Some(storage), protocol?, endpoint.as_deref().unwrap_or_default());
    if !takes(binding.as_ref()) {
        return None;
    }
    let servers = match servers(backend, binding) {
        Servers::Follow(_) if desired.is_err() => Servers::Leave,
        servers => servers,
    };
    Some(Plan { mode: Mode::Managed, servers, storage: Some(desired) })
}

fn servers(backend: &CacheBackend, binding: Option<Binding>) -> Servers {
    if topology(backend) == Some(&Topology::NodeLocal) { Servers::Follow(binding.map(Box::new)) } else { Servers::None }
}
