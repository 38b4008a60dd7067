//! Nothing new, nothing written.

use std::sync::Arc;

use inferencecache_kube::api::CacheBackend;
use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt as _;
use serde_json::json;

use super::world::{Probe, Running, managed, world};

/// controller:18,108
#[tokio::test]
async fn passes_over_the_same_facts_write_nothing() {
    let probe = Arc::new(Probe::default());
    probe.says("ok", "ok", "skipped");
    let Some(world) = world("status-steady", Some(Arc::clone(&probe))).await else { return };
    world.good(managed(), &json!({})).await;
    world.event("cache", "2026-01-02T03:04:05Z").await;
    world.settled("cache", &[("Ready", "True/KVEventsObserved"), ("FunctionalProbeOK", "True/ProbeOK")]).await;
    let version = world.version("cache").await;
    let deployment = world.place.get::<Deployment>("cache").await.and_then(|d| d.resource_version());
    let writes = world.running.count("inferencecache_controller_status_writes_total");
    // A reconciler that starts looks at everything.
    world.running.end().await;
    let running = Running::start(&world.place.client, "status-steady", Some(Arc::clone(&probe)), 180);
    crate::stage::until("passes", async || {
        (running.count("inferencecache_controller_reconcile_total") >= 2).then_some(())
    })
    .await;
    for turn in 0..5 {
        let passes = running.count("inferencecache_controller_reconcile_total");
        world
            .place
            .patch::<k8s_openapi::api::core::v1::Pod>("e1", json!({"metadata": {"labels": {"turn": turn.to_string()}}}))
            .await;
        crate::stage::until("a pass", async || {
            (running.count("inferencecache_controller_reconcile_total") > passes).then_some(())
        })
        .await;
    }
    assert_eq!(running.count("inferencecache_controller_status_writes_total"), 0);
    assert!(writes > 0);
    assert_eq!(world.version("cache").await, version);
    let now = world.place.get::<Deployment>("cache").await.and_then(|d| d.resource_version());
    assert_eq!(now, deployment);
    running.end().await;
}

/// controller:34 as the status has it.
#[tokio::test]
async fn an_object_that_is_being_deleted_is_left_alone() {
    let Some(world) = world("status-ending", None).await else { return };
    world.good(managed(), &json!({})).await;
    let held = json!({"metadata": {"finalizers": ["example.com/held"]}});
    world.place.patch::<CacheBackend>("cache", held).await;
    world.settled("cache", &[("Ready", "False/AwaitingFirstKVEvent")]).await;
    world.place.api::<CacheBackend>().delete("cache", &Default::default()).await.expect("a deletion");
    let passes = world.running.count("inferencecache_controller_reconcile_total");
    world.place.remove::<Deployment>("cache").await;
    world.place.remove::<k8s_openapi::api::core::v1::Pod>("e1").await;
    crate::stage::until("a pass", async || {
        (world.running.count("inferencecache_controller_reconcile_total") > passes).then_some(())
    })
    .await;
    let status = world.settled("cache", &[("Ready", "False/AwaitingFirstKVEvent")]).await;
    assert_eq!(status["matchedEnginePods"], 1, "as it was");
    assert!(world.place.get::<Deployment>("cache").await.is_none());
    let free = json!({"metadata": {"finalizers": null}});
    world.place.patch::<CacheBackend>("cache", free).await;
    crate::stage::until("it is gone", async || world.place.get::<CacheBackend>("cache").await.is_none().then_some(()))
        .await;
    world.running.end().await;
}
