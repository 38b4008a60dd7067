//! What the leader does for the whole cluster, on a real API server: index, policies, Events of Pods, leadership, identity, rights.
//!
//! One control plane for all tests of this file. What runs here writes wherever it finds something, so the tests of the other
//! controllers have another one. Without Go and without KUBEBUILDER_ASSETS the tests say so once and pass.

mod accounts;
mod fakes;
mod identity;
mod leader;
mod rights;
#[path = "../controller/stage.rs"]
mod stage;
