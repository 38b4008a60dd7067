//! R17 and R18: an adapter must own what is asked for, and what it relies on is not overridden.

use k8s_openapi::api::core::v1::EnvVar;

use crate::adapters::{RuntimeAdapter, RuntimeId, RuntimeRegistry, binding_for, protocol_for};
use crate::api::CacheBackend;
use crate::api::backend::{CacheType, Topology};
use crate::webhook::field::FieldError;
use crate::webhook::syntax::is_variable_name;

const PROVIDER: &str = "spec.remoteStorage.provider";

fn select<'a>(adapters: &'a RuntimeRegistry, backend: &CacheBackend) -> Option<&'a dyn RuntimeAdapter> {
    adapters.select(&RuntimeId::of(Some(backend)), Some(backend)).ok().map(|selected| selected.adapter())
}

/// R17: runtime and type, and then the storage behind them.
pub(super) fn adapter(adapters: &RuntimeRegistry, backend: &CacheBackend) -> Vec<FieldError> {
    let spec = &backend.spec;
    // Only objects that bypassed the schema's default have no type.
    if spec.cache_type.is_none() {
        return Vec::new();
    }
    let Some(adapter) = select(adapters, backend) else {
        return if speaks_for_itself(backend) { Vec::new() } else { vec![no_adapter(adapters, backend)] };
    };
    let storage = spec.remote_storage.as_ref();
    let protocol = match protocol_for(storage) {
        Ok(protocol) => protocol,
        Err(why) => {
            let given = storage.map_or("", |storage| storage.provider.as_str());
            return vec![FieldError::invalid(PROVIDER, given, format!("{why}; use Redis"))];
        }
    };
    let name = protocol.as_str().to_owned();
    if adapter.supports_binding(binding_for(storage, protocol, "").as_ref()) {
        return Vec::new();
    }
    let (runtime, cache_type) = (spec.runtime.as_str(), spec.effective_type());
    vec![match storage {
        Some(storage) => {
            let detail = format!("runtime {runtime} with type {cache_type} has no use for storage that speaks {name}");
            FieldError::invalid(PROVIDER, storage.provider.as_str(), detail)
        }
        None => {
            let detail = format!("runtime {runtime} with type {cache_type} needs a remote tier");
            FieldError::invalid("spec.remoteStorage", "", detail)
        }
    }]
}

/// Whether another rule already says why there is no adapter: LMCache without a topology has none.
fn speaks_for_itself(backend: &CacheBackend) -> bool {
    let spec = &backend.spec;
    let known = |t: &Topology| matches!(t, Topology::PodLocal | Topology::NodeLocal);
    *spec.effective_type() == CacheType::LmCache
        && matches!(spec.runtime.id().as_str(), RuntimeId::VLLM | RuntimeId::SGLANG)
        && !spec.events_only()
        && !spec.lm_cache.as_ref().is_some_and(|lm_cache| known(&lm_cache.topology))
}

fn no_adapter(adapters: &RuntimeRegistry, backend: &CacheBackend) -> FieldError {
    let spec = &backend.spec;
    let mut pairs: Vec<String> = adapters.supported_pairs().iter().map(ToString::to_string).collect();
    pairs.sort_unstable();
    let pairs = if pairs.is_empty() { "(none)".to_owned() } else { pairs.join(", ") };
    let detail = format!("no adapter for {}/{}; supported: {pairs}", spec.runtime.id(), spec.effective_type());
    FieldError::invalid("spec.runtime", spec.runtime.as_str(), detail)
}

/// R18: the shape of overrides, and what they may not touch.
pub(super) fn overrides(adapters: &RuntimeRegistry, backend: &CacheBackend) -> Vec<FieldError> {
    let Some(overrides) = backend.spec.integration.as_ref().and_then(|i| i.engine_overrides.as_ref()) else {
        return Vec::new();
    };
    let path = "spec.integration.engineOverrides";
    let mut errors = Vec::new();
    for (index, variable) in overrides.env.iter().flatten().enumerate() {
        errors.extend(shape(&format!("{path}.env[{index}]"), variable));
    }
    let Some(adapter) = select(adapters, backend) else {
        return errors;
    };
    let runtime = backend.spec.runtime.id();
    let (flags, variables) = (adapter.reserved_args(backend), adapter.reserved_env(backend));
    let mut reserved = |path: String, name: &str| {
        let detail = format!("{name} belongs to adapter {runtime}, which would not work without it");
        errors.push(FieldError::forbidden(path, detail));
    };
    for (index, arg) in overrides.args.iter().flatten().enumerate() {
        if let Some(flag) = flag(arg).filter(|flag| flags.contains(flag)) {
            reserved(format!("{path}.args[{index}]"), flag);
        }
    }
    for (index, arg) in overrides.suppress_args.iter().flatten().enumerate() {
        if flags.contains(&arg.as_str()) {
            reserved(format!("{path}.suppressArgs[{index}]"), arg);
        }
    }
    for (index, variable) in overrides.env.iter().flatten().enumerate() {
        if variables.contains(&variable.name.as_str()) {
            reserved(format!("{path}.env[{index}].name"), &variable.name);
        }
    }
    for (index, name) in overrides.suppress_env.iter().flatten().enumerate() {
        if variables.contains(&name.as_str()) {
            reserved(format!("{path}.suppressEnv[{index}]"), name);
        }
    }
    errors
}

/// The flag that an argument sets; none for a value or a positional one.
fn flag(arg: &str) -> Option<&str> {
    arg.starts_with('-').then(|| arg.split('=').next().unwrap_or(arg))
}

fn shape(path: &str, variable: &EnvVar) -> Option<FieldError> {
    if variable.name.is_empty() {
        return Some(FieldError::required(format!("{path}.name"), "name the variable"));
    }
    if !is_variable_name(&variable.name) {
        let detail = "is no variable's name: letters, digits, '-', '_' and '.', not beginning with a digit";
        return Some(FieldError::invalid(format!("{path}.name"), &variable.name, detail));
    }
    let source = variable.value_from.as_ref()?;
    if variable.value.as_deref().is_some_and(|value| !value.is_empty()) {
        return Some(FieldError::invalid(path, &variable.name, "has value and valueFrom; give one, not both"));
    }
    // Counted on what would be written, so that a kind of source that a later API adds counts too.
    let sources = serde_json::to_value(source).ok().and_then(|source| source.as_object().map(serde_json::Map::len));
    match sources.unwrap_or(0) {
        0 => Some(FieldError::required(format!("{path}.valueFrom"), "give exactly one source")),
        1 => None,
        more => {
            Some(FieldError::invalid(format!("{path}.valueFrom"), more, "has several sources; give exactly one source"))
        }
    }
}
