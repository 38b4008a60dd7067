//! Pods derived from a fixture's: busy ones, ones with foreign objects, and what an adapter added to one.

use k8s_openapi::api::core::v1::{
    ConfigMapVolumeSource, Container, EmptyDirVolumeSource, EnvVar, PodSpec, Volume, VolumeMount,
};

use crate::adapters::args::token;
use crate::adapters::pod::env;

/// The Pod with more of everything, before and after what was there.
pub(super) fn busy(pod: &PodSpec, engine: &str) -> PodSpec {
    let mut pod = pod.clone();
    let named = engine.is_empty() || pod.containers.iter().any(|container| container.name == engine);
    for container in &mut pod.containers {
        around(&mut container.env, env("USER_FIRST", "1"), env("USER_LAST", "2"));
        around(&mut container.args, "--user-first=1".to_owned(), "--user-last=2".to_owned());
        around(&mut container.volume_mounts, mount("user-first", "/user/first"), mount("user-last", "/user/last"));
    }
    around(&mut pod.volumes, scratch("user-first"), scratch("user-last"));
    let other = |name: &str| Container {
        name: name.to_owned(),
        image: Some("user/image".to_owned()),
        env: Some(vec![env("USER", "3")]),
        ..Container::default()
    };
    around(&mut pod.init_containers, other("user-init-first"), other("user-init-last"));
    if named {
        pod.containers.push(other("user-sidecar"));
    }
    pod
}

fn around<T>(list: &mut Option<Vec<T>>, first: T, last: T) {
    let list = list.get_or_insert_default();
    list.insert(0, first);
    list.push(last);
}

fn mount(name: &str, path: &str) -> VolumeMount {
    VolumeMount { name: name.to_owned(), mount_path: path.to_owned(), ..VolumeMount::default() }
}

fn scratch(name: &str) -> Volume {
    Volume { name: name.to_owned(), empty_dir: Some(EmptyDirVolumeSource::default()), ..Volume::default() }
}

/// What an adapter added to a Pod.
#[derive(Debug, Default)]
pub(super) struct Added {
    pub(super) init_containers: Vec<String>,
    pub(super) volumes: Vec<String>,
    /// Paths, on any container that was there before.
    pub(super) mounts: Vec<String>,
    /// Flags, on any container that was there before.
    pub(super) flags: Vec<String>,
    /// Variables, on any container that was there before.
    pub(super) env: Vec<String>,
}

impl Added {
    pub(super) fn between(before: &PodSpec, after: &PodSpec) -> Self {
        let mut added = Self {
            init_containers: fresh(&before.init_containers, &after.init_containers, |c| c.name.clone()),
            volumes: fresh(&before.volumes, &after.volumes, |v| v.name.clone()),
            ..Self::default()
        };
        for (old, new) in before.containers.iter().zip(&after.containers) {
            added.mounts.extend(fresh(&old.volume_mounts, &new.volume_mounts, |m| m.mount_path.clone()));
            let flag = |arg: &String| token(arg).unwrap_or_default().to_owned();
            added.flags.extend(fresh(&old.args, &new.args, flag).into_iter().filter(|flag| !flag.is_empty()));
            added.env.extend(fresh(&old.env, &new.env, |v: &EnvVar| v.name.clone()));
        }
        added
    }
}

fn fresh<T>(before: &Option<Vec<T>>, after: &Option<Vec<T>>, key: impl Fn(&T) -> String) -> Vec<String> {
    let known: Vec<String> = before.iter().flatten().map(&key).collect();
    after.iter().flatten().map(key).filter(|name| !known.contains(name)).collect()
}

/// The Pod with somebody else's object under each name that was added, one at a time.
pub(super) fn with_foreign(pod: &PodSpec, added: &Added) -> Vec<(String, PodSpec)> {
    let mut list = Vec::new();
    for name in &added.init_containers {
        let mut copy = pod.clone();
        let foreign = Container { name: name.clone(), image: Some("user/image".to_owned()), ..Container::default() };
        copy.init_containers.get_or_insert_default().push(foreign);
        list.push((format!("init container {name:?}"), copy));
    }
    for name in &added.volumes {
        let mut copy = pod.clone();
        let source = ConfigMapVolumeSource { name: "user".to_owned(), ..ConfigMapVolumeSource::default() };
        let foreign = Volume { name: name.clone(), config_map: Some(source), ..Volume::default() };
        copy.volumes.get_or_insert_default().push(foreign);
        list.push((format!("volume {name:?}"), copy));
    }
    for path in &added.mounts {
        let mut copy = pod.clone();
        copy.volumes.get_or_insert_default().push(scratch("user"));
        for container in &mut copy.containers {
            container.volume_mounts.get_or_insert_default().push(mount("user", path));
        }
        list.push((format!("mount {path:?}"), copy));
    }
    list
}

/// The entries of `before` that are missing from `after`, or out of order there.
pub(super) fn lost<'a, T: PartialEq>(before: &'a Option<Vec<T>>, after: &Option<Vec<T>>) -> Option<&'a T> {
    let mut rest = after.iter().flatten();
    before.iter().flatten().find(|entry| !rest.any(|other| other == *entry))
}
