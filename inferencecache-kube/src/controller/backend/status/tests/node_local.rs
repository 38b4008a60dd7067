//! NodeLocal: whether the nodes' servers cover their engines.

use serde_json::{Value, json};

use super::world::{UID, World, changed, injected, on, ready, status_of};

fn server(name: &str, node: &str) -> Value {
    let running = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "ns",
            "labels": {"inferencecache.io/lmcache-node-server": "true", "inferencecache.io/cache-backend-uid": UID},
            "annotations": {
                "inferencecache.io/node-local-owner": "ns/cache",
                "inferencecache.io/node-local-owner-uid": UID,
                "inferencecache.io/node-local-generation": "1",
                "inferencecache.io/node-local-target-node": node,
                "inferencecache.io/node-local-shm-name": format!("lmcache_l1_pool_inferencecache_{UID}"),
            },
            "ownerReferences": [{
                "apiVersion": "inferencecache.io/v1alpha1", "kind": "CacheBackend", "name": "cache", "uid": UID, "controller": true,
            }],
        },
        "spec": {
            "nodeName": node,
            "containers": [{
                "name": "lmcache-mp-server",
                "args": ["server", "--shm-name", format!("lmcache_l1_pool_inferencecache_{UID}"), "--port", "6555"],
                "volumeMounts": [{"name": "m", "mountPath": "/dev/shm"}],
            }],
            "volumes": [{"name": "m", "hostPath": {"path": format!("/dev/shm/inference-cache/{UID}"), "type": "DirectoryOrCreate"}}],
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [status_of("lmcache-mp-server", true, &running)],
        },
    })
}

fn engine(name: &str, node: &str) -> Value {
    on(ready(injected(name)), node)
}

fn settled(pods: impl IntoIterator<Item = Value>) -> World {
    let mut world = World::node_local().off().with(pods);
    world.settle();
    world
}

fn reasons(world: &World) -> Vec<String> {
    let rows = world.status()["connector"]["enginePodCoverage"].as_array().cloned().unwrap_or_default();
    rows.iter()
        .map(|row| format!("{}:{}", row["name"].as_str().unwrap_or(""), row["reason"].as_str().unwrap_or("")))
        .collect()
}

/// controller:51,54,55,57
#[test]
fn an_engine_is_covered_by_the_one_server_of_its_node() {
    settled([]).expect(&[("ConnectorReady", "False/NoEnginePods"), ("Ready", "False/NoEnginePods")]);
    let engines = || [engine("a", "node-a"), engine("b", "node-a"), engine("c", "node-b")];
    let mut world = settled(engines().into_iter().chain([server("sa", "node-a"), server("sb", "node-b")]));
    world.expect(&[("ConnectorReady", "True/ConnectorReady"), ("Ready", "True/ConnectorReady")]);
    let connector = &world.status()["connector"];
    assert_eq!(
        ["desiredServers", "readyServers", "coveredEnginePods", "readyEnginePods"].map(|key| connector[key].as_i64()),
        [Some(2), Some(2), Some(3), Some(3)]
    );
    world.pods[3] =
        changed(server("sa", "node-a"), &json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}));
    world.settle();
    world.expect(&[("ConnectorReady", "False/NodeLocalServerPoolPending")]);
    assert_eq!(reasons(&world), ["a:MPServersNotReady", "b:MPServersNotReady", "c:ConnectorReady"]);
    assert_eq!(world.status()["connector"]["uncoveredEnginePods"], 2);

    let unscheduled = settled([ready(injected("a"))]);
    unscheduled.expect(&[("ConnectorReady", "False/NodeLocalServerPoolPending")]);
    assert_eq!(reasons(&unscheduled), ["a:EngineSchedulingPending"]);
}

/// controller:56,59
#[test]
fn a_node_that_cannot_serve_says_why() {
    let mut crowded = World::node_local().off().with([engine("a", "n"), engine("b", "n"), server("s", "n")]);
    crowded.edit(crowded.mode, &json!({"lmCache": {"nodeLocal": {"server": {"maxGPUWorkers": 1}}}}));
    crowded.restamp();
    crowded.settle();
    crowded.expect(&[("ConnectorReady", "False/NodeLocalWorkerCapacityExceeded")]);
    assert_eq!(reasons(&crowded), ["a:NodeLocalWorkerCapacityExceeded", "b:NodeLocalWorkerCapacityExceeded"]);

    let unscheduled = |message: &str| {
        json!({"spec": {"nodeName": null}, "status": {"phase": "Pending", "containerStatuses": null, "conditions": [
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        ]}})
    };
    let blocked = changed(server("s", "n"), &unscheduled("0/1 nodes are available: 1 node(s) didn't have free ports"));
    settled([engine("a", "n"), blocked]).expect(&[("ConnectorReady", "False/NodeLocalHostPortConflict")]);
    let other = changed(server("s", "n"), &unscheduled("0/1 nodes are available: 1 Insufficient memory"));
    settled([engine("a", "n"), other]).expect(&[("ConnectorReady", "False/NodeLocalServerPoolPending")]);

    let ambiguous = settled([engine("a", "n"), server("s", "n"), server("t", "n")]);
    ambiguous.expect(&[("ConnectorReady", "False/AmbiguousNodeLocalServers")]);

    let mut failing = World::node_local().off().with([engine("a", "n")]);
    failing.nodes_failure = Some("Pod cache-1 is not ours");
    failing.settle();
    assert!(failing.message("ConnectorReady").contains("not ours"));
}

/// controller:66 on the connector: what is no server of ours covers nobody.
#[test]
fn a_server_counts_by_owner_generation_and_memory() {
    let memory = format!("/dev/shm/inference-cache/{UID}");
    for (what, patch) in [
        ("other owner", json!({"metadata": {"annotations": {"inferencecache.io/node-local-owner": "ns/other"}}})),
        ("other generation", json!({"metadata": {"annotations": {"inferencecache.io/node-local-generation": "7"}}})),
        ("other memory", json!({"metadata": {"annotations": {"inferencecache.io/node-local-shm-name": null}}})),
        ("not controlled", json!({"metadata": {"ownerReferences": []}})),
        ("ending", json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})),
        (
            "other path",
            json!({"spec": {"volumes": [{"name": "m", "hostPath": {"path": "/dev/shm", "type": "DirectoryOrCreate"}}]}}),
        ),
        (
            "other type",
            json!({"spec": {"volumes": [{"name": "m", "hostPath": {"path": memory, "type": "Directory"}}]}}),
        ),
        ("other node", json!({"spec": {"nodeName": "elsewhere"}})),
        (
            "not running",
            json!({"status": {"containerStatuses": [status_of("lmcache-mp-server", true, &json!({"waiting": {}}))]}}),
        ),
    ] {
        let world = settled([engine("a", "n"), changed(server("s", "n"), &patch)]);
        assert_eq!(world.says("ConnectorReady"), "False/NodeLocalServerPoolPending", "{what}");
    }
}
