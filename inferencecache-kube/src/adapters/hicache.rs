//! SGLang's own host cache: flags on the engine and nothing else. Its memory is the engine container's, which the operator
//! has sized.
//!
//! Nothing marks these flags as ours, so what the Pod says already is compared instead: the same setting stays as it is
//! spelled, another one is an error. All of that is judged before anything changes.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

use super::args::{self, present, token, upsert_flag};
use super::contract::RuntimeAdapter;
use super::error::AdapterError;
use super::lmcache::pod_local::engine_of;
use super::sglang::{ENGINE, METRICS};
use super::subscriber::Subscriber;
use super::value::{Binding, RuntimeId, SupportedPair};
use crate::api::CacheBackend;
use crate::api::backend::{CacheType, EngineOverrides, HiCache, IoBackend, MemoryLayout, Mode, Role, WritePolicy};

const ENABLE: &str = "--enable-hierarchical-cache";
const SIZE: &str = "--hicache-size";
const RATIO: &str = "--hicache-ratio";
const WRITE_POLICY: &str = "--hicache-write-policy";
const IO_BACKEND: &str = "--hicache-io-backend";
const MEMORY_LAYOUT: &str = "--hicache-mem-layout";
const RESERVED: [&str; 7] = [ENABLE, SIZE, RATIO, WRITE_POLICY, IO_BACKEND, MEMORY_LAYOUT, METRICS];
/// What belongs to the other cache.
const LMCACHE_FLAGS: [&str; 2] = ["--enable-lmcache", "--lmcache-config-file"];

/// The adapter.
#[derive(Debug, Clone)]
pub struct SglangHiCache {
    subscriber: Subscriber,
}

impl SglangHiCache {
    /// With the subscriber that its engines get.
    #[must_use]
    pub fn new(subscriber: Subscriber) -> Self {
        Self { subscriber }
    }
}

/// A setting of the object, as the engine takes it.
struct Setting {
    flag: &'static str,
    value: String,
    same: fn(&str, &str) -> bool,
}

impl RuntimeAdapter for SglangHiCache {
    fn supports(&self, runtime: &RuntimeId, backend: &CacheBackend) -> bool {
        runtime.as_str() == RuntimeId::SGLANG && backend.spec.cache_type == Some(CacheType::SgLangHiCache)
    }

    fn supports_binding(&self, binding: Option<&Binding>) -> bool {
        binding.is_none()
    }

    fn inject_engine(
        &self,
        pod: &PodSpec,
        binding: Option<&Binding>,
        backend: &CacheBackend,
    ) -> Result<PodSpec, AdapterError> {
        if let Some(binding) = binding {
            return Err(AdapterError::Binding(format!(
                "{:?} is not supported; SGLang's HiCache is host memory only",
                binding.protocol.as_str()
            )));
        }
        let settings = settings(check_object(backend)?)?;
        let engine = self.engine_container(pod)?;
        let mut pod = pod.clone();
        let args = engine_of(&mut pod, engine)?.args.get_or_insert_default();
        check_engine(args, &settings)?;
        upsert_flag(args, ENABLE);
        for setting in settings {
            if !present(args, setting.flag) {
                args.extend([setting.flag.to_owned(), setting.value]);
            }
        }
        upsert_flag(args, METRICS);
        Ok(pod)
    }

    fn observation_sidecar(&self, backend: &CacheBackend, pod: &Pod) -> Result<Option<Container>, AdapterError> {
        self.subscriber.container(backend, pod, &ENGINE, |pod| self.engine_container(pod).ok())
    }

    fn reserved_args(&self, _: &CacheBackend) -> &[&'static str] {
        &RESERVED
    }

    fn engine_container_name(&self) -> &str {
        RuntimeId::SGLANG
    }

    fn is_wired(&self, container: &Container) -> bool {
        container.args.iter().flatten().any(|arg| arg == ENABLE)
    }

    fn supported_pairs(&self) -> Vec<SupportedPair> {
        vec![SupportedPair::new(RuntimeId::SGLANG, CacheType::SgLangHiCache.as_str())]
    }
}

/// The object once more: it may have been stored before today's rules, or past them.
fn check_object(backend: &CacheBackend) -> Result<&HiCache, AdapterError> {
    let spec = &backend.spec;
    let fail = |path: &str, problem: String| Err(AdapterError::backend(path, problem));
    if spec.cache_type != Some(CacheType::SgLangHiCache) {
        return fail("spec.type", format!("is {:?}, not SGLangHiCache", spec.effective_type().as_str()));
    }
    if RuntimeId::of(Some(backend)).as_str() != RuntimeId::SGLANG {
        return fail("spec.runtime", format!("is {:?}; HiCache is SGLang's", spec.runtime.as_str()));
    }
    if *spec.effective_mode() != Mode::Offload {
        return fail(
            "spec.integration.mode",
            format!("is {:?}; only Offload is supported", spec.effective_mode().as_str()),
        );
    }
    if *spec.effective_role() != Role::ReadWrite {
        return fail(
            "spec.integration.role",
            format!("is {:?}; only ReadWrite is supported", spec.effective_role().as_str()),
        );
    }
    if !spec.effective_fail_open() {
        return fail("spec.integration.failOpen", "is false; a host cache cannot fail closed".to_owned());
    }
    if spec.selector().is_none() {
        return fail("spec.engineSelector.matchLabels", "is empty; the engines must be named".to_owned());
    }
    let overrides = spec.integration.as_ref().and_then(|integration| integration.engine_overrides.as_ref());
    if let Some(flag) = overrides.and_then(reserved_override) {
        return fail("spec.integration.engineOverrides", format!("touch {flag}, which is reserved"));
    }
    spec.hi_cache.as_ref().ok_or_else(|| AdapterError::backend("spec.hiCache", "is required and missing"))
}

fn reserved_override(overrides: &EngineOverrides) -> Option<&str> {
    let args = overrides.args.iter().flatten().filter_map(|arg| token(arg));
    let suppressed = overrides.suppress_args.iter().flatten().map(String::as_str);
    args.chain(suppressed).find(|flag| RESERVED.contains(flag))
}

/// The settings in the order in which the engine gets them.
fn settings(hi_cache: &HiCache) -> Result<Vec<Setting>, AdapterError> {
    let ratio = hi_cache.ratio.as_deref().filter(|ratio| !ratio.is_empty());
    let capacity = match (hi_cache.size_gb, ratio) {
        (Some(size), None) if size >= 1 => Setting { flag: SIZE, value: size.to_string(), same: same_integer },
        (Some(size), None) => {
            return Err(AdapterError::backend("spec.hiCache.sizeGB", format!("is {size}; it must be at least 1")));
        }
        (None, Some(ratio)) if number(ratio).is_some_and(|ratio| ratio > 0.0) => {
            Setting { flag: RATIO, value: ratio.to_owned(), same: same_number }
        }
        (None, Some(ratio)) => {
            return Err(AdapterError::backend(
                "spec.hiCache.ratio",
                format!("is {ratio:?}; it must be a number above 0"),
            ));
        }
        (size, ratio) => {
            let given = if size.is_some() && ratio.is_some() { "both" } else { "neither" };
            return Err(AdapterError::backend("spec.hiCache", format!("has {given} of sizeGB and ratio; give one")));
        }
    };
    let mut list = vec![capacity];
    let policy = hi_cache.write_policy.as_ref().map(|value| (value.as_str(), WritePolicy::ALLOWED));
    let backend = hi_cache.io_backend.as_ref().map(|value| (value.as_str(), IoBackend::ALLOWED));
    let layout = hi_cache.memory_layout.as_ref().map(|value| (value.as_str(), MemoryLayout::ALLOWED));
    for (flag, path, given) in [
        (WRITE_POLICY, "spec.hiCache.writePolicy", policy),
        (IO_BACKEND, "spec.hiCache.ioBackend", backend),
        (MEMORY_LAYOUT, "spec.hiCache.memoryLayout", layout),
    ] {
        let Some((value, allowed)) = given else { continue };
        if !allowed.contains(&value) {
            return Err(AdapterError::backend(path, format!("is {value:?}; it must be one of {}", allowed.join(", "))));
        }
        list.push(Setting { flag, value: value.to_owned(), same: |one, other| one == other });
    }
    Ok(list)
}

/// What the engine says already must agree with the object.
fn check_engine(args: &[String], settings: &[Setting]) -> Result<(), AdapterError> {
    if let Some(flag) = LMCACHE_FLAGS.into_iter().find(|flag| present(args, flag)) {
        return Err(AdapterError::flag(flag, "belongs to LMCache; an engine has one of the two caches"));
    }
    let enabled: Vec<&String> = args.iter().filter(|arg| token(arg) == Some(ENABLE)).collect();
    if enabled.len() > 1 || enabled.iter().any(|arg| *arg != ENABLE) {
        return Err(AdapterError::flag(ENABLE, "must be given once, without a value, or not at all"));
    }
    for flag in [SIZE, RATIO, WRITE_POLICY, IO_BACKEND, MEMORY_LAYOUT] {
        let found = args::values(args, flag)?;
        if found.len() > 1 {
            return Err(AdapterError::flag(
                flag,
                format!("is given {} times; give it once or not at all", found.len()),
            ));
        }
        let (Some(&value), wanted) = (found.first(), settings.iter().find(|setting| setting.flag == flag)) else {
            continue;
        };
        match wanted {
            Some(setting) if (setting.same)(value, &setting.value) => {}
            Some(setting) => {
                return Err(AdapterError::flag(
                    flag,
                    format!("is {value:?}, where the CacheBackend says {:?}", setting.value),
                ));
            }
            None if flag == SIZE || flag == RATIO => {
                return Err(AdapterError::flag(
                    flag,
                    "contradicts the CacheBackend, which sizes the cache the other way",
                ));
            }
            None => {}
        }
    }
    Ok(())
}

fn same_integer(one: &str, other: &str) -> bool {
    matches!((one.parse::<i32>(), other.parse::<i32>()), (Ok(one), Ok(other)) if one == other)
}

fn same_number(one: &str, other: &str) -> bool {
    matches!((number(one), number(other)), (Some(one), Some(other)) if one == other)
}

/// A finite number, without blanks around it.
fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}
