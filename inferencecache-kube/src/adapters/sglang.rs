//! SGLang with LMCache: the engine reads its client settings from a file.
//!
//! SGLang's page size decides whether its blocks fit LMCache's chunks, and its default moves with model and version: the
//! flag has to be there. The hash scheme keeps its entries in the index apart from vLLM's.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

use super::args::{self, upsert_flag, upsert_pair};
use super::contract::{MpRuntimeAdapter, RuntimeAdapter};
use super::error::AdapterError;
use super::lmcache::settings::lm_cache;
use super::lmcache::topology::{Client, Plan, is_typed, reaches};
use super::pod::{env, upsert_env};
use super::subscriber::{Engine, Subscriber};
use super::value::{Binding, RuntimeId, SupportedPair};
use crate::api::backend::CacheType;
use crate::api::{CacheBackend, names};

const ENABLE: &str = "--enable-lmcache";
const CONFIG: &str = "--lmcache-config-file";
const EXPERIMENTAL: &str = "LMCACHE_USE_EXPERIMENTAL";
const PAGE_SIZE: &str = "--page-size";
/// SGLang serves no metrics page without it.
pub(crate) const METRICS: &str = "--enable-metrics";

/// Variables that are set, the node's address last.
const ENV: [&str; 3] = [EXPERIMENTAL, names::FAIL_OPEN, names::NODE_IP];
const CLIENT: Client = Client { reads_file: true, env: &ENV };

/// How an SGLang engine is observed.
pub(crate) const ENGINE: Engine =
    Engine { container: RuntimeId::SGLANG, hash_scheme: RuntimeId::SGLANG, metrics_port: 30000, cache_size_flag: None };

/// The adapter.
#[derive(Debug, Clone)]
pub struct SglangLmCache {
    subscriber: Subscriber,
}

impl SglangLmCache {
    /// With the subscriber that its engines get.
    #[must_use]
    pub fn new(subscriber: Subscriber) -> Self {
        Self { subscriber }
    }
}

impl RuntimeAdapter for SglangLmCache {
    fn supports(&self, runtime: &RuntimeId, backend: &CacheBackend) -> bool {
        runtime.as_str() == RuntimeId::SGLANG && is_typed(backend)
    }

    fn supports_binding(&self, binding: Option<&Binding>) -> bool {
        reaches(binding)
    }

    fn inject_engine(
        &self,
        pod: &PodSpec,
        binding: Option<&Binding>,
        backend: &CacheBackend,
    ) -> Result<PodSpec, AdapterError> {
        let engine = self.engine_container(pod)?;
        let plan = Plan::of(backend)?;
        check_config_flag(pod.containers.get(engine).and_then(|c| c.args.as_deref()).unwrap_or_default())?;
        let mut pod = plan.wire(pod, engine, binding, backend, CLIENT)?;
        let container = super::lmcache::pod_local::engine_of(&mut pod, engine)?;
        let args = container.args.get_or_insert_default();
        upsert_flag(args, ENABLE);
        upsert_pair(args, CONFIG, plan.config_file());
        if self.subscriber.wanted(backend) {
            upsert_flag(args, METRICS);
        }
        let list = container.env.get_or_insert_default();
        upsert_env(list, env(EXPERIMENTAL, "True"));
        upsert_env(list, env(names::FAIL_OPEN, backend.spec.effective_fail_open().to_string()));
        Ok(pod)
    }

    fn observation_sidecar(&self, backend: &CacheBackend, pod: &Pod) -> Result<Option<Container>, AdapterError> {
        self.subscriber.container(backend, pod, &ENGINE, |pod| self.engine_container(pod).ok())
    }

    fn reserved_args(&self, _: &CacheBackend) -> &[&'static str] {
        &[ENABLE, CONFIG, METRICS]
    }

    fn reserved_env(&self, backend: &CacheBackend) -> &[&'static str] {
        super::lmcache::reserved_env(backend, &ENV)
    }

    fn engine_container_name(&self) -> &str {
        RuntimeId::SGLANG
    }

    fn is_wired(&self, container: &Container) -> bool {
        container.args.iter().flatten().any(|arg| arg == ENABLE)
            && container.env.iter().flatten().any(|var| var.name == names::FAIL_OPEN)
    }

    fn supported_pairs(&self) -> Vec<SupportedPair> {
        vec![SupportedPair::new(RuntimeId::SGLANG, CacheType::LmCache.as_str())]
    }

    fn as_mp(&self) -> Option<&dyn MpRuntimeAdapter> {
        Some(self)
    }
}

impl MpRuntimeAdapter for SglangLmCache {
    fn validate_mp_engine_pod(&self, pod: &Pod, backend: &CacheBackend) -> Result<(), AdapterError> {
        let spec = pod.spec.as_ref().ok_or_else(|| AdapterError::pod("spec", "is missing"))?;
        Plan::of(backend)?;
        let chunk = lm_cache(backend)?.effective_chunk_size();
        let engine = self.engine_container(spec)?;
        let args = spec.containers.get(engine).and_then(|container| container.args.as_deref()).unwrap_or_default();
        let found = args::values(args, PAGE_SIZE)?;
        let [value] = found.as_slice() else {
            return Err(AdapterError::flag(PAGE_SIZE, format!("is given {} times; give it once", found.len())));
        };
        let page = args::integer(PAGE_SIZE, value)?;
        if page < 1 || chunk % page != 0 {
            return Err(AdapterError::flag(PAGE_SIZE, format!("is {page}; it must divide the chunk size {chunk}")));
        }
        Ok(())
    }
}

/// An occurrence that is followed by another flag would lose that flag, and a second one would win over ours.
fn check_config_flag(args: &[String]) -> Result<(), AdapterError> {
    let last_alone = args.last().is_some_and(|arg| arg == CONFIG);
    let judged = args.get(..args.len() - usize::from(last_alone)).unwrap_or_default();
    let found = args::values(judged, CONFIG)?.len() + usize::from(last_alone);
    if found > 1 {
        return Err(AdapterError::flag(CONFIG, format!("is given {found} times; give it once or not at all")));
    }
    Ok(())
}
