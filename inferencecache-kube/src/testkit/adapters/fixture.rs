//! What a suite is run on: an object, a Pod and a binding that the adapter accepts, and what is near them.

use k8s_openapi::api::core::v1::{Pod, PodSpec};

use crate::adapters::{Binding, RuntimeId};
use crate::api::CacheBackend;

/// An object as it is after an edit.
#[derive(Debug, Clone)]
pub struct Edit {
    /// For reports.
    pub name: String,
    /// The object.
    pub backend: CacheBackend,
    /// The binding.
    pub binding: Option<Binding>,
}

/// Something that the adapter accepts, and what is near it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct RuntimeFixture {
    /// For reports.
    pub name: String,
    /// The object.
    pub backend: CacheBackend,
    /// The binding; none is host memory alone.
    pub binding: Option<Binding>,
    /// A plain engine Pod that the adapter wires.
    pub pod: Pod,
    /// Later states of the object, on which the Pod converges.
    pub edits: Vec<Edit>,
    /// Objects that lack what wiring needs.
    pub refused_objects: Vec<(String, CacheBackend)>,
    /// Pods that [`validate_mp_engine_pod`](crate::adapters::MpRuntimeAdapter::validate_mp_engine_pod) refuses.
    pub refused_pods: Vec<(String, Pod)>,
    /// Injected flags and variables that may be overridden or left out without breaking the wire.
    pub overridable: Vec<String>,
    /// The Pod as it comes out, sidecar included.
    pub worked: Option<PodSpec>,
}

impl RuntimeFixture {
    /// Without edits, refusals and a worked Pod.
    #[must_use]
    pub fn new(name: &str, backend: CacheBackend, binding: Option<Binding>, pod: Pod) -> Self {
        Self {
            name: name.to_owned(),
            backend,
            binding,
            pod,
            edits: Vec::new(),
            refused_objects: Vec::new(),
            refused_pods: Vec::new(),
            overridable: Vec::new(),
            worked: None,
        }
    }

    /// With a later state of the object.
    #[must_use]
    pub fn edit(mut self, name: &str, backend: CacheBackend, binding: Option<Binding>) -> Self {
        self.edits.push(Edit { name: name.to_owned(), backend, binding });
        self
    }

    /// With an object that lacks something.
    #[must_use]
    pub fn refuse_object(mut self, name: &str, backend: CacheBackend) -> Self {
        self.refused_objects.push((name.to_owned(), backend));
        self
    }

    /// With a Pod that cannot be classified.
    #[must_use]
    pub fn refuse_pod(mut self, name: &str, pod: Pod) -> Self {
        self.refused_pods.push((name.to_owned(), pod));
        self
    }

    /// With a flag or variable that may be overridden.
    #[must_use]
    pub fn overridable(mut self, token: &str) -> Self {
        self.overridable.push(token.to_owned());
        self
    }

    /// With the Pod as it comes out, sidecar included.
    #[must_use]
    pub fn worked(mut self, pod: PodSpec) -> Self {
        self.worked = Some(pod);
        self
    }

    pub(super) fn runtime(&self) -> RuntimeId {
        RuntimeId::of(Some(&self.backend))
    }

    pub(super) fn spec(&self) -> PodSpec {
        self.pod.spec.clone().unwrap_or_default()
    }
}
