//! Objects for the tests of this module. `tests/data/backends.json` holds the specs: `managed` whole, the others by what
//! they change in it.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use crate::api::CacheBackend;

/// The spec of that name, with a merge patch.
pub(crate) fn spec(name: &str, patch: &Value) -> Value {
    let all: Value = serde_json::from_str(include_str!("../../../tests/data/backends.json")).expect("specs");
    let mut spec = all["managed"].clone();
    if name != "managed" {
        assert!(all[name].is_object(), "no spec {name}");
        merge(&mut spec, &all[name]);
    }
    merge(&mut spec, patch);
    spec
}

/// `ns/cache` of uid `u1`, generation 1, with that spec.
pub(crate) fn backend(name: &str, patch: &Value) -> CacheBackend {
    object(&json!({"name": "cache", "namespace": "ns", "uid": "u1", "generation": 1}), &spec(name, patch))
}

/// An object with that metadata.
pub(crate) fn object(metadata: &Value, spec: &Value) -> CacheBackend {
    serde_json::from_value(json!({"metadata": metadata, "spec": spec})).expect("a backend")
}

/// A running engine that `ns/cache` wired, with a merge patch.
pub(crate) fn engine(name: &str, node: &str, patch: &Value) -> Pod {
    let mut pod = json!({
        "metadata": {
            "name": name, "namespace": "ns",
            "labels": {"inferencecache.io/cache-domain": "d1"},
            "annotations": {
                "inferencecache.io/injected-by": "ns/cache",
                "inferencecache.io/injected-by-uid": "u1",
                "inferencecache.io/injected-generation": "1",
            },
        },
        "spec": {"nodeName": node, "containers": [{"name": "vllm", "image": "engine.example/e:1"}]},
        "status": {"phase": "Running"},
    });
    merge(&mut pod, patch);
    serde_json::from_value(pod).expect("a Pod")
}

/// JSON merge patch.
pub(crate) fn merge(value: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *value = patch.clone();
        return;
    };
    if !value.is_object() {
        *value = json!({});
    }
    let object = value.as_object_mut().expect("an object");
    for (key, patch) in patch {
        if patch.is_null() {
            object.remove(key);
        } else {
            merge(object.entry(key).or_insert(Value::Null), patch);
        }
    }
}
