//! vLLM with LMCache's connector.
//!
//! The connector is loaded by `--kv-transfer-config`. It cannot share blocks with the hybrid KV-cache manager, which is
//! switched off, and it needs block hashes that are the same in every worker, hence a fixed hash seed. Parallelism over
//! layers or data is more than one server can follow; over tensors it is fine.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use serde::Serialize;

use super::args::{self, present, sole_value, upsert_flag, upsert_pair};
use super::contract::{MpRuntimeAdapter, RuntimeAdapter};
use super::error::AdapterError;
use super::lmcache::topology::{Client, Plan, is_typed, reaches};
use super::pod::{env, reappend_env, upsert_env};
use super::subscriber::{Engine, Subscriber};
use super::value::{Binding, RuntimeId, SupportedPair};
use crate::api::backend::{CacheType, Role};
use crate::api::{CacheBackend, names};

const CONNECTOR: &str = "--kv-transfer-config";
const NO_HYBRID: &str = "--disable-hybrid-kv-cache-manager";
const HASH_SEED: &str = "PYTHONHASHSEED";
/// Flags that are there only where data is served by several engines at once.
const DATA_PARALLEL: [&str; 5] = [
    "--data-parallel-rank",
    "--data-parallel-start-rank",
    "--data-parallel-size-local",
    "--data-parallel-address",
    "--data-parallel-rpc-port",
];

/// Variables that are set, the node's address last.
const ENV: [&str; 3] = [HASH_SEED, names::FAIL_OPEN, names::NODE_IP];
const CLIENT: Client = Client { reads_file: false, env: &ENV };

/// The adapter.
#[derive(Debug, Clone)]
pub struct VllmLmCache {
    subscriber: Subscriber,
}

/// What the connector is told. The order of the fields is the order on the wire.
#[derive(Serialize)]
struct Connector<'a> {
    kv_connector: &'a str,
    kv_connector_module_path: &'a str,
    kv_role: &'a str,
    kv_connector_extra_config: Server<'a>,
}

#[derive(Serialize)]
struct Server<'a> {
    #[serde(rename = "lmcache.mp.host")]
    host: &'a str,
    #[serde(rename = "lmcache.mp.port")]
    port: String,
}

impl VllmLmCache {
    /// With the subscriber that its engines get.
    #[must_use]
    pub fn new(subscriber: Subscriber) -> Self {
        Self { subscriber }
    }

    const ENGINE: Engine = Engine {
        container: RuntimeId::VLLM,
        hash_scheme: RuntimeId::VLLM,
        metrics_port: 8000,
        cache_size_flag: Some("--kv-cache-memory-bytes"),
    };
}

impl RuntimeAdapter for VllmLmCache {
    fn supports(&self, runtime: &RuntimeId, backend: &CacheBackend) -> bool {
        runtime.as_str() == RuntimeId::VLLM && is_typed(backend)
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
        let connector = connector(&plan, backend.spec.effective_role())?;
        check_own_flags(
            pod.containers.get(engine).and_then(|container| container.args.as_deref()).unwrap_or_default(),
        )?;
        let rewired = plan.is_wired(pod);
        let mut pod = plan.wire(pod, engine, binding, backend, CLIENT)?;
        let container = super::lmcache::pod_local::engine_of(&mut pod, engine)?;
        let args = container.args.get_or_insert_default();
        upsert_pair(args, CONNECTOR, &connector);
        upsert_flag(args, NO_HYBRID);
        let list = container.env.get_or_insert_default();
        let fail_open = backend.spec.effective_fail_open().to_string();
        for var in [env(HASH_SEED, "0"), env(names::FAIL_OPEN, fail_open)] {
            // Last wins, so ours go last; but on our own Pod they stay where they are, or overrides behind them would move.
            if rewired && list.iter().filter(|entry| entry.name == var.name).count() == 1 {
                upsert_env(list, var);
            } else {
                reappend_env(list, var);
            }
        }
        Ok(pod)
    }

    fn observation_sidecar(&self, backend: &CacheBackend, pod: &Pod) -> Result<Option<Container>, AdapterError> {
        self.subscriber.container(backend, pod, &Self::ENGINE, |pod| self.engine_container(pod).ok())
    }

    fn reserved_args(&self, _: &CacheBackend) -> &[&'static str] {
        &[CONNECTOR, NO_HYBRID]
    }

    fn reserved_env(&self, backend: &CacheBackend) -> &[&'static str] {
        super::lmcache::reserved_env(backend, &ENV)
    }

    fn engine_container_name(&self) -> &str {
        RuntimeId::VLLM
    }

    fn is_wired(&self, container: &Container) -> bool {
        present(container.args.as_deref().unwrap_or_default(), CONNECTOR)
            && container.env.iter().flatten().any(|var| var.name == names::FAIL_OPEN)
    }

    fn supported_pairs(&self) -> Vec<SupportedPair> {
        vec![SupportedPair::new(RuntimeId::VLLM, CacheType::LmCache.as_str())]
    }

    fn as_mp(&self) -> Option<&dyn MpRuntimeAdapter> {
        Some(self)
    }
}

impl MpRuntimeAdapter for VllmLmCache {
    fn validate_mp_engine_pod(&self, pod: &Pod, backend: &CacheBackend) -> Result<(), AdapterError> {
        let spec = pod.spec.as_ref().ok_or_else(|| AdapterError::pod("spec", "is missing"))?;
        Plan::of(backend)?;
        let engine = self.engine_container(spec)?;
        let args = spec.containers.get(engine).and_then(|container| container.args.as_deref()).unwrap_or_default();
        parallel_size(args, ["--tensor-parallel-size", "-tp"], i32::MAX)?;
        parallel_size(args, ["--pipeline-parallel-size", "-pp"], 1)?;
        parallel_size(args, ["--data-parallel-size", "-dp"], 1)?;
        if let Some(flag) = DATA_PARALLEL.into_iter().find(|flag| present(args, flag)) {
            return Err(AdapterError::flag(flag, "is not supported: one server serves one engine's data"));
        }
        check_own_flags(args)
    }
}

/// At most one value from 1 to `most`, under either spelling.
fn parallel_size(args: &[String], spellings: [&str; 2], most: i32) -> Result<(), AdapterError> {
    let Some(value) = sole_value(args, &spellings)? else { return Ok(()) };
    let size = args::integer(spellings[0], value)?;
    if !(1..=most).contains(&size) {
        let allowed = if most == 1 { "only 1 is supported" } else { "it must be at least 1" };
        return Err(AdapterError::flag(spellings[0], format!("is {size}; {allowed}")));
    }
    Ok(())
}

/// The flags that injection is going to edit must be ones that it can.
fn check_own_flags(args: &[String]) -> Result<(), AdapterError> {
    let mut bare = args.iter().enumerate().filter(|(_, arg)| args::token(arg) == Some(NO_HYBRID));
    if let Some((at, arg)) = bare.next() {
        let negated = |next: &String| ["true", "false", "0", "1"].iter().any(|word| next.eq_ignore_ascii_case(word));
        if arg != NO_HYBRID || args.get(at + 1).is_some_and(negated) {
            return Err(AdapterError::flag(NO_HYBRID, "takes no value"));
        }
        if bare.next().is_some() {
            return Err(AdapterError::flag(NO_HYBRID, "is given more than once"));
        }
    }
    let connectors = args::values(args, CONNECTOR)?;
    if connectors.len() > 1 {
        return Err(AdapterError::flag(
            CONNECTOR,
            format!("is given {} times; give it once or not at all", connectors.len()),
        ));
    }
    Ok(())
}

/// The value of `--kv-transfer-config`.
fn connector(plan: &Plan, role: &Role) -> Result<String, AdapterError> {
    let kv_role = match role {
        Role::ReadWrite => "kv_both",
        Role::ReadOnly => "kv_consumer",
        Role::WriteOnly => "kv_producer",
        Role::Other(other) => {
            return Err(AdapterError::backend(
                "spec.integration.role",
                format!("is {other:?}; it must be one of {}", Role::ALLOWED.join(", ")),
            ));
        }
    };
    let (host, port) = plan.address();
    let connector = Connector {
        kv_connector: "LMCacheMPConnector",
        kv_connector_module_path: "lmcache.integration.vllm.lmcache_mp_connector",
        kv_role,
        kv_connector_extra_config: Server { host: &host, port: port.to_string() },
    };
    serde_json::to_string(&connector).map_err(|error| AdapterError::flag(CONNECTOR, error.to_string()))
}
