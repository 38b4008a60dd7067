//! What tests and tools need: the published files, and a real API server.

pub mod manifests;
