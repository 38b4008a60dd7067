//! The published surfaces of InferenceCache: everything that crosses a process boundary.
//!
//! ```text
//!  gateway ───gRPC───> grpc ─┐                                    ┌─ kvevents <──ZMQ── engine
//!  controller ─HTTP──> http ─┼─> convert, policy, snapshot ─> core │
//!  scraper ───HTTP───> http ─┘   metrics                          └─ subscriber ──gRPC──> a server
//! ```
//!
//! Mount as much as you need:
//!
//! * one surface in a server of your own: [`grpc::service`] into tonic, [`http::public`] and [`http::bridge`] into axum;
//! * all three listeners with their life cycle: [`server`];
//! * nothing but a client: [`grpc::client`].
//!
//! | Feature | What it adds |
//! |---|---|
//! | `client` | [`grpc::client`], and the stubs in [`pb`] |
//! | `server` | the service, both HTTP surfaces, metrics, and the server around them |
//! | `subscriber` | engine events and the subscriber that forwards them |
//! | `t2-redis` | the self-test's client of a store that speaks the Redis protocol |
//! | `tokenizer` | tokenizers and chat templates, for requests that carry text |
//! | `canary` | whether a live engine reuses the KV of a prompt |
//! | `tls` | TLS and mutual TLS for whoever serves or dials; with `server`, token reviews by an API server |
//! | `testkit` | a fake engine |
//!
//! Each works without the others, and the crate builds without any; what is left then needs no runtime.

pub mod auth;
#[cfg(feature = "canary")]
pub mod canary;
#[cfg(any(feature = "client", feature = "tls"))]
mod chain;
#[cfg(feature = "server")]
pub mod convert;
#[cfg(any(feature = "client", feature = "server"))]
mod generated;
#[cfg(any(feature = "client", feature = "server"))]
pub mod grpc;
#[cfg(feature = "server")]
pub mod hot;
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
#[cfg(feature = "tls")]
pub mod tls;
#[cfg(feature = "tokenizer")]
pub mod tokenize;
