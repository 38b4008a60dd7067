//! The one decision that both engines share: beside the engine, or on its node.

use k8s_openapi::api::core::v1::PodSpec;

use super::node_local::{self, Identity};
use super::{pod_local, settings};
use crate::adapters::error::AdapterError;
use crate::adapters::value::{Binding, Protocol};
use crate::api::CacheBackend;
use crate::api::backend::Topology;

/// An object's server, checked.
#[derive(Debug)]
pub(crate) enum Plan {
    /// Beside the engine.
    PodLocal(settings::PodLocal),
    /// On its node.
    NodeLocal(settings::NodeLocal),
}

impl Plan {
    /// # Errors
    /// No LMCache block, an unknown topology, its server missing or senseless.
    pub(crate) fn of(backend: &CacheBackend) -> Result<Self, AdapterError> {
        match &settings::lm_cache(backend)?.topology {
            Topology::PodLocal => settings::pod_local(backend).map(Self::PodLocal),
            Topology::NodeLocal => settings::node_local(backend).map(Self::NodeLocal),
            other => Err(AdapterError::backend(
                "spec.lmCache.topology",
                format!("is {:?}; it must be one of {}", other.as_str(), Topology::ALLOWED.join(", ")),
            )),
        }
    }

    /// Adds the server or the gate and what engine and server share.
    ///
    /// # Errors
    /// What stands in the way; the Pod given is untouched.
    pub(crate) fn wire(
        &self,
        pod: &PodSpec,
        engine: usize,
        binding: Option<&Binding>,
        backend: &CacheBackend,
        client: Client,
    ) -> Result<PodSpec, AdapterError> {
        let mut pod = pod.clone();
        match self {
            Self::PodLocal(_) => node_local::unwire(&mut pod, engine, client.env),
            Self::NodeLocal(_) => pod_local::unwire(&mut pod, engine, client.env),
        }
        let write_config = client.reads_file;
        match self {
            Self::PodLocal(settings) => pod_local::wire(pod, engine, settings, binding, write_config),
            Self::NodeLocal(settings) => {
                // The store is the server's affair, but a binding that it will refuse must not leave engines waiting.
                super::server::l2_adapter(binding)?;
                node_local::wire(pod, engine, settings, &Identity::of(backend)?, write_config)
            }
        }
    }

    /// Whether the Pod was wired this way before.
    pub(crate) fn is_wired(&self, pod: &PodSpec) -> bool {
        match self {
            Self::PodLocal(_) => pod_local::is_wired(pod),
            Self::NodeLocal(_) => node_local::is_wired(pod),
        }
    }

    /// Where the engine finds the server, for a connector.
    pub(crate) fn address(&self) -> (String, u16) {
        match self {
            Self::PodLocal(settings) => ("tcp://127.0.0.1".to_owned(), settings.server.port),
            Self::NodeLocal(settings) => (format!("tcp://$({})", crate::api::names::NODE_IP), settings.server.port),
        }
    }

    /// The file with the client's settings.
    pub(crate) fn config_file(&self) -> &'static str {
        match self {
            Self::PodLocal(_) => pod_local::CONFIG_FILE,
            Self::NodeLocal(_) => node_local::CONFIG_FILE,
        }
    }
}

/// What the engine needs of the wiring.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Client {
    /// It reads its settings from a file.
    pub(crate) reads_file: bool,
    /// Variables that its adapter sets; they go with the wiring of another topology.
    pub(crate) env: &'static [&'static str],
}

/// Whether an object is one that LMCache adapters take: of that type, and with a topology or for its events alone.
pub(crate) fn is_typed(backend: &CacheBackend) -> bool {
    use crate::api::backend::CacheType;
    let spec = &backend.spec;
    let typed = spec.lm_cache.as_ref().is_some_and(|lm_cache| !matches!(lm_cache.topology, Topology::Other(_)));
    *spec.effective_type() == CacheType::LmCache && (spec.events_only() || typed)
}

/// Whether LMCache reaches what a binding speaks: RESP, or nothing beside host memory.
pub(crate) fn reaches(binding: Option<&Binding>) -> bool {
    binding.is_none_or(|binding| binding.protocol == Protocol::resp())
}
