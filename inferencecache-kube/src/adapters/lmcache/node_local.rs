//! NodeLocal, the engine's side: the node's shared memory, the node's address, and a gate that holds the engine back until
//! the server of its own node has been proven to be the right one.
//!
//! Where the engine runs is its own affair: nothing here places it.

use k8s_openapi::api::core::v1::{Container, HostPathVolumeSource, PodSpec, Volume, VolumeMount};

use super::gate;
use super::pod_local::{SHM_PATH, add_config_directory, engine_of};
use super::settings::NodeLocal;
use crate::adapters::defaults::equal_after_defaults;
use crate::adapters::error::AdapterError;
use crate::adapters::pod::{
    adopt_init_container, adopt_volume, env_from_field, has_marked_init_container, mount, mount_at, refuse_volume,
    remove_own, upsert_env, upsert_mount,
};
use crate::api::{CacheBackend, names};

/// Reserved mount path of the engine.
const CONFIG_DIRECTORY: &str = "/var/run/inference-cache/lmcache-node";
/// The file with the engine's client settings, where it reads some.
pub(crate) const CONFIG_FILE: &str = "/var/run/inference-cache/lmcache-node/client.yaml";
const SHM_VOLUME: &str = "lmcache-node-shm";
const CONFIG_VOLUME: &str = "lmcache-node-config";
/// A POSIX name of shared memory has no room for more.
const SHM_NAME_BYTES: usize = 255;

/// Who a backend's servers are, on every node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// `<namespace>/<name>@<uid>#<generation>`.
    pub instance_id: String,
    /// POSIX name of the shared memory: of the uid alone, so that it survives renaming and edits.
    pub shm_name: String,
    /// Directory on the node that server and engines mount as `/dev/shm`.
    pub host_directory: String,
}

impl Identity {
    /// # Errors
    /// The uid is missing, too long, or has characters that a file name should not have.
    pub fn of(backend: &CacheBackend) -> Result<Self, AdapterError> {
        let meta = &backend.metadata;
        let uid = meta.uid.as_deref().unwrap_or_default();
        let shm_name = format!("lmcache_l1_pool_inferencecache_{uid}");
        let fail = |problem: &str| Err(AdapterError::backend("metadata.uid", format!("is {uid:?}; {problem}")));
        if uid.is_empty() {
            return fail("a stored object has one");
        }
        if !uid.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)) {
            return fail("only letters, digits and ._- can name shared memory");
        }
        if shm_name.len() > SHM_NAME_BYTES {
            return fail("it is too long to name shared memory");
        }
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        Ok(Self {
            instance_id: format!(
                "{}/{}@{uid}#{}",
                text(&meta.namespace),
                text(&meta.name),
                meta.generation.unwrap_or_default()
            ),
            shm_name,
            host_directory: format!("{SHM_PATH}/inference-cache/{uid}"),
        })
    }

    /// The node's directory as a volume.
    pub(crate) fn volume(&self) -> Volume {
        let source =
            HostPathVolumeSource { path: self.host_directory.clone(), type_: Some("DirectoryOrCreate".to_owned()) };
        Volume { name: SHM_VOLUME.to_owned(), host_path: Some(source), ..Volume::default() }
    }
}

/// The mount of the node's shared memory.
pub(crate) fn shm_mount() -> VolumeMount {
    mount(SHM_VOLUME, SHM_PATH)
}

/// Adds the node's memory and address to the engine and the gate before it.
///
/// `write_config` says whether the engine wants its settings in a file; the gate then writes it.
///
/// # Errors
/// What stands in the way.
pub(crate) fn wire(
    mut pod: PodSpec,
    engine: usize,
    settings: &NodeLocal,
    identity: &Identity,
    write_config: bool,
) -> Result<PodSpec, AdapterError> {
    let ours = is_wired(&pod);
    add_address(engine_of(&mut pod, engine)?, ours)?;
    add_shm(&mut pod, engine, ours, identity)?;
    let config = write_config.then(|| mount(CONFIG_VOLUME, CONFIG_DIRECTORY));
    if let Some(config) = &config {
        add_config_directory(&mut pod, engine, ours, config)?;
    }
    let container = gate::container(settings, identity, config);
    adopt_init_container(&mut pod, container, names::NODE_GATE_MARK)?;
    Ok(pod)
}

/// Whether the Pod carries our gate.
pub(crate) fn is_wired(pod: &PodSpec) -> bool {
    has_marked_init_container(pod, names::NODE_GATE_CONTAINER, names::NODE_GATE_MARK)
}

/// Takes the NodeLocal wiring off again.
pub(crate) fn unwire(pod: &mut PodSpec, engine: usize, env: &[&str]) {
    if is_wired(pod) {
        remove_own(pod, engine, names::NODE_GATE_CONTAINER, &[SHM_VOLUME, CONFIG_VOLUME], env);
    }
}

fn add_address(engine: &mut Container, ours: bool) -> Result<(), AdapterError> {
    let wanted = env_from_field(names::NODE_IP, "status.hostIP");
    let list = engine.env.get_or_insert_default();
    let differs = list.iter().any(|var| var.name == names::NODE_IP && !equal_after_defaults(&wanted, var));
    if differs && !ours {
        return Err(AdapterError::pod(
            format!("variable {}", names::NODE_IP),
            "is set already; it must come from status.hostIP",
        ));
    }
    upsert_env(list, wanted);
    Ok(())
}

fn add_shm(pod: &mut PodSpec, engine: usize, ours: bool, identity: &Identity) -> Result<(), AdapterError> {
    let existing = mount_at(engine_of(pod, engine)?, SHM_PATH).filter(|mount| mount.name != SHM_VOLUME).cloned();
    if let Some(existing) = existing {
        reusable(pod, &existing, identity)?;
        return refuse_volume(pod, SHM_VOLUME);
    }
    adopt_volume(pod, identity.volume(), ours)?;
    upsert_mount(engine_of(pod, engine)?.volume_mounts.get_or_insert_default(), shm_mount());
    Ok(())
}

/// Whether the engine mounts the node's directory already, whole and writable.
fn reusable(pod: &PodSpec, mount: &VolumeMount, identity: &Identity) -> Result<(), AdapterError> {
    let fail = |problem: String| Err(AdapterError::pod(format!("mount {SHM_PATH:?}"), problem));
    if mount.read_only == Some(true) {
        return fail("is read-only; the cache needs to write".to_owned());
    }
    let given = |path: &Option<String>| path.as_ref().is_some_and(|path| !path.is_empty());
    if given(&mount.sub_path) || given(&mount.sub_path_expr) {
        return fail("shows a part of its volume only".to_owned());
    }
    let volume = pod.volumes.iter().flatten().find(|volume| volume.name == mount.name);
    let wanted = identity.volume().host_path;
    if volume.is_none_or(|volume| volume.host_path != wanted) {
        return fail(format!(
            "is volume {:?}; it must be the node's directory {}",
            mount.name, identity.host_directory
        ));
    }
    Ok(())
}
