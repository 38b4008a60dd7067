//! The part of an API server's judgement that needs no API server: names, references, duplicates.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Container, PodSpec};

/// What an API server would find fault with. Not all of it: run the suite with
/// [`RuntimeSuite::with_api_server`](super::RuntimeSuite::with_api_server) for the rest.
#[must_use]
pub fn structure(pod: &PodSpec) -> Vec<String> {
    let mut faults = Vec::new();
    let init = pod.init_containers.iter().flatten();
    let all: Vec<&Container> = pod.containers.iter().chain(init.clone()).collect();
    duplicates("container", all.iter().map(|container| container.name.as_str()), &mut faults);
    let volumes: Vec<&str> = pod.volumes.iter().flatten().map(|volume| volume.name.as_str()).collect();
    duplicates("volume", volumes.iter().copied(), &mut faults);
    for name in all.iter().map(|container| container.name.as_str()).chain(volumes.iter().copied()) {
        if !is_label(name) {
            faults.push(format!("{name:?} is no DNS label"));
        }
    }
    for container in &all {
        inside(container, &volumes, &mut faults);
    }
    for container in &pod.containers {
        if container.restart_policy.is_some() {
            faults.push(format!("container {:?} has a restartPolicy and is no init container", container.name));
        }
    }
    for container in init.filter(|container| container.restart_policy.is_none()) {
        if container.readiness_probe.is_some()
            || container.liveness_probe.is_some()
            || container.startup_probe.is_some()
        {
            faults.push(format!("init container {:?} has a probe and does not keep running", container.name));
        }
    }
    faults
}

fn inside(container: &Container, volumes: &[&str], faults: &mut Vec<String>) {
    let mut add = |what: String| faults.push(format!("container {:?}: {what}", container.name));
    if container.image.as_deref().unwrap_or_default().trim().is_empty() {
        add("no image".to_owned());
    }
    let mut paths = BTreeSet::new();
    for mount in container.volume_mounts.iter().flatten() {
        if !volumes.contains(&mount.name.as_str()) {
            add(format!("mounts volume {:?}, which is not there", mount.name));
        }
        if !paths.insert(&mount.mount_path) {
            add(format!("mounts {:?} twice", mount.mount_path));
        }
    }
    let mut ports = BTreeSet::new();
    for port in container.ports.iter().flatten() {
        if !(1..=65535).contains(&port.container_port) {
            add(format!("port {}", port.container_port));
        }
        let Some(name) = &port.name else { continue };
        if name.len() > 15 || !is_label(name) || !ports.insert(name) {
            add(format!("port name {name:?}"));
        }
    }
    for var in container.env.iter().flatten() {
        if var.name.is_empty() || var.name.contains('=') {
            add(format!("variable {:?}", var.name));
        }
        if var.value.as_ref().is_some_and(|value| !value.is_empty()) && var.value_from.is_some() {
            add(format!("variable {:?} has a value and a source", var.name));
        }
    }
}

fn duplicates<'a>(kind: &str, names: impl Iterator<Item = &'a str>, faults: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            faults.push(format!("two {kind}s {name:?}"));
        }
    }
}

fn is_label(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !name.is_empty() && name.len() <= 63 && name.bytes().all(inner) && !name.starts_with('-') && !name.ends_with('-')
}
