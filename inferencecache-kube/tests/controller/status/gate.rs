//! The wait for the first event, with nobody to wake the reconciler but its own clock.

use inferencecache_kube::api::CacheBackend;
use serde_json::json;

use super::world::{events_only, host_only, managed, world};

const LATE: (&str, &str) = ("Ready", "False/NoKVEventsObserved");

/// controller:73,74,80
#[tokio::test]
async fn the_first_event_makes_a_backend_ready_by_itself() {
    let Some(world) = world("status-gate", None).await else { return };
    world.good(managed(), &json!({})).await;
    let awaiting = [("Ready", "False/AwaitingFirstKVEvent"), ("Progressing", "True/AwaitingFirstKVEvent")];
    let status = world.settled("cache", &awaiting).await;
    assert!(!status["firstAvailableAt"].is_null());
    world.told("cache", "Normal AwaitingFirstKVEvent", 1).await;
    world.event("cache", "2026-01-02T03:04:05Z").await;
    let seen = [("Ready", "True/KVEventsObserved"), ("Progressing", "False/Synced")];
    let status = world.settled("cache", &seen).await;
    assert_eq!(status["firstKVEventObservedAt"], "2026-01-02T03:04:05Z");
    world.told("cache", "Normal KVEventsObserved", 1).await;
    let drained = json!({"indexParticipation": {"prefixCount": 0, "lastEventAt": null}});
    world.place.status::<CacheBackend>("cache", drained).await;
    let status = world.settled("cache", &seen).await;
    assert_eq!(status["indexParticipation"], json!({"prefixCount": 0}), "the poller's part is the poller's");
    world.running.end().await;
}

/// controller:76,77,78,79,84
#[tokio::test]
async fn a_backend_without_events_is_late_without_a_stimulus() {
    let Some(world) = world("status-late", None).await else { return };
    let mut spec = managed();
    spec["observation"]["firstEventTimeout"] = json!("2s");
    world.good(spec, &json!({})).await;
    let mut other = events_only("1s");
    other["engineSelector"]["matchLabels"] = json!({"inferencecache.io/cache-domain": "d2"});
    world.create("events", other, &json!({})).await;
    for name in ["cache", "events"] {
        world.settled(name, &[LATE, ("Degraded", "True/NoKVEventsObserved")]).await;
        world.told(name, "Warning NoKVEventsObserved", 1).await;
        assert!(!world.events(name).await.contains_key("Warning BackendDegraded"));
    }
    world.deployment(1, 0).await;
    world.settled("cache", &[LATE, ("RemoteStorageReady", "False/RemoteStorageUnavailable")]).await;
    world.deployment(1, 1).await;
    world.settled("cache", &[LATE, ("RemoteStorageReady", "True/RemoteStorageReady")]).await;

    for name in ["cache", "events"] {
        let longer = json!({"spec": {"observation": {"firstEventTimeout": "1h"}}});
        world.place.patch::<CacheBackend>(name, longer).await;
    }
    world.settled("events", &[LATE]).await;
    world
        .settled("cache", &[("Ready", "Unknown/ConnectorInjectionUnverified"), ("Degraded", "True/NoKVEventsObserved")])
        .await;
    world.restamp("e1").await;
    world.settled("cache", &[LATE]).await;
    world.event("cache", "2026-01-02T03:04:05Z").await;
    world.settled("cache", &[("Ready", "True/KVEventsObserved"), ("Degraded", "False/NotDegraded")]).await;
    world.running.end().await;
}

/// controller:112,114,116 and [+] Pods without a record are seen at once.
#[tokio::test]
async fn pods_are_counted_as_they_come_and_go() {
    let Some(world) = world("status-matched", None).await else { return };
    world.create("cache", host_only(), &json!({})).await;
    world.told("cache", "Normal EngineSelectorUnmatched", 1).await;
    world.pod("p1", &json!({})).await;
    let unverified = [("ConnectorReady", "Unknown/ConnectorInjectionUnverified")];
    let status = world.settled("cache", &unverified).await;
    assert_eq!(status["matchedEnginePods"], 1);
    assert!(status["engineSelectorMessage"].is_null());
    world.pod("p2", &json!({})).await;
    crate::stage::until("two Pods", async || (world.status("cache").await["matchedEnginePods"] == 2).then_some(()))
        .await;
    for pod in ["p1", "p2"] {
        world.place.remove::<k8s_openapi::api::core::v1::Pod>(pod).await;
    }
    let status = world.settled("cache", &[("ConnectorReady", "False/NoEnginePods")]).await;
    assert_eq!(status["matchedEnginePods"], 0);
    assert!(status["engineSelectorMessage"].as_str().is_some_and(|m| m.contains("cache-domain:d1")));
    world.told("cache", "Normal EngineSelectorUnmatched", 2).await;
    world.running.end().await;
}
