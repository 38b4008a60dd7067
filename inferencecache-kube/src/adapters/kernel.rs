//! The check of the engine's native code: an init container that loads LMCache's compiled kernels with the engine's own
//! image, before the engine does.
//!
//! A wheel that was built for another PyTorch imports without complaint and then fails, or falls back silently, when blocks
//! are moved. The check loads the library itself and leaves one line of verdict where a Pod's status shows it. It proves that
//! the library links, not that the kernels run.

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};

use super::contract::RuntimeAdapter;
use super::error::AdapterError;
use super::pod::{env, replace_container, retain};
use crate::api::{Amount, CacheBackend, Quantity, names};

/// Run by the engine image's Python.
pub const PROGRAM: &str = include_str!("programs/kernel-check.py");

const STRICT: &str = "KERNEL_CHECK_STRICT";
const GPU: &str = "nvidia.com/gpu";
const VERDICT: &str = "/dev/termination-log";

/// What can be checked, per engine family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EngineCheck {
    /// LMCache's kernels in vLLM's image.
    LmCacheKernels,
}

/// How the object wants it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// On engines with a GPU; a failure is reported.
    Auto,
    /// On every engine; a failure is reported.
    ReportOnly,
    /// On every engine; a failure keeps the engine from starting.
    Strict,
    /// On none.
    Off,
}

impl Mode {
    fn of(backend: &CacheBackend) -> Self {
        let annotation = backend.metadata.annotations.as_ref().and_then(|list| list.get(names::KERNEL_CHECK));
        match annotation.map(String::as_str) {
            Some("report-only") => Self::ReportOnly,
            Some("strict") => Self::Strict,
            Some("off") => Self::Off,
            _ => Self::Auto,
        }
    }
}

/// The Pod with the check as it should be. The name is ours: whatever else is there under it is replaced, or taken away when
/// no check is due.
pub(crate) fn reconcile(
    pod: &PodSpec,
    backend: &CacheBackend,
    check: EngineCheck,
    adapter: &dyn RuntimeAdapter,
) -> Result<PodSpec, AdapterError> {
    let EngineCheck::LmCacheKernels = check;
    let mut pod = pod.clone();
    let Some(ours) = container(&pod, backend, adapter) else {
        retain(&mut pod.init_containers, |container| container.name != names::KERNEL_CHECK_CONTAINER);
        return Ok(pod);
    };
    let list = pod.init_containers.get_or_insert_default();
    match list.iter_mut().find(|container| container.name == ours.name) {
        Some(entry) => replace_container(entry, ours),
        None => list.push(ours),
    }
    Ok(pod)
}

/// The check for this engine, if one is due.
fn container(pod: &PodSpec, backend: &CacheBackend, adapter: &dyn RuntimeAdapter) -> Option<Container> {
    let mode = Mode::of(backend);
    let engine = pod.containers.get(adapter.engine_container(pod).ok()?)?;
    let due = match mode {
        Mode::Off => false,
        Mode::Auto => wants_gpu(engine),
        Mode::ReportOnly | Mode::Strict => true,
    };
    let has_image = engine.image.as_ref().is_some_and(|image| !image.is_empty());
    if !due || !has_image || backend.spec.events_only() {
        return None;
    }
    let mut list = engine.env.clone().unwrap_or_default();
    list.retain(|var| var.name != STRICT);
    list.push(env(STRICT, if mode == Mode::Strict { "1" } else { "0" }));
    let amounts =
        [("cpu", "50m"), ("memory", "256Mi")].map(|(name, text)| (name.to_owned(), Quantity(text.to_owned())));
    Some(Container {
        name: names::KERNEL_CHECK_CONTAINER.to_owned(),
        image: engine.image.clone(),
        image_pull_policy: engine.image_pull_policy.clone(),
        command: Some(vec!["python3".to_owned(), "-c".to_owned(), PROGRAM.to_owned()]),
        env: Some(list),
        env_from: engine.env_from.clone(),
        volume_mounts: engine.volume_mounts.clone(),
        volume_devices: engine.volume_devices.clone(),
        working_dir: engine.working_dir.clone(),
        security_context: engine.security_context.clone(),
        resources: Some(ResourceRequirements { requests: Some(amounts.into()), ..ResourceRequirements::default() }),
        termination_message_path: Some(VERDICT.to_owned()),
        termination_message_policy: Some("File".to_owned()),
        ..Container::default()
    })
}

/// Whether the engine asks for a GPU.
fn wants_gpu(engine: &Container) -> bool {
    let Some(resources) = &engine.resources else { return false };
    [&resources.requests, &resources.limits]
        .into_iter()
        .filter_map(|list| list.as_ref()?.get(GPU))
        .any(|amount| Amount::of(amount).is_ok_and(Amount::is_positive))
}
