//! The wiring of one Pod by its one backend, on a copy: all of it or nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

use super::{command, overrides, storage};
use crate::adapters::pod::replace_container;
use crate::adapters::{AdapterError, RuntimeAdapter, RuntimeId, RuntimeRegistry, Selected};
use crate::api::CacheBackend;
use crate::api::backend::Topology;
use crate::api::names::{MP_HTTP_PORT, SUBSCRIBER_CONTAINER};

/// The Pod, wired, without markers.
///
/// # Errors
/// What stands in the way; the Pod is then left as it is.
pub(super) fn wire(pod: &Pod, backend: &CacheBackend, registry: &RuntimeRegistry) -> Result<Pod, AdapterError> {
    let selected = registry.select(&RuntimeId::of(Some(backend)), Some(backend))?;
    let adapter = selected.adapter();
    let events_only = backend.spec.events_only();
    let spec = pod.spec.as_ref().ok_or_else(|| AdapterError::pod("spec", "is missing"))?;
    judge(pod, spec, backend, adapter)?;
    let binding = storage::binding(backend, adapter)?;
    let mut wired = spec.clone();
    if !events_only {
        let engine = adapter.engine_container(spec).ok().and_then(|at| spec.containers.get(at));
        if let Some(engine) = engine {
            command::takes_arguments(engine)?;
        }
        wired = adapter.inject_engine(spec, binding.as_ref(), backend)?;
        if let Some(engine) = engine {
            override_engine(engine, &mut wired, backend, adapter);
            // Overrides may bring what the engine may not have; a second call would see it.
            judge(&Pod { spec: Some(wired.clone()), ..pod.clone() }, &wired, backend, adapter)?;
        }
    }
    check(selected, &mut wired, backend);
    let wired = Pod { spec: Some(wired), ..pod.clone() };
    let (wired, observed) = observe(wired, backend, adapter);
    if events_only && !observed {
        return Err(AdapterError::backend(
            "spec.integration.mode",
            "is EventsOnly, and there is no subscriber of ours on the Pod: it needs an image, a model, and its name",
        ));
    }
    Ok(wired)
}

/// What an adapter for LMCache's server says of the concrete Pod. Without a topology there is none to ask.
fn judge(pod: &Pod, spec: &PodSpec, backend: &CacheBackend, adapter: &dyn RuntimeAdapter) -> Result<(), AdapterError> {
    let Some(lm_cache) = backend.spec.lm_cache.as_ref().filter(|lm_cache| !lm_cache.topology.as_str().is_empty())
    else {
        return Ok(());
    };
    let Some(mp) = adapter.as_mp() else {
        let problem =
            format!("is {:?}, and the adapter for this runtime has no such server", lm_cache.topology.as_str());
        return Err(AdapterError::backend("spec.lmCache.topology", problem));
    };
    let engine = adapter.engine_container(spec).ok();
    match engine {
        Some(engine) => mp.validate_mp_engine_pod(&command::spelled_out(pod, engine), backend)?,
        None => mp.validate_mp_engine_pod(pod, backend)?,
    }
    let server = lm_cache.pod_local.as_ref().and_then(|pod_local| pod_local.server.as_ref());
    let port = engine.and_then(|at| crate::adapters::subscriber::port(spec.containers.get(at)?));
    if let (Topology::PodLocal, Some(server), Some(port)) = (&lm_cache.topology, server, port)
        && !backend.spec.events_only()
        && [server.port, MP_HTTP_PORT].contains(&i32::from(port))
    {
        return Err(AdapterError::flag(
            "--port",
            format!("is {port}, which the LMCache server in the same Pod listens on"),
        ));
    }
    Ok(())
}

/// The object's overrides on the engine, found again by its name.
fn override_engine(before: &Container, wired: &mut PodSpec, backend: &CacheBackend, adapter: &dyn RuntimeAdapter) {
    let overrides = backend.spec.integration.as_ref().and_then(|integration| integration.engine_overrides.as_ref());
    let (Some(overrides), false) = (overrides, adapter.engine_container_name().is_empty()) else { return };
    if let Some(engine) = wired.containers.iter_mut().find(|container| container.name == before.name) {
        overrides::merge(before, adapter.is_wired(before), engine, overrides);
    }
}

/// The check of the engine's native code as it should be. What goes wrong here costs the check, not the wiring.
fn check(selected: Selected<'_>, spec: &mut PodSpec, backend: &CacheBackend) {
    match guarded(|| selected.reconcile_engine_check(spec, backend)) {
        Some(Ok(checked)) => *spec = checked,
        Some(Err(why)) => tracing::warn!(err = %why, "linker_check_left_out"),
        None => tracing::error!("linker_check_panicked"),
    }
}

/// The subscriber, and whether one of ours is there. What goes wrong here costs the subscriber, not the wiring.
fn observe(mut pod: Pod, backend: &CacheBackend, adapter: &dyn RuntimeAdapter) -> (Pod, bool) {
    let container = match guarded(|| adapter.observation_sidecar(backend, &pod)) {
        Some(Ok(container)) => container,
        Some(Err(why)) => {
            tracing::warn!(err = %why, "linker_subscriber_left_out");
            None
        }
        None => {
            tracing::error!("linker_subscriber_panicked");
            None
        }
    };
    let observed = match (container, pod.spec.as_mut()) {
        (Some(ours), Some(spec)) => add(spec, ours),
        _ => false,
    };
    (pod, observed)
}

/// Adds the subscriber where its kind belongs, and tells whether it is there. One that is there already stays, whosever.
fn add(spec: &mut PodSpec, ours: Container) -> bool {
    let mut all = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    if let Some(present) = all.find(|container| container.name == SUBSCRIBER_CONTAINER) {
        let mut fresh = present.clone();
        replace_container(&mut fresh, ours);
        return fresh == *present;
    }
    if ours.restart_policy.is_some() {
        spec.init_containers.get_or_insert_default().push(ours);
    } else {
        spec.containers.push(ours);
    }
    true
}

/// What `work` gives, or nothing when it panics.
pub(super) fn guarded<T>(work: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(work)).ok()
}
