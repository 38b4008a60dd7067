//! A Pod as an API server hands it back.

use k8s_openapi::api::core::v1::{Container, PodSpec, Probe};

/// The Pod with the defaults that an API server fills in.
#[must_use]
pub fn defaulted(pod: &PodSpec) -> PodSpec {
    let mut pod = pod.clone();
    pod.restart_policy.get_or_insert_with(|| "Always".to_owned());
    pod.dns_policy.get_or_insert_with(|| "ClusterFirst".to_owned());
    pod.scheduler_name.get_or_insert_with(|| "default-scheduler".to_owned());
    pod.termination_grace_period_seconds.get_or_insert(30);
    pod.security_context.get_or_insert_default();
    for container in pod.containers.iter_mut().chain(pod.init_containers.iter_mut().flatten()) {
        fill(container);
    }
    for volume in pod.volumes.iter_mut().flatten() {
        if let Some(source) = &mut volume.config_map {
            source.default_mode.get_or_insert(0o644);
        }
    }
    pod
}

fn fill(container: &mut Container) {
    container.termination_message_path.get_or_insert_with(|| "/dev/termination-log".to_owned());
    container.termination_message_policy.get_or_insert_with(|| "File".to_owned());
    container.image_pull_policy.get_or_insert_with(|| "IfNotPresent".to_owned());
    let resources = container.resources.get_or_insert_default();
    for (name, amount) in resources.limits.iter().flatten() {
        resources.requests.get_or_insert_default().entry(name.clone()).or_insert_with(|| amount.clone());
    }
    for port in container.ports.iter_mut().flatten() {
        port.protocol.get_or_insert_with(|| "TCP".to_owned());
    }
    for var in container.env.iter_mut().flatten() {
        match &mut var.value_from {
            Some(source) => {
                if let Some(field) = &mut source.field_ref {
                    field.api_version.get_or_insert_with(|| "v1".to_owned());
                }
            }
            // An empty value is not kept apart from none.
            None if var.value.as_deref() == Some("") => var.value = None,
            None => {}
        }
    }
    for probe in [&mut container.startup_probe, &mut container.readiness_probe, &mut container.liveness_probe] {
        probe.iter_mut().for_each(fill_probe);
    }
}

fn fill_probe(probe: &mut Probe) {
    probe.success_threshold.get_or_insert(1);
    probe.failure_threshold.get_or_insert(3);
    probe.period_seconds.get_or_insert(10);
    probe.timeout_seconds.get_or_insert(1);
    if let Some(get) = &mut probe.http_get {
        get.scheme.get_or_insert_with(|| "HTTP".to_owned());
        get.path.get_or_insert_with(|| "/".to_owned());
    }
}
