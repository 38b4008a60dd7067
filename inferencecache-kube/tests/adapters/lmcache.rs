//! LMCache beside the engine and on its node, under vLLM and SGLang.

use inferencecache_kube::adapters::lmcache::node_local::Identity;
use inferencecache_kube::adapters::lmcache::node_server;
use inferencecache_kube::adapters::{AdapterError, Binding, Protocol, Registries};
use inferencecache_kube::api::CacheBackend;
use k8s_openapi::api::core::v1::{Container, Pod};
use serde_json::{Value, json};

use crate::fixtures::{
    VLLM_REFUSED, Worked, adapter, binding, edited, edited_pod, engine, init, inject, shipped, silent, value_of,
    with_args, worked,
};

const SERVER: &str = "/spec/lmCache/podLocal/server";
const NODE_SERVER: &str = "/spec/lmCache/nodeLocal/server";

fn server(backend: &CacheBackend, pod: &Pod) -> Container {
    let wired = inject(&silent(), backend, pod).expect("wired");
    init(&wired, "lmcache-mp-server").clone()
}

fn external(backend: &CacheBackend, endpoint: &str) -> CacheBackend {
    let storage = json!({"provider": "Redis", "ownership": "External", "endpoint": endpoint});
    edited(backend, "/spec/remoteStorage", storage)
}

/// adapters:D20
#[test]
fn the_server_is_started_as_the_object_says() {
    let Worked { backend, before, .. } = worked("p1");
    let backend = external(&backend, "redis.cache.svc:6379");
    let backend =
        edited(&edited(&backend, &format!("{SERVER}/port"), json!(6500)), &format!("{SERVER}/maxWorkers"), json!(3));
    let server = server(&backend, &before);
    for (flag, value) in [
        ("--port", "6500"),
        ("--l1-size-gb", "4"),
        ("--max-workers", "3"),
        ("--l2-adapter", r#"{"host":"redis.cache.svc","port":6379,"type":"resp"}"#),
    ] {
        assert_eq!(value_of(&server, flag), Some(value), "{flag}");
    }
    let wired = inject(&silent(), &backend, &before).expect("wired");
    let limit = wired.volumes.iter().flatten().find_map(|volume| volume.empty_dir.as_ref()?.size_limit.clone());
    assert_eq!(limit.map(|limit| limit.0), Some("5Gi".to_owned()));
}

/// adapters:D21
#[test]
fn an_edit_is_taken_over_in_place() {
    let Worked { backend, mut before, .. } = worked("p3");
    engine(&mut before).volume_mounts = None;
    let backend = edited(&backend, "/spec/remoteStorage", Value::Null);
    let once = inject(&silent(), &backend, &before).expect("wired");
    let edit = edited(&backend, &format!("{SERVER}/maxWorkers"), json!(7));
    let pod = Pod { spec: Some(once), ..before };
    let twice = inject(&silent(), &edit, &pod).expect("wired");
    assert_eq!(twice.init_containers.as_ref().map(Vec::len), Some(1));
    let names: Vec<&str> = twice.volumes.iter().flatten().map(|volume| volume.name.as_str()).collect();
    assert_eq!(names, ["scratch", "lmcache-mp-config", "lmcache-mp-shm"]);
    let server = init(&twice, "lmcache-mp-server");
    assert_eq!(value_of(server, "--max-workers"), Some("7"));
    assert_eq!(server.args.iter().flatten().filter(|arg| *arg == "--max-workers").count(), 1);
}

/// adapters:D22
#[test]
fn the_engines_image_and_arguments_are_its_own() {
    for name in ["p1", "p3", "p4", "p5"] {
        let Worked { backend, before, .. } = worked(name);
        let old = before.spec.clone().expect("a spec").containers.remove(0);
        let wired = inject(&silent(), &backend, &before).expect("wired").containers.remove(0);
        assert_eq!((old.image, old.command, old.resources), (wired.image, wired.command, wired.resources));
        let kept = old.args.clone().unwrap_or_default();
        assert_eq!(wired.args.unwrap_or_default()[..kept.len()], kept, "{name}");
    }
}

/// adapters:D23,D36
#[test]
fn stored_settings_are_judged_again() {
    let (pod_local, node_local) = (worked("p1"), worked("p4"));
    for (pair, base, field, value) in [
        (&pod_local, SERVER, "image", json!("  ")),
        (&pod_local, SERVER, "port", json!(0)),
        (&pod_local, SERVER, "port", json!(8080)),
        (&pod_local, SERVER, "port", json!(65536)),
        (&pod_local, SERVER, "l1Capacity", json!("0")),
        (&pod_local, SERVER, "l1Capacity", json!("many")),
        (&pod_local, SERVER, "maxWorkers", json!(0)),
        (&pod_local, "/spec/lmCache", "chunkSizeTokens", json!(0)),
        (&node_local, NODE_SERVER, "image", json!("")),
        (&node_local, NODE_SERVER, "httpPort", json!(5556)),
        (&node_local, NODE_SERVER, "httpPort", json!(0)),
        (&node_local, NODE_SERVER, "maxGPUWorkers", json!(0)),
        (&node_local, NODE_SERVER, "maxCPUWorkers", json!(0)),
    ] {
        let backend = edited(&pair.backend, &format!("{base}/{field}"), value.clone());
        let error = inject(&silent(), &backend, &pair.before).expect_err(field);
        let Backend(path) = Backend::of(&error);
        assert!(path.ends_with(field), "{field}: {path}");
        if base == NODE_SERVER {
            let rendered = node_server::render(&backend, None, "n", &on_node("n"));
            assert_eq!(rendered.err(), Some(error), "{field}");
        }
    }
}

/// The path of an error about the object.
struct Backend(String);

impl Backend {
    fn of(error: &AdapterError) -> Self {
        match error {
            AdapterError::Backend { path, .. } => Self(path.clone()),
            other => panic!("{other:?}"),
        }
    }
}

/// adapters:D24,D25
#[test]
fn bindings_that_lmcache_cannot_use_are_refused() {
    let registries = silent();
    for name in ["p1", "p3", "p4"] {
        let Worked { backend, before, .. } = worked(name);
        let spec = before.spec.clone().unwrap_or_default();
        let inject = |binding: Binding| adapter(&registries, &backend).inject_engine(&spec, Some(&binding), &backend);
        assert!(inject(Binding::new(Protocol::new("grpc"), "h:1")).is_err());
        for endpoint in ["h", "h:port", "h:70000", "", "redis://h:1"] {
            assert!(inject(Binding::new(Protocol::resp(), endpoint)).is_err(), "{endpoint}");
        }
        let secret = json!({"name": "s", "key": "k"});
        for (field, redis) in [("tls", json!({"tls": {"caCertificate": secret}})), ("database", json!({"database": 0}))]
        {
            let storage = json!({"provider": "Redis", "ownership": "External", "endpoint": "h:1", "redis": redis});
            let bound = binding(&edited(&backend, "/spec/remoteStorage", storage)).expect("a binding");
            let error = inject(bound).expect_err(field).to_string();
            assert!(error.contains(field), "{error}");
        }
    }
    let Worked { backend, before, .. } = worked("p1");
    let server = server(&external(&backend, "[2001:db8::1]:6379"), &before);
    assert_eq!(value_of(&server, "--l2-adapter"), Some(r#"{"host":"2001:db8::1","port":6379,"type":"resp"}"#));
}

/// adapters:D27
#[test]
fn what_is_in_the_way_stays_and_is_named() {
    let pair = worked("p3");
    let spec = "/spec/containers/0/volumeMounts";
    let shm = |mount: Value| json!([mount]);
    let scratch = json!({"name": "scratch", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}});
    for (object, pod) in [
        ("lmcache-mp-server", edited_pod(&pair.before, "/spec/initContainers", json!([{"name": "lmcache-mp-server"}]))),
        (
            "lmcache-mp-config",
            edited_pod(&pair.before, "/spec/volumes/0", json!({"name": "lmcache-mp-config", "emptyDir": {}})),
        ),
        (
            "lmcache",
            edited_pod(&pair.before, spec, json!([{"name": "x", "mountPath": "/var/run/inference-cache/lmcache/"}])),
        ),
        (
            "lmcache-mp-shm",
            edited_pod(&pair.before, "/spec/volumes", json!([scratch, {"name": "lmcache-mp-shm", "emptyDir": {}}])),
        ),
        (
            "/dev/shm",
            edited_pod(&pair.before, spec, shm(json!({"name": "scratch", "mountPath": "/dev/shm", "readOnly": true}))),
        ),
        (
            "/dev/shm",
            edited_pod(
                &pair.before,
                spec,
                shm(json!({"name": "scratch", "mountPath": "/dev/shm", "subPathExpr": "$(X)"})),
            ),
        ),
        ("/dev/shm", edited_pod(&pair.before, "/spec/volumes/0/emptyDir/sizeLimit", json!("4Gi"))),
        ("/dev/shm", edited_pod(&pair.before, "/spec/volumes/0/emptyDir/sizeLimit", Value::Null)),
        ("/dev/shm", edited_pod(&pair.before, "/spec/volumes/0/emptyDir/medium", Value::Null)),
        (
            "/dev/shm",
            edited_pod(&pair.before, "/spec/volumes/0", json!({"name": "scratch", "hostPath": {"path": "/dev/shm"}})),
        ),
        ("/dev/shm", edited_pod(&pair.before, "/spec/volumes", json!([]))),
    ] {
        let before = pod.clone();
        let error = inject(&silent(), &pair.backend, &pod).expect_err(object).to_string();
        assert!(error.contains(object), "{object}: {error}");
        assert_eq!(pod, before);
    }
}

/// adapters:D28,D29
#[test]
fn shared_memory_is_named_by_the_uid_alone() {
    let backend = worked("p4").backend;
    let of = |pointer: &str, value: Value| Identity::of(&edited(&backend, pointer, value));
    let base = Identity::of(&backend).expect("an identity");
    assert_eq!(base.instance_id, "serving/llama-node@7d0c8f1e-3b52-4a6f-9c11-2f5e6a7b8c9d#4");
    assert_eq!(base.shm_name, "lmcache_l1_pool_inferencecache_7d0c8f1e-3b52-4a6f-9c11-2f5e6a7b8c9d");
    assert_eq!(base.host_directory, "/dev/shm/inference-cache/7d0c8f1e-3b52-4a6f-9c11-2f5e6a7b8c9d");
    for (pointer, value) in [("/metadata/name", json!("other")), ("/metadata/generation", json!(5))] {
        let other = of(pointer, value).expect("an identity");
        assert_eq!((&other.shm_name, &other.host_directory), (&base.shm_name, &base.host_directory));
        assert_ne!(other.instance_id, base.instance_id);
    }
    assert_ne!(of("/metadata/uid", json!("u-2")).expect("an identity").shm_name, base.shm_name);
    for uid in [json!("a/b"), json!("u".repeat(255)), json!(""), Value::Null] {
        assert!(of("/metadata/uid", uid.clone()).is_err(), "{uid}");
        let broken = edited(&backend, "/metadata/uid", uid);
        assert!(inject(&silent(), &broken, &worked("p4").before).is_err());
        assert!(node_server::render(&broken, None, "n", &on_node("n")).is_err());
    }
}

fn on_node(node: &str) -> Pod {
    edited_pod(&worked("p4").before, "/spec/nodeName", json!(node))
}

/// adapters:D32
#[test]
fn a_nodes_server() {
    let backend = worked("p4").backend;
    let pod = node_server::render(&backend, None, "h200-rack3-07", &on_node("h200-rack3-07")).expect("a Pod");
    let json = serde_json::to_value(&pod).expect("JSON");
    let uid = "7d0c8f1e-3b52-4a6f-9c11-2f5e6a7b8c9d";
    let shm = format!("lmcache_l1_pool_inferencecache_{uid}");
    assert_eq!(
        json["metadata"],
        json!({"name": "llama-node-a49e9ee1eedd", "namespace": "serving",
        "labels": {"app.kubernetes.io/name": "lmcache-mp-server", "app.kubernetes.io/managed-by": "inference-cache-controller",
            "inferencecache.io/lmcache-node-server": "true", "inferencecache.io/cache-backend-uid": uid,
            "inferencecache.io/lmcache-mp-metrics": "true"},
        "annotations": {"inferencecache.io/node-local-owner": "serving/llama-node", "inferencecache.io/node-local-owner-uid": uid,
            "inferencecache.io/node-local-generation": "4", "inferencecache.io/node-local-target-node": "h200-rack3-07",
            "inferencecache.io/node-local-shm-name": shm}})
    );
    let ip = json!({"name": "INFERENCECACHE_NODE_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}});
    let probe = |period: i32, failures: i32| {
        json!({"httpGet": {"path": "/healthcheck", "port": "lmcache-http", "scheme": "HTTP"},
        "periodSeconds": period, "failureThreshold": failures, "timeoutSeconds": 2})
    };
    let port =
        |name: &str, port: i32| json!({"name": name, "containerPort": port, "hostPort": port, "protocol": "TCP"});
    let term = json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["h200-rack3-07"]}]});
    let args = format!(
        "server --instance-id serving/llama-node@{uid}#4 --shm-name {shm} --host $(INFERENCECACHE_NODE_IP) \
        --port 5556 --http-host $(INFERENCECACHE_NODE_IP) --http-port 18080 --chunk-size 256 --l1-size-gb 32 \
        --eviction-policy LRU --max-gpu-workers 4 --max-cpu-workers 6"
    );
    assert_eq!(
        json["spec"],
        json!({
            "hostNetwork": true, "hostIPC": false, "dnsPolicy": "ClusterFirstWithHostNet",
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}},
            "automountServiceAccountToken": false, "enableServiceLinks": false,
            "restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "schedulerName": "default-scheduler",
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
            "volumes": [{"name": "lmcache-node-shm", "hostPath": {"path": format!("/dev/shm/inference-cache/{uid}"), "type": "DirectoryOrCreate"}}],
            "containers": [{"name": "lmcache-mp-server", "image": backend.spec.lm_cache.as_ref().and_then(|l| Some(&l.node_local.as_ref()?.server.as_ref()?.image)),
                "imagePullPolicy": "IfNotPresent", "command": ["lmcache"], "args": args.split_whitespace().collect::<Vec<_>>(),
                "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, {"name": "INFERENCECACHE_MP_SERVER", "value": "true"}, ip],
                "ports": [port("lmcache-mp", 5556), port("lmcache-http", 18080)],
                "resources": {"requests": {"cpu": "2", "memory": "33Gi"}, "limits": {"memory": "34Gi"}},
                "volumeMounts": [{"name": "lmcache-node-shm", "mountPath": "/dev/shm"}],
                "startupProbe": probe(3, 40), "readinessProbe": probe(5, 3), "livenessProbe": probe(10, 3),
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}}}]
        })
    );
    let bound = external(&backend, "h:1");
    let pod = node_server::render(&bound, binding(&bound).as_ref(), "n", &on_node("n")).expect("a Pod");
    let last = pod.spec.and_then(|spec| spec.containers.into_iter().next()?.args?.pop());
    assert_eq!(last.as_deref(), Some(r#"{"host":"h","port":1,"type":"resp"}"#));
}

/// adapters:D33
#[test]
fn a_nodes_server_needs_an_engine_there() {
    let backend = worked("p4").backend;
    for (node, engine) in
        [("n", on_node("m")), ("n", worked("p4").before), ("", on_node("")), ("", worked("p4").before)]
    {
        assert!(node_server::render(&backend, None, node, &engine).is_err(), "{node:?}");
    }
}

/// adapters:D34,D35
#[test]
fn a_nodes_server_is_run_like_its_engine_unless_told_otherwise() {
    let gpu = json!({"key": "nvidia.com/gpu", "operator": "Exists"});
    let mut source = on_node("n");
    for (pointer, value) in [
        ("/spec/imagePullSecrets", json!([{"name": "one"}])),
        ("/spec/runtimeClassName", json!("engine-class")),
        ("/spec/priorityClassName", json!("engine-priority")),
        ("/spec/schedulerName", json!("engine-scheduler")),
        ("/spec/serviceAccountName", json!("engine-account")),
    ] {
        source = edited_pod(&source, pointer, value);
    }
    let backend = worked("p4").backend;
    let plain = node_server::render(&backend, None, "n", &source).expect("a Pod").spec.expect("a spec");
    assert_eq!(plain.priority_class_name.as_deref(), Some("engine-priority"));
    assert_eq!(plain.scheduler_name.as_deref(), Some("engine-scheduler"));
    assert_eq!(plain.runtime_class_name.as_deref(), Some("engine-class"));
    assert_eq!((plain.service_account_name, plain.security_context), (None, None));
    let other = json!({"key": "other", "operator": "Exists"});
    let wishes = json!({"tolerations": [gpu, other], "imagePullSecrets": [{"name": "one"}, {"name": "two"}],
        "runtimeClassName": "class", "terminationGracePeriodSeconds": 9, "schedulerName": "", "priorityClassName": "high",
        "serviceAccountName": "account", "securityContext": {"runAsUser": 0}});
    let wishing = edited(&backend, "/spec/lmCache/nodeLocal/scheduling", wishes);
    let json = serde_json::to_value(node_server::render(&wishing, None, "n", &source).expect("a Pod")).expect("JSON");
    let spec = &json["spec"];
    assert_eq!(spec["tolerations"], json!([gpu, other]));
    assert_eq!(spec["imagePullSecrets"], json!([{"name": "one"}, {"name": "two"}]));
    assert_eq!((&spec["runtimeClassName"], &spec["terminationGracePeriodSeconds"]), (&json!("class"), &json!(9)));
    assert_eq!((&spec["schedulerName"], &spec["priorityClassName"]), (&json!("engine-scheduler"), &json!("high")));
    assert_eq!((&spec["serviceAccountName"], &spec["securityContext"]), (&json!("account"), &json!({"runAsUser": 0})));
}

/// adapters:D40
#[test]
fn a_role_is_a_direction_of_the_connector() {
    let Worked { backend, before, .. } = worked("p1");
    for (role, expected) in [
        (json!("ReadOnly"), Some("kv_consumer")),
        (json!("WriteOnly"), Some("kv_producer")),
        (json!("ReadWrite"), Some("kv_both")),
        (json!(""), Some("kv_both")),
        (json!("future"), None),
    ] {
        let wired = inject(&silent(), &edited(&backend, "/spec/integration/role", role.clone()), &before);
        let Some(expected) = expected else {
            assert!(wired.expect_err("an error").to_string().contains("future"));
            continue;
        };
        let engine = wired.expect("wired").containers.remove(0);
        let connector: Value =
            serde_json::from_str(value_of(&engine, "--kv-transfer-config").expect("a value")).expect("JSON");
        assert_eq!(connector["kv_role"], expected, "{role}");
        assert_eq!(connector["kv_connector_extra_config"]["lmcache.mp.port"], "5555");
    }
}

/// adapters:D41
#[test]
fn the_hash_seed_is_set_once() {
    let Worked { backend, before, .. } = worked("p1");
    let env = json!([{"name": "PYTHONHASHSEED", "value": "random"}, {"name": "KEEP", "value": "1"}]);
    let wired = inject(&silent(), &backend, &edited_pod(&before, "/spec/containers/0/env", env)).expect("wired");
    let json = serde_json::to_value(&wired.containers[0].env).expect("JSON");
    assert_eq!(
        json,
        json!([{"name": "KEEP", "value": "1"}, {"name": "PYTHONHASHSEED", "value": "0"},
        {"name": "INFERENCECACHE_FAIL_OPEN", "value": "true"}])
    );
}

/// adapters:D42
#[test]
fn flags_that_vllm_cannot_be_wired_with_are_named() {
    let Worked { backend, before, .. } = worked("p1");
    let registries = silent();
    let judge = adapter(&registries, &backend).as_mp().expect("a judge");
    for flags in VLLM_REFUSED {
        let error = judge.validate_mp_engine_pod(&with_args(&before, flags), &backend).expect_err(flags[0]).to_string();
        let named = flags.iter().any(|flag| error.contains(flag.split('=').next().unwrap_or_default()));
        let long = [("-pp", "--pipeline"), ("-dp", "--data"), ("-tp", "--tensor")];
        assert!(
            named || long.iter().any(|(short, long)| flags[0] == *short && error.contains(long)),
            "{flags:?}: {error}"
        );
    }
    for flags in [
        &["-tp", "8"][..],
        &["--tensor-parallel-size=+2"],
        &["-pp", "1"],
        &["--data-parallel-size", "01"],
        &["--disable-hybrid-kv-cache-manager"],
        &["--disable-hybrid-kv-cache-manager", "yes"],
        &["--kv-transfer-config", "-x"],
    ] {
        assert_eq!(judge.validate_mp_engine_pod(&with_args(&before, flags), &backend), Ok(()), "{flags:?}");
    }
}

/// adapters:D43
#[test]
fn sglangs_page_size_divides_the_chunk() {
    let Worked { backend, before, .. } = worked("p3");
    let registries = silent();
    let judge = adapter(&registries, &backend).as_mp().expect("a judge");
    for (args, fine) in [
        (&["--page-size", "64"][..], true),
        (&["--page-size=128"], true),
        (&["--page-size=+64"], true),
        (&["--page-size", "064"], true),
        (&["--page-size", "1"], true),
        (&["--page-size", "96"], false),
        (&[], false),
        (&["--page-size", "64", "--page-size=64"], false),
        (&["--page-size", "large"], false),
        (&["--page-size", "0"], false),
        (&["--page-size", "64.0"], false),
        (&["--page-size", " 64"], false),
        (&["--page-size", "--x"], false),
        (&["--page-size="], false),
    ] {
        let pod = edited_pod(&before, "/spec/containers/0/args", json!(args));
        let judged = judge.validate_mp_engine_pod(&pod, &backend);
        assert_eq!(judged.is_ok(), fine, "{args:?}");
        if let Err(error) = judged {
            assert!(error.to_string().contains("--page-size"), "{error}");
        }
    }
}

/// adapters:D44
#[test]
fn sglang_serves_metrics_where_they_are_read() {
    let Worked { backend, before, .. } = worked("p5");
    let has = |registries: &Registries, backend: &CacheBackend| {
        let wired = inject(registries, backend, &before).expect("wired");
        wired.containers[0].args.iter().flatten().any(|arg| arg == "--enable-metrics")
    };
    assert!(has(&shipped(), &backend));
    assert!(!has(&silent(), &backend));
    for model in [Value::Null, json!(""), json!(" ")] {
        assert!(!has(&shipped(), &edited(&backend, "/spec/observation/modelID", model)));
    }
}
