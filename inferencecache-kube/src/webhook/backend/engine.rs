//! R13 to R16: what a mode, SGLang's own cache, an annotation and a role allow.

use crate::api::CacheBackend;
use crate::api::backend::{CacheType, HiCache, IoBackend, MemoryLayout, Mode, Role, Runtime, WritePolicy};
use crate::api::names::{KERNEL_CHECK, KERNEL_CHECK_MODES};
use crate::webhook::field::FieldError;
use crate::webhook::syntax::is_positive_number;

const HI_CACHE: &str = "spec.hiCache";
const MODE: &str = "spec.integration.mode";
const ROLE: &str = "spec.integration.role";

/// R13: events only, so nothing is stored anywhere.
pub(super) fn events_only(backend: &CacheBackend) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if !backend.spec.events_only() {
        return errors;
    }
    let cache_type = backend.spec.effective_type();
    if *cache_type != CacheType::LmCache {
        let detail = format!("EventsOnly is for type LMCache; type {cache_type} needs Offload");
        errors.push(FieldError::forbidden(MODE, detail));
    }
    if backend.spec.remote_storage.is_some() {
        let detail = "mode EventsOnly takes events and offloads nothing, so it has no remote tier; leave it out";
        errors.push(FieldError::forbidden("spec.remoteStorage", detail));
    }
    errors
}

/// R14: SGLang's own cache.
pub(super) fn hi_cache(backend: &CacheBackend) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let spec = &backend.spec;
    if *spec.effective_type() != CacheType::SgLangHiCache {
        if spec.hi_cache.is_some() {
            let detail = format!("belongs to type SGLangHiCache, and the type is {}", spec.effective_type());
            errors.push(FieldError::forbidden(HI_CACHE, detail));
        }
        return errors;
    }
    match &spec.hi_cache {
        Some(block) => settings(block, &mut errors),
        None => errors.push(FieldError::required(HI_CACHE, "type SGLangHiCache needs sizeGB or ratio")),
    }
    if spec.runtime != Runtime::SgLang {
        let detail =
            "type SGLangHiCache is a cache of SGLang; supported: sglang/LMCache, sglang/SGLangHiCache, vllm/LMCache";
        errors.push(FieldError::invalid("spec.runtime", spec.runtime.as_str(), detail));
    }
    if spec.selector().is_none() {
        let detail = "type SGLangHiCache acts on the engines that are selected; select them";
        errors.push(FieldError::required("spec.engineSelector.matchLabels", detail));
    }
    if *spec.effective_mode() != Mode::Offload {
        errors.push(FieldError::not_supported(MODE, spec.effective_mode().as_str(), &["Offload"]));
    }
    if *spec.effective_role() != Role::ReadWrite {
        errors.push(FieldError::not_supported(ROLE, spec.effective_role().as_str(), &["ReadWrite"]));
    }
    if !spec.effective_fail_open() {
        errors.push(FieldError::not_supported("spec.integration.failOpen", false, &["true"]));
    }
    errors
}

fn settings(block: &HiCache, errors: &mut Vec<FieldError>) {
    let HiCache { size_gb, ratio, write_policy, io_backend, memory_layout } = block;
    let ratio = ratio.as_deref().filter(|ratio| !ratio.is_empty());
    match (size_gb, ratio) {
        (None, None) => errors.push(FieldError::required(HI_CACHE, "give sizeGB or ratio")),
        (Some(size), Some(ratio)) => {
            let given = format!("sizeGB {size}, ratio {ratio}");
            errors.push(FieldError::invalid(HI_CACHE, given, "give one of sizeGB and ratio, not both"));
        }
        _ => {}
    }
    if let Some(size) = size_gb.filter(|size| *size < 1) {
        errors.push(FieldError::invalid(format!("{HI_CACHE}.sizeGB"), size, "must be at least 1"));
    }
    if let Some(ratio) = ratio.filter(|ratio| !is_positive_number(ratio)) {
        errors.push(FieldError::invalid(format!("{HI_CACHE}.ratio"), ratio, "must be a finite number > 0"));
    }
    if let Some(WritePolicy::Other(text)) = write_policy {
        errors.push(FieldError::not_supported(format!("{HI_CACHE}.writePolicy"), text, WritePolicy::ALLOWED));
    }
    if let Some(IoBackend::Other(text)) = io_backend {
        errors.push(FieldError::not_supported(format!("{HI_CACHE}.ioBackend"), text, IoBackend::ALLOWED));
    }
    if let Some(MemoryLayout::Other(text)) = memory_layout {
        errors.push(FieldError::not_supported(format!("{HI_CACHE}.memoryLayout"), text, MemoryLayout::ALLOWED));
    }
}

/// R15: a typo must not turn a strict check into none.
pub(super) fn kernel_check(backend: &CacheBackend) -> Vec<FieldError> {
    let given = backend.metadata.annotations.as_ref().and_then(|annotations| annotations.get(KERNEL_CHECK));
    match given {
        Some(given) if !given.is_empty() && !KERNEL_CHECK_MODES.contains(&given.as_str()) => {
            let path = format!("metadata.annotations[{KERNEL_CHECK}]");
            let detail = format!("must be one of {}, or empty", KERNEL_CHECK_MODES.join(", "));
            vec![FieldError::invalid(path, given, detail)]
        }
        _ => Vec::new(),
    }
}

/// R16: LMCache has no directions. It stores as a consumer and loads as a producer, so one of them would be a false promise.
pub(super) fn role(backend: &CacheBackend) -> Vec<FieldError> {
    let lm_cache = backend.spec.cache_type == Some(CacheType::LmCache);
    match backend.spec.effective_role() {
        role @ (Role::ReadOnly | Role::WriteOnly) if lm_cache => {
            vec![FieldError::invalid(
                ROLE,
                role.as_str(),
                "must be ReadWrite: the connector cannot be limited to a direction",
            )]
        }
        _ => Vec::new(),
    }
}
