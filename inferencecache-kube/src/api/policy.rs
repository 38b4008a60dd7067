//! CachePolicy: lookup and eviction of one namespace. The controller pushes it, the policy server enforces it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::duration::GoDuration;
use super::open_enum::{absent_if_empty, open_enum, optional_at_root};

open_enum! {
    /// What an index over its capacity drops first.
    pub enum Eviction {
        /// What was seen longest ago.
        Lru = "LRU",
        /// What is used least, and of that what was seen longest ago.
        Lfu = "LFU",
    }
}

open_enum! {
    /// The fallback by consistent hashing.
    pub enum AffinityRouting {
        /// On.
        Enabled = "Enabled",
        /// Off.
        Disabled = "Disabled",
    }
}

/// Lookup and eviction of one namespace.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "inferencecache.io",
    version = "v1alpha1",
    kind = "CachePolicy",
    plural = "cachepolicies",
    shortname = "cpol",
    namespaced,
    schema = "disabled",
    status = "CachePolicyStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "Lookup and eviction of one namespace.",
    printcolumn(name = "Eviction", type_ = "string", json_path = ".spec.eviction"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase", default, remote = "Self")]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "!has(self.strategy) || !has(self.strategy.enableChainMatching) || self.strategy.enableChainMatching \
             || !has(self.strategy.requireChain) || !self.strategy.requireChain",
    "message": "strategy.requireChain requires strategy.enableChainMatching",
}]))]
pub struct CachePolicySpec {
    /// What is dropped over capacity: LRU, what was seen longest ago; LFU, what is used least.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "absent_if_empty")]
    #[schemars(extend("x-default" = "LRU"))]
    pub eviction: Option<Eviction>,
    /// How long an entry lives after its engine last reported it, in Go's syntax; above zero. The server's 30m where absent.
    #[serde(rename = "evictionTTL", skip_serializing_if = "Option::is_none")]
    pub eviction_ttl: Option<GoDuration>,
    /// Requests with fewer tokens get no hint from cache evidence.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub minimum_prefix_tokens: Option<i32>,
    /// Replicas that match fewer tokens are left out; 0 leaves none out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0), extend("x-default" = 64))]
    pub minimum_matched_tokens: Option<i32>,
    /// A best score below this is no hint; "0" lets every score pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(
        regex(pattern = r"^(0|[1-9][0-9]{0,7})(\.[0-9]{1,6})?$"),
        extend("x-default" = "0.1")
    )]
    pub routing_floor_score: Option<String>,
    /// Milliseconds that a lookup may take; 0 and absent set no deadline.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub lookup_timeout_ms: Option<i32>,
    /// Switches of lookup.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Strategy>,
    /// The fallback by consistent hashing, where no hint is left.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "absent_if_empty")]
    #[schemars(extend("x-default" = "Enabled"))]
    pub affinity_routing: Option<AffinityRouting>,
}

optional_at_root!(CachePolicySpec);

/// Switches of lookup.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Strategy {
    /// False looks up the whole prefix only, not its blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = true))]
    pub enable_chain_matching: Option<bool>,
    /// True refuses lookups without a chain of blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = false))]
    pub require_chain: Option<bool>,
    /// False gives no hint where only the tenant is known to be hot.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = true))]
    pub enable_tenant_hot: Option<bool>,
}

/// Reserved: nothing writes it yet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CachePolicyStatus {
    /// Reserved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Reserved.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}
