//! Managed storage and its weight in Ready.

use serde_json::json;

use super::world::{World, good};

/// controller:3,4,5,6 on the settled status.
#[test]
fn a_managed_tier_is_published_as_far_as_it_is_there() {
    let mut world = World::managed();
    world.settle();
    world.expect(&[
        ("RemoteStorageReady", "Unknown/RemoteStoragePending"),
        ("ConnectorReady", "False/NoEnginePods"),
        ("Ready", "False/NoEnginePods"),
        ("Progressing", "False/NoEnginePods"),
        ("Degraded", "False/NotDegraded"),
    ]);
    let status = world.status();
    assert_eq!(
        status["remoteStorage"],
        json!({"provider": "Redis", "endpoint": "cache.ns.svc.cluster.local:6379", "ready": "Unknown"})
    );
    assert_eq!((&status["failOpen"], &status["observedGeneration"]), (&json!(true), &json!(1)));
    assert_eq!(status["connector"], json!({"mode": "Multiprocess", "topology": "PodLocal"}));
    for event in ["Warning RemoteStoragePending", "Warning NoEnginePods", "Normal EngineSelectorUnmatched"] {
        assert_eq!(world.count(event), 1, "{event}");
    }
    assert_eq!(world.writes, 1, "one pass settles it");

    world.deployment(1, 1);
    world.settle();
    world.expect(&[("RemoteStorageReady", "True/RemoteStorageReady"), ("Ready", "False/NoEnginePods")]);
    assert!(world.status()["firstAvailableAt"].is_null());
    world.deployment(1, 0);
    world.settle();
    world.expect(&[("RemoteStorageReady", "False/RemoteStorageUnavailable")]);
    assert!(world.message("RemoteStorageReady").contains("0/1 replicas available"));
}

/// controller:7,8,9
#[test]
fn a_tier_gates_ready_where_engines_depend_on_it() {
    let mut open = World::managed().off().with([good("e1")]);
    open.deployment(1, 0);
    open.settle();
    open.expect(&[
        ("Ready", "True/ConnectorReady"),
        ("Degraded", "False/NotDegraded"),
        ("Progressing", "False/Synced"),
    ]);
    assert!(open.message("Ready").contains("does not gate"));

    let mut closed = World::managed().off().closed().with([good("e1")]);
    closed.settle();
    closed.expect(&[("Ready", "Unknown/RemoteStoragePending"), ("Progressing", "False/RemoteStoragePending")]);
    closed.deployment(1, 0);
    closed.settle();
    closed.expect(&[("Ready", "False/RemoteStorageUnavailable"), ("Degraded", "False/NotDegraded")]);
    closed.deployment(1, 1);
    closed.settle();
    closed.expect(&[("Ready", "True/ConnectorReady")]);
    for (event, times) in [
        ("Warning RemoteStorageUnavailable", 1),
        ("Normal RemoteStorageReady", 1),
        ("Warning BackendDegraded", 0),
        ("Normal BackendRecovered", 0),
    ] {
        assert_eq!(closed.count(event), times, "{event}");
    }
}

/// controller:11,20,22 as the status has them: children that cannot be brought about.
#[test]
fn what_could_not_be_applied_keeps_its_generation_and_names_the_cause() {
    let mut refused = World::managed();
    (refused.deployment, refused.endpoint, refused.applied) = (None, None, false);
    refused.failure = Some("redis.authentication.username cannot be honoured");
    refused.settle();
    refused.expect(&[("RemoteStorageReady", "False/RemoteStorageUnavailable"), ("Ready", "False/NoEnginePods")]);
    assert!(refused.message("RemoteStorageReady").contains("username"));
    assert!(refused.status()["observedGeneration"].is_null());
    assert_eq!(refused.count("Warning RemoteStorageUnavailable"), 1);

    // The Service is somebody else's.
    let mut foreign = World::managed();
    (foreign.endpoint, foreign.applied, foreign.failure) = (None, false, Some("Service cache is not ours"));
    foreign.settle();
    foreign.expect(&[("RemoteStorageReady", "Unknown/RemoteStoragePending")]);
    assert!(foreign.message("RemoteStorageReady").contains("not ours"));
    foreign.deployment(1, 1);
    foreign.settle();
    foreign.expect(&[("RemoteStorageReady", "False/RemoteStorageUnavailable")]);
    let generation = |type_| foreign.condition(type_).and_then(|c| c["observedGeneration"].as_i64());
    assert_eq!(["Ready", "Degraded", "Progressing", "RemoteStorageReady"].map(generation), [None; 4]);
    assert_eq!(generation("ConnectorReady"), Some(1));
    assert_eq!(foreign.status()["remoteStorage"], json!({"provider": "Redis", "ready": "False"}));

    let mut denied = World::managed();
    denied.deployment(1, 1);
    denied.settle();
    denied.edit(denied.mode, &json!({"remoteStorage": {"redis": {"image": "r:2"}}}));
    denied.applied = false;
    denied.settle();
    assert_eq!(denied.status()["observedGeneration"], 1);
    let generation = |world: &World, type_| world.condition(type_).and_then(|c| c["observedGeneration"].as_i64());
    assert_eq!(generation(&denied, "RemoteStorageReady"), Some(1));
    denied.expect(&[("RemoteStorageReady", "True/RemoteStorageReady")]);
    assert_eq!(generation(&denied, "ConnectorReady"), Some(2));
    denied.applied = true;
    denied.settle();
    assert_eq!(generation(&denied, "RemoteStorageReady"), Some(2));
}

/// controller:118
#[test]
fn the_fail_open_switch_is_told_once_each_way() {
    let mut world = World::managed().closed();
    world.settle();
    assert_eq!(world.status()["failOpen"], false);
    assert_eq!((world.count("Warning FailClosedEnabled"), world.count("Normal FailOpenRestored")), (1, 0));
    world.edit(world.mode, &json!({"integration": {"failOpen": true}}));
    world.settle();
    assert_eq!((world.count("Warning FailClosedEnabled"), world.count("Normal FailOpenRestored")), (1, 1));
    let mut open = World::managed();
    open.settle();
    assert_eq!((open.count("Warning FailClosedEnabled"), open.count("Normal FailOpenRestored")), (0, 0));
}
