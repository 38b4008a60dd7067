//! The published gRPC surface: a service to mount, and a client that never fails its caller.
//!
//! ```text
//! client::HintClient ──HTTP/2──> faults ──> dispatch ──> service ──> core::Router, core::IndexApi
//!                                  │              ├─ lookup    LookupRoute: deadline, scratch, panics, one observation
//!                                  │              └─ report    ReportCacheState: one message at a time
//!                                  └─ the codes of faults that arise before a request exists, the bounds of what is half sent
//! ```

#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "server")]
pub mod service;

#[cfg(feature = "server")]
mod blocksize;
#[cfg(feature = "server")]
mod budget;
#[cfg(feature = "server")]
mod deadline;
#[cfg(feature = "server")]
mod dispatch;
#[cfg(feature = "server")]
pub mod faults;
#[cfg(feature = "server")]
mod lookup;
#[cfg(feature = "server")]
mod report;
#[cfg(feature = "server")]
mod untaken;

#[cfg(feature = "server")]
pub(crate) use self::untaken::{Held, UNCHARGED};
