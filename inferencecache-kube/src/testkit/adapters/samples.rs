//! The shapes of CacheBackend that ship, one object each.

use serde_json::{Value, json};

use crate::api::CacheBackend;

/// Name and object of each shape that a shipped adapter takes.
#[must_use]
pub fn shipped_samples() -> Vec<(&'static str, CacheBackend)> {
    let server = json!({"image": "lmcache@sha256:0", "port": 5555, "l1Capacity": "4Gi", "maxWorkers": 4,
        "resources": {"requests": {"cpu": "1", "memory": "5Gi"}, "limits": {"memory": "6Gi"}}});
    let mut node_server = server.clone();
    node_server["httpPort"] = json!(18080);
    node_server["maxGPUWorkers"] = json!(4);
    node_server["maxCPUWorkers"] = json!(4);
    let pod_local = json!({"topology": "PodLocal", "podLocal": {"server": server}});
    let node_local = json!({"topology": "NodeLocal", "nodeLocal": {"server": node_server}});
    let list = [
        ("vllm-pod-local", json!({"runtime": "VLLM", "lmCache": pod_local})),
        ("vllm-node-local", json!({"runtime": "VLLM", "lmCache": node_local})),
        ("vllm-events-only", json!({"runtime": "VLLM", "integration": {"mode": "EventsOnly"}})),
        ("sglang-pod-local", json!({"runtime": "SGLang", "lmCache": pod_local})),
        ("sglang-node-local", json!({"runtime": "SGLang", "lmCache": node_local})),
        ("sglang-events-only", json!({"runtime": "SGLang", "integration": {"mode": "EventsOnly"}})),
        ("sglang-hicache", json!({"runtime": "SGLang", "type": "SGLangHiCache", "hiCache": {"sizeGB": 64}})),
    ];
    list.into_iter().filter_map(|(name, spec)| Some((name, object(name, spec)?))).collect()
}

fn object(name: &str, mut spec: Value) -> Option<CacheBackend> {
    spec["engineSelector"] = json!({"matchLabels": {"inferencecache.io/cache-domain": name}});
    let metadata =
        json!({"name": name, "namespace": "samples", "uid": "00000000-0000-0000-0000-000000000000", "generation": 1});
    let object =
        json!({"apiVersion": "inferencecache.io/v1alpha1", "kind": "CacheBackend", "metadata": metadata, "spec": spec});
    serde_json::from_value(object).ok()
}

#[cfg(test)]
mod tests {
    use super::shipped_samples;
    use crate::adapters::{Options, RuntimeId, builtin};

    #[test]
    fn each_sample_has_an_adapter() {
        let registries = builtin(&Options::default());
        assert_eq!(shipped_samples().len(), 7);
        for (name, backend) in shipped_samples() {
            assert!(registries.runtime.select(&RuntimeId::of(Some(&backend)), Some(&backend)).is_ok(), "{name}");
        }
    }
}
