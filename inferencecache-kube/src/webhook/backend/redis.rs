//! R4 and R6–R12: what Redis may be told, and what a managed one may ask for.

use k8s_openapi::api::core::v1::SecretKeySelector;

use super::resources::check;
use crate::api::CacheBackend;
use crate::api::backend::{CacheBackendSpec, CacheType, Ownership, Provider, Runtime, Topology};
use crate::webhook::field::FieldError;
use crate::webhook::syntax::{is_dns_subdomain, is_secret_key};

const REDIS: &str = "spec.remoteStorage.redis";

/// R4: only what the connector can honour.
pub(super) fn features(backend: &CacheBackend) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let Some(storage) = &backend.spec.remote_storage else {
        return errors;
    };
    let Some(redis) = &storage.redis else {
        return errors;
    };
    if let Some(authentication) = &redis.authentication {
        let path = format!("{REDIS}.authentication");
        if typed_server(&backend.spec) {
            secret(&format!("{path}.password"), &authentication.password, &mut errors);
            match &authentication.username {
                Some(_) if storage.ownership == Ownership::Managed => {
                    let detail = "ownership Managed knows the default user only, by its password; leave it out";
                    errors.push(FieldError::forbidden(format!("{path}.username"), detail));
                }
                Some(username) => secret(&format!("{path}.username"), username, &mut errors),
                None => {}
            }
        } else {
            let detail = "credentials reach LMCache servers only: type LMCache with an lmCache block";
            errors.push(FieldError::forbidden(path, detail));
        }
    }
    if redis.tls.is_some() {
        let detail = "reserved: the pinned adapter has no TLS towards Redis";
        errors.push(FieldError::forbidden(format!("{REDIS}.tls"), detail));
    }
    if redis.database.is_some() {
        let detail = "reserved: the pinned adapter has no database selection";
        errors.push(FieldError::forbidden(format!("{REDIS}.database"), detail));
    }
    errors
}

/// Whether an LMCache server will be there to take credentials.
fn typed_server(spec: &CacheBackendSpec) -> bool {
    let topology = spec.lm_cache.as_ref().map(|lm_cache| &lm_cache.topology);
    *spec.effective_type() == CacheType::LmCache
        && matches!(topology, Some(Topology::PodLocal | Topology::NodeLocal))
        && matches!(spec.runtime.id().as_str(), "vllm" | "sglang")
        && !matches!(&spec.runtime, Runtime::Other(text) if text.is_empty())
}

/// A key of a Secret that must be there. Blanks around name and key do not count.
fn secret(path: &str, selector: &SecretKeySelector, errors: &mut Vec<FieldError>) {
    let (name, key) = (selector.name.trim(), selector.key.trim());
    if name.is_empty() {
        errors.push(FieldError::required(format!("{path}.name"), "give the name of a Secret in this namespace"));
    } else if !is_dns_subdomain(name) {
        let detail = "is no Secret's name: a DNS-1123 subdomain of lower-case letters, digits, '-' and '.'";
        errors.push(FieldError::invalid(format!("{path}.name"), name, detail));
    }
    if key.is_empty() {
        errors.push(FieldError::required(format!("{path}.key"), "give a key of the Secret"));
    } else if !is_secret_key(key) {
        let detail = "is no key of a Secret: at most 253 letters, digits, '-', '_' and '.'";
        errors.push(FieldError::invalid(format!("{path}.key"), key, detail));
    }
    if selector.optional == Some(true) {
        let detail = "credentials must not be optional: without them the server would be refused by Redis";
        errors.push(FieldError::forbidden(format!("{path}.optional"), detail));
    }
}

/// R6–R12.
pub(super) fn managed_resources(backend: &CacheBackend) -> Vec<FieldError> {
    let storage = backend.spec.remote_storage.as_ref().filter(|storage| storage.provider == Provider::Redis);
    let resources = storage.and_then(|storage| storage.redis.as_ref()).and_then(|redis| redis.resources.as_ref());
    resources.map(|resources| check(&format!("{REDIS}.resources"), resources)).unwrap_or_default()
}
