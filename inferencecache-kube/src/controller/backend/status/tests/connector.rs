//! PodLocal: whether engines are covered by their sidecars.

use serde_json::{Value, json};

use super::world::{World, bare, changed, good, injected, ready, served, status_of};

fn counters(world: &World) -> [i64; 6] {
    let counter = |name: &str| world.status()["connector"][name].as_i64().unwrap_or(0);
    [
        "matchedEnginePods",
        "desiredServers",
        "readyServers",
        "readyEnginePods",
        "coveredEnginePods",
        "uncoveredEnginePods",
    ]
    .map(counter)
}

fn rows(world: &World) -> Vec<(String, bool, String)> {
    let text = |row: &Value, key: &str| row[key].as_str().unwrap_or_default().to_owned();
    let rows = world.status()["connector"]["enginePodCoverage"].as_array().cloned().unwrap_or_default();
    rows.iter().map(|row| (text(row, "name"), row["covered"] == true, text(row, "reason"))).collect()
}

/// controller:43,44
#[test]
fn coverage_is_told_engine_by_engine() {
    let mut world = World::host_only().off().with([ready(bare("b")), good("a")]);
    world.settle();
    assert_eq!(counters(&world), [2, 2, 1, 1, 1, 1]);
    assert_eq!(
        rows(&world),
        [
            ("a".to_owned(), true, "ConnectorReady".to_owned()),
            ("b".to_owned(), false, "ConnectorInjectionUnverified".to_owned())
        ]
    );
    world.expect(&[("ConnectorReady", "Unknown/ConnectorInjectionUnverified")]);
    world.pods[0] = good("b");
    world.settle();
    world.expect(&[("ConnectorReady", "True/ConnectorReady"), ("Ready", "True/ConnectorReady")]);
    assert_eq!(world.count("Normal ConnectorReady"), 1);

    // controller:45
    world.edit(world.mode, &json!({"observation": {"firstEventTimeout": "6m"}}));
    world.settle();
    let unverified = "Unknown/ConnectorInjectionUnverified";
    world.expect(&[
        ("ConnectorReady", unverified),
        ("Ready", unverified),
        ("Progressing", "False/ConnectorInjectionUnverified"),
    ]);
    world.restamp();
    world.settle();
    world.expect(&[("ConnectorReady", "True/ConnectorReady"), ("Ready", "True/ConnectorReady")]);
}

/// controller:46,47,48,49,50
#[test]
fn an_engine_counts_when_it_is_wired_served_and_ready() {
    let mut unready = World::host_only().off().with([served(injected("a"))]);
    unready.settle();
    assert_eq!(counters(&unready), [1, 1, 1, 0, 1, 0]);
    unready.expect(&[("ConnectorReady", "False/MPServersNotReady")]);

    let waiting = json!({"waiting": {"reason": "CrashLoopBackOff"}});
    let sidecar = status_of("lmcache-mp-server", true, &waiting);
    let mut waiting = World::host_only()
        .off()
        .with([changed(ready(injected("a")), &json!({"status": {"initContainerStatuses": [sidecar]}}))]);
    waiting.settle();
    assert_eq!(rows(&waiting), [("a".to_owned(), false, "MPServersNotReady".to_owned())]);

    let older = json!({"metadata": {"annotations": {"inferencecache.io/injected-by-uid": "older"}}});
    let mut older = World::host_only().off().with([changed(good("a"), &older)]);
    older.settle();
    assert_eq!(rows(&older), [("a".to_owned(), false, "ConnectorInjectionUnverified".to_owned())]);

    let finished = |name, phase: &str| changed(bare(name), &json!({"status": {"phase": phase}}));
    let mut finished = World::host_only().off().with([good("a"), finished("b", "Succeeded"), finished("c", "Failed")]);
    finished.settle();
    finished.expect(&[("ConnectorReady", "True/ConnectorReady")]);
    assert_eq!(counters(&finished)[0], 1);
    assert_eq!(finished.status()["matchedEnginePods"], 3);

    let mut unselected = World::host_only().without_selector().off().with([good("a")]);
    unselected.settle();
    unselected.expect(&[("ConnectorReady", "False/NoEnginePods")]);
    assert!(unselected.status()["matchedEnginePods"].is_null());
}

/// controller:111
#[test]
fn what_cannot_be_read_stays_as_it_was() {
    let failing = json!({"terminated": {"exitCode": 0, "message": "FAIL: x"}});
    let check = json!({
        "spec": {"initContainers": [{"name": "lmcache-kernel-check"}]},
        "status": {"initContainerStatuses": [
            status_of("lmcache-mp-server", true, &json!({"running": {}})),
            status_of("lmcache-kernel-check", false, &failing),
        ], "containerStatuses": [status_of("vllm", false, &json!({"waiting": {"reason": "CrashLoopBackOff"}}))]},
    });
    let mut world = World::host_only().off().with([changed(good("a"), &check)]);
    world.settle();
    world.expect(&[
        ("EngineKernelsHealthy", "False/KernelLoadFailed"),
        ("EngineCompatibility", "False/InjectedEngineCrashLooping"),
    ]);
    let (before, writes) = (world.status().clone(), world.writes);
    world.readable = false;
    world.pods.clear();
    world.settle();
    assert_eq!((world.status(), world.writes), (&before, writes));
}
