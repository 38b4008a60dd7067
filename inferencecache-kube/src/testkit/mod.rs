//! What tests and tools need: the published files, conformance suites for adapters, and a real API server.

pub mod adapters;
mod binaries;
pub mod cluster;
pub mod manifests;
pub mod nodes;
