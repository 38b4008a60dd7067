//! The functional probe in a running reconciler.

use std::sync::Arc;

use inferencecache_kube::api::CacheBackend;
use inferencecache_kube::controller::backend::probing::Request;
use serde_json::json;

use super::world::{Probe, managed, world};

const AT: &str = "2026-01-02T03:04:05Z";

/// controller:88,89,91,97
#[tokio::test]
async fn a_probe_that_fails_takes_ready_back_and_is_not_called_at_every_touch() {
    let probe = Arc::new(Probe::default());
    probe.says("failed", "skipped", "skipped");
    let Some(world) = world("status-probe", Some(Arc::clone(&probe))).await else { return };
    world.good(managed(), &json!({})).await;
    world.settled("cache", &[("Ready", "False/AwaitingFirstKVEvent"), ("FunctionalProbeOK", "absent")]).await;
    assert_eq!(probe.calls(), 0, "nothing is probed that is not ready otherwise");
    world.event("cache", AT).await;
    let failed = [
        ("FunctionalProbeOK", "False/ProbeIngestFailed"),
        ("Ready", "False/ProbeIngestFailed"),
        ("Degraded", "False/NotDegraded"),
    ];
    let status = world.settled("cache", &failed).await;
    assert!(status.to_string().contains("no event arrived"));
    let request = Request {
        backend: "status-probe/cache".to_owned(),
        hash_scheme: "vllm".to_owned(),
        backend_type: Some("LMCache".to_owned()),
    };
    assert_eq!(probe.requests.lock().expect("the requests").as_slice(), [request]);
    let passes = world.running.count("inferencecache_controller_reconcile_total");
    for touch in 0..10 {
        let label = json!({"metadata": {"labels": {"touch": touch.to_string()}}});
        world.place.patch::<CacheBackend>("cache", label).await;
    }
    crate::stage::until("a pass", async || {
        (world.running.count("inferencecache_controller_reconcile_total") > passes).then_some(())
    })
    .await;
    world.settled("cache", &failed).await;
    assert_eq!(probe.calls(), 1);
    world.running.end().await;
}

/// controller:92,93
#[tokio::test]
async fn a_probe_that_recovers_lifts_its_verdict_by_itself() {
    let probe = Arc::new(Probe::default());
    let Some(world) = world("status-recovers", Some(Arc::clone(&probe))).await else { return };
    world.good(managed(), &json!({})).await;
    world.event("cache", AT).await;
    world.settled("cache", &[("FunctionalProbeOK", "Unknown/ProbeError"), ("Ready", "True/KVEventsObserved")]).await;
    probe.says("ok", "ok", "skipped");
    world.settled("cache", &[("FunctionalProbeOK", "True/ProbeOK"), ("Ready", "True/KVEventsObserved")]).await;
    assert_eq!(probe.calls(), 2);
    world.running.end().await;
}

/// controller:95,100
#[tokio::test]
async fn a_change_of_mode_forgets_the_probe_and_an_annotation_waives_it() {
    let probe = Arc::new(Probe::default());
    probe.says("ok", "ok", "skipped");
    let Some(world) = world("status-modes", Some(Arc::clone(&probe))).await else { return };
    world.good(managed(), &json!({})).await;
    world.event("cache", AT).await;
    world.settled("cache", &[("FunctionalProbeOK", "True/ProbeOK")]).await;
    let external = json!({"spec": {"remoteStorage": {"ownership": "External", "endpoint": "redis.example:6379"}}});
    world.place.patch::<CacheBackend>("cache", external).await;
    world.restamp("e1").await;
    world
        .settled("cache", &[("FunctionalProbeOK", "absent"), ("Ready", "True/ConnectorReady"), ("Degraded", "absent")])
        .await;
    let back = json!({"spec": {"remoteStorage": {"ownership": "Managed", "endpoint": null}}});
    world.place.patch::<CacheBackend>("cache", back).await;
    world.restamp("e1").await;
    world.deployment(1, 1).await;
    world.settled("cache", &[("FunctionalProbeOK", "True/ProbeOK"), ("Ready", "True/KVEventsObserved")]).await;
    assert_eq!(probe.calls(), 2, "the rest of before is forgotten");

    let waived = json!({"metadata": {"annotations": {"inferencecache.io/skip-functional-probe": "true"}}});
    world.place.patch::<CacheBackend>("cache", waived).await;
    world.settled("cache", &[("FunctionalProbeOK", "True/ProbeBypassed"), ("Ready", "True/KVEventsObserved")]).await;
    world.running.end().await;
}
