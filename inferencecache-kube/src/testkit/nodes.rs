//! Controllers, a scheduler and simulated nodes beside an API server.
//!
//! ```text
//!  Deployment ──controller-manager──> Pods ──scheduler──> nodes of the test ──kwok──> Running, Ready, 127.1.x.y
//! ```
//!
//! A test creates the nodes that it wants, with their labels, taints and capacities; they become Ready by themselves. Nothing
//! runs in the Pods, and their addresses are ones that a process of this machine can listen on. There is no kube-proxy and
//! no DNS.

use std::fs;
use std::sync::OnceLock;

use super::binaries::{API_SERVER, NODES};
use super::cluster::{ClusterError, ControlPlane, free_ports};

/// Addresses of the Pods.
pub const POD_ADDRESSES: &str = "127.1.0.0/16";
const STAGES: &str = include_str!("stages.yaml");

impl ControlPlane {
    /// The one of this process with controllers and nodes, started on first use; apart from [`Self::shared`]. `None`, with one
    /// line on stderr, where there are no tools for it.
    ///
    /// # Panics
    /// When the tools are there and it cannot be started.
    #[must_use]
    pub fn shared_with_nodes() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<ControlPlane>> = OnceLock::new();
        SHARED.get_or_init(|| Self::unless_impossible(Self::start_with_nodes())).as_ref()
    }

    /// Starts one, and waits until Pods can be created.
    ///
    /// # Errors
    /// [`ClusterError`].
    pub fn start_with_nodes() -> Result<Self, ClusterError> {
        let parts: Vec<&str> = API_SERVER.into_iter().chain(NODES).collect();
        let plane = Self::boot(&parts, &[])?;
        let file = |name: &str| plane.folder().join(name).display().to_string();
        fs::write(plane.folder().join("stages.yaml"), STAGES)?;
        let kubeconfig = format!("--kubeconfig={}", plane.kubeconfig().display());
        for (name, more) in [
            (
                "kube-controller-manager",
                vec![
                    format!("--service-account-private-key-file={}", file("sa.key")),
                    format!("--root-ca-file={}", file("ca.crt")),
                    "--use-service-account-credentials=false".to_owned(),
                ],
            ),
            ("kube-scheduler", Vec::new()),
        ] {
            let [port] = free_ports()?;
            let mut arguments = vec![kubeconfig.clone(), "--leader-elect=false".to_owned()];
            arguments.extend(["--bind-address=127.0.0.1".to_owned(), format!("--secure-port={port}")]);
            arguments.push(format!("--cert-dir={}", file(&format!("{name}-certs"))));
            arguments.extend(more);
            plane.launch(name, &arguments)?;
        }
        plane.launch(
            "kwok",
            &[
                kubeconfig,
                "--manage-all-nodes=true".to_owned(),
                format!("--cidr={POD_ADDRESSES}"),
                "--node-ip=127.0.0.1".to_owned(),
                format!("--config={}", file("stages.yaml")),
            ],
        )?;
        plane.wait_until(&["get", "serviceaccount", "default"])?;
        Ok(plane)
    }
}
