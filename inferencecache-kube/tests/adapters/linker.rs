//! The linker's decisions: the numbered cases, as data, and the worked Pods with their markers.

use inferencecache_kube::adapters::{
    AdapterError, Binding, Registries, RuntimeAdapter, RuntimeId, RuntimeRegistry, SupportedPair,
};
use inferencecache_kube::api::CacheBackend;
use inferencecache_kube::testkit::adapters::defaulted;
use inferencecache_kube::webhook::pod::{Decision, Outcome, link, patch};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use kube::core::DynamicObject;
use serde_json::{Value, json};

use crate::fixtures::{Worked, after, edited, shipped, silent, worked};

/// Objects as a listing gives them.
pub(crate) fn stored(backends: &[CacheBackend]) -> Vec<DynamicObject> {
    let dynamic = |backend| serde_json::to_value(backend).and_then(serde_json::from_value).expect("an object");
    backends.iter().map(dynamic).collect()
}

/// A Pod's JSON after an answer, and the answer.
fn answered(raw: &Value, backends: &[CacheBackend], registry: &RuntimeRegistry) -> (Value, Decision, Vec<Value>) {
    let pod: Pod = serde_json::from_value(raw.clone()).expect("a Pod");
    let decision = link(&pod, "serving", &stored(backends), registry);
    let operations = patch(raw, &pod, &decision.pod);
    let mut result = raw.clone();
    operations.iter().for_each(|operation| apply(&mut result, operation));
    (result, decision, operations)
}

/// RFC 6902, as far as it is used.
fn apply(document: &mut Value, operation: &Value) {
    let path = operation["path"].as_str().expect("a path");
    let (parent, key) = path.rsplit_once('/').expect("a member");
    let parent = document.pointer_mut(parent).unwrap_or_else(|| panic!("nothing at {path}"));
    let value = || operation["value"].clone();
    match (parent, operation["op"].as_str().expect("an operation")) {
        (Value::Object(members), op) => {
            let key = key.replace("~1", "/").replace("~0", "~");
            assert!(op == "add" || members.contains_key(&key), "{operation}");
            if op == "remove" { drop(members.remove(&key)) } else { drop(members.insert(key, value())) }
        }
        (Value::Array(items), op) => {
            let at: usize = key.parse().expect("an index");
            match op {
                "add" => items.insert(at, value()),
                "remove" => drop(items.remove(at)),
                _ => items[at] = value(),
            }
        }
        _ => panic!("nothing at {path}"),
    }
}

fn json(value: impl serde::Serialize) -> Value {
    serde_json::to_value(value).expect("JSON")
}

/// The value with parts replaced: `null` removes, `[…]` at a path that ends in `/+` is appended.
fn with(value: &Value, edits: &Value) -> Value {
    let mut value = value.clone();
    for (path, new) in edits.as_object().expect("edits") {
        let (parent, key) = path.rsplit_once('/').expect("a pointer");
        let mut at = &mut value;
        for part in parent.split('/').skip(1) {
            let part = part.replace("~1", "/");
            at = match part.parse::<usize>() {
                Ok(index) => &mut at[index],
                Err(_) => &mut at[part.as_str()],
            };
        }
        let key = key.replace("~1", "/");
        match (at, key.parse::<usize>()) {
            (at, _) if key == "+" => {
                let mut list = at.as_array().cloned().unwrap_or_default();
                list.extend(new.as_array().expect("a list").iter().cloned());
                *at = Value::Array(list);
            }
            (at, Ok(index)) => at[index] = new.clone(),
            (at, Err(_)) if new.is_null() => drop(at.as_object_mut().expect("an object").remove(&key)),
            (at, Err(_)) => at[key.as_str()] = new.clone(),
        }
    }
    value
}

fn backend(value: &Value) -> CacheBackend {
    serde_json::from_value(value.clone()).expect("a CacheBackend")
}

fn registries(name: &str) -> Registries {
    if ["p1", "p4", "p6", "p8", "p9"].contains(&name) { silent() } else { shipped() }
}

const PAIRS: [&str; 9] = ["p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8", "p9"];

/// W135 to W143: p1 to p9 in order.
#[test]
fn every_worked_pod_comes_out_whole() {
    for name in PAIRS {
        let pair = worked(name);
        let (result, ..) =
            answered(&json(&pair.before), std::slice::from_ref(&pair.backend), &registries(name).runtime);
        let wanted = Pod { spec: Some(after(&pair)), ..pair.after.clone() };
        let result: Pod = serde_json::from_value(result).expect("a Pod");
        assert_eq!(json(&result), json(&wanted), "{name}");
    }
}

/// webhooks:W128
#[test]
fn a_pod_that_comes_back_is_left_as_it_is() {
    for name in PAIRS {
        let pair = worked(name);
        let (backends, registry) = ([pair.backend.clone()], registries(name).runtime);
        let (once, first, _) = answered(&json(&pair.before), &backends, &registry);
        let stored = Pod { spec: first.pod.spec.as_ref().map(defaulted), ..first.pod.clone() };
        for raw in [once, json(&stored)] {
            let (_, again, operations) = answered(&raw, &backends, &registry);
            assert_eq!((operations, again.outcome), (Vec::new(), first.outcome), "{name}");
        }
    }
}

/// webhooks:W95,W96, and p8 without any backend.
#[test]
fn a_pod_that_asks_for_it_is_left_alone_everywhere() {
    let pair = worked("p8");
    let (result, decision, _) = answered(&json(&pair.before), &[], &silent().runtime);
    assert_eq!((result, decision.outcome), (json(&pair.after), Outcome::Skipped));
    assert!(answered(&json(&pair.after), &[], &silent().runtime).2.is_empty());
}

/// What a case is to end in.
#[derive(Debug, Clone, Copy)]
enum Then {
    Wired,
    /// Created without markers and otherwise as it was.
    Unwired,
}

struct Case {
    id: &'static str,
    pair: &'static str,
    /// Edits of the pair's backend, and of its Pod.
    backend: Value,
    pod: Value,
    subscriber: bool,
    then: Then,
    /// Parts of the result.
    holds: Value,
}

fn case(id: &'static str, pair: &'static str, backend: Value, pod: Value, then: Then, holds: Value) -> Case {
    Case { id, pair, backend, pod, subscriber: false, then, holds }
}

fn observed(case: Case) -> Case {
    Case { subscriber: true, ..case }
}

fn run(case: &Case) {
    let Worked { backend: base, before, .. } = worked(case.pair);
    let backend = backend(&with(&json(&base), &case.backend));
    let raw = with(&json(&before), &case.pod);
    let registry = if case.subscriber { shipped() } else { silent() }.runtime;
    let (result, decision, operations) = answered(&raw, std::slice::from_ref(&backend), &registry);
    let id = (case.id, case.pair, &case.pod, &case.backend);
    match case.then {
        Then::Wired => assert_eq!(decision.outcome, Outcome::Wired, "{id:?} {:?}", decision.note),
        Then::Unwired => {
            assert!(
                matches!(decision.outcome, Outcome::Released | Outcome::Unmatched),
                "{id:?} {:?}",
                decision.outcome
            );
            assert_eq!(result["spec"], raw["spec"], "{id:?}");
            let forged = raw["metadata"]["annotations"].as_object().is_some_and(|list| !list.is_empty());
            assert!(forged || operations.is_empty(), "{id:?} {operations:?}");
            assert!(!result.to_string().contains("inferencecache.io/inject"), "{id:?} {result}");
        }
    }
    for (pointer, wanted) in case.holds.as_object().into_iter().flatten() {
        let found = result.pointer(pointer).cloned().unwrap_or(Value::Null);
        assert_eq!(&found, wanted, "{id:?} {pointer} of {result:#}");
    }
    assert_eq!(answered(&result, &[backend], &registry).2, Vec::<Value>::new(), "{id:?}: a second time");
}

const ARGS: &str = "/spec/containers/0/args/+";
const ENV: &str = "/spec/containers/0/env";
const BY: &str = "/metadata/annotations/inferencecache.io~1injected-by";

/// The Pod's engine with more arguments.
fn plus(words: &str) -> Value {
    json!({ARGS: words.split_whitespace().collect::<Vec<_>>()})
}

fn shm(volume: Value, mount: Value) -> Value {
    let mount = with(&json!({"name": "shm", "mountPath": "/dev/shm"}), &mount);
    json!({"/spec/volumes/+": [with(&json!({"name": "shm"}), &volume)], "/spec/containers/0/volumeMounts/+": [mount]})
}

fn memory(limit: Value) -> Value {
    json!({"/emptyDir": {"medium": "Memory", "sizeLimit": limit}})
}

/// webhooks:W90,W91,W92,W93,W94,W99,W100
#[test]
fn markers_and_wishes() {
    let none = json!({});
    let stray = "/metadata/labels/inferencecache.io~1cache-domain";
    let notes = "/metadata/annotations";
    let empty: Value = ["injected-by", "injected-by-uid", "injected-generation", "inject-skipped"]
        .map(|key| (format!("inferencecache.io/{key}"), json!("")))
        .into_iter()
        .collect::<serde_json::Map<_, _>>()
        .into();
    for case in [
        case("W90", "p1", none.clone(), json!({"/metadata/labels": null}), Then::Unwired, none.clone()),
        case(
            "W91",
            "p1",
            none,
            json!({stray: "x", notes: {"inferencecache.io/injected-by": "a/b", "team": "a"}}),
            Then::Unwired,
            json!({notes: {"team": "a"}}),
        ),
    ] {
        run(&case);
    }
    let raw = with(&json(worked("p1").before), &json!({stray: "x", notes: empty}));
    assert_eq!(answered(&raw, &[worked("p1").backend], &silent().runtime).2, Vec::<Value>::new(), "W92");
    let skip = |word: &str| {
        with(
            &json(worked("p1").before),
            &json!({notes: {"inferencecache.io/skip-inject": word,
        "inferencecache.io/inject-skipped": "stale"}}),
        )
    };
    for (words, outcome, marker) in [
        (["true", "1", "yes", "n", "fAlse", " false ", "t"], Outcome::Skipped, json!("skip-inject-annotation")),
        (["", "false", "F", "0", "no", "OFF", "Disabled"], Outcome::Wired, Value::Null),
    ] {
        for word in words {
            let (result, decision, _) = answered(&skip(word), &[worked("p1").backend], &silent().runtime);
            assert_eq!(decision.outcome, outcome, "{word:?}");
            assert_eq!(result["metadata"]["annotations"]["inferencecache.io/inject-skipped"], marker, "{word:?}");
        }
    }
    // W99: a listing holds one namespace alone, so there is nothing to select from. W100: the reference names it.
    assert_eq!(answered(&json(worked("p1").before), &[], &silent().runtime).2, Vec::<Value>::new(), "W99");
    let nameless = with(&json(worked("p1").before), &json!({"/metadata/namespace": null}));
    let (result, ..) =
        answered(&nameless, &[edited(&worked("p1").backend, "/metadata/namespace", Value::Null)], &silent().runtime);
    assert_eq!(result.pointer(BY), Some(&json!("serving/granite-cache")), "W100");
}

/// webhooks:W97,W98
#[test]
fn two_backends_for_a_pod_are_a_refusal() {
    let pair = worked("p1");
    let named = |name: &str| edited(&pair.backend, "/metadata/name", json!(name));
    let legacy = edited(&named("old"), "/spec/engineSelector/matchLabels", json!({"app": "granite"}));
    for (backends, names) in [([named("b1"), named("a1")], "a1, b1"), ([legacy, named("new")], "new, old")] {
        let (_, decision, operations) = answered(&json(&pair.before), &backends, &silent().runtime);
        let note = decision.note.expect("a reason");
        assert_eq!((decision.outcome, operations), (Outcome::Ambiguous, Vec::new()));
        assert!(note.contains(names) && note.contains("serving"), "{note}");
    }
}

fn redis(ownership: &str, endpoint: Value) -> Value {
    let mut storage = json!({"provider": "Redis", "ownership": ownership, "redis": {}});
    if !endpoint.is_null() {
        storage["endpoint"] = endpoint;
    }
    storage
}

/// webhooks:W103,W104,W105,W106,W107,W108,W109,W110,W111,W112,W113,W114,W115,W134
#[test]
fn engines_and_stores() {
    let none = json!({});
    let old = json!({"remoteStorage": {"endpoint": "old:6379"}});
    let storage = "/spec/remoteStorage";
    let server = "/spec/initContainers/0/args";
    let mut cases = vec![
        case("W103", "p1", json!({storage: redis("Managed", Value::Null)}), none.clone(), Then::Unwired, none.clone()),
        case(
            "W104",
            "p1",
            json!({storage: redis("External", json!("https://x")), "/status": old}),
            none.clone(),
            Then::Unwired,
            none.clone(),
        ),
        case(
            "W105",
            "p1",
            json!({storage: redis("External", json!("new:6379")), "/status": old}),
            none.clone(),
            Then::Wired,
            json!({format!("{server}/18"): r#"{"host":"new","port":6379,"type":"resp"}"#}),
        ),
        case(
            "W109",
            "p1",
            none.clone(),
            json!({"/spec/containers": [{"name": "a"}, {"name": "b"}]}),
            Then::Unwired,
            none.clone(),
        ),
        case("W109", "p1", none.clone(), json!({"/spec/containers/0/name": "engine"}), Then::Wired, none.clone()),
        case(
            "W110",
            "p1",
            none.clone(),
            json!({"/spec/initContainers": [{"name": "lmcache-mp-server", "image": "x"}]}),
            Then::Unwired,
            none.clone(),
        ),
        case(
            "W111",
            "p1",
            none.clone(),
            json!({"/spec/volumes": [{"name": "lmcache-mp-shm", "emptyDir": {}}]}),
            Then::Unwired,
            none.clone(),
        ),
        case(
            "W111",
            "p3",
            none.clone(),
            json!({"/spec/volumes/+": [{"name": "v", "emptyDir": {}}],
            "/spec/containers/0/volumeMounts/+": [{"name": "v", "mountPath": "/var/run/inference-cache/lmcache"}]}),
            Then::Unwired,
            none.clone(),
        ),
        case("W112", "p1", none.clone(), shm(memory(json!("4Gi")), none.clone()), Then::Unwired, none.clone()),
        case("W112", "p1", none.clone(), shm(memory(Value::Null), none.clone()), Then::Unwired, none.clone()),
        case(
            "W112",
            "p1",
            none.clone(),
            shm(json!({"/emptyDir": {"sizeLimit": "6Gi"}}), none.clone()),
            Then::Unwired,
            none.clone(),
        ),
        case(
            "W112",
            "p1",
            none.clone(),
            shm(memory(json!("6Gi")), json!({"/readOnly": true})),
            Then::Unwired,
            none.clone(),
        ),
        case(
            "W112",
            "p1",
            none.clone(),
            shm(memory(json!("6Gi")), json!({"/subPathExpr": "$(A)"})),
            Then::Unwired,
            none.clone(),
        ),
        case(
            "W113",
            "p1",
            none.clone(),
            shm(memory(json!("5Gi")), json!({"/subPath": "s"})),
            Then::Wired,
            json!({"/spec/volumes/1": null, "/spec/initContainers/0/volumeMounts/0/subPath": "s"}),
        ),
        case(
            "W114",
            "p4",
            none.clone(),
            json!({ENV: [{"name": "INFERENCECACHE_NODE_IP", "value": "10.0.0.1"}]}),
            Then::Unwired,
            none.clone(),
        ),
        case("W114", "p4", none.clone(), shm(json!({"/emptyDir": {}}), none.clone()), Then::Unwired, none.clone()),
        case(
            "W114",
            "p4",
            none.clone(),
            shm(json!({"/hostPath": {"path": "/dev/shm"}}), none.clone()),
            Then::Unwired,
            none.clone(),
        ),
        case(
            "W115",
            "p4",
            none.clone(),
            json!({"/spec/nodeSelector": {"a": "b"}, "/spec/affinity": {"podAffinity": {}},
            "/spec/tolerations": [{"operator": "Exists"}]}),
            Then::Wired,
            json!({"/spec/nodeSelector": {"a": "b"}, "/spec/affinity": {"podAffinity": {}}, "/spec/tolerations": [{"operator": "Exists"}],
                "/spec/hostNetwork": null, "/spec/hostIPC": null}),
        ),
    ];
    for words in [
        "--pipeline-parallel-size=2",
        "-dp 2",
        "--data-parallel-rank=0",
        "-tp 2 --tensor-parallel-size 2",
        "-tp 0",
        "-tp",
    ] {
        cases.push(case("W106", "p1", none.clone(), plus(words), Then::Unwired, none.clone()));
    }
    for words in ["--kv-transfer-config {} --kv-transfer-config {}", "--disable-hybrid-kv-cache-manager false"] {
        cases.push(case("W107", "p1", none.clone(), plus(words), Then::Unwired, none.clone()));
    }
    let published = json!({"/status": {"remoteStorage": {"endpoint": "redis:6379"}}});
    for words in ["", "--page-size 96", "--page-size 0", "--page-size 64 --page-size 64", "--page-size --x"] {
        let words: Vec<&str> = words.split_whitespace().collect();
        let args = json!({"/spec/containers/0/args": words});
        cases.push(case("W108", "p3", published.clone(), args.clone(), Then::Unwired, none.clone()));
        // W134: an object that does not fail open refuses no Pod either.
        let closed = json!({"/status": published["/status"], "/spec/integration/failOpen": false});
        cases.push(case("W134", "p3", closed, args, Then::Unwired, none.clone()));
    }
    cases.iter().for_each(run);
    let unknown = worked("p1");
    let waiting = backend(&with(&json(&unknown.backend), &json!({storage: redis("Managed", Value::Null)})));
    let note = answered(&json(&unknown.before), &[waiting], &silent().runtime).1.note.expect("a reason");
    assert!(note.contains("status.remoteStorage.endpoint"), "W103: {note}");
}

/// webhooks:W116,W117,W118,W119,W120,W121,W122,W123,W124,W125,W126,W127
#[test]
fn subscribers_checks_and_overrides() {
    let none = json!({});
    let foreign = json!({"/spec/containers/+": [{"name": "kvevent-subscriber", "image": "other"}]});
    let forged = json!({"/metadata/annotations": {"inferencecache.io/injected-by": "a/b"}});
    let gpu = json!({ENV: [], "/spec/containers/0/resources": {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}});
    let mode = |mode: &str| json!({"/metadata/annotations": {"inferencecache.io/lmcache-kernel-check": mode}});
    let overrides = |overrides: Value| json!({"/spec/integration/engineOverrides": overrides});
    let model = json!({"/spec/observation/modelID": "m"});
    let strict = |value: Value| {
        json!({"/spec/initContainers/1/name": "lmcache-kernel-check", "/spec/initContainers/1/env": value,
        "/spec/initContainers/2": null})
    };
    let engine_env = |value: &str| {
        json!([{"name": "PYTHONHASHSEED", "value": "0"}, {"name": "INFERENCECACHE_FAIL_OPEN", "value": "true"},
        {"name": "KERNEL_CHECK_STRICT", "value": value}])
    };
    let stale = json!({"/spec/initContainers": [{"name": "lmcache-kernel-check", "image": "stale"}]});
    let cases = [
        observed(case("W116", "p1", none.clone(), none.clone(), Then::Wired, json!({"/spec/containers/1": null}))),
        case("W116", "p1", model.clone(), none.clone(), Then::Wired, json!({"/spec/containers/1": null})),
        observed(case(
            "W117",
            "p1",
            model.clone(),
            foreign,
            Then::Wired,
            json!({"/spec/containers/1": {"name": "kvevent-subscriber", "image": "other"}, "/spec/containers/2": null,
                BY: "serving/granite-cache"}),
        )),
        observed(case(
            "W118",
            "p7",
            none.clone(),
            json!({"/spec/containers/+": [{"name": "kvevent-subscriber", "image": "other"}]}),
            Then::Unwired,
            none.clone(),
        )),
        case("W119", "p7", none.clone(), none.clone(), Then::Unwired, none.clone()),
        case("W119", "p7", none.clone(), forged, Then::Unwired, json!({"/metadata/annotations": null})),
        observed(case("W121", "p7", mode("strict"), gpu.clone(), Then::Wired, json!({"/spec/initContainers": null}))),
        case("W122", "p1", none.clone(), gpu.clone(), Then::Wired, strict(engine_env("0"))),
        case("W122", "p1", mode("strict"), gpu.clone(), Then::Wired, strict(engine_env("1"))),
        case("W122", "p1", mode("off"), gpu.clone(), Then::Wired, json!({"/spec/initContainers/1": null})),
        case(
            "W122",
            "p1",
            none.clone(),
            with(&gpu, &json!({"/~1spec~1initContainers": stale["/spec/initContainers"]})),
            Then::Wired,
            json!({"/spec/initContainers/0/image": "registry.internal/vllm:cpu", "/spec/initContainers/2": null}),
        ),
        case(
            "W123",
            "p1",
            none.clone(),
            stale,
            Then::Wired,
            json!({"/spec/initContainers/0/name": "lmcache-mp-server", "/spec/initContainers/1": null}),
        ),
        case(
            "W124",
            "p1",
            mode("report-only"),
            json!({ENV: [{"name": "KERNEL_CHECK_STRICT", "value": "1"}]}),
            Then::Wired,
            strict(engine_env("0")),
        ),
        case(
            "W125",
            "p1",
            overrides(json!({"suppressArgs": ["--model"], "env": [{"name": "MINE", "value": "2"}]})),
            json!({ENV: [{"name": "MINE", "value": "1"}]}),
            Then::Wired,
            json!({"/spec/containers/0/args/0": "--model", "/spec/containers/0/env/0/value": "1"}),
        ),
        case(
            "W126",
            "p1",
            overrides(json!({"env": [{"name": "FOO", "value": "bar"}], "args": ["--max-model-len", "8192"]})),
            none.clone(),
            Then::Wired,
            json!({"/spec/containers/0/env/3/name": "FOO", "/spec/containers/0/args/6": "--max-model-len",
                "/spec/containers/0/args/7": "8192", "/spec/containers/0/args/8": null}),
        ),
    ];
    cases.iter().for_each(run);
    let url = |port: u16| json!({"/spec/containers/1/args/6": format!("--engine-metrics-url=http://127.0.0.1:{port}/metrics")});
    for (words, env, port) in [
        ("--port=$(P)", json!([{"name": "P", "value": "40000"}]), 40000),
        ("--port=$(P)", json!([{"name": "P", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]), 8000),
        ("--port 1 --port x", json!([]), 1),
    ] {
        let mut edits = plus(words);
        edits[ENV] = env;
        run(&observed(case("W127", "p1", model.clone(), edits, Then::Wired, url(port))));
    }
    let engine = &json(worked("p7").before)["spec"]["containers"][0];
    let events = overrides(json!({"args": ["--x", "1"], "env": [{"name": "X", "value": "1"}]}));
    let holds = json!({"/spec/containers/0/args": engine["args"], ENV: engine["env"], "/spec/containers/1/name": "kvevent-subscriber",
        "/spec/containers/2": null});
    run(&observed(case("W120", "p7", events, none, Then::Wired, holds)));
}

/// webhooks:W129
#[test]
fn a_wired_pod_follows_its_backend() {
    let pair = worked("p1");
    let (once, ..) = answered(&json(&pair.before), std::slice::from_ref(&pair.backend), &silent().runtime);
    let more = edited(&pair.backend, "/spec/lmCache/podLocal/server/maxWorkers", json!(7));
    let (again, ..) = answered(&once, std::slice::from_ref(&more), &silent().runtime);
    let (fresh, ..) = answered(&json(&pair.before), &[more], &silent().runtime);
    assert_eq!(again, fresh);
    assert!(again["spec"]["initContainers"][0]["args"].as_array().expect("arguments").contains(&json!("7")));
}

/// What an adapter of somebody else may do.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    None,
    Panics,
    SidecarFails,
    SidecarPanics,
}

struct Theirs(Fault);

impl RuntimeAdapter for Theirs {
    fn supports(&self, _: &RuntimeId, _: &CacheBackend) -> bool {
        true
    }

    fn supports_binding(&self, _: Option<&Binding>) -> bool {
        true
    }

    fn inject_engine(&self, pod: &PodSpec, _: Option<&Binding>, _: &CacheBackend) -> Result<PodSpec, AdapterError> {
        assert!(self.0 != Fault::Panics, "as the test wants it");
        Ok(PodSpec { termination_grace_period_seconds: Some(7), ..pod.clone() })
    }

    fn observation_sidecar(&self, _: &CacheBackend, _: &Pod) -> Result<Option<Container>, AdapterError> {
        assert!(self.0 != Fault::SidecarPanics, "as the test wants it");
        if self.0 == Fault::SidecarFails { Err(AdapterError::pod("sidecar", "fails")) } else { Ok(None) }
    }

    fn supported_pairs(&self) -> Vec<SupportedPair> {
        Vec::new()
    }
}

fn theirs(fault: Fault) -> RuntimeRegistry {
    let mut registry = RuntimeRegistry::new();
    registry.register(Some(std::sync::Arc::new(Theirs(fault)) as _));
    registry
}

/// webhooks:W130,W131,W133
#[test]
fn adapters_of_others_may_fail_without_harm() {
    let pair = worked("p1");
    let untyped = worked("p6");
    for (pair, fault, outcome) in [
        (&pair, Fault::None, Outcome::Released),
        (&untyped, Fault::None, Outcome::Wired),
        (&untyped, Fault::Panics, Outcome::Released),
        (&untyped, Fault::SidecarFails, Outcome::Wired),
        (&untyped, Fault::SidecarPanics, Outcome::Wired),
    ] {
        let raw = json(&pair.before);
        let (result, decision, _) = answered(&raw, std::slice::from_ref(&pair.backend), &theirs(fault));
        assert_eq!(decision.outcome, outcome, "{fault:?}");
        assert_eq!(decision.note.is_some(), outcome == Outcome::Released);
        if outcome == Outcome::Wired {
            assert_eq!(result["spec"]["terminationGracePeriodSeconds"], 7);
            assert_eq!(result.pointer(BY), Some(&json!("serving/hicache")));
        } else {
            assert_eq!(result, raw);
        }
    }
}

/// webhooks:W132
#[test]
fn what_the_types_do_not_know_survives() {
    let newer = json!({
        "/spec/containers/0/newerThanUs": {"a": [1]},
        "/spec/initContainers": [{"name": "lmcache-kernel-check"}, {"name": "theirs", "newer": true}],
        "/spec/newer": 1,
        "/metadata/annotations": null,
    });
    for (name, domain) in [("p1", "granite"), ("p8", "granite"), ("p9", "not-a-domain"), ("p1", "x")] {
        let pair = worked(name);
        let mut raw = with(&json(&pair.before), &newer);
        raw["metadata"]["labels"]["inferencecache.io/cache-domain"] = json!(domain);
        raw["metadata"]["annotations"] = json(&pair.before)["metadata"]["annotations"].clone();
        let (result, ..) = answered(&raw, &[pair.backend], &silent().runtime);
        assert_eq!(result["spec"]["newer"], 1, "{name}");
        assert_eq!(result["spec"]["containers"][0]["newerThanUs"], json!({"a": [1]}), "{name}");
        let inits = result["spec"]["initContainers"].as_array().expect("containers");
        let theirs = inits.iter().find(|container| container["name"] == "theirs").expect("theirs");
        assert_eq!(theirs["newer"], true, "{name}");
        assert!(
            inits.iter().all(|container| container["name"] == "theirs" || container.get("newer").is_none()),
            "{name}"
        );
    }
}

/// field:50
#[test]
fn a_second_call_after_another_hook_changes_nothing() {
    for name in ["p1", "p2", "p3", "p4", "p5", "p6"] {
        let pair = worked(name);
        let model = edited(&pair.backend, "/spec/observation/modelID", json!("m"));
        let raw = with(&json(&pair.before), &json!({"/spec/containers/0/name": "engine"}));
        let (once, ..) = answered(&raw, std::slice::from_ref(&model), &shipped().runtime);
        let more = with(&once, &json!({"/spec/containers/+": [{"name": "istio-proxy", "image": "i"}]}));
        assert_eq!(answered(&more, &[model], &shipped().runtime).2, Vec::<Value>::new(), "{name}");
    }
}

/// field:52
#[test]
fn pods_that_end_get_a_native_sidecar() {
    for policy in ["Never", "OnFailure"] {
        let edits = json!({"/spec/restartPolicy": policy});
        let holds = json!({"/spec/containers/1": null, "/spec/initContainers/1/name": "kvevent-subscriber",
            "/spec/initContainers/1/restartPolicy": "Always"});
        let model = json!({"/spec/observation/modelID": "m"});
        run(&observed(case("52", "p1", model, edits, Then::Wired, holds)));
    }
}

/// Mirror Pods, shells and port clashes: what the engine would never see, or could not live with.
#[test]
fn pods_that_cannot_be_wired_are_released() {
    let none = json!({});
    for pod in [
        json!({"/metadata/annotations": {"kubernetes.io/config.mirror": "x"}}),
        json!({"/spec/containers/0/command": ["/bin/sh", "-c"], "/spec/containers/0/args": ["vllm serve m"]}),
        json!({"/spec/containers/0/command": ["bash", "-o", "pipefail", "-ec", "vllm serve m"]}),
        json!({"/spec/containers/0/command": ["vllm", "serve", "m", "-dp", "2"]}),
        plus("--port 8080"),
        plus("--port=5555"),
    ] {
        run(&case("12", "p1", none.clone(), pod, Then::Unwired, none.clone()));
    }
    run(&case(
        "12",
        "p1",
        none.clone(),
        json!({"/spec/containers/0/command": ["sh", "start.sh"]}),
        Then::Wired,
        none.clone(),
    ));
    let raw = with(
        &json(worked("p1").before),
        &json!({"/metadata/labels": {"inferencecache.io/lmcache-mp-metrics": "true", "a": "b"}}),
    );
    let (result, ..) = answered(&raw, &[worked("p1").backend], &silent().runtime);
    assert_eq!(result["metadata"]["labels"], json!({"a": "b"}));
    // An override that brings what an engine may not have is seen too.
    let parallel = json!({"/spec/integration/engineOverrides": {"args": ["-dp", "2"]}});
    run(&case("12", "p1", parallel, none.clone(), Then::Unwired, none));
}

/// Numbers that a seed decides.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        // splitmix64
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % below as u64).expect("a small number")
    }

    fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.roll(of.len())]
    }

    fn list<T>(&mut self, below: usize, mut one: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.roll(below)).map(|_| one(self)).collect()
    }

    fn word(&mut self) -> &'static str {
        self.pick(&[
            "--model",
            "m",
            "--port",
            "--port=9",
            "8080",
            "-tp",
            "2",
            "--page-size",
            "64",
            "--kv-transfer-config",
            "{}",
            "-x",
            "--disable-hybrid-kv-cache-manager",
            "--enable-lmcache",
            "--hicache-ratio",
            "2.0",
            "",
            "--a=b",
            "word",
            "true",
            "--kv-transfer-config={}",
            "--enable-metrics",
            "--lmcache-config-file",
        ])
    }

    /// A word of nobody in particular: no flag that a valid object may not override.
    fn free_word(&mut self) -> &'static str {
        self.pick(&["--model", "m", "--port", "--port=9", "8080", "-x", "--a=b", "--a", "word", "other", "", "--b"])
    }

    fn container(&mut self, names: &[&str]) -> Value {
        let name = self.pick(names);
        let args = self.list(6, Self::word);
        let env = self.list(4, |dice| {
            let name =
                dice.pick(&["PYTHONHASHSEED", "INFERENCECACHE_FAIL_OPEN", "INFERENCECACHE_MP_SERVER", "FOO", "P"]);
            json!({"name": name, "value": dice.pick(&["", "0", "1", "true"])})
        });
        let mounts = self.list(2, |dice| {
            let name = dice.pick(&["lmcache-mp-shm", "shm", "lmcache-mp-config"]);
            json!({"name": name, "mountPath": dice.pick(&["/dev/shm", "/dev/shm/", "/x", "/var/run/inference-cache/lmcache"])})
        });
        let mut container = json!({"name": name, "image": "i", "args": args, "env": env, "volumeMounts": mounts});
        if self.roll(2) == 0 {
            container["resources"] = json!({"limits": {"nvidia.com/gpu": "1"}});
        }
        container
    }

    fn pod(&mut self) -> Value {
        const ENGINES: [&str; 5] = ["vllm", "sglang", "engine", "kvevent-subscriber", ""];
        const INITS: [&str; 5] =
            ["lmcache-mp-server", "lmcache-kernel-check", "lmcache-node-local-gate", "kvevent-subscriber", "x"];
        let domain = self.pick(&["granite", "gemma", "hicache", "jamba", "none", ""]);
        let marks: serde_json::Map<String, Value> = self
            .list(3, |dice| {
                let key = dice.pick(&["injected-by", "inject-skipped", "skip-inject", "injected-generation"]);
                (format!("inferencecache.io/{key}"), json!(dice.pick(&["", "false", "true", "x"])))
            })
            .into_iter()
            .collect();
        let volumes = self.list(2, |dice| {
            let memory = dice.roll(2) == 0;
            let source = if memory { json!({"medium": "Memory", "sizeLimit": "8Gi"}) } else { json!({}) };
            json!({"name": dice.pick(&["lmcache-mp-shm", "shm"]), "emptyDir": source})
        });
        let policy = [Value::Null, json!("Always"), json!("Never")][self.roll(3)].clone();
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "serving",
                "labels": {"inferencecache.io/cache-domain": domain}, "annotations": marks},
            "spec": {"containers": self.list(3, |dice| dice.container(&ENGINES)), "restartPolicy": policy, "unknown": {"a": 1},
                "initContainers": self.list(3, |dice| dice.container(&INITS)), "volumes": volumes}})
    }

    fn overrides(&mut self) -> Value {
        let mut env = self.list(3, |dice| json!({"name": dice.pick(&["FOO", "BAR"]), "value": dice.pick(&["a", "b"])}));
        env.dedup_by(|one, other| one["name"] == other["name"]);
        json!({"args": self.list(5, Self::free_word), "suppressArgs": self.list(3, Self::free_word), "env": env,
            "suppressEnv": self.list(2, |dice| dice.pick(&["FOO", "BAR"]))})
    }
}

/// The worked backends, each with a domain of its own.
fn domain(backend: &CacheBackend) -> String {
    backend.spec.domain().expect("a domain").to_owned()
}

/// Any Pod gets an answer; twice is once; a Pod that nobody selects and nobody marked is not edited.
#[test]
fn linking_is_total_and_converges() {
    let registry = shipped().runtime;
    let pairs: Vec<Worked> = PAIRS[..7].iter().map(|name| worked(name)).collect();
    let mut outcomes = std::collections::BTreeMap::new();
    for seed in 0..2000 {
        let mut dice = Dice(seed);
        let pair = &pairs[dice.roll(7)];
        let mut raw = dice.pod();
        if dice.roll(4) > 0 {
            raw["metadata"]["labels"]["inferencecache.io/cache-domain"] = json!(domain(&pair.backend));
        }
        let backends = [pair.backend.clone()];
        let (once, decision, operations) = answered(&raw, &backends, &registry);
        *outcomes.entry(decision.outcome.name()).or_insert(0) += 1;
        assert_eq!(once["spec"]["unknown"], raw["spec"]["unknown"], "seed {seed}");
        if decision.outcome == Outcome::Unmatched && !raw.to_string().contains("/inject") {
            assert_eq!(operations, Vec::<Value>::new(), "seed {seed}");
        }
        if decision.outcome != Outcome::Wired {
            assert_eq!(once["spec"], raw["spec"], "seed {seed}");
        }
        let (_, again, operations) = answered(&once, &backends, &registry);
        assert_eq!(again.outcome, decision.outcome, "seed {seed}: {:?} {raw:#}", again.note);
        assert_eq!(operations, Vec::<Value>::new(), "seed {seed}: {once:#}");
    }
    for outcome in ["wired", "released", "unmatched", "skipped"] {
        assert!(outcomes.get(outcome).is_some_and(|count| *count > 50), "{outcomes:?}");
    }
}

/// The same under overrides that a valid object may carry.
#[test]
fn overrides_converge() {
    let pair = worked("p1");
    for seed in 0..1000 {
        let mut dice = Dice(seed);
        let backend = edited(&pair.backend, "/spec/integration/engineOverrides", dice.overrides());
        let args = dice.list(5, Dice::free_word);
        let raw = with(&json(&pair.before), &json!({"/spec/containers/0/args": args}));
        let (once, first, _) = answered(&raw, std::slice::from_ref(&backend), &silent().runtime);
        let (_, again, operations) = answered(&once, &[backend], &silent().runtime);
        assert_eq!(
            (again.outcome, operations),
            (first.outcome, Vec::new()),
            "seed {seed}: {raw:#} {once:#} {:?}",
            again.note
        );
    }
}
