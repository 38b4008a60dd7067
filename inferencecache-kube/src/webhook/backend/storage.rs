//! R2 and R5: what belongs to which ownership, and where an endpoint may lead.

use crate::adapters::endpoint::host_port;
use crate::api::CacheBackend;
use crate::api::backend::{CacheType, Ownership, Provider, Redis, RemoteStorage};
use crate::webhook::field::FieldError;
use crate::webhook::syntax::{is_dns_label, namespace_of_host};

const ENDPOINT: &str = "spec.remoteStorage.endpoint";

/// R2: which blocks go together.
pub(super) fn hierarchy(backend: &CacheBackend) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let cache_type = backend.spec.effective_type();
    if backend.spec.lm_cache.is_some() && *cache_type != CacheType::LmCache {
        let detail = format!("belongs to type LMCache, and the type is {cache_type}");
        errors.push(FieldError::forbidden("spec.lmCache", detail));
    }
    let Some(storage) = &backend.spec.remote_storage else {
        return errors;
    };
    if storage.provider.is_empty() {
        errors.push(FieldError::required("spec.remoteStorage.provider", "name the provider: Redis"));
    }
    match &storage.ownership {
        Ownership::Managed if storage.endpoint().is_some() => {
            let detail = "ownership Managed finds its own address, see status.remoteStorage.endpoint; leave it out, or choose \
                          External";
            errors.push(FieldError::forbidden(ENDPOINT, detail));
        }
        Ownership::External => external(storage, &mut errors),
        Ownership::Other(text) if text.is_empty() => {
            errors.push(FieldError::required("spec.remoteStorage.ownership", "say who runs it: Managed or External"));
        }
        Ownership::Managed | Ownership::Other(_) => {}
    }
    if storage.redis.is_some() && storage.provider != Provider::Redis {
        errors.push(FieldError::forbidden("spec.remoteStorage.redis", "belongs to provider Redis"));
    }
    errors
}

fn external(storage: &RemoteStorage, errors: &mut Vec<FieldError>) {
    match storage.endpoint() {
        None => errors.push(FieldError::required(ENDPOINT, "ownership External needs host:port")),
        Some(given) => {
            let why = match storage.provider {
                Provider::Redis => host_port(given).err().map(|why| why.to_string()),
                Provider::Other(_) => Some("this provider has no form of endpoints".to_owned()),
            };
            if let Some(why) = why {
                let detail =
                    format!("{why}; give a bare host:port with a port from 1-65535, without scheme and whitespace");
                errors.push(FieldError::invalid(ENDPOINT, given, detail));
            }
        }
    }
    let managed_only = "belongs to ownership Managed only; with External it would have no effect";
    if storage.workload.is_some() {
        errors.push(FieldError::forbidden("spec.remoteStorage.workload", managed_only));
    }
    let Some(Redis { image, resources, .. }) = &storage.redis else {
        return;
    };
    if image.as_deref().is_some_and(|image| !image.trim().is_empty()) {
        errors.push(FieldError::forbidden("spec.remoteStorage.redis.image", managed_only));
    }
    if resources.is_some() {
        errors.push(FieldError::forbidden("spec.remoteStorage.redis.resources", managed_only));
    }
}

/// R5: an endpoint inside the cluster stays in its namespace, unless the object says otherwise.
pub(super) fn namespace(backend: &CacheBackend) -> Vec<FieldError> {
    let own = backend.metadata.namespace.as_deref().unwrap_or_default();
    let endpoint = backend.spec.remote_storage.as_ref().and_then(|storage| storage.endpoint.as_deref());
    let Some(theirs) = endpoint.and_then(namespace_of_host) else {
        return Vec::new();
    };
    if theirs == own || backend.spec.allow_cross_namespace == Some(true) {
        return Vec::new();
    }
    let detail = format!(
        "is a Service of namespace {theirs:?}, and the CacheBackend is in {own:?}; set spec.allowCrossNamespace to allow that"
    );
    vec![FieldError::forbidden(ENDPOINT, detail)]
}

/// Managed storage gets a Service of the object's name, which must be a DNS label. Asked of new objects only: nobody can
/// rename a stored one.
pub(super) fn service_name(backend: &CacheBackend) -> Option<FieldError> {
    let managed = backend.spec.remote_storage.as_ref().is_some_and(|s| s.ownership == Ownership::Managed);
    let name = backend.metadata.name.as_deref().unwrap_or_default();
    if !managed || backend.spec.events_only() || name.is_empty() || is_dns_label(name) {
        return None;
    }
    let detail = "ownership Managed makes a Service of that name, which must be a DNS label: at most 63 lower-case letters, \
                  digits and '-', no dot";
    Some(FieldError::invalid("metadata.name", name, detail))
}
