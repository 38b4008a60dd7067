//! Somebody else's tier.

use serde_json::json;

use super::world::{World, good};
use crate::controller::backend::dispatch::Mode;

/// controller:36,37,38
#[test]
fn an_external_tier_is_taken_at_its_word() {
    let mut world = World::external("redis.example:6379");
    world.settle();
    world.expect(&[
        ("RemoteStorageReady", "True/RemoteStorageReady"),
        ("Ready", "False/NoEnginePods"),
        ("Degraded", "absent"),
    ]);
    assert_eq!(world.status()["remoteStorage"]["ready"], "True");
    assert_eq!(world.status()["observedGeneration"], 1);
    world.pods.push(good("e1"));
    world.settle();
    world.expect(&[("Ready", "True/ConnectorReady"), ("Degraded", "absent"), ("Progressing", "False/Synced")]);
    world.event("2026-01-02T03:00:00Z");
    world.settle();
    assert!(world.status()["firstKVEventObservedAt"].is_null());
}

/// controller:39,40,41,42
#[test]
fn the_shape_of_an_address_is_judged() {
    for bad in [
        "https://c.example:443/x",
        "c.example",
        "c.example:nope",
        "c.example:0",
        "c.example:70000",
        "2001:db8::1",
        "c example:6379",
        "host:+6379",
        "c.example:6379/0",
        ":6379",
    ] {
        let mut world = World::external(bad).with([good("e1")]);
        world.settle();
        world.expect(&[("RemoteStorageReady", "False/ExternalEndpointInvalid"), ("Ready", "True/ConnectorReady")]);
        assert!(world.message("RemoteStorageReady").starts_with("spec.remoteStorage.endpoint"), "{bad}");
        assert_eq!(world.status()["remoteStorage"]["endpoint"], bad, "published as it is");
        let mut closed = World::external(bad).closed().with([good("e1")]);
        closed.settle();
        closed.expect(&[("Ready", "False/ExternalEndpointInvalid")]);
    }
    for fine in ["[2001:db8::1]:6379", "  redis.example:6379  ", "host:06379", "u@c.example:6379"] {
        let mut world = World::external(fine);
        world.settle();
        world.expect(&[("RemoteStorageReady", "True/RemoteStorageReady")]);
        assert_eq!(world.status()["remoteStorage"]["endpoint"], fine.trim());
    }
    for empty in ["", "   "] {
        let mut world = World::external(empty);
        world.plant(&json!({"remoteStorage": {"provider": "Redis", "endpoint": "stale:1", "ready": "True"}}));
        world.settle();
        world.expect(&[("RemoteStorageReady", "False/ExternalEndpointMissing")]);
        assert_eq!(world.status()["remoteStorage"], json!({"provider": "Redis", "ready": "False"}));
    }
}

/// controller:24,30,31 on the status: what a mode does not have goes.
#[test]
fn a_mode_removes_what_belongs_to_others() {
    let stale = json!({
        "connector": {"mode": "Multiprocess"},
        "remoteStorage": {"provider": "Redis"},
        "firstAvailableAt": "2026-01-01T00:00:00Z",
        "firstKVEventObservedAt": "2026-01-01T00:00:00Z",
        "conditions": (crate::controller::condition::types::OF_BACKENDS).map(|type_| json!({
            "type": type_, "status": "True", "reason": "Stale", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z",
        })),
    });
    let mut events_only = World::events_only();
    events_only.plant(&stale);
    events_only.settle();
    for type_ in [
        "ConnectorReady",
        "RemoteStorageReady",
        "FunctionalProbeOK",
        "EngineKernelsHealthy",
        "T2Degraded",
        "EngineCompatibility",
    ] {
        events_only.expect(&[(type_, "absent")]);
    }
    assert!(events_only.status()["connector"].is_null() && events_only.status()["remoteStorage"].is_null());

    // [+] also with the block of the connector kept.
    let mut kept = World::host_only();
    kept.edit(Mode::EventsOnly, &json!({"integration": {"mode": "EventsOnly"}}));
    kept.settle();
    kept.expect(&[("ConnectorReady", "absent")]);
    assert!(kept.status()["connector"].is_null());

    let mut unmanaged = World::host_only();
    unmanaged.mode = Mode::Unmanaged;
    unmanaged.plant(&stale);
    unmanaged.settle();
    let status = unmanaged.status();
    assert!(status.get("conditions").is_none_or(|list| list == &json!([])), "{status}");
    assert_eq!(status["firstKVEventObservedAt"], "2026-01-01T00:00:00Z");
    assert!(status["firstAvailableAt"].is_null() && status["connector"].is_null());
    assert_eq!((&status["observedGeneration"], &status["matchedEnginePods"]), (&json!(1), &json!(0)));

    let mut external = World::external("h:1");
    external.plant(&stale);
    external.settle();
    external.expect(&[("Degraded", "absent"), ("T2Degraded", "absent"), ("EngineCompatibility", "absent")]);
    assert_eq!(external.status()["firstAvailableAt"], "2026-01-01T00:00:00Z", "untouched");
}
