//! The published surfaces of InferenceCache: everything that crosses a process boundary.

#[cfg(any(feature = "client", feature = "server"))]
mod generated;
#[cfg(feature = "subscriber")]
pub mod kvevents;
#[cfg(any(feature = "client", feature = "server"))]
pub mod pb;
pub mod policy;
#[cfg(feature = "subscriber")]
pub mod subscriber;
