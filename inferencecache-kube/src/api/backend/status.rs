//! What was observed of a CacheBackend. Absent means not observed yet; a zero that is there was observed.
//!
//! Two writers share it and touch only their own members: the backend reconciler, and the index poller
//! (`indexParticipation`).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::lmcache::Topology;
use super::storage::Provider;
use super::{absent_if_empty, open_enum};

open_enum! {
    /// Kind of connector.
    pub enum ConnectorMode {
        /// A server process of its own.
        Multiprocess = "Multiprocess",
    }
}

/// What was observed of a CacheBackend.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CacheBackendStatus {
    /// Generation that was reconciled last.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub observed_generation: Option<i64>,
    /// The fail-open setting in force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fail_open: Option<bool>,
    /// Pods that match the selector, ending and finished ones included. `connector.matchedEnginePods` leaves those out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub matched_engine_pods: Option<i32>,
    /// Why no Pod matches although engines are expected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine_selector_message: Option<String>,
    /// The connector, for LMCache as a multiprocess server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connector: Option<ConnectorStatus>,
    /// The shared tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_storage: Option<RemoteStorageStatus>,
    /// When an event was first seen. Never taken back.
    #[serde(rename = "firstKVEventObservedAt", skip_serializing_if = "Option::is_none")]
    pub first_kv_event_observed_at: Option<Time>,
    /// Start of the wait for the first event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_available_at: Option<Time>,
    /// This backend's part of the index.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index_participation: Option<IndexParticipation>,
    /// Health, one condition per question.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// The connector of an LMCache server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ConnectorStatus {
    /// Kind of connector.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "absent_if_empty")]
    pub mode: Option<ConnectorMode>,
    /// Where the servers run.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "absent_if_empty")]
    pub topology: Option<Topology>,
    /// Selected Pods that are neither ending nor finished.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0))]
    pub matched_engine_pods: i32,
    /// Pods that are ready and covered.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0))]
    pub ready_engine_pods: i32,
    /// Servers there should be.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0))]
    pub desired_servers: i32,
    /// Servers that are healthy.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0))]
    pub ready_servers: i32,
    /// Pods wired at this generation and served by exactly one healthy server.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0))]
    pub covered_engine_pods: i32,
    /// Pods that are not.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0))]
    pub uncovered_engine_pods: i32,
    /// One row per active selected Pod, by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub engine_pod_coverage: Vec<EnginePodCoverage>,
}

/// Coverage of one engine Pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EnginePodCoverage {
    /// Name of the Pod.
    pub name: String,
    /// Node it is on; absent while it is on none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_name: Option<String>,
    /// Whether the Pod is ready.
    pub ready: bool,
    /// Whether it is covered.
    pub covered: bool,
    /// Why it is, or is not.
    pub reason: String,
}

/// The shared tier.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RemoteStorageStatus {
    /// What it is.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "absent_if_empty")]
    pub provider: Option<Provider>,
    /// Managed: the address of the live Service. External: what the spec says, without blanks around it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// `True`, `False` or `Unknown`; repeats the condition RemoteStorageReady.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<String>,
}

/// A backend's part of the index.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct IndexParticipation {
    /// Prefixes of the replicas that belong to this backend.
    #[schemars(range(min = 0))]
    pub prefix_count: i64,
    /// Latest event; absent once the replicas have drained.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_event_at: Option<Time>,
    /// Reserved; never written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hit_rate: Option<String>,
    /// Hits of the shared tier by its queries, 0 to 1, over the engines' lifetime; absent while it was never asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub t2_hit_rate: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde calls")]
fn is_zero(value: &i32) -> bool {
    *value == 0
}
