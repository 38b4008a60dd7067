//! What runs a managed store: one Deployment and the Service in front of it, both named after the object.
//!
//! ```text
//!  provider's RenderedStorage ─▶ render ─▶ Desired ─┐
//!                                                   ├─▶ merge ─▶ what to write, or nothing
//!  live object (JSON, fields unknown here included) ┘
//! ```
//!
//! A merge forces the fields that the object owns and keeps every other one, so that what an API server fills in and what a
//! newer one knows survives. Sidecars and volumes of others do not: the Pod is ours.

mod adopt;
mod merge;
mod render;

pub(super) use self::adopt::{deployment as deployment_adoption, service as service_adoption};
pub(super) use self::merge::{deployment as merge_deployment, service as merge_service};
pub use self::render::{Desired, render};

use k8s_openapi::api::core::v1::Service;

/// The most that a name of a Service may have, in bytes.
const SERVICE_NAME: usize = 63;

/// `NAME.NAMESPACE.svc.cluster.local:PORT` of a Service's first port; `None` without one.
#[must_use]
pub fn endpoint(service: &Service) -> Option<String> {
    let port = service.spec.as_ref()?.ports.as_ref()?.first()?.port;
    let meta = &service.metadata;
    Some(format!("{}.{}.svc.cluster.local:{port}", meta.name.as_deref()?, meta.namespace.as_deref()?))
}

/// Whether a Service can have the name of a CacheBackend, which may hold dots and be longer.
#[must_use]
pub fn can_name_service(name: &str) -> bool {
    !name.contains('.') && name.len() <= SERVICE_NAME
}
