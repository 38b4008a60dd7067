//! An adapter of your own, beside the ones that ship: written against the public API, judged by the public suite, registered
//! by composition.
//!
//! `cargo run -p inferencecache-kube --features testkit --example adapter`
//!
//! The engine here is "Mini", which takes the address of its cache as a flag and wants its namespace in a variable. The
//! adapter wires it to Redis, checks itself with the conformance suite, and wires a Pod the way the controller would.

use std::error::Error;
use std::sync::Arc;

use inferencecache_kube::adapters::args::upsert_pair;
use inferencecache_kube::adapters::pod::{env_from_field, upsert_env};
use inferencecache_kube::adapters::{
    AdapterError, Binding, Options, Protocol, RuntimeAdapter, RuntimeId, SupportedPair, builtin,
};
use inferencecache_kube::api::CacheBackend;
use inferencecache_kube::testkit::adapters::{RuntimeFixture, runtime_adapter};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use serde_json::json;

const RUNTIME: &str = "mini";
const ADDRESS: &str = "--cache-address";
const NAMESPACE: &str = "MINI_NAMESPACE";

/// Wires Mini to a store that speaks Redis' protocol.
#[derive(Debug)]
struct Mini;

impl RuntimeAdapter for Mini {
    // Identity only: what is missing from an object is told by `inject_engine`, which can say what it is.
    fn supports(&self, runtime: &RuntimeId, _: &CacheBackend) -> bool {
        runtime.as_str() == RUNTIME
    }

    // Asked at admission, before there is an address. Host memory alone is nothing that Mini has.
    fn supports_binding(&self, binding: Option<&Binding>) -> bool {
        binding.is_some_and(|binding| binding.protocol == Protocol::resp())
    }

    fn inject_engine(
        &self,
        pod: &PodSpec,
        binding: Option<&Binding>,
        _: &CacheBackend,
    ) -> Result<PodSpec, AdapterError> {
        if !self.supports_binding(binding) {
            return Err(AdapterError::Binding("Mini needs a store that speaks resp".to_owned()));
        }
        let endpoint = binding.map(|binding| binding.endpoint.as_str()).unwrap_or_default();
        if endpoint.is_empty() {
            return Err(AdapterError::Binding("the store has no address yet".to_owned()));
        }
        let at = self.engine_container(pod)?;
        // The Pod came by reference: whatever goes wrong, the caller still has it.
        let mut pod = pod.clone();
        let engine = &mut pod.containers[at];
        upsert_pair(engine.args.get_or_insert_default(), ADDRESS, endpoint);
        upsert_env(engine.env.get_or_insert_default(), env_from_field(NAMESPACE, "metadata.namespace"));
        Ok(pod)
    }

    // An object's overrides must not break the wire.
    fn reserved_args(&self, _: &CacheBackend) -> &[&'static str] {
        &[ADDRESS]
    }

    fn engine_container_name(&self) -> &str {
        RUNTIME
    }

    // Finds the engine again when its container has another name and is no longer alone.
    fn is_wired(&self, container: &Container) -> bool {
        container.env.iter().flatten().any(|var| var.name == NAMESPACE)
    }

    fn supported_pairs(&self) -> Vec<SupportedPair> {
        vec![SupportedPair::new(RUNTIME, "LMCache")]
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let backend: CacheBackend = serde_json::from_value(json!({
        "apiVersion": "inferencecache.io/v1alpha1", "kind": "CacheBackend",
        "metadata": {"name": "mini-cache", "namespace": "serving"},
        "spec": {"runtime": "Mini"},
    }))?;
    let pod: Pod = serde_json::from_value(json!({
        "metadata": {"name": "mini-0", "namespace": "serving"},
        "spec": {"containers": [{"name": "mini", "image": "registry.example/mini:1", "args": ["--model", "m"]}]},
    }))?;
    let binding = Binding::new(Protocol::resp(), "redis.cache.svc:6379");

    let fixture = RuntimeFixture::new("mini", backend.clone(), Some(binding.clone()), pod.clone())
        .edit("another store", backend.clone(), Some(Binding::new(Protocol::resp(), "other.cache.svc:6379")))
        .overridable(NAMESPACE);
    let report = runtime_adapter(&Mini, &[fixture]);
    println!("conformance: {report}");
    report.assert_conforms();

    let mut registries = builtin(&Options::default());
    registries.runtime.register(Some(Arc::new(Mini) as Arc<dyn RuntimeAdapter>));
    let selected = registries.runtime.select(&RuntimeId::of(Some(&backend)), Some(&backend))?;
    let spec = pod.spec.unwrap_or_default();
    let wired = selected.adapter().inject_engine(&spec, Some(&binding), &backend)?;
    println!("wired by {selected:?}:\n{}", serde_json::to_string_pretty(&wired)?);
    Ok(())
}
