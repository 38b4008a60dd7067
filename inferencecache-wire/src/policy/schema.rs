//! The shape of a snapshot, version 7, as both ends see it.
//!
//! Written, a field is left out where its absence means the same; read, it may be absent everywhere. What a reader must
//! tell apart from 0 is an [`Option`].

use serde::{Serialize, Serializer};

/// Everything a controller has to say.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Snapshot {
    /// Version of the shape.
    pub version: i64,
    /// All policies, one per namespace.
    pub policies: Vec<Policy>,
    /// All quotas, one per tenant.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tenants: Vec<Tenant>,
}

/// The policy of one namespace.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Policy {
    /// Namespace; equals the tenant of the lookups it applies to.
    pub namespace: String,
    /// Freshness lifetime in nanoseconds; not above 0 is the server's default, 30 minutes.
    #[serde(rename = "evictionTTL", skip_serializing_if = "is_zero")]
    pub eviction_ttl: i64,
    /// Fewest prefix tokens of a request for a positive hint; not above 0 is none.
    #[serde(skip_serializing_if = "is_zero")]
    pub minimum_prefix_tokens: i32,
    /// Fewest matched tokens of a replica; not above 0 is off. Unset and 0 are the same since version 4; what is written is
    /// only a value other than 0.
    #[serde(skip_serializing_if = "is_unset_or_zero")]
    pub minimum_matched_tokens: Option<i32>,
    /// Lowest best score of a hint; 0 is off, unset is 0.1.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "shortest")]
    pub routing_floor_score: Option<f32>,
    /// Budget of a lookup in milliseconds; not above 0 is none.
    #[serde(skip_serializing_if = "is_zero")]
    pub lookup_timeout_ms: i32,
    /// Whether prompts nobody holds get a consistent pick; unset is yes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity_routing: Option<bool>,
    /// `lru` or `lfu`; anything else acts as `lru`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub eviction: String,
    /// Gates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Strategy>,
}

/// Which ways of answering are open to a namespace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Strategy {
    /// Whether chains are matched; unset is yes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable_chain_matching: Option<bool>,
    /// Whether a request must carry a chain; unset is no.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub require_chain: Option<bool>,
    /// Whether replicas that are merely warm are an answer; unset is yes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable_tenant_hot: Option<bool>,
}

/// The quota of one tenant.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Tenant {
    /// Tenant; equals the tenant of the reports it applies to.
    #[serde(rename = "tenantID")]
    pub tenant_id: String,
    /// Most distinct prefixes; 0 admits nothing, and so does a missing number.
    #[serde(serialize_with = "or_zero")]
    pub max_index_entries: Option<i64>,
    /// Carried, not interpreted.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub isolation_mode: String,
}

// serde passes references to these.

fn is_zero<T: PartialEq + Default>(number: &T) -> bool {
    *number == T::default()
}

fn is_unset_or_zero(number: &Option<i32>) -> bool {
    number.unwrap_or(0) == 0
}

fn or_zero<S: Serializer>(number: &Option<i64>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_i64(number.unwrap_or(0))
}

/// Whole numbers without a fraction, as other senders write them.
fn shortest<S: Serializer>(score: &Option<f32>, serializer: S) -> Result<S::Ok, S::Error> {
    let score = score.unwrap_or(0.0);
    #[expect(clippy::cast_possible_truncation, reason = "the range is checked, the fraction is 0")]
    if score.fract() == 0.0 && score.abs() < 1e9 {
        serializer.serialize_i64(score as i64)
    } else {
        serializer.serialize_f32(score)
    }
}
