//! The published definitions: generated from the types, complete, and as tolerant as the types promise to be.

use inferencecache_kube::api::backend::{CacheType, Mode, Runtime};
use inferencecache_kube::api::{
    CacheBackend, CacheIndex, CachePolicy, CacheTenant, PDTopology, PromptTemplate, crd_json, crds,
};
use inferencecache_kube::testkit::manifests::crd_files;
use serde_json::{Value, json};

/// `make crds` writes the files again.
#[test]
fn the_published_files_are_what_the_types_say() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/crds");
    let files = crd_files().expect("the definitions");
    for (name, content) in &files {
        let published = std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        assert!(published == *content, "{name} is stale: run `make crds`");
    }
    let published = std::fs::read_dir(folder).expect("deploy/crds").count();
    assert_eq!(published, files.len(), "a file in deploy/crds belongs to no kind");
}

#[test]
fn the_bindings_of_kubernetes_take_the_definitions() {
    assert_eq!(crds().expect("typed definitions").len(), 6);
}

/// Walks every schema node with its path.
fn nodes<'a>(path: &str, node: &'a Value, visit: &mut impl FnMut(&str, &'a Value)) {
    visit(path, node);
    for (name, property) in node.get("properties").and_then(Value::as_object).into_iter().flatten() {
        nodes(&format!("{path}.{name}"), property, visit);
    }
    for child in ["items", "additionalProperties"] {
        if let Some(child @ Value::Object(_)) = node.get(child) {
            nodes(&format!("{path}[]"), child, visit);
        }
    }
}

fn schemas() -> Vec<(String, Value)> {
    let schema = |crd: &Value| crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"].clone();
    let kind = |crd: &Value| crd["spec"]["names"]["kind"].as_str().unwrap_or_default().to_owned();
    crd_json().iter().map(|crd| (kind(crd), schema(crd))).collect()
}

#[test]
fn no_node_is_nullable_or_unsigned_or_without_a_type() {
    for (kind, schema) in schemas() {
        nodes(&kind, &schema, &mut |path, node| {
            let quantity = node.get("x-kubernetes-int-or-string").is_some();
            assert!(node.get("type").is_some_and(Value::is_string) != quantity, "{path}: {node}");
            for keyword in ["nullable", "$ref", "oneOf", "title", "x-default", "x-optional", "x-required"] {
                assert!(node.get(keyword).is_none(), "{path} has {keyword}");
            }
            let format = node.get("format").and_then(Value::as_str).unwrap_or_default();
            assert!(["", "int32", "int64", "date-time"].contains(&format), "{path} has format {format}");
            let null = node.get("enum").and_then(Value::as_array).is_some_and(|members| members.contains(&Value::Null));
            assert!(!null, "{path} may be null");
        });
    }
}

#[test]
fn every_member_of_our_own_says_what_it_is_for() {
    for (kind, schema) in schemas() {
        nodes(&kind, &schema, &mut |path, node| {
            if path.ends_with("[]") || path == format!("{kind}.metadata") {
                return;
            }
            assert!(node.get("description").is_some(), "{path} has no description");
        });
    }
}

/// A missing root `spec` reads as its default, and so does a null one.
#[test]
fn objects_without_a_spec_are_read() {
    fn read<K: serde::de::DeserializeOwned>(spec: Option<Value>) -> K {
        let mut object = json!({"metadata": {"name": "n"}});
        if let Some(spec) = spec {
            object["spec"] = spec;
        }
        serde_json::from_str(&object.to_string()).expect("an object")
    }
    for spec in [None, Some(Value::Null), Some(json!({}))] {
        assert_eq!(read::<CacheBackend>(spec.clone()).spec.runtime, Runtime::Other(String::new()));
        assert_eq!(read::<CachePolicy>(spec.clone()).spec.eviction, None);
        assert_eq!(read::<CacheTenant>(spec.clone()).spec.tenant_id, "");
        assert_eq!(read::<PDTopology>(spec.clone()).spec.prefill_pools, None);
        assert_eq!(read::<PromptTemplate>(spec.clone()).spec.body, "");
        let _: CacheIndex = read(spec);
    }
}

/// What an older release stored stays readable, member by member.
#[test]
fn removed_and_unknown_values_are_read() {
    let stored = json!({
        "metadata": {"name": "old", "namespace": "n"},
        "spec": {
            "runtime": "TRT",
            "type": "Mooncake",
            "replicas": 2,
            "integration": {"mode": "", "engine": "vllm"},
            "lmCache": {"podLocal": {}},
            "remoteStorage": {"provider": "LMCacheServer"},
        },
        "status": {"health": "Green"},
    });
    let backend: CacheBackend = serde_json::from_value(stored).expect("an old object");
    assert_eq!(backend.spec.runtime.id(), "trt");
    assert_eq!(backend.spec.effective_type(), &CacheType::Other("Mooncake".to_owned()));
    assert_eq!(backend.spec.effective_mode(), &Mode::Offload, "an empty value counts as absent");
    let lmcache = backend.spec.lm_cache.expect("lmCache");
    assert!(lmcache.topology.is_empty());
    assert_eq!(lmcache.pod_local.expect("podLocal").server, None);
    assert!(backend.spec.remote_storage.expect("remoteStorage").ownership.is_empty());
}

/// What is read and written back is the same, text by text.
#[test]
fn the_samples_survive_reading_and_writing() {
    let status: CacheIndex = serde_json::from_value(json!({
        "metadata": {"name": "cluster-default"},
        "spec": {},
        "status": {"tenants": [{"id": "", "indexEntries": 0}]},
    }))
    .expect("an index");
    let written = serde_json::to_value(&status).expect("json");
    assert_eq!(written["status"]["tenants"], json!([{"id": "", "indexEntries": 0, "memoryUsed": 0}]));
    let backend: CacheBackend = serde_json::from_value(json!({
        "metadata": {"name": "b"},
        "spec": {"runtime": "VLLM", "observation": {"firstEventTimeout": "90s"},
            "lmCache": {"topology": "PodLocal", "podLocal": {"server": {"image": "i", "port": 1, "l1Capacity": 1024,
                "maxWorkers": 1, "resources": {"requests": {"cpu": 1}}}}}},
    }))
    .expect("a backend");
    let written = serde_json::to_value(&backend).expect("json");
    assert_eq!(written["spec"]["observation"]["firstEventTimeout"], "90s");
    assert_eq!(written["spec"]["lmCache"]["podLocal"]["server"]["l1Capacity"], "1024");
}
