//! SGLang's own host cache.

use serde_json::{Value, json};

use crate::fixtures::{Worked, edited, edited_pod, inject, silent, worked};

fn args(hi_cache: Value, given: Value) -> Result<Vec<String>, String> {
    let Worked { backend, before, .. } = worked("p6");
    let backend = edited(&backend, "/spec/hiCache", hi_cache);
    let pod = edited_pod(&before, "/spec/containers/0/args", given);
    let unchanged = pod.clone();
    let wired = inject(&silent(), &backend, &pod).map_err(|error| error.to_string());
    assert_eq!(pod, unchanged);
    Ok(wired?.containers.remove(0).args.unwrap_or_default())
}

/// adapters:D45
#[test]
fn every_option_in_order_and_nothing_else() {
    let Worked { backend, mut before, .. } = worked("p6");
    let full = json!({"sizeGB": 64, "writePolicy": "write_back", "ioBackend": "kernel", "memoryLayout": "page_first"});
    let backend = edited(&backend, "/spec/hiCache", full);
    before = edited_pod(&before, "/spec/containers/0/args", json!(["--model-path", "m"]));
    before = edited_pod(&before, "/spec/containers/0/env", json!([{"name": "A", "value": "b"}]));
    before = edited_pod(&before, "/spec/volumes", json!([{"name": "v", "emptyDir": {}}]));
    let mut wired = inject(&silent(), &backend, &before).expect("wired");
    let args = wired.containers[0].args.take().unwrap_or_default();
    let expected = "--model-path m --enable-hierarchical-cache --hicache-size 64 --hicache-write-policy write_back \
        --hicache-io-backend kernel --hicache-mem-layout page_first --enable-metrics";
    assert_eq!(args, expected.split_whitespace().collect::<Vec<_>>());
    let mut spec = before.spec.expect("a spec");
    spec.containers[0].args = None;
    assert_eq!(wired, spec);
}

/// adapters:D46
#[test]
fn an_equivalent_setting_stays_as_it_is_spelled() {
    for (hi_cache, given) in [
        (json!({"ratio": "2.0"}), "--hicache-ratio=2"),
        (json!({"ratio": "2"}), "--hicache-ratio=+2.00"),
        (json!({"ratio": "0.5"}), "--hicache-ratio=5e-1"),
        (json!({"sizeGB": 2}), "--hicache-size=+2"),
        (json!({"sizeGB": 2}), "--hicache-size=02"),
    ] {
        let args = args(hi_cache, json!([given])).expect("wired");
        assert_eq!(args, [given, "--enable-hierarchical-cache", "--enable-metrics"]);
    }
    let kept = args(
        json!({"ratio": "2"}),
        json!(["--enable-hierarchical-cache", "--hicache-io-backend=x", "--enable-metrics"]),
    );
    let expected =
        ["--enable-hierarchical-cache", "--hicache-io-backend=x", "--enable-metrics", "--hicache-ratio", "2"];
    assert_eq!(kept.expect("wired"), expected);
}

/// adapters:D47
#[test]
fn a_contradiction_is_an_error() {
    for (flag, given) in [
        ("--hicache-ratio", json!(["--hicache-ratio", "3"])),
        ("--hicache-ratio", json!(["--hicache-ratio", "two"])),
        ("--hicache-ratio", json!(["--hicache-ratio=2", "--hicache-ratio=2"])),
        ("--hicache-ratio", json!(["--hicache-ratio"])),
        ("--hicache-size", json!(["--hicache-size", "8"])),
        ("--hicache-size", json!(["--hicache-size"])),
        ("--hicache-write-policy", json!(["--hicache-write-policy", "write_back"])),
        ("--hicache-mem-layout", json!(["--hicache-mem-layout=a", "--hicache-mem-layout=a"])),
        ("--enable-hierarchical-cache", json!(["--enable-hierarchical-cache=true"])),
        ("--enable-hierarchical-cache", json!(["--enable-hierarchical-cache", "--enable-hierarchical-cache"])),
        ("--enable-lmcache", json!(["--enable-lmcache"])),
        ("--enable-lmcache", json!(["--enable-lmcache=1"])),
        ("--lmcache-config-file", json!(["--lmcache-config-file=/x"])),
    ] {
        let error = args(json!({"ratio": "2.0", "writePolicy": "write_through"}), given.clone()).expect_err(flag);
        assert!(error.contains(flag), "{given}: {error}");
    }
    for given in
        [json!(["--hicache-size", "2.0"]), json!(["--hicache-size", "4294967298"]), json!(["--hicache-ratio=1"])]
    {
        assert!(args(json!({"sizeGB": 2}), given).is_err());
    }
}

/// adapters:D48
#[test]
fn an_option_without_a_value_is_an_error_even_where_nothing_is_asked() {
    let error = args(json!({"ratio": "2"}), json!(["--hicache-write-policy"])).expect_err("an error");
    assert!(error.contains("--hicache-write-policy"), "{error}");
}

/// adapters:D49
#[test]
fn objects_past_admission_are_judged_again() {
    let Worked { backend, before, .. } = worked("p6");
    for (path, pointer, value) in [
        ("spec.integration.mode", "/spec/integration/mode", json!("EventsOnly")),
        ("spec.integration.role", "/spec/integration/role", json!("ReadOnly")),
        ("spec.integration.failOpen", "/spec/integration/failOpen", json!(false)),
        ("spec.engineSelector", "/spec/engineSelector", Value::Null),
        (
            "spec.integration.engineOverrides",
            "/spec/integration/engineOverrides",
            json!({"args": ["--hicache-size=8"]}),
        ),
        (
            "spec.integration.engineOverrides",
            "/spec/integration/engineOverrides",
            json!({"suppressArgs": ["--enable-metrics"]}),
        ),
        ("spec.hiCache", "/spec/hiCache", Value::Null),
        ("spec.hiCache", "/spec/hiCache", json!({})),
        ("spec.hiCache", "/spec/hiCache", json!({"ratio": ""})),
        ("spec.hiCache", "/spec/hiCache", json!({"ratio": "2", "sizeGB": 2})),
        ("spec.hiCache.sizeGB", "/spec/hiCache", json!({"sizeGB": 0})),
        ("spec.hiCache.ratio", "/spec/hiCache", json!({"ratio": " 2"})),
        ("spec.hiCache.ratio", "/spec/hiCache", json!({"ratio": "inf"})),
        ("spec.hiCache.ratio", "/spec/hiCache", json!({"ratio": "-1"})),
        ("spec.hiCache.writePolicy", "/spec/hiCache", json!({"ratio": "2", "writePolicy": "never"})),
    ] {
        let error = inject(&silent(), &edited(&backend, pointer, value), &before).expect_err(path).to_string();
        assert!(error.starts_with(path), "{path}: {error}");
    }
}
