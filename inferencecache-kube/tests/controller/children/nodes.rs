//! Server Pods on nodes. There is no kubelet and no scheduler: engines are stored with their node.

use std::time::Duration;

use inferencecache_kube::api::CacheBackend;
use inferencecache_kube::controller::backend::error::ChildError;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::{Scene, into, merge, somebody};

const A: &str = "node-cache-66570ff05a20";
const B: &str = "node-cache-93ef37c61571";
const IDLE: &str = "inferencecache.io/node-local-idle-since";

async fn scene(namespace: &str, patch: Value) -> Option<Scene> {
    let scene = Scene::new(namespace, "node-cache").await?;
    scene.backend("node-local", patch).await;
    Some(scene)
}

/// An engine that the object has wired.
async fn engine(scene: &Scene, name: &str, node: &str, patch: Value) -> Pod {
    let backend = scene.place.get::<CacheBackend>(scene.name).await.expect("the object");
    let mut pod = json!({
        "metadata": {
            "name": name,
            "labels": {"inferencecache.io/cache-domain": "d1"},
            "annotations": {
                "inferencecache.io/injected-by": format!("{}/{}", scene.place.namespace, scene.name),
                "inferencecache.io/injected-by-uid": backend.uid(),
                "inferencecache.io/injected-generation": backend.metadata.generation.unwrap_or_default().to_string(),
            },
        },
        "spec": {"nodeName": node, "containers": [{"name": "vllm", "image": "engine.example/e:1"}]},
    });
    merge(&mut pod, &patch);
    scene.place.create::<Pod>(pod).await;
    scene.place.status(name, json!({"phase": "Running"})).await
}

/// Names of the servers that are there, in order.
async fn servers(scene: &Scene) -> Vec<String> {
    let label = |pod: &Pod| pod.labels().get("inferencecache.io/lmcache-node-server").is_some();
    let mut names: Vec<String> =
        scene.place.pods().await.iter().filter(|pod| label(pod)).map(|pod| pod.name_any()).collect();
    names.sort();
    names
}

async fn server(scene: &Scene, name: &str) -> Pod {
    scene.place.get(name).await.unwrap_or_else(|| panic!("no server {name}"))
}

/// controller:51,52,53
#[tokio::test]
async fn one_server_on_each_node_with_an_engine() {
    let Some(scene) = scene("nodes", json!({})).await else { return };
    scene.settle().await;
    assert!(servers(&scene).await.is_empty() && scene.deployment().await.is_none());
    for (name, node) in [("b", "node-a"), ("a", "node-a"), ("c", "node-b")] {
        engine(&scene, name, node, json!({})).await;
    }
    scene.settle().await;
    assert_eq!(servers(&scene).await, [A, B]);
    let backend = scene.place.get::<CacheBackend>("node-cache").await.expect("the object");
    let uid = backend.uid().expect("a uid");
    let pod = server(&scene, A).await;
    let owner = &pod.owner_references()[0];
    assert_eq!((owner.uid.as_str(), owner.controller), (uid.as_str(), Some(true)));
    assert_eq!(pod.annotations()["inferencecache.io/node-local-target-node"], "node-a");
    let spec = pod.spec.expect("a spec");
    assert_eq!((spec.host_network, spec.host_ipc, spec.node_name), (Some(true), None, None));
    assert_eq!(spec.dns_policy.as_deref(), Some("ClusterFirstWithHostNet"));
    assert_eq!(spec.automount_service_account_token, Some(false));
    let volume = spec.volumes.as_ref().and_then(|volumes| volumes[0].host_path.as_ref()).expect("a directory");
    assert_eq!(volume.path, format!("/dev/shm/inference-cache/{uid}"));
    let container = &spec.containers[0];
    let ports: Vec<_> = container.ports.iter().flatten().map(|port| (port.container_port, port.host_port)).collect();
    assert_eq!(ports, [(6555, Some(6555)), (18080, Some(18080))]);
    let args = container.args.clone().unwrap_or_default().join(" ");
    for part in [
        format!("--instance-id nodes/node-cache@{uid}#1"),
        format!("--shm-name lmcache_l1_pool_inferencecache_{uid}"),
        "--l1-size-gb 4 ".to_owned(),
        "--chunk-size 256".to_owned(),
    ] {
        assert!(args.contains(&part), "{part} in {args}");
    }
    let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref()).expect("limits");
    assert!(!limits.contains_key("nvidia.com/gpu"));
    let fields = spec.affinity.and_then(|a| a.node_affinity?.required_during_scheduling_ignored_during_execution);
    let term = fields.and_then(|required| required.node_selector_terms[0].match_fields.clone()).expect("a node");
    assert_eq!((term[0].key.as_str(), term[0].values.clone()), ("metadata.name", Some(vec!["node-a".to_owned()])));
}

/// controller:57,58
#[tokio::test]
async fn engines_without_a_node_or_of_others_need_none() {
    let Some(scene) = scene("no-demand", json!({})).await else { return };
    engine(&scene, "waiting", "node-a", json!({"spec": {"nodeName": null}})).await;
    let by = json!({"metadata": {"annotations": {"inferencecache.io/injected-by": "no-demand/other"}}});
    engine(&scene, "theirs", "node-a", by).await;
    scene.settle().await;
    assert!(servers(&scene).await.is_empty());
}

/// controller:60
#[tokio::test]
async fn a_taken_name_stops_that_server_alone() {
    for (namespace, owners) in [("taken", somebody()), ("taken-unowned", json!([]))] {
        let Some(scene) = scene(namespace, json!({})).await else { return };
        let foreign = json!({"metadata": {"name": A, "ownerReferences": owners}, "spec": {"containers": [{"name": "c", "image": "c:1"}]}});
        let before = scene.place.create::<Pod>(foreign).await;
        engine(&scene, "a", "node-a", json!({})).await;
        engine(&scene, "b", "node-b", json!({})).await;
        let why = scene.pass().await.servers.expect("a reason");
        assert!(matches!(why, ChildError::Foreign { .. } | ChildError::Occupied { .. }), "{why:?}");
        assert_eq!(scene.writes.take(), 1, "the other node's server");
        assert_eq!(server(&scene, A).await, before);
        assert_eq!(servers(&scene).await, [B]);
        assert!(scene.pass().await.servers.is_some());
        assert_eq!(scene.writes.take(), 0);
    }
}

/// controller:61-64
#[tokio::test]
async fn an_idle_server_stays_warm_for_a_while() {
    let Some(scene) = scene("idle", json!({})).await else { return };
    engine(&scene, "a", "node-a", json!({})).await;
    scene.settle().await;
    let warm = server(&scene, A).await;
    scene.place.remove::<Pod>("a").await;
    let outcome = scene.pass().await;
    assert_eq!((outcome.next, scene.writes.take()), (Some(Duration::from_secs(300)), 1));
    let since: Timestamp = server(&scene, A).await.annotations()[IDLE].parse().expect("a time");
    let outcome = scene.pass_at(since + Duration::from_secs(100)).await;
    assert_eq!((outcome.next, scene.writes.take()), (Some(Duration::from_secs(200)), 0));
    engine(&scene, "d", "node-a", json!({})).await;
    scene.settle().await;
    let again = server(&scene, A).await;
    assert_eq!((again.uid(), again.annotations().get(IDLE)), (warm.uid(), None));
    scene.place.remove::<Pod>("d").await;
    let expired = (Timestamp::now() - Duration::from_secs(301)).to_string();
    scene.place.patch::<Pod>(A, json!({"metadata": {"annotations": {IDLE: expired}}})).await;
    assert_eq!(scene.pass().await.next, None);
    assert!(servers(&scene).await.is_empty());
    engine(&scene, "e", "node-a", json!({})).await;
    scene.settle().await;
    // controller:64: an edit that leaves no demand removes it at once.
    scene.edit(json!({"spec": {"engineSelector": null}})).await;
    scene.settle().await;
    assert!(servers(&scene).await.is_empty());
}

/// controller:63
#[tokio::test]
async fn without_retention_it_goes_at_once() {
    let Some(scene) = scene("at-once", json!({"lmCache": {"nodeLocal": {"idleRetentionSeconds": 0}}})).await else {
        return;
    };
    engine(&scene, "a", "node-a", json!({})).await;
    scene.settle().await;
    scene.place.remove::<Pod>("a").await;
    scene.settle().await;
    assert!(servers(&scene).await.is_empty());
}

/// controller:65,66,70
#[tokio::test]
async fn a_wrong_server_is_replaced_in_one_pass() {
    let Some(scene) = scene("wrong", json!({})).await else { return };
    engine(&scene, "a", "node-a", json!({})).await;
    scene.settle().await;
    let mut uid = server(&scene, A).await.uid();
    let replaced = async |uid: &mut Option<String>, what: &str| {
        scene.settle().await;
        let now = server(&scene, A).await;
        assert_ne!(now.uid(), *uid, "{what}");
        *uid = now.uid();
        now
    };
    scene
        .place
        .patch::<Pod>(A, json!({"metadata": {"annotations": {"inferencecache.io/node-local-shm-name": null}}}))
        .await;
    replaced(&mut uid, "without a name of its memory").await;
    scene.place.status::<Pod>(A, json!({"phase": "Failed", "reason": "Evicted"})).await;
    replaced(&mut uid, "evicted").await;
    scene.place.patch::<Pod>(A, json!({"metadata": {"labels": {"inferencecache.io/lmcache-node-server": null}}})).await;
    replaced(&mut uid, "without its label").await;
    scene.edit(json!({"spec": {"lmCache": {"nodeLocal": {"server": {"httpPort": 18081}}}}})).await;
    let now = replaced(&mut uid, "of an older generation").await;
    assert_eq!(now.annotations()["inferencecache.io/node-local-generation"], "2");
    let ports = now.spec.expect("a spec").containers[0].ports.clone().unwrap_or_default();
    assert_eq!(ports[1].host_port, Some(18081));
}

/// One that is still ending holds the name: its end is awaited, without asking.
#[tokio::test]
async fn the_end_of_a_server_is_awaited() {
    let Some(scene) = scene("ending", json!({})).await else { return };
    engine(&scene, "a", "node-a", json!({})).await;
    scene.settle().await;
    // Bound to a node, a Pod ends only when its kubelet says so.
    let bound = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": A}, "target": {"kind": "Node", "name": "node-a"}});
    let url = format!("/api/v1/namespaces/ending/pods/{A}/binding");
    let request =
        axum::http::Request::post(url).header("content-type", "application/json").body(bound.to_string().into_bytes());
    scene.place.client.request::<Value>(request.expect("a request")).await.expect("a binding");
    scene.edit(json!({"spec": {"lmCache": {"nodeLocal": {"server": {"httpPort": 18081}}}}})).await;
    let outcome = scene.pass().await;
    assert!(outcome.servers.is_none(), "{outcome:?}");
    scene.writes.take();
    scene.pass().await;
    assert_eq!(scene.writes.take(), 0);
    scene.place.remove::<Pod>(A).await;
    scene.settle().await;
    assert_eq!(server(&scene, A).await.annotations()["inferencecache.io/node-local-generation"], "2");
}

/// controller:67,69,71
#[tokio::test]
async fn without_node_servers_ours_go_and_others_stay() {
    let Some(scene) = scene("gone", json!({})).await else { return };
    let uid = scene.place.get::<CacheBackend>("node-cache").await.and_then(|backend| backend.uid());
    let lookalike = json!({"metadata": {"name": "lookalike", "labels": {"inferencecache.io/lmcache-node-server": "true",
        "inferencecache.io/cache-backend-uid": uid}}, "spec": {"containers": [{"name": "lmcache-mp-server", "image": "c:1"}]}});
    scene.place.create::<Pod>(lookalike).await;
    engine(&scene, "a", "node-a", json!({})).await;
    let pod_local = {
        let mut patch = into("node-local");
        patch["spec"]["lmCache"] = json!({"topology": "PodLocal", "nodeLocal": null,
            "podLocal": into("managed")["spec"]["lmCache"]["podLocal"]});
        patch
    };
    for away in [pod_local, json!({"spec": {"integration": {"mode": "EventsOnly"}}})] {
        scene.edit(into("node-local")).await;
        scene.settle().await;
        assert_eq!(servers(&scene).await, ["lookalike", A]);
        scene.edit(away).await;
        scene.settle().await;
        assert_eq!(servers(&scene).await, ["lookalike"]);
    }
}

/// controller:68, and a store that is somebody else's.
#[tokio::test]
async fn servers_know_the_store() {
    let Some(scene) =
        scene("store-behind", json!({"remoteStorage": {"provider": "Redis", "ownership": "Managed", "redis": {}}}))
            .await
    else {
        return;
    };
    engine(&scene, "a", "node-a", json!({})).await;
    let l2 = async || {
        let args = server(&scene, A).await.spec.expect("a spec").containers[0].args.clone().unwrap_or_default();
        args.iter().position(|arg| arg == "--l2-adapter").map(|at| args[at + 1].clone())
    };
    scene.settle().await;
    assert!(scene.deployment().await.is_some() && scene.service().await.is_some());
    let managed = r#"{"host":"node-cache.store-behind.svc.cluster.local","port":6379,"type":"resp"}"#;
    assert_eq!(l2().await.as_deref(), Some(managed));
    scene.edit(json!({"spec": {"remoteStorage": {"ownership": "External", "endpoint": "redis.example:6379"}}})).await;
    scene.settle().await;
    assert_eq!(l2().await.as_deref(), Some(r#"{"host":"redis.example","port":6379,"type":"resp"}"#));
    scene.edit(json!({"spec": {"remoteStorage": null}})).await;
    scene.settle().await;
    assert_eq!(l2().await, None);
    // What cannot be rendered stops the server, not the store.
    let bad =
        json!({"spec": {"remoteStorage": {"provider": "Redis", "ownership": "Managed", "redis": {"database": 3}}}});
    scene.edit(bad).await;
    let outcome = scene.pass().await;
    assert!(outcome.storage.is_none() && outcome.deployment.is_some() && outcome.endpoint.is_some());
    let why = outcome.servers.expect("a reason").summary();
    assert!(why.contains("redis.database"), "{why}");
}

/// controller:72
#[tokio::test]
async fn scheduling_is_the_engines_and_then_the_objects() {
    let scheduling = json!({"tolerations": [{"key": "source", "operator": "Exists"}, {"key": "cache", "operator": "Exists"}],
        "imagePullSecrets": [{"name": "source"}, {"name": "cache"}], "terminationGracePeriodSeconds": 9, "schedulerName": "packer"});
    let Some(scene) = scene("scheduling", json!({"lmCache": {"nodeLocal": {"scheduling": scheduling}}})).await else {
        return;
    };
    let source = json!({"spec": {"tolerations": [{"key": "source", "operator": "Exists"}],
        "imagePullSecrets": [{"name": "source"}], "schedulerName": "theirs"}});
    engine(&scene, "a", "node-a", source).await;
    scene.settle().await;
    let spec = server(&scene, A).await.spec.expect("a spec");
    let keys: Vec<String> = spec.tolerations.iter().flatten().filter_map(|toleration| toleration.key.clone()).collect();
    assert_eq!(
        keys.iter().filter(|key| !key.starts_with("node.kubernetes.io/")).collect::<Vec<_>>(),
        ["source", "cache"]
    );
    let secrets: Vec<&str> = spec.image_pull_secrets.iter().flatten().map(|secret| secret.name.as_str()).collect();
    assert_eq!(secrets, ["source", "cache"]);
    assert_eq!((spec.termination_grace_period_seconds, spec.scheduler_name.as_deref()), (Some(9), Some("packer")));
}
