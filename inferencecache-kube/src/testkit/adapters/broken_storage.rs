//! Storage providers with one fault each, to prove that the suite notices.

use std::sync::atomic::{AtomicU32, Ordering};

use k8s_openapi::api::core::v1::{HostPathVolumeSource, PodSpec, SecurityContext, Service, Volume};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::rules::Rule;
use crate::adapters::{AdapterError, Protocol, RenderedStorage, StorageProvider};
use crate::api::CacheBackend;
use crate::api::backend::{RedisAuthentication, RemoteStorage};

/// What is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StorageFault {
    /// Supports what somebody else runs.
    IgnoresOwnership,
    /// Supports only what has particulars.
    WantsParticulars,
    /// Numbers its renderings.
    CountsCalls,
    /// Names the Service.
    SetsMetadata,
    /// Places the Pod.
    PlacesPod,
    /// Points the Service at a port that no container has.
    WrongTarget,
    /// Leaves the Service's protocol to chance.
    OmitsProtocol,
    /// Has no readiness probe.
    NeverReady,
    /// Counts an open port as ready, whatever the password.
    SkipsPassword,
    /// Puts the Secret's name into the arguments.
    NamesSecret,
    /// Leaves the password out.
    ForgetsSecret,
    /// Leaves out what it cannot do.
    IgnoresUnsupported,
    /// Renders objects for somebody else's store.
    RendersExternal,
    /// Names no protocol.
    SpeaksNothing,
    /// Runs with every right.
    Privileged,
    /// Takes a directory of the node.
    HostPath,
    /// Opens a port on every node.
    OpensNodePort,
}

impl StorageFault {
    /// All of them, each with the rule that must catch it.
    pub const ALL: [(Self, Rule); 17] = [
        (Self::IgnoresOwnership, Rule::P1),
        (Self::WantsParticulars, Rule::P1),
        (Self::CountsCalls, Rule::P2),
        (Self::SetsMetadata, Rule::P4),
        (Self::PlacesPod, Rule::P4),
        (Self::WrongTarget, Rule::P5),
        (Self::OmitsProtocol, Rule::P5),
        (Self::NeverReady, Rule::P6),
        (Self::SkipsPassword, Rule::P6),
        (Self::NamesSecret, Rule::P7),
        (Self::ForgetsSecret, Rule::P7),
        (Self::IgnoresUnsupported, Rule::P8),
        (Self::RendersExternal, Rule::P9),
        (Self::SpeaksNothing, Rule::P9),
        (Self::Privileged, Rule::P10),
        (Self::HostPath, Rule::P10),
        (Self::OpensNodePort, Rule::P10),
    ];
}

/// A right provider with one fault.
pub struct BrokenStorage<'a> {
    inner: &'a dyn StorageProvider,
    fault: StorageFault,
    calls: AtomicU32,
}

impl<'a> BrokenStorage<'a> {
    /// Breaks a provider.
    #[must_use]
    pub fn new(inner: &'a dyn StorageProvider, fault: StorageFault) -> Self {
        Self { inner, fault, calls: AtomicU32::new(0) }
    }

    fn spoil(&self, rendered: &mut RenderedStorage, authentication: Option<&RedisAuthentication>) {
        match self.fault {
            StorageFault::SpeaksNothing => rendered.protocol = Protocol::new(""),
            StorageFault::RendersExternal => {
                rendered.service.get_or_insert_default();
            }
            _ => {}
        }
        if let Some(service) = &mut rendered.service {
            self.spoil_service(service);
        }
        let Some(pod) = &mut rendered.pod else { return };
        match self.fault {
            StorageFault::PlacesPod => pod.node_name = Some("node-a".to_owned()),
            StorageFault::HostPath => {
                let host_path = Some(HostPathVolumeSource { path: "/data".to_owned(), type_: None });
                pod.volumes = Some(vec![Volume { name: "data".to_owned(), host_path, ..Volume::default() }]);
            }
            _ => {}
        }
        self.spoil_container(pod, authentication);
    }

    fn spoil_service(&self, service: &mut Service) {
        let spec = service.spec.get_or_insert_default();
        let port = spec.ports.get_or_insert_default().first_mut();
        match (self.fault, port) {
            (StorageFault::SetsMetadata, _) => service.metadata.name = Some("store".to_owned()),
            (StorageFault::OpensNodePort, _) => spec.type_ = Some("NodePort".to_owned()),
            (StorageFault::WrongTarget, Some(port)) => port.target_port = Some(IntOrString::String("other".to_owned())),
            (StorageFault::OmitsProtocol, Some(port)) => port.protocol = None,
            _ => {}
        }
    }

    fn spoil_container(&self, pod: &mut PodSpec, authentication: Option<&RedisAuthentication>) {
        let Some(container) = pod.containers.first_mut() else { return };
        match self.fault {
            StorageFault::CountsCalls => {
                let call = self.calls.fetch_add(1, Ordering::Relaxed);
                container.args.get_or_insert_default().push(format!("--call={call}"));
            }
            StorageFault::NeverReady => container.readiness_probe = None,
            StorageFault::SkipsPassword => {
                if let Some(probe) = &mut container.readiness_probe {
                    probe.exec = None;
                }
            }
            StorageFault::NamesSecret => {
                let names = authentication.map(|authentication| authentication.password.name.clone());
                container.args.get_or_insert_default().extend(names);
            }
            StorageFault::ForgetsSecret => container.env = None,
            StorageFault::Privileged => {
                container.security_context =
                    Some(SecurityContext { privileged: Some(true), ..SecurityContext::default() });
            }
            _ => {}
        }
    }
}

impl StorageProvider for BrokenStorage<'_> {
    fn supports(&self, storage: &RemoteStorage) -> bool {
        match self.fault {
            StorageFault::IgnoresOwnership => !matches!(storage.provider.as_str(), "" | "NoSuchProvider"),
            StorageFault::WantsParticulars => storage.redis.is_some() && self.inner.supports(storage),
            _ => self.inner.supports(storage),
        }
    }

    fn render(&self, backend: &CacheBackend) -> Result<RenderedStorage, AdapterError> {
        let mut backend = backend.clone();
        let redis = backend.spec.remote_storage.as_mut().and_then(|storage| storage.redis.as_mut());
        if let Some(authentication) = redis.and_then(|redis| redis.authentication.as_mut())
            && self.fault == StorageFault::IgnoresUnsupported
        {
            authentication.username = None;
        }
        let mut rendered = self.inner.render(&backend)?;
        let redis = backend.spec.remote_storage.as_ref().and_then(|storage| storage.redis.as_ref());
        self.spoil(&mut rendered, redis.and_then(|redis| redis.authentication.as_ref()));
        Ok(rendered)
    }
}

impl std::fmt::Debug for BrokenStorage<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BrokenStorage").field("fault", &self.fault).finish_non_exhaustive()
    }
}
