//! The gate: an init container that lets the engine start once its node's server is the one this CacheBackend wants.
//!
//! It asks the server for its configuration and compares instance, shared memory (the pool in use, not only the one asked
//! for), ports, chunk size and workers, then asks for its health. That tells the right server from a leftover one; it is no
//! authentication. It waits for as long as it takes and says why.

use k8s_openapi::api::core::v1::{Container, ResourceRequirements, VolumeMount};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::node_local::{CONFIG_FILE, Identity};
use super::server::security_context;
use super::settings::NodeLocal;
use crate::adapters::pod::{env, env_from_field};
use crate::api::names;

/// Run by the server image's Python; standard library only.
pub const PROGRAM: &str = include_str!("../programs/gate.py");

/// The gate's container; with a mount it also writes the client's settings there.
pub(crate) fn container(settings: &NodeLocal, identity: &Identity, config: Option<VolumeMount>) -> Container {
    let server = &settings.server;
    let config_file = if config.is_some() { CONFIG_FILE } else { "" };
    let amounts = |list: &[(&str, &str)]| {
        Some(list.iter().map(|(name, amount)| ((*name).to_owned(), Quantity((*amount).to_owned()))).collect())
    };
    Container {
        name: names::NODE_GATE_CONTAINER.to_owned(),
        image: Some(server.image.clone()),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        command: Some(vec!["python3".to_owned(), "-c".to_owned()]),
        args: Some(vec![PROGRAM.to_owned()]),
        env: Some(vec![
            env(names::NODE_GATE_MARK, "true"),
            env_from_field(names::NODE_IP, "status.hostIP"),
            env("EXPECTED_INSTANCE_ID", identity.instance_id.clone()),
            env("EXPECTED_SHM_NAME", identity.shm_name.clone()),
            env("EXPECTED_MP_PORT", server.port.to_string()),
            env("EXPECTED_HTTP_PORT", settings.http_port.to_string()),
            env("EXPECTED_CHUNK_SIZE", server.chunk_size.to_string()),
            env("EXPECTED_MAX_GPU_WORKERS", settings.max_gpu_workers.to_string()),
            env("EXPECTED_MAX_CPU_WORKERS", settings.max_cpu_workers.to_string()),
            env("CLIENT_CONFIG_PATH", config_file),
        ]),
        resources: Some(ResourceRequirements {
            requests: amounts(&[("cpu", "10m"), ("memory", "32Mi")]),
            limits: amounts(&[("memory", "128Mi")]),
            claims: None,
        }),
        volume_mounts: config.map(|mount| vec![mount]),
        security_context: Some(security_context()),
        ..Container::default()
    }
}
