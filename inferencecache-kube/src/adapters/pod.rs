//! Edits of a Pod's lists that keep everybody else's entries, their order and their values.
//!
//! *Upsert* puts our value into the first entry of that name, or appends. *Adopt* is for objects that are ours alone: it
//! replaces an object of that name that carries our mark, and refuses one that does not. An object that differs from ours
//! only by what an API server fills in counts as equal and is left as it is, so that a second pass changes nothing.

use k8s_openapi::api::core::v1::{
    Container, EnvVar, EnvVarSource, ObjectFieldSelector, PodSpec, SecretKeySelector, Volume, VolumeMount,
};

use super::defaults::equal_after_defaults;
use super::error::AdapterError;
use crate::api::names;

/// Where the API server mounts the service account's token into every container.
const TOKEN_MOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The index of the engine among `spec.containers`: the one called `name`; else the only one, ours not counted; else the
/// only one that carries the wiring already, as when another hook has added a container since.
///
/// # Errors
/// Names the containers when none of this decides.
pub fn engine_container(
    pod: &PodSpec,
    name: &str,
    is_wired: impl Fn(&Container) -> bool,
) -> Result<usize, AdapterError> {
    let containers = &pod.containers;
    if let Some(at) = containers.iter().position(|container| container.name == name) {
        return Ok(at);
    }
    let sole = |wanted: &dyn Fn(&Container) -> bool| {
        let mut found = containers.iter().enumerate().filter(|(_, container)| wanted(container));
        found.next().filter(|_| found.next().is_none()).map(|(at, _)| at)
    };
    let foreign = |container: &Container| container.name != names::SUBSCRIBER_CONTAINER;
    sole(&foreign).or_else(|| sole(&|container| foreign(container) && is_wired(container))).ok_or_else(|| {
        let found: Vec<&str> = containers.iter().map(|container| container.name.as_str()).collect();
        AdapterError::pod(
            format!("container {name:?}"),
            format!("is not there, and which of [{}] is the engine cannot be told", found.join(", ")),
        )
    })
}

/// A literal variable.
pub fn env(name: &str, value: impl Into<String>) -> EnvVar {
    EnvVar { name: name.to_owned(), value: Some(value.into()), value_from: None }
}

/// A variable from the Pod's own fields.
pub fn env_from_field(name: &str, path: &str) -> EnvVar {
    let field = ObjectFieldSelector { api_version: None, field_path: path.to_owned() };
    let source = EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() };
    EnvVar { name: name.to_owned(), value: None, value_from: Some(source) }
}

/// A variable from a key of a Secret. The selector is a reference; the value never passes through here.
pub fn env_from_secret(name: &str, selector: &SecretKeySelector) -> EnvVar {
    let source = EnvVarSource { secret_key_ref: Some(selector.clone()), ..EnvVarSource::default() };
    EnvVar { name: name.to_owned(), value: None, value_from: Some(source) }
}

/// Puts the variable into the first entry of its name, or appends it.
pub fn upsert_env(list: &mut Vec<EnvVar>, var: EnvVar) {
    match list.iter_mut().find(|entry| entry.name == var.name) {
        Some(entry) if equal_after_defaults(&var, entry) => {}
        Some(entry) => *entry = var,
        None => list.push(var),
    }
}

/// Removes every entry of that name and appends the variable.
pub fn reappend_env(list: &mut Vec<EnvVar>, var: EnvVar) {
    list.retain(|entry| entry.name != var.name);
    list.push(var);
}

/// Puts the mount into the entry of its volume's name, or appends it.
pub fn upsert_mount(list: &mut Vec<VolumeMount>, mount: VolumeMount) {
    match list.iter_mut().find(|entry| entry.name == mount.name) {
        Some(entry) if equal_after_defaults(&mount, entry) => {}
        Some(entry) => *entry = mount,
        None => list.push(mount),
    }
}

/// A plain writable mount.
pub fn mount(name: &str, path: &str) -> VolumeMount {
    VolumeMount { name: name.to_owned(), mount_path: path.to_owned(), ..VolumeMount::default() }
}

/// The engine's mount at that path, however the path is spelled.
pub fn mount_at<'a>(container: &'a Container, path: &str) -> Option<&'a VolumeMount> {
    container.volume_mounts.iter().flatten().find(|mount| clean(&mount.mount_path) == path)
}

/// A path without empty, `.` and `..` parts.
pub(crate) fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    format!("/{}", parts.join("/"))
}

/// Adds the volume; an existing one of that name is replaced when it is `ours`.
///
/// # Errors
/// Somebody else has a volume of that name.
pub fn adopt_volume(pod: &mut PodSpec, volume: Volume, ours: bool) -> Result<(), AdapterError> {
    let list = pod.volumes.get_or_insert_default();
    match list.iter_mut().find(|entry| entry.name == volume.name) {
        None => list.push(volume),
        Some(_) if !ours => return Err(foreign("volume", &volume.name)),
        Some(entry) if equal_after_defaults(&volume, entry) => {}
        Some(entry) => *entry = volume,
    }
    Ok(())
}

/// # Errors
/// There is a volume of that name.
pub(crate) fn refuse_volume(pod: &PodSpec, name: &str) -> Result<(), AdapterError> {
    if pod.volumes.iter().flatten().any(|volume| volume.name == name) {
        return Err(foreign("volume", name));
    }
    Ok(())
}

/// Adds the init container at the end; one of that name is replaced in place when it carries the mark.
///
/// # Errors
/// Somebody else has a container of that name.
pub fn adopt_init_container(pod: &mut PodSpec, container: Container, mark: &str) -> Result<(), AdapterError> {
    if pod.containers.iter().any(|entry| entry.name == container.name) {
        return Err(foreign("container", &container.name));
    }
    let list = pod.init_containers.get_or_insert_default();
    match list.iter_mut().find(|entry| entry.name == container.name) {
        None => list.push(container),
        Some(entry) if !is_marked(entry, mark) => return Err(foreign("init container", &container.name)),
        Some(entry) => replace_container(entry, container),
    }
    Ok(())
}

/// Puts our container in the place of an older one of ours, unless nothing but defaults tells them apart. The mount of the
/// service account's token, which the API server adds, survives.
pub fn replace_container(entry: &mut Container, mut ours: Container) {
    let token = |mount: &&VolumeMount| clean(&mount.mount_path) == TOKEN_MOUNT;
    let kept: Vec<VolumeMount> = entry.volume_mounts.iter().flatten().filter(token).cloned().collect();
    if !kept.is_empty() && !ours.volume_mounts.iter().flatten().any(|mount| token(&mount)) {
        ours.volume_mounts.get_or_insert_default().extend(kept);
    }
    if !equal_after_defaults(&ours, entry) {
        *entry = ours;
    }
}

/// Whether the container says that it is ours.
pub fn is_marked(container: &Container, mark: &str) -> bool {
    container.env.iter().flatten().any(|var| var.name == mark && var.value.as_deref() == Some("true"))
}

/// Whether the Pod has our init container of that name.
pub fn has_marked_init_container(pod: &PodSpec, name: &str, mark: &str) -> bool {
    pod.init_containers.iter().flatten().any(|container| container.name == name && is_marked(container, mark))
}

/// Takes our init container, volumes of these names, the engine's mounts of them and its variables off the Pod.
pub(crate) fn remove_own(pod: &mut PodSpec, engine: usize, init: &str, volumes: &[&str], env: &[&str]) {
    let ours = |name: &str| volumes.contains(&name);
    retain(&mut pod.init_containers, |container| container.name != init);
    retain(&mut pod.volumes, |volume| !ours(&volume.name));
    if let Some(engine) = pod.containers.get_mut(engine) {
        retain(&mut engine.volume_mounts, |mount| !ours(&mount.name));
        retain(&mut engine.env, |var| !env.contains(&var.name.as_str()));
    }
}

/// Keeps what `wanted` says; a list that becomes empty goes.
pub(crate) fn retain<T>(list: &mut Option<Vec<T>>, wanted: impl FnMut(&T) -> bool) {
    if let Some(entries) = list {
        entries.retain(wanted);
        if entries.is_empty() {
            *list = None;
        }
    }
}

fn foreign(kind: &str, name: &str) -> AdapterError {
    AdapterError::pod(format!("{kind} {name:?}"), "the name is reserved and this one is not ours")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(names: &[&str]) -> PodSpec {
        let container = |name: &&str| Container { name: (*name).to_owned(), ..Container::default() };
        PodSpec { containers: names.iter().map(container).collect(), ..PodSpec::default() }
    }

    /// field:50
    #[test]
    fn the_engine_is_found_by_name_then_alone_then_by_its_wiring() {
        let wired = |container: &Container| container.name == "wired";
        let find = |names: &[&str]| engine_container(&pod(names), "vllm", wired).ok();
        assert_eq!(find(&["a", "vllm"]), Some(1));
        assert_eq!(find(&["a"]), Some(0));
        assert_eq!(find(&["kvevent-subscriber", "a"]), Some(1));
        assert_eq!(find(&["istio-proxy", "kvevent-subscriber", "wired"]), Some(2));
        assert_eq!(find(&["a", "b"]), None);
        assert_eq!(find(&[]), None);
        let error = engine_container(&pod(&["a", "b"]), "vllm", wired).unwrap_err().to_string();
        assert!(error.contains("vllm") && error.contains("[a, b]"), "{error}");
    }

    #[test]
    fn paths_are_compared_by_meaning() {
        for path in ["/dev/shm", "/dev/shm/", "/dev//shm", "/dev/./shm", "/dev/x/../shm"] {
            assert_eq!(clean(path), "/dev/shm");
        }
    }
}
