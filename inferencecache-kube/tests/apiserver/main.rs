//! The definitions and the admission rules on a real API server.
//!
//! One control plane for all tests of this file, one admission listener, the shipped webhook configurations. Each test has
//! namespaces of its own. Without Go and without KUBEBUILDER_ASSETS the tests say so once and pass.

mod manifests;
mod outages;
mod pods;
mod stage;
mod stories;
