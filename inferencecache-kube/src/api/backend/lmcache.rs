//! LMCache as a multiprocess server, beside each engine or once on each node.

use k8s_openapi::api::core::v1::{LocalObjectReference, PodSecurityContext, ResourceRequirements, Toleration};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::open_enum;

/// Tokens per chunk where none is given.
pub const DEFAULT_CHUNK_SIZE_TOKENS: i32 = 256;

open_enum! {
    /// Where the server runs.
    pub enum Topology {
        /// One server in each engine Pod.
        PodLocal = "PodLocal",
        /// One server on each node that has a selected engine.
        NodeLocal = "NodeLocal",
    }
}

/// LMCache as a multiprocess server. The block named by `topology` is given, the other is not.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct LmCache {
    /// One server per engine Pod, or one per node.
    pub topology: Topology,
    /// Tokens per chunk, on both sides. Read as 256 where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub chunk_size_tokens: Option<i32>,
    /// The server beside each engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod_local: Option<PodLocal>,
    /// The server on each node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_local: Option<NodeLocal>,
}

impl LmCache {
    /// Tokens per chunk.
    #[must_use]
    pub fn effective_chunk_size(&self) -> i32 {
        self.chunk_size_tokens.unwrap_or(DEFAULT_CHUNK_SIZE_TOKENS)
    }
}

/// One server in each engine Pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodLocal {
    /// The server, injected as a native sidecar. Required; `None` only in objects that bypassed the schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-required" = true))]
    pub server: Option<PodLocalServer>,
}

/// The server in an engine Pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PodLocalServer {
    /// Image with its sha256 digest. Never the image of the engine.
    pub image: String,
    /// Port of the connector on loopback; neither 5557 nor 8080.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    /// Usable host memory. Shared memory is sized to this and 1Gi more.
    #[schemars(extend("x-kubernetes-validations" = super::positive_capacity()))]
    pub l1_capacity: Quantity,
    /// Bound on workers.
    #[schemars(range(min = 1))]
    pub max_workers: i32,
    /// Resources of the sidecar. Memory covers `l1Capacity` and 1Gi.
    pub resources: ResourceRequirements,
}

/// One server on each node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeLocal {
    /// Seconds that a server stays after the last engine of its node has left; 0 removes it at once.
    #[schemars(range(min = 0, max = 86400), extend("x-default" = 300))]
    pub idle_retention_seconds: i32,
    /// The server. Required; `None` only in objects that bypassed the schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-required" = true))]
    pub server: Option<NodeLocalServer>,
    /// How server Pods are run. Where they run follows the engines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduling: Option<NodeLocalScheduling>,
}

/// The server on a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeLocalServer {
    /// Image with its sha256 digest; engines wait for the server with the same image.
    pub image: String,
    /// Host port of the data listener.
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    /// Host port of the health and control listener; another one than `port`.
    #[schemars(range(min = 1, max = 65535))]
    pub http_port: i32,
    /// Usable host memory, shared by the engines of the node.
    #[schemars(extend("x-kubernetes-validations" = super::positive_capacity()))]
    pub l1_capacity: Quantity,
    /// Engines that the server can serve; it covers those expected on one node.
    #[serde(rename = "maxGPUWorkers")]
    #[schemars(range(min = 1))]
    pub max_gpu_workers: i32,
    /// Workers for storage.
    #[serde(rename = "maxCPUWorkers")]
    #[schemars(range(min = 1))]
    pub max_cpu_workers: i32,
    /// Resources of the server. Memory covers `l1Capacity` and 1Gi; GPUs cannot be reserved.
    pub resources: ResourceRequirements,
}

/// How server Pods are run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeLocalScheduling {
    /// Added to those of an engine on the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tolerations: Option<Vec<Toleration>>,
    /// Added by name to those of the engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_pull_secrets: Option<Vec<LocalObjectReference>>,
    /// Not taken over from the engine; absent is the namespace's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
    /// Not taken over from the engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub security_context: Option<PodSecurityContext>,
    /// Absent, that of the engine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// Absent, that of the engine, else the default scheduler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduler_name: Option<String>,
    /// Absent, that of the engine. It can give sight of GPUs without reserving one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_class_name: Option<String>,
    /// Seconds to end in; 30 where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub termination_grace_period_seconds: Option<i64>,
}
