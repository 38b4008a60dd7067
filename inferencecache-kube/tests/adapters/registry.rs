//! Which adapter an object gets, and what crosses between storage and engine.

use std::sync::Arc;

use inferencecache_kube::adapters::{
    AdapterError, Binding, ExternalRedis, ManagedRedis, Protocol, Registries, RuntimeAdapter, RuntimeId,
    RuntimeRegistry, StorageProvider, StorageRegistry, SupportedPair, binding_for, protocol_for,
};
use inferencecache_kube::api::CacheBackend;
use inferencecache_kube::api::backend::RemoteStorage;
use k8s_openapi::api::core::v1::PodSpec;
use serde_json::{Value, json};

use crate::fixtures::{edited, shipped, silent, worked};

/// Takes everything, and says who it is.
struct Always(&'static str);

impl RuntimeAdapter for Always {
    fn supports(&self, _: &RuntimeId, _: &CacheBackend) -> bool {
        true
    }

    fn supports_binding(&self, _: Option<&Binding>) -> bool {
        true
    }

    fn inject_engine(&self, pod: &PodSpec, _: Option<&Binding>, _: &CacheBackend) -> Result<PodSpec, AdapterError> {
        Ok(pod.clone())
    }

    fn engine_container_name(&self) -> &str {
        self.0
    }
}

fn storage(value: Value) -> RemoteStorage {
    serde_json::from_value(value).expect("storage")
}

/// adapters:D01
#[test]
fn three_adapters_and_two_providers_ship_in_order() {
    let Registries { runtime, storage: providers } = silent();
    let pairs: Vec<String> = runtime.supported_pairs().iter().map(ToString::to_string).collect();
    assert_eq!(pairs, ["vllm/LMCache", "sglang/LMCache", "sglang/SGLangHiCache"]);
    assert_eq!((runtime.len(), providers.len()), (3, 2));
    let owners = ["Managed", "External"].map(|owner| storage(json!({"provider": "Redis", "ownership": owner})));
    let answers: Vec<_> = providers.iter().map(|provider| owners.each_ref().map(|o| provider.supports(o))).collect();
    assert_eq!(answers, [[true, false], [false, true]]);
}

/// adapters:D02-D04
#[test]
fn the_first_that_takes_it_is_selected_and_nothing_adds_nothing() {
    let backend = worked("p1").backend;
    let id = RuntimeId::of(Some(&backend));
    let mut registry = RuntimeRegistry::new();
    assert!(matches!(registry.select(&id, Some(&backend)), Err(AdapterError::NoAdapter { .. })));
    for name in ["first", "second"] {
        registry.register(Some(Arc::new(Always(name)) as Arc<dyn RuntimeAdapter>));
    }
    registry.register(None);
    assert_eq!(registry.len(), 2);
    let selected = registry.select(&id, Some(&backend)).expect("an adapter").adapter();
    assert_eq!(selected.engine_container_name(), "first");
    let nobody = registry.select(&id, None).unwrap_err().to_string();
    assert!(nobody.contains("<nil>"), "{nobody}");
    let mut providers = StorageRegistry::new();
    providers.register(None);
    assert!(providers.is_empty());
}

#[test]
fn a_missing_adapter_is_told_with_what_there_is() {
    let backend = edited(&worked("p1").backend, "/spec/type", json!("SGLangHiCache"));
    let error = silent().runtime.select(&RuntimeId::of(Some(&backend)), Some(&backend)).unwrap_err().to_string();
    for part in ["vllm", "SGLangHiCache", "sglang/LMCache, sglang/SGLangHiCache, vllm/LMCache"] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

/// adapters:D05
#[test]
fn runtime_ids_are_in_lower_case() {
    for (runtime, id) in [("VLLM", "vllm"), ("SGLang", "sglang"), ("", "")] {
        let backend = edited(&worked("p1").backend, "/spec/runtime", json!(runtime));
        assert_eq!(RuntimeId::of(Some(&backend)).as_str(), id);
    }
    assert_eq!(RuntimeId::of(None).as_str(), "");
}

/// adapters:D06
#[test]
fn an_unknown_provider_is_named() {
    let removed = storage(json!({"provider": "removed", "ownership": "Managed"}));
    let error = silent().storage.select(Some(&removed)).err().expect("none").to_string();
    assert!(error.contains("removed") && error.contains("Managed"), "{error}");
    assert_eq!(protocol_for(Some(&removed)).unwrap_err().to_string(), error);
    let nothing = silent().storage.select(None).err().expect("none").to_string();
    assert!(nothing.contains("<nil>"), "{nothing}");
    assert_eq!(protocol_for(None), Ok(Protocol::new("")));
}

/// adapters:D07-D09
#[test]
fn a_binding_carries_what_was_resolved_and_nothing_of_the_provider() {
    let user = json!({"name": "acl", "key": "user"});
    let mut spec = storage(json!({"provider": "Redis", "ownership": "External", "endpoint": " h:1 ",
        "redis": {"image": "img", "authentication": {"password": user}}}));
    let binding = binding_for(Some(&spec), Protocol::resp(), "h:1").expect("a binding");
    let before = binding.clone();
    assert_eq!(binding.endpoint, "h:1");
    spec.endpoint = Some("other:2".to_owned());
    spec.redis = None;
    assert_eq!(binding, before);
    assert!(!format!("{binding:?}").contains("img"));
    assert_eq!(binding.redis.and_then(|redis| redis.authentication).map(|auth| auth.password.name), Some("acl".into()));
    assert_eq!(binding_for(None, Protocol::new(""), ""), None);
}

/// adapters:D56
#[test]
fn lmcache_is_taken_with_a_topology_or_for_its_events() {
    let backend = worked("p1").backend;
    let adapter_of =
        |backend: &CacheBackend| shipped().runtime.select(&RuntimeId::of(Some(backend)), Some(backend)).is_ok();
    assert!(adapter_of(&backend));
    for block in ["/spec/lmCache/topology", "/spec/lmCache"] {
        assert!(!adapter_of(&edited(&backend, block, Value::Null)), "{block}");
    }
    assert!(!adapter_of(&edited(&backend, "/spec/lmCache/topology", json!("Elsewhere"))));
    let events = edited(&backend, "/spec/lmCache", Value::Null);
    assert!(adapter_of(&edited(&events, "/spec/integration/mode", json!("EventsOnly"))));
}

/// adapters:D57
#[test]
fn a_binding_that_is_not_taken_is_told_before_any_endpoint_is_known() {
    let hicache = worked("p6").backend;
    let registries = silent();
    let adapter = crate::fixtures::adapter(&registries, &hicache);
    let managed = storage(json!({"provider": "Redis", "ownership": "Managed"}));
    let binding = binding_for(Some(&managed), Protocol::resp(), "");
    assert!(adapter.supports_binding(None) && !adapter.supports_binding(binding.as_ref()));
    let lmcache = crate::fixtures::adapter(&registries, &worked("p1").backend);
    assert!(lmcache.supports_binding(None) && lmcache.supports_binding(binding.as_ref()));
}

/// adapters:D58
#[test]
fn routers_are_left_alone() {
    let registries = shipped();
    for name in ["p1", "p3", "p6"] {
        let pair = worked(name);
        let adapter = crate::fixtures::adapter(&registries, &pair.backend);
        for pod in [PodSpec::default(), pair.before.spec.clone().expect("a spec")] {
            assert_eq!(adapter.inject_router(&pod, None, &pair.backend).as_ref(), Ok(&pod), "{name}");
        }
    }
}

#[test]
fn pairs_are_listed_once() {
    let mut registry = shipped().runtime;
    let pairs = registry.supported_pairs();
    let again = shipped().runtime;
    assert_eq!(pairs, again.supported_pairs());
    registry.register(Some(Arc::new(Always("x")) as Arc<dyn RuntimeAdapter>));
    assert_eq!(registry.supported_pairs().len(), 3);
    assert!(pairs.contains(&SupportedPair::new("VLLM", "LMCache")));
    let _: [&dyn StorageProvider; 2] = [&ManagedRedis, &ExternalRedis];
}
