//! The controller's parts on a real API server: nothing but it and its store, so the tests play kubelet and scheduler.
//!
//! One control plane for all tests of this file; each test has a namespace of its own. Without Go and without
//! KUBEBUILDER_ASSETS the tests say so once and pass.

mod children;
mod stage;
mod status;
mod writes;
