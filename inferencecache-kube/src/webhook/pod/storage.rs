//! Where the store behind a backend is, as far as it is known now.

use crate::adapters::endpoint::host_port;
use crate::adapters::{AdapterError, Binding, RuntimeAdapter, binding_for, protocol_for};
use crate::api::CacheBackend;
use crate::api::backend::{Ownership, RemoteStorage};

/// The binding for the adapter; none where host memory is all there is.
///
/// A store that is somebody else's is where the spec says; the status is a report, and an old one may name another store.
/// A managed one is where its reconciler found it, once it did.
///
/// # Errors
/// A store that nobody speaks to, one that the adapter does not take, one whose address is not known.
pub(super) fn binding(backend: &CacheBackend, adapter: &dyn RuntimeAdapter) -> Result<Option<Binding>, AdapterError> {
    let storage = backend.spec.remote_storage.as_ref();
    let protocol = protocol_for(storage)?;
    let endpoint = storage.map(|storage| endpoint(backend, storage)).unwrap_or_default();
    let binding = binding_for(storage, protocol, endpoint);
    if !adapter.supports_binding(binding.as_ref()) {
        let what = match &binding {
            Some(binding) => format!("{:?} is not what this engine can use", binding.protocol.as_str()),
            None => "this engine needs a store".to_owned(),
        };
        return Err(AdapterError::Binding(what));
    }
    if binding.is_some() && endpoint.is_empty() && !backend.spec.events_only() {
        return Err(match storage {
            Some(storage) if storage.ownership == Ownership::External => {
                AdapterError::backend("spec.remoteStorage.endpoint", "names no host:port")
            }
            _ => AdapterError::backend(
                "status.remoteStorage.endpoint",
                "is not known yet; Pods created later will be wired",
            ),
        });
    }
    Ok(binding)
}

/// `host:port`, or nothing.
fn endpoint<'a>(backend: &'a CacheBackend, storage: &'a RemoteStorage) -> &'a str {
    if storage.ownership == Ownership::External {
        let endpoint = storage.endpoint.as_deref().unwrap_or_default().trim();
        return if host_port(endpoint).is_ok() { endpoint } else { "" };
    }
    let typed = backend.spec.lm_cache.as_ref().is_some_and(|lm_cache| !lm_cache.topology.as_str().is_empty());
    let published = backend.status.as_ref().and_then(|status| status.remote_storage.as_ref()?.endpoint.as_deref());
    published.filter(|_| typed).unwrap_or_default().trim()
}
