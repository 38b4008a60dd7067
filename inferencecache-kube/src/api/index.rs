//! CacheIndex: the policy server's aggregate, mirrored. One object, `cluster-default`, one writer, no conditions.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::open_enum::optional_at_root;

/// Nothing can be configured.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "inferencecache.io",
    version = "v1alpha1",
    kind = "CacheIndex",
    plural = "cacheindices",
    shortname = "ci",
    schema = "disabled",
    status = "CacheIndexStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "Mirror of the policy server's aggregate.",
    printcolumn(name = "Prefixes", type_ = "integer", json_path = ".status.prefixes.summary.total"),
    printcolumn(name = "Changed", type_ = "date", json_path = ".status.lastUpdated"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase", default, remote = "Self")]
pub struct CacheIndexSpec {}

optional_at_root!(CacheIndexSpec);

/// The aggregate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CacheIndexStatus {
    /// Replicas that reported statistics, by id.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["id"]))]
    pub replicas: Vec<IndexReplica>,
    /// Tenants, in the server's order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["id"]))]
    pub tenants: Vec<IndexTenant>,
    /// Prefixes of all tenants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefixes: Option<Prefixes>,
    /// Address of the snapshot that was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_server: Option<String>,
    /// When the data last changed, not when it was last read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_updated: Option<Time>,
}

/// One replica.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct IndexReplica {
    /// Name of the engine Pod.
    pub id: String,
    /// Namespace that reported it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Bytes of the engine's cache, for all tenants.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_memory_bytes: Option<i64>,
    /// Rolling hit rate, 0 to 1; absent while none was reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hit_rate: Option<String>,
    /// Memory pressure, 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pressure: Option<String>,
    /// When this row last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_update: Option<Time>,
}

/// One tenant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct IndexTenant {
    /// Its identity; empty for what belongs to no tenant.
    pub id: String,
    /// Distinct keys; they add up to the total of prefixes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index_entries: Option<i64>,
    /// Mean hit rate of its replicas; absent while none reported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hit_rate: Option<String>,
    /// Deprecated: always 0, always written, gone with v1beta1.
    #[schemars(extend("x-optional" = true))]
    pub memory_used: i64,
}

/// Prefixes of all tenants.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Prefixes {
    /// Their number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<PrefixSummary>,
}

/// Numbers of prefixes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PrefixSummary {
    /// Distinct keys.
    pub total: i64,
    /// Reserved: 0.
    pub hot: i64,
}
