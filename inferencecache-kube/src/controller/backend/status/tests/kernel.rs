//! Checks of native code, crash loops and the hit rate of the shared tier.

use serde_json::{Value, json};

use super::world::{World, bare, changed, good, injected, status_of};

/// An engine with a check in front, in that state.
fn checked(pod: Value, check: &Value, strict: bool) -> Value {
    let env = if strict { json!([{"name": "KERNEL_CHECK_STRICT", "value": "1"}]) } else { json!([]) };
    let sidecar = status_of("lmcache-mp-server", true, &json!({"running": {}}));
    changed(
        pod,
        &json!({
            "spec": {"initContainers": [{"name": "lmcache-kernel-check", "env": env}]},
            "status": {"initContainerStatuses": [sidecar, check]},
        }),
    )
}

fn ended(message: &str, code: i32, reason: Option<&str>) -> Value {
    let ended = json!({"terminated": {"exitCode": code, "message": message, "reason": reason}});
    status_of("lmcache-kernel-check", false, &ended)
}

fn world(pod: Value) -> World {
    let mut world = World::managed().off().with([pod]);
    world.deployment(1, 1);
    world.settle();
    world
}

/// controller:102,103,104
#[test]
fn a_failed_check_downgrades_where_it_was_required() {
    let reported = world(checked(good("k"), &ended("FAIL: x", 0, None), false));
    reported.expect(&[("EngineKernelsHealthy", "False/KernelLoadFailed"), ("Ready", "True/ConnectorReady")]);
    assert!(reported.message("EngineKernelsHealthy").contains("FAIL: x"));
    let strict = world(checked(good("k"), &ended("FAIL: x", 1, None), true));
    strict.expect(&[("Ready", "False/EngineKernelDegraded"), ("Degraded", "False/NotDegraded")]);
    assert!(strict.message("Ready").contains("inferencecache.io/lmcache-kernel-check"));

    let mut not_ready = World::managed().with([checked(injected("k"), &ended(" FAIL: x", 1, None), true)]);
    not_ready.settle();
    not_ready.expect(&[("Ready", "False/EngineKernelDegraded"), ("ConnectorReady", "False/MPServersNotReady")]);

    let mut wished = World::managed().off().with([checked(good("k"), &ended("FAIL: x", 1, None), false)]);
    wished.annotate("inferencecache.io/lmcache-kernel-check", "strict");
    wished.settle();
    wished.expect(&[("Ready", "True/ConnectorReady")]);
}

/// controller:105,106,107
#[test]
fn each_way_that_a_check_ends_has_its_word() {
    for (check, says, words) in [
        (ended("OK", 0, None), "True/KernelsHealthy", vec![]),
        (ended("OK", 1, None), "Unknown/KernelCheckError", vec!["exit 1", "OK"]),
        (ended("", 137, Some("OOMKilled")), "Unknown/KernelCheckError", vec!["exit 137", "OOMKilled"]),
        (status_of("lmcache-kernel-check", false, &json!({"running": {}})), "Unknown/KernelCheckPending", vec![]),
        (status_of("another", false, &json!({})), "Unknown/KernelCheckPending", vec![]),
        (
            changed(
                status_of("lmcache-kernel-check", false, &json!({"waiting": {"reason": "CrashLoopBackOff"}})),
                &json!({"lastState": {"terminated": {"exitCode": 1, "message": "FAIL: y"}}}),
            ),
            "False/KernelLoadFailed",
            vec!["FAIL: y"],
        ),
    ] {
        let world = world(checked(good("k"), &check, false));
        assert_eq!(world.says("EngineKernelsHealthy"), says, "{check}");
        for word in words {
            assert!(world.message("EngineKernelsHealthy").contains(word), "{}", world.message("EngineKernelsHealthy"));
        }
    }
    let theirs = json!({"metadata": {"annotations": {"inferencecache.io/injected-by": "ns/other"}}});
    world(changed(checked(good("k"), &ended("FAIL: x", 1, None), true), &theirs))
        .expect(&[("EngineKernelsHealthy", "absent")]);
    let mut gone = world(checked(good("k"), &ended("FAIL: x", 1, None), false));
    gone.pods.clear();
    gone.settle();
    gone.expect(&[("EngineKernelsHealthy", "absent")]);
}

fn containers(pod: Value, statuses: &Value) -> Value {
    changed(pod, &json!({"status": {"containerStatuses": statuses}}))
}

/// controller:108,109
#[test]
fn a_wired_engine_in_a_crash_loop_is_told_once() {
    let waiting = |reason: &str| json!({"waiting": {"reason": reason}});
    let looping = |name: &str| status_of(name, false, &waiting("CrashLoopBackOff"));
    let running = |name: &str| status_of(name, true, &json!({"running": {}}));
    let mut world = world(containers(injected("x"), &json!([looping("vllm")])));
    for touch in 0..5 {
        world.annotate("touch", &touch.to_string());
        world.pass();
    }
    world.expect(&[("EngineCompatibility", "False/InjectedEngineCrashLooping")]);
    for word in ["vllm", " x ", "CrashLoopBackOff", "inferencecache.io/skip-inject", "routing"] {
        assert!(world.message("EngineCompatibility").contains(word), "{word}");
    }
    assert_eq!(world.count("Warning InjectedEngineCrashLooping"), 1);
    world.expect(&[("Ready", "False/MPServersNotReady")]);
    world.pods = vec![containers(injected("x"), &json!([running("vllm")]))];
    world.settle();
    world.expect(&[("EngineCompatibility", "absent")]);

    let other = json!({"metadata": {"annotations": {"inferencecache.io/injected-by-uid": "other"}}});
    let unselected = json!({"metadata": {"labels": null}});
    for (pod, says) in [
        (containers(injected("x"), &json!([running("vllm"), looping("istio-proxy")])), "absent"),
        (containers(injected("x"), &json!([running("vllm"), looping("kvevent-subscriber")])), "absent"),
        (
            containers(injected("x"), &json!([looping("my-engine"), running("kvevent-subscriber")])),
            "False/InjectedEngineCrashLooping",
        ),
        (containers(injected("x"), &json!([looping("one"), looping("two")])), "absent"),
        (changed(containers(injected("x"), &json!([looping("vllm")])), &other), "absent"),
        (
            changed(containers(injected("x"), &json!([looping("vllm")])), &unselected),
            "False/InjectedEngineCrashLooping",
        ),
        (containers(bare("x"), &json!([looping("vllm")])), "absent"),
        (containers(injected("x"), &json!([status_of("vllm", false, &waiting("ImagePullBackOff"))])), "absent"),
    ] {
        let mut world = World::managed().off().with([pod.clone()]);
        world.settle();
        assert_eq!(world.says("EngineCompatibility"), says, "{pod}");
    }
}

/// controller:110
#[test]
fn the_hit_rate_of_the_tier_is_advice() {
    let mut world = world(good("e1"));
    for (rate, says) in
        [(json!("0"), "True/T2ZeroHitRate"), (json!("0.75"), "False/T2Serving"), (json!(null), "absent")]
    {
        world.plant(&json!({"indexParticipation": {"prefixCount": 1, "t2HitRate": rate}}));
        world.settle();
        world.expect(&[("T2Degraded", says), ("Ready", "True/ConnectorReady")]);
    }
}
