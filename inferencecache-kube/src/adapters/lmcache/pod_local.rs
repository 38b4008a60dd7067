//! PodLocal: an LMCache server as a native sidecar (an init container that keeps running) in the engine's own Pod.
//!
//! Engine and server exchange blocks through `/dev/shm`, so both mount the same memory: the engine's own, if it has one that
//! is large enough, else a volume of ours. An engine that reads its client settings from a file (SGLang) gets one written by
//! the server's container before the server starts.

use k8s_openapi::api::core::v1::{Container, EmptyDirVolumeSource, PodSpec, Volume, VolumeMount};

use super::server::{self, base_env, cache_args, credentials, l2_adapter};
use super::settings::PodLocal;
use crate::adapters::error::AdapterError;
use crate::adapters::pod::{
    adopt_init_container, adopt_volume, has_marked_init_container, mount, mount_at, refuse_volume, remove_own,
    upsert_mount,
};
use crate::adapters::value::Binding;
use crate::api::{Amount, Quantity, names};

/// Where engine and server share memory.
pub(crate) const SHM_PATH: &str = "/dev/shm";
/// Reserved mount path of the engine.
const CONFIG_DIRECTORY: &str = "/var/run/inference-cache/lmcache";
/// The file with the engine's client settings, where it reads some.
pub(crate) const CONFIG_FILE: &str = "/var/run/inference-cache/lmcache/client.yaml";
const SHM_VOLUME: &str = "lmcache-mp-shm";
const CONFIG_VOLUME: &str = "lmcache-mp-config";

/// Writes the client's settings and becomes the server. Values come as parameters, never as text of the program.
pub const CONFIG_WRITER: &str = include_str!("../programs/write-config.sh");

/// Adds the server to the Pod and shares memory between it and the engine.
///
/// `write_config` says whether the engine wants its settings in a file.
///
/// # Errors
/// What stands in the way.
pub(crate) fn wire(
    mut pod: PodSpec,
    engine: usize,
    settings: &PodLocal,
    binding: Option<&Binding>,
    write_config: bool,
) -> Result<PodSpec, AdapterError> {
    let l2 = l2_adapter(binding)?;
    let ours = is_wired(&pod);
    let mut server_mounts = Vec::new();
    if write_config {
        server_mounts.push(add_config(&mut pod, engine, ours)?);
    }
    server_mounts.insert(0, add_shm(&mut pod, engine, ours, settings)?);
    let container = container(settings, l2, binding, write_config, server_mounts);
    adopt_init_container(&mut pod, container, names::MP_SERVER_MARK)?;
    Ok(pod)
}

/// Whether the Pod carries our server.
pub(crate) fn is_wired(pod: &PodSpec) -> bool {
    has_marked_init_container(pod, names::MP_SERVER_CONTAINER, names::MP_SERVER_MARK)
}

/// Takes the PodLocal wiring off again.
pub(crate) fn unwire(pod: &mut PodSpec, engine: usize, env: &[&str]) {
    if is_wired(pod) {
        remove_own(pod, engine, names::MP_SERVER_CONTAINER, &[SHM_VOLUME, CONFIG_VOLUME], env);
    }
}

/// An empty directory for the settings, on engine and server.
fn add_config(pod: &mut PodSpec, engine: usize, ours: bool) -> Result<VolumeMount, AdapterError> {
    let wanted = mount(CONFIG_VOLUME, CONFIG_DIRECTORY);
    add_config_directory(pod, engine, ours, &wanted)?;
    Ok(wanted)
}

/// Shared with NodeLocal: the directory must be nobody else's.
pub(crate) fn add_config_directory(
    pod: &mut PodSpec,
    engine: usize,
    ours: bool,
    wanted: &VolumeMount,
) -> Result<(), AdapterError> {
    let container = engine_of(pod, engine)?;
    if let Some(existing) = mount_at(container, &wanted.mount_path).filter(|existing| existing.name != wanted.name) {
        return Err(AdapterError::pod(
            format!("mount {:?}", existing.mount_path),
            format!("of volume {:?} is in the place of the client settings", existing.name),
        ));
    }
    let volume =
        Volume { name: wanted.name.clone(), empty_dir: Some(EmptyDirVolumeSource::default()), ..Volume::default() };
    adopt_volume(pod, volume, ours)?;
    upsert_mount(engine_of(pod, engine)?.volume_mounts.get_or_insert_default(), wanted.clone());
    Ok(())
}

/// The shared memory: the engine's own or ours. Returns the server's mount of it.
fn add_shm(pod: &mut PodSpec, engine: usize, ours: bool, settings: &PodLocal) -> Result<VolumeMount, AdapterError> {
    let budget = settings.server.shared_memory();
    let existing = mount_at(engine_of(pod, engine)?, SHM_PATH).filter(|mount| mount.name != SHM_VOLUME).cloned();
    if let Some(existing) = existing {
        reusable(pod, &existing, &budget)?;
        refuse_volume(pod, SHM_VOLUME)?;
        return Ok(VolumeMount { sub_path: existing.sub_path, ..mount(&existing.name, SHM_PATH) });
    }
    adopt_volume(pod, memory(&budget), ours)?;
    let wanted = mount(SHM_VOLUME, SHM_PATH);
    upsert_mount(engine_of(pod, engine)?.volume_mounts.get_or_insert_default(), wanted.clone());
    Ok(wanted)
}

fn memory(limit: &Quantity) -> Volume {
    let source = EmptyDirVolumeSource { medium: Some("Memory".to_owned()), size_limit: Some(limit.clone()) };
    Volume { name: SHM_VOLUME.to_owned(), empty_dir: Some(source), ..Volume::default() }
}

/// Whether the engine's own shared memory will do: writable, memory, and bounded above the budget.
fn reusable(pod: &PodSpec, mount: &VolumeMount, budget: &Quantity) -> Result<(), AdapterError> {
    let fail = |problem: String| Err(AdapterError::pod(format!("mount {SHM_PATH:?}"), problem));
    if mount.read_only == Some(true) {
        return fail("is read-only; the cache needs to write".to_owned());
    }
    if mount.sub_path_expr.as_ref().is_some_and(|path| !path.is_empty()) {
        return fail("has a subPathExpr, which the server cannot follow".to_owned());
    }
    let volume = pod.volumes.iter().flatten().find(|volume| volume.name == mount.name);
    let Some(source) = volume.and_then(|volume| volume.empty_dir.as_ref()) else {
        return fail(format!("is volume {:?}, which is no emptyDir", mount.name));
    };
    if source.medium.as_deref() != Some("Memory") {
        return fail(format!("is volume {:?}, which is not in memory", mount.name));
    }
    let limit = source.size_limit.as_ref();
    let amount = |quantity: &Quantity| Amount::of(quantity).ok();
    if limit.and_then(amount) < amount(budget) {
        let given = limit.map_or("unbounded", |limit| limit.0.as_str());
        return fail(format!("is {given}; it must be bounded, by at least {}", budget.0));
    }
    Ok(())
}

pub(crate) fn engine_of(pod: &mut PodSpec, engine: usize) -> Result<&mut Container, AdapterError> {
    pod.containers.get_mut(engine).ok_or_else(|| AdapterError::pod("container", "of the engine is not there"))
}

fn container(
    settings: &PodLocal,
    l2: Option<String>,
    binding: Option<&Binding>,
    write_config: bool,
    mounts: Vec<VolumeMount>,
) -> Container {
    let spec = &settings.server;
    let mut args: Vec<String> = ["server", "--host", "127.0.0.1", "--port"].map(str::to_owned).into();
    args.push(spec.port.to_string());
    args.extend(["--http-host", "0.0.0.0", "--http-port"].map(str::to_owned));
    args.push(names::MP_HTTP_PORT.to_string());
    args.extend(cache_args(spec));
    args.extend(["--max-workers".to_owned(), settings.max_workers.to_string()]);
    args.extend(l2.into_iter().flat_map(|json| ["--l2-adapter".to_owned(), json]));
    let mut command = vec!["lmcache".to_owned()];
    if write_config {
        let mut wrapped = vec![CONFIG_WRITER.to_owned(), "inference-cache-lmcache-config".to_owned()];
        wrapped.extend([CONFIG_FILE.to_owned(), spec.chunk_size.to_string(), spec.port.to_string()]);
        wrapped.append(&mut command);
        wrapped.append(&mut args);
        args = wrapped;
        command = vec!["/bin/sh".to_owned(), "-c".to_owned()];
    }
    let mut env = base_env();
    env.extend(credentials(binding));
    Container {
        name: names::MP_SERVER_CONTAINER.to_owned(),
        image: Some(spec.image.clone()),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        restart_policy: Some("Always".to_owned()),
        command: Some(command),
        args: Some(args),
        env: Some(env),
        ports: Some(server::ports(spec.port.into(), names::MP_HTTP_PORT, false)),
        resources: Some(spec.resources.clone()),
        volume_mounts: Some(mounts),
        startup_probe: Some(server::startup_probe()),
        readiness_probe: Some(server::readiness_probe()),
        liveness_probe: Some(server::liveness_probe()),
        security_context: Some(server::security_context()),
        ..Container::default()
    }
}
