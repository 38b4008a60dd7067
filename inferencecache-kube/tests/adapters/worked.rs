//! The worked Pods, wired as the linker does it: engine, overrides of an object, check of native code, subscriber.

use inferencecache_kube::adapters::{AdapterError, Registries, RuntimeId};
use inferencecache_kube::api::CacheBackend;
use inferencecache_kube::testkit::adapters::defaulted;
use k8s_openapi::api::core::v1::{Container, EnvVar, Pod, PodSpec};
use serde_json::{Value, json};

use crate::fixtures::{Worked, after, binding, edited, edited_pod, init, shipped, silent, worked};

/// The linker's steps that concern adapters. Of overrides only additions, which is what the worked objects have.
fn link(registries: &Registries, backend: &CacheBackend, pod: &Pod) -> Result<PodSpec, AdapterError> {
    let selected = registries.runtime.select(&RuntimeId::of(Some(backend)), Some(backend))?;
    let adapter = selected.adapter();
    let mut spec = pod.spec.clone().unwrap_or_default();
    if !backend.spec.events_only() {
        if backend.spec.lm_cache.is_some() {
            adapter.as_mp().expect("an MP adapter").validate_mp_engine_pod(pod, backend)?;
        }
        let engine = adapter.engine_container(&spec)?;
        spec = adapter.inject_engine(&spec, binding(backend).as_ref(), backend)?;
        override_additions(&mut spec.containers[engine], backend);
    }
    spec = selected.reconcile_engine_check(&spec, backend)?;
    let present = spec.containers.iter().any(|container| container.name == "kvevent-subscriber");
    if !present {
        let pod = Pod { spec: Some(spec.clone()), ..pod.clone() };
        spec.containers.extend(adapter.observation_sidecar(backend, &pod)?);
    }
    Ok(spec)
}

fn override_additions(engine: &mut Container, backend: &CacheBackend) {
    let integration = backend.spec.integration.as_ref();
    let Some(overrides) = integration.and_then(|integration| integration.engine_overrides.clone()) else { return };
    let (args, env) = (engine.args.get_or_insert_default(), engine.env.get_or_insert_default());
    let added = overrides.args.unwrap_or_default();
    if !args.ends_with(&added) {
        args.extend(added);
    }
    let known = |env: &[EnvVar], var: &EnvVar| env.iter().any(|entry| entry.name == var.name);
    for var in overrides.env.unwrap_or_default() {
        if !known(env, &var) {
            env.push(var);
        }
    }
}

fn registries(name: &str) -> Registries {
    if ["p1", "p4", "p6"].contains(&name) { silent() } else { shipped() }
}

const PAIRS: [&str; 7] = ["p1", "p2", "p3", "p4", "p5", "p6", "p7"];

#[test]
fn every_worked_pod_comes_out_in_list_order() {
    for name in PAIRS {
        let pair = worked(name);
        let linked = link(&registries(name), &pair.backend, &pair.before).expect(name);
        let json = |spec: &PodSpec| serde_json::to_string_pretty(&spec).expect("JSON");
        pretty_assert(name, &json(&linked), &json(&after(&pair)));
    }
}

#[track_caller]
fn pretty_assert(name: &str, got: &str, want: &str) {
    let difference = got.lines().zip(want.lines()).find(|(one, other)| one != other);
    assert!(got == want, "{name}: first difference {difference:?}\n{got}");
}

#[test]
fn a_second_pass_changes_nothing_even_after_an_api_server() {
    for name in PAIRS {
        let pair = worked(name);
        let once = link(&registries(name), &pair.backend, &pair.before).expect(name);
        for spec in [once.clone(), defaulted(&once)] {
            let pod = Pod { spec: Some(spec.clone()), ..pair.before.clone() };
            let again = link(&registries(name), &pair.backend, &pod).expect(name);
            let json = |spec: &PodSpec| serde_json::to_string_pretty(&spec).expect("JSON");
            pretty_assert(name, &json(&again), &json(&spec));
        }
    }
}

/// field:50
#[test]
fn a_container_of_another_hook_does_not_hide_the_engine() {
    for name in ["p1", "p3", "p5", "p6"] {
        let pair = worked(name);
        let before = edited_pod(&pair.before, "/spec/containers/0/name", json!("engine"));
        let mut once = link(&shipped(), &pair.backend, &before).expect(name);
        once.containers.push(Container { name: "istio-proxy".to_owned(), ..Container::default() });
        let pod = Pod { spec: Some(once.clone()), ..pair.before };
        assert_eq!(link(&shipped(), &pair.backend, &pod).as_ref(), Ok(&once), "{name}");
    }
}

#[test]
fn the_token_that_an_api_server_mounts_is_kept() {
    let pair = worked("p1");
    let mut once = link(&silent(), &pair.backend, &pair.before).expect("wired");
    let token = json!({"name": "kube-api-access-x", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount", "readOnly": true});
    let server = &mut once.init_containers.as_mut().expect("a server")[0];
    server.volume_mounts.get_or_insert_default().push(serde_json::from_value(token).expect("a mount"));
    let pod = Pod { spec: Some(once.clone()), ..pair.before };
    assert_eq!(link(&silent(), &pair.backend, &pod).as_ref(), Ok(&once));
    let edit = edited(&pair.backend, "/spec/lmCache/podLocal/server/maxWorkers", json!(7));
    let rewired = link(&silent(), &edit, &pod).expect("wired");
    let server = init(&rewired, "lmcache-mp-server");
    assert_eq!(server.volume_mounts.as_ref().map(Vec::len), Some(2));
    assert!(server.args.iter().flatten().any(|arg| arg == "7"));
}

fn annotated(backend: &CacheBackend, mode: Option<&str>) -> CacheBackend {
    let annotations = mode.map(|mode| json!({"inferencecache.io/lmcache-kernel-check": mode}));
    edited(backend, "/metadata/annotations", annotations.unwrap_or(Value::Null))
}

/// adapters:D54
#[test]
fn the_kernel_check_is_the_engine_without_its_gpu() {
    let Worked { backend, before, .. } = worked("p2");
    let mut pod = before;
    for (pointer, value) in [
        ("/spec/containers/0/workingDir", json!("/work")),
        ("/spec/containers/0/envFrom", json!([{"configMapRef": {"name": "c"}}])),
        ("/spec/containers/0/securityContext", json!({"runAsUser": 7})),
        ("/spec/containers/0/volumeDevices", json!([{"name": "d", "devicePath": "/dev/d"}])),
        ("/spec/containers/0/env", json!([{"name": "KERNEL_CHECK_STRICT", "value": "1"}])),
    ] {
        pod = edited_pod(&pod, pointer, value);
    }
    let mut commands = Vec::new();
    for (mode, strict) in [(None, "0"), (Some("report-only"), "0"), (Some("strict"), "1")] {
        let linked = link(&shipped(), &annotated(&backend, mode), &pod).expect("wired");
        let (check, engine) = (init(&linked, "lmcache-kernel-check"), &linked.containers[0]);
        assert_eq!((&check.image, &check.image_pull_policy), (&engine.image, &engine.image_pull_policy));
        assert_eq!((&check.security_context, &check.working_dir), (&engine.security_context, &engine.working_dir));
        assert_eq!((&check.env_from, &check.volume_mounts), (&engine.env_from, &engine.volume_mounts));
        assert_eq!(check.volume_devices, engine.volume_devices);
        assert!(!serde_json::to_string(&check.resources).expect("JSON").contains("gpu"));
        let values: Vec<Option<&str>> = check
            .env
            .iter()
            .flatten()
            .filter(|var| var.name == "KERNEL_CHECK_STRICT")
            .map(|var| var.value.as_deref())
            .collect();
        assert_eq!(values, [Some(strict)], "{mode:?}");
        commands.push(check.command.clone());
    }
    assert!(commands.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn the_kernel_check_is_there_when_it_is_due_and_ours_alone() {
    let Worked { backend, before: cpu, .. } = worked("p1");
    let gpu = edited_pod(&cpu, "/spec/containers/0/resources", json!({"requests": {"nvidia.com/gpu": "1"}}));
    let none = edited_pod(&cpu, "/spec/containers/0/resources", json!({"limits": {"nvidia.com/gpu": "0"}}));
    for (mode, on_cpu, on_gpu) in [
        (None, false, true),
        (Some(""), false, true),
        (Some("auto"), false, true),
        (Some("nonsense"), false, true),
        (Some("report-only"), true, true),
        (Some("strict"), true, true),
        (Some("off"), false, false),
    ] {
        for (pod, expected) in [(&cpu, on_cpu), (&none, on_cpu), (&gpu, on_gpu)] {
            for forged in [false, true] {
                let stale = json!([{"name": "lmcache-kernel-check", "image": "stale"}, {"name": "user", "image": "u"}]);
                let pod = if forged { edited_pod(pod, "/spec/initContainers", stale) } else { pod.clone() };
                let linked = link(&silent(), &annotated(&backend, mode), &pod).expect("wired");
                let found: Vec<Option<&str>> = linked
                    .init_containers
                    .iter()
                    .flatten()
                    .filter(|container| container.name == "lmcache-kernel-check")
                    .map(|container| container.image.as_deref())
                    .collect();
                let wanted: Vec<Option<&str>> =
                    if expected { vec![Some("registry.internal/vllm:cpu")] } else { Vec::new() };
                assert_eq!(found, wanted, "{mode:?} {forged}");
            }
        }
    }
    let bare = edited_pod(&gpu, "/spec/containers/0/image", Value::Null);
    let linked = link(&silent(), &annotated(&backend, Some("strict")), &bare).expect("wired");
    assert!(linked.init_containers.iter().flatten().all(|container| container.name != "lmcache-kernel-check"));
}
