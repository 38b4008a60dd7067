//! The smallest adapter there can be: an address in a variable, for engines and routers alike. It ships nowhere.

use inferencecache_kube::adapters::pod::{env, upsert_env};
use inferencecache_kube::adapters::{AdapterError, Binding, Protocol, RuntimeAdapter, RuntimeId};
use inferencecache_kube::api::CacheBackend;
use inferencecache_kube::testkit::adapters::RuntimeFixture;
use k8s_openapi::api::core::v1::PodSpec;
use serde_json::json;

use crate::fixtures::object;

#[derive(Debug)]
pub(crate) struct Reference;

impl RuntimeAdapter for Reference {
    fn supports(&self, runtime: &RuntimeId, _: &CacheBackend) -> bool {
        runtime.as_str() == "reference"
    }

    fn supports_binding(&self, binding: Option<&Binding>) -> bool {
        binding.is_some_and(|binding| binding.protocol == Protocol::resp())
    }

    fn inject_engine(
        &self,
        pod: &PodSpec,
        binding: Option<&Binding>,
        _: &CacheBackend,
    ) -> Result<PodSpec, AdapterError> {
        set(pod, binding, "INFERENCECACHE_CACHE_ENDPOINT")
    }

    fn inject_router(
        &self,
        pod: &PodSpec,
        binding: Option<&Binding>,
        _: &CacheBackend,
    ) -> Result<PodSpec, AdapterError> {
        set(pod, binding, "INFERENCECACHE_ROUTER_ENDPOINT")
    }
}

fn set(pod: &PodSpec, binding: Option<&Binding>, name: &str) -> Result<PodSpec, AdapterError> {
    let endpoint = match binding {
        Some(binding) if binding.protocol == Protocol::resp() && !binding.endpoint.is_empty() => &binding.endpoint,
        other => return Err(AdapterError::Binding(format!("{other:?} has no endpoint to use"))),
    };
    if pod.containers.is_empty() {
        return Err(AdapterError::pod("containers", "are missing"));
    }
    let mut pod = pod.clone();
    for container in &mut pod.containers {
        upsert_env(container.env.get_or_insert_default(), env(name, endpoint.clone()));
    }
    Ok(pod)
}

pub(crate) fn fixtures() -> Vec<RuntimeFixture> {
    let backend = object(json!({"apiVersion": "inferencecache.io/v1alpha1", "kind": "CacheBackend",
        "metadata": {"name": "a"}, "spec": {"runtime": "reference"}}));
    let pod = serde_json::from_value(json!({"metadata": {"name": "a"},
        "spec": {"containers": [{"name": "any", "image": "i"}]}}));
    let binding = Binding::new(Protocol::resp(), "h:1");
    let fixture = RuntimeFixture::new("reference", backend.clone(), Some(binding), pod.expect("a Pod"))
        .overridable("INFERENCECACHE_CACHE_ENDPOINT")
        .edit("endpoint", backend, Some(Binding::new(Protocol::resp(), "h:2")));
    vec![fixture]
}
