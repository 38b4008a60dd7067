//! CacheTenant: an identity that requests carry, and its budget of index entries.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::open_enum::{absent_if_empty, open_enum, optional_at_root};

open_enum! {
    /// How tenants are kept apart.
    pub enum IsolationMode {
        /// By budgets of the shared index.
        Fairness = "Fairness",
    }
}

/// An identity and its budget.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "inferencecache.io",
    version = "v1alpha1",
    kind = "CacheTenant",
    plural = "cachetenants",
    shortname = "ct",
    namespaced,
    schema = "disabled",
    status = "CacheTenantStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "An identity that requests carry, and its budget of index entries.",
    printcolumn(name = "Tenant", type_ = "string", json_path = ".spec.tenantID"),
    printcolumn(name = "Entries", type_ = "integer", json_path = ".status.indexEntries"),
    printcolumn(name = "Quota", type_ = "integer", json_path = ".spec.quota.maxIndexEntries"),
    printcolumn(name = "Isolation", type_ = "string", json_path = ".spec.isolationMode"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase", default, remote = "Self")]
pub struct CacheTenantSpec {
    /// Identity that gateways and engines send. It has nothing to do with the object's name, and the index knows no
    /// namespaces.
    #[serde(rename = "tenantID")]
    #[schemars(length(min = 1))]
    pub tenant_id: String,
    /// Budget; absent is unbounded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quota: Option<TenantQuota>,
    /// How tenants are kept apart.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "absent_if_empty")]
    #[schemars(extend("x-default" = "Fairness"))]
    pub isolation_mode: Option<IsolationMode>,
    /// Reserved; must stay empty.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "empty_object")]
    pub crypto: Option<BTreeMap<String, serde_json::Value>>,
}

optional_at_root!(CacheTenantSpec);

/// Content is kept so that it can be refused; pruned, it would be swallowed.
fn empty_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "maxProperties": 0, "x-kubernetes-preserve-unknown-fields": true})
}

/// What a tenant may use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TenantQuota {
    /// Distinct index keys, whatever the number of replicas that hold one. Above it the oldest entries of the tenant go; 0 is
    /// a budget, absent is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub max_index_entries: Option<i64>,
}

/// What was observed of a tenant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CacheTenantStatus {
    /// Generation that the observation saw.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Distinct keys; 0 is written for an idle tenant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index_entries: Option<i64>,
    /// Ready and QuotaExceeded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}
