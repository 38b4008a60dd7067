//! PDTopology: pools of engines that only prefill or only decode. Declared; nothing acts on it yet.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::open_enum::optional_at_root;

/// Pools and the accelerators they run on.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "inferencecache.io",
    version = "v1alpha1",
    kind = "PDTopology",
    plural = "pdtopologies",
    shortname = "pdt",
    namespaced,
    schema = "disabled",
    status = "PDTopologyStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "Pools of engines that only prefill or only decode.",
    printcolumn(name = "Prefill", type_ = "string", json_path = ".spec.prefillPools[*].name"),
    printcolumn(name = "Decode", type_ = "string", json_path = ".spec.decodePools[*].name"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase", default, remote = "Self")]
pub struct PDTopologySpec {
    /// Pools that prefill.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub prefill_pools: Option<Vec<Pool>>,
    /// Pools that decode.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub decode_pools: Option<Vec<Pool>>,
    /// Accelerators that pools refer to.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub accelerator_types: Option<Vec<AcceleratorType>>,
}

optional_at_root!(PDTopologySpec);

/// One pool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Pool {
    /// Its name, unique in its list.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Labels of its Pods or nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub match_labels: Option<BTreeMap<String, String>>,
    /// Wanted size; absent is not 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<i32>,
    /// Name of an accelerator type; not checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accelerator_type: Option<String>,
}

/// One class of accelerators.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AcceleratorType {
    /// Its name, unique in the list.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Who makes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendor: Option<String>,
    /// What it is called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Labels of nodes that have it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub match_labels: Option<BTreeMap<String, String>>,
}

/// Reserved: nothing writes it yet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PDTopologyStatus {
    /// Reserved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Reserved.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}
