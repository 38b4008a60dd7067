//! What a third party implements.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

use super::error::AdapterError;
use super::pod::engine_container;
use super::value::{Binding, RenderedStorage, RuntimeId, SupportedPair};
use crate::api::CacheBackend;
use crate::api::backend::RemoteStorage;

/// Runs a store, or knows of one that somebody else runs.
///
/// **Callers may assume** that [`render`](Self::render) gives the same answer for the same object, to the byte, and that the
/// result shares nothing with it.
///
/// **Implementers must** look at provider and ownership alone in [`supports`](Self::supports) and never at the engine;
/// refuse what they cannot honour instead of leaving it out; give every container a readiness probe that asks for what a
/// binding needs, the password included; pass credentials as references to Secrets. No I/O, clock, randomness or
/// environment. May be called often and from any thread; must not block.
///
/// Conformance: `testkit::adapters::storage_provider`.
///
/// ```
/// use inferencecache_kube::adapters::{AdapterError, Protocol, RenderedStorage, StorageProvider};
/// use inferencecache_kube::api::CacheBackend;
/// use inferencecache_kube::api::backend::{Ownership, Provider, RemoteStorage};
///
/// /// A Redis that is somebody else's.
/// #[derive(Debug)]
/// struct Theirs;
///
/// impl StorageProvider for Theirs {
///     fn supports(&self, storage: &RemoteStorage) -> bool {
///         storage.provider == Provider::Redis && storage.ownership == Ownership::External
///     }
///
///     fn render(&self, _: &CacheBackend) -> Result<RenderedStorage, AdapterError> {
///         Ok(RenderedStorage { protocol: Protocol::resp(), pod: None, service: None })
///     }
/// }
/// ```
pub trait StorageProvider: Send + Sync {
    /// Whether this provider is meant, by provider and ownership.
    fn supports(&self, storage: &RemoteStorage) -> bool;

    /// Containers, volumes, the Service's type and ports. No metadata, selector, replicas, owner, placement or Pod-level
    /// security: the reconciler derives those.
    ///
    /// # Errors
    /// The object asks for what this provider cannot do. The reconciler backs off and tries again.
    fn render(&self, backend: &CacheBackend) -> Result<RenderedStorage, AdapterError>;
}

/// Wires an engine family to a cache.
///
/// **Callers may assume** that every method answers the same for the same input; that a Pod handed in is never changed and
/// an error means that nothing happened; that wiring twice is wiring once; and that after a change of the object the result
/// is as if the Pod had never been wired before.
///
/// **Implementers must** keep other people's containers, variables, arguments, mounts and volumes in value and order; leave
/// image, command, resources and placement of the engine alone; recognise their own objects by a mark and refuse others of
/// the same name; keep credentials away from the engine. No I/O, clock, randomness or environment. Called at every creation
/// of a matching Pod, from any thread; must not block.
///
/// Integration mode EventsOnly is the caller's: it does not call [`inject_engine`](Self::inject_engine) then. An adapter
/// that can observe engines says so in [`supports`](Self::supports).
///
/// Conformance: `testkit::adapters::runtime_adapter`. A whole adapter: `examples/adapter.rs`.
pub trait RuntimeAdapter: Send + Sync {
    /// Whether this adapter may wire the object at all. Cheap and total: any object, any runtime, no panic.
    fn supports(&self, runtime: &RuntimeId, backend: &CacheBackend) -> bool;

    /// Whether such a binding would be taken; `None` is host memory alone. Asked at admission of a CacheBackend, when no
    /// endpoint is known: must not look at it.
    fn supports_binding(&self, binding: Option<&Binding>) -> bool;

    /// The Pod with the engine wired, completely.
    ///
    /// # Errors
    /// What stands in the way. The Pod is then admitted as it was.
    fn inject_engine(
        &self,
        pod: &PodSpec,
        binding: Option<&Binding>,
        backend: &CacheBackend,
    ) -> Result<PodSpec, AdapterError>;

    /// The Pod of a router, wired. Without a router, the Pod as it is, whatever it is.
    ///
    /// # Errors
    /// What stands in the way.
    fn inject_router(
        &self,
        pod: &PodSpec,
        binding: Option<&Binding>,
        backend: &CacheBackend,
    ) -> Result<PodSpec, AdapterError> {
        let _ = (binding, backend);
        Ok(pod.clone())
    }

    /// The container that observes the engine, or none. It goes to the containers; one with a `restartPolicy` goes to the
    /// init containers, after the others. Identity comes from the downward API, so that the Pod needs no name yet.
    ///
    /// # Errors
    /// It cannot be rendered; the engine is then wired without.
    fn observation_sidecar(&self, backend: &CacheBackend, pod: &Pod) -> Result<Option<Container>, AdapterError> {
        let _ = (backend, pod);
        Ok(None)
    }

    /// Flags that an object's overrides may not touch: those without which the wire breaks, or that a typed field owns.
    /// Compared exactly. What can be tuned stays out.
    fn reserved_args(&self, backend: &CacheBackend) -> &[&'static str] {
        let _ = backend;
        &[]
    }

    /// Variables that an object's overrides may not touch; as [`reserved_args`](Self::reserved_args).
    fn reserved_env(&self, backend: &CacheBackend) -> &[&'static str] {
        let _ = backend;
        &[]
    }

    /// Name of the engine's container, to which overrides apply. Empty: there is no such container and no overrides.
    fn engine_container_name(&self) -> &str {
        ""
    }

    /// Whether that container carries this adapter's wiring. Tells the engine from others when its name does not.
    fn is_wired(&self, container: &Container) -> bool {
        let _ = container;
        false
    }

    /// The index of the engine among the Pod's containers.
    ///
    /// # Errors
    /// It cannot be told; names the containers.
    fn engine_container(&self, pod: &PodSpec) -> Result<usize, AdapterError> {
        engine_container(pod, self.engine_container_name(), |container| self.is_wired(container))
    }

    /// What to list where no adapter is found.
    fn supported_pairs(&self) -> Vec<SupportedPair> {
        Vec::new()
    }

    /// The capability to judge engine Pods of typed LMCache objects. An object with a topology is wired by adapters that
    /// have it, or not at all.
    fn as_mp(&self) -> Option<&dyn MpRuntimeAdapter> {
        None
    }
}

/// An adapter for LMCache's multiprocess server.
pub trait MpRuntimeAdapter: RuntimeAdapter {
    /// Judges what is visible on the concrete Pod: parallelism, page size. What cannot be classified is an error.
    ///
    /// # Errors
    /// Names the flag. The Pod is then admitted unwired.
    fn validate_mp_engine_pod(&self, pod: &Pod, backend: &CacheBackend) -> Result<(), AdapterError>;
}
