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

#[cfg(test)]
mod tests {
    use super::super::samples::backend;
    use super::*;
    use crate::adapters::{Options, builtin};
    use serde_json::{Value, json};

    fn plan(name: &str, patch: &Value) -> Plan {
        decide(&backend(name, patch), &builtin(&Options::default()))
    }

    /// controller:24-26,33,35 and each row of the choice.
    #[test]
    fn the_first_row_that_fits_is_the_mode() {
        let redis = json!({"provider": "Redis", "ownership": "Managed", "redis": {}});
        let elsewhere = json!({"provider": "Redis", "ownership": "External", "endpoint": "r:1"});
        let events = json!({"mode": "EventsOnly"});
        for (name, patch, mode) in [
            ("managed", json!({}), Mode::Managed),
            ("managed", json!({"runtime": "SGLang"}), Mode::Managed),
            ("managed", json!({"type": null}), Mode::Managed),
            ("managed", json!({"lmCache": null}), Mode::Unmanaged),
            ("managed", json!({"integration": events}), Mode::EventsOnly),
            ("managed", json!({"remoteStorage": {"provider": "Tape"}}), Mode::Unmanaged),
            ("managed", json!({"remoteStorage": {"ownership": "Borrowed"}}), Mode::Unmanaged),
            ("managed", json!({"runtime": "Other"}), Mode::Unmanaged),
            ("external", json!({}), Mode::External),
            ("external", json!({"remoteStorage": {"endpoint": null}}), Mode::External),
            ("external", json!({"remoteStorage": {"provider": "Tape"}}), Mode::Unmanaged),
            ("host-only", json!({}), Mode::HostOnly),
            ("host-only", json!({"integration": null}), Mode::HostOnly),
            ("host-only", json!({"lmCache": null}), Mode::Unmanaged),
            ("host-only", json!({"lmCache": {"topology": "Orbital"}}), Mode::Unmanaged),
            ("events-only", json!({}), Mode::EventsOnly),
            ("events-only", json!({"remoteStorage": elsewhere}), Mode::EventsOnly),
            ("events-only", json!({"type": "SGLangHiCache", "hiCache": {}}), Mode::Unmanaged),
            ("node-local", json!({}), Mode::HostOnly),
            ("node-local", json!({"remoteStorage": redis}), Mode::Managed),
            ("node-local", json!({"integration": events}), Mode::EventsOnly),
            ("hicache", json!({}), Mode::Unmanaged),
            ("hicache", json!({"remoteStorage": redis}), Mode::Unmanaged),
            ("hicache", json!({"remoteStorage": elsewhere}), Mode::Unmanaged),
            ("hicache", json!({"runtime": "VLLM"}), Mode::Unmanaged),
        ] {
            let plan = plan(name, &patch);
            assert_eq!(plan.mode, mode, "{name} {patch}");
            assert_eq!(plan.storage.is_some(), mode == Mode::Managed, "{name} {patch}");
        }
    }

    /// controller:67,68,71
    #[test]
    fn servers_are_for_nodes_and_know_the_store() {
        let redis = json!({"remoteStorage": {"provider": "Redis", "ownership": "Managed", "redis": {}}});
        let elsewhere = json!({"remoteStorage": {"provider": "Redis", "ownership": "External", "endpoint": " r:1 "}});
        let user = json!({"remoteStorage": {"provider": "Redis", "ownership": "Managed", "redis": {"authentication":
            {"password": {"name": "s", "key": "p"}, "username": {"name": "s", "key": "u"}}}}});
        let endpoint = |servers: Servers| match servers {
            Servers::Follow(binding) => Ok(binding.map(|binding| binding.endpoint)),
            other => Err(other),
        };
        for (name, patch, expected) in [
            ("node-local", json!({}), Ok(None)),
            ("node-local", redis, Ok(Some("cache.ns.svc.cluster.local:6379".to_owned()))),
            ("node-local", elsewhere, Ok(Some(" r:1 ".to_owned()))),
            ("node-local", user, Err(Servers::Leave)),
            ("node-local", json!({"integration": {"mode": "EventsOnly"}}), Err(Servers::None)),
            ("node-local", json!({"type": "SGLangHiCache"}), Err(Servers::None)),
            ("managed", json!({}), Err(Servers::None)),
        ] {
            assert_eq!(endpoint(plan(name, &patch).servers), expected, "{name} {patch}");
        }
    }

    /// controller:11: what cannot be rendered is a managed store with a reason, not an unmanaged object.
    #[test]
    fn a_store_that_cannot_be_rendered_says_why() {
        let authentication = json!({"password": {"name": "s", "key": "p"}, "username": {"name": "s", "key": "u"}});
        let plan = plan("managed", &json!({"remoteStorage": {"redis": {"authentication": authentication}}}));
        let why = plan.storage.expect("a store").expect_err("a reason").to_string();
        assert!(why.contains("spec.remoteStorage.redis.authentication.username"), "{why}");
    }
}
