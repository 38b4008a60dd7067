//! The published surfaces of InferenceCache: everything that crosses a process boundary.

pub mod auth;
#[cfg(feature = "server")]
pub mod convert;
#[cfg(any(feature = "client", feature = "server"))]
mod generated;
#[cfg(any(feature = "client", feature = "server"))]
pub mod grpc;
#[cfg(feature = "server")]
pub mod http;
#[cfg(feature = "subscriber")]
pub mod kvevents;
#[cfg(feature = "server")]
pub mod metrics;
#[cfg(any(feature = "client", feature = "server"))]
pub mod pb;
pub mod policy;
pub mod probe;
#[cfg(feature = "server")]
pub mod readiness;
#[cfg(feature = "t2-redis")]
pub mod second_tier;
#[cfg(feature = "server")]
pub mod server;
#[cfg(feature = "server")]
pub mod snapshot;
mod strict;
#[cfg(feature = "subscriber")]
pub mod subscriber;
#[cfg(feature = "testkit")]
pub mod testkit;
