//! Policies and budgets as the server wants them: one policy for each namespace, one budget for each tenant.

use std::collections::HashSet;

use inferencecache_core::policy::DEFAULT_ROUTING_FLOOR_SCORE;
use inferencecache_wire::policy::{Policy, Snapshot, Strategy, Tenant, VERSION};

use crate::api::{AffinityRouting, CachePolicy, CacheTenant, Eviction};
use crate::controller::index::participation::names_of;
use crate::controller::index::tenants::{budget, owners};

/// Everything, in an order that depends on the objects alone.
#[must_use]
pub fn flatten(policies: &[CachePolicy], tenants: &[CacheTenant]) -> Snapshot {
    let mut sorted: Vec<&CachePolicy> = policies.iter().collect();
    sorted.sort_by_key(|policy| names_of(&policy.metadata));
    let mut taken = HashSet::new();
    sorted.retain(|policy| taken.insert(names_of(&policy.metadata).0));
    Snapshot {
        version: VERSION,
        policies: sorted.into_iter().map(policy).collect(),
        tenants: owners(tenants).into_iter().map(tenant).collect(),
    }
}

fn policy(object: &CachePolicy) -> Policy {
    let spec = &object.spec;
    let (namespace, name) = names_of(&object.metadata);
    let eviction_ttl = spec.eviction_ttl.as_ref().map_or(0, |text| {
        text.nanos().unwrap_or_else(|why| {
            tracing::warn!(namespace, name, error = %why, "evictionTTL is left out");
            0
        })
    });
    Policy {
        namespace: namespace.to_owned(),
        eviction_ttl,
        minimum_prefix_tokens: spec.minimum_prefix_tokens.unwrap_or(0),
        minimum_matched_tokens: spec.minimum_matched_tokens,
        routing_floor_score: spec.routing_floor_score.as_deref().map(floor),
        lookup_timeout_ms: spec.lookup_timeout_ms.unwrap_or(0),
        affinity_routing: spec.affinity_routing.as_ref().map(|routing| *routing == AffinityRouting::Enabled),
        eviction: spec.eviction.as_ref().unwrap_or(&Eviction::Lru).as_str().to_lowercase(),
        strategy: spec.strategy.as_ref().map(|strategy| Strategy {
            enable_chain_matching: strategy.enable_chain_matching,
            require_chain: strategy.require_chain,
            enable_tenant_hot: strategy.enable_tenant_hot,
        }),
    }
}

/// A score; what is none counts as the default.
fn floor(text: &str) -> f32 {
    let score = text.parse::<f32>().ok().filter(|score| score.is_finite() && *score >= 0.0);
    score.unwrap_or(DEFAULT_ROUTING_FLOOR_SCORE)
}

fn tenant(object: &CacheTenant) -> Tenant {
    Tenant {
        tenant_id: object.spec.tenant_id.clone(),
        max_index_entries: budget(object),
        isolation_mode: object.spec.isolation_mode.as_ref().map(ToString::to_string).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(policies: serde_json::Value, tenants: serde_json::Value) -> serde_json::Value {
        let named = |list: serde_json::Value, kind: &str| {
            let list = list.as_array().cloned().unwrap_or_default().into_iter();
            list.map(|row| {
                serde_json::json!({"apiVersion": "inferencecache.io/v1alpha1", "kind": kind,
                    "metadata": {"namespace": row[0], "name": row[1]}, "spec": row[2]})
            })
            .collect::<serde_json::Value>()
        };
        let policies: Vec<CachePolicy> = serde_json::from_value(named(policies, "CachePolicy")).expect("policies");
        let tenants: Vec<CacheTenant> = serde_json::from_value(named(tenants, "CacheTenant")).expect("tenants");
        let text = serde_json::to_string(&flatten(&policies, &tenants)).expect("JSON");
        let decoded = inferencecache_wire::policy::decode(text.as_bytes());
        assert!(decoded.is_ok(), "a server takes it: {decoded:?}");
        serde_json::from_str(&text).expect("JSON")
    }

    /// controller:140 controller:141 controller:142 controller:143 controller:144 controller:145 policy:106-120 field:45
    #[test]
    fn objects_become_the_published_body() {
        let none = || serde_json::json!([]);
        for (policies, tenants, wanted) in [
            (none(), none(), serde_json::json!({"version": 7, "policies": []})),
            (
                serde_json::json!([["team-a", "p", {"evictionTTL": "15m", "minimumPrefixTokens": 32, "lookupTimeoutMs": 25,
                    "minimumMatchedTokens": 64, "routingFloorScore": "0.1", "affinityRouting": "Enabled", "eviction": "LRU"}]]),
                serde_json::json!([
                    ["team-a", "a", {"tenantID": "team-a", "quota": {"maxIndexEntries": 1000}, "isolationMode": "Fairness"}],
                    ["team-a", "b", {"tenantID": "team-b", "isolationMode": "Fairness"}],
                    ["team-a", "c", {"tenantID": "team-c", "quota": {"maxIndexEntries": 0}, "isolationMode": "Fairness"}]]),
                serde_json::json!({"version": 7,
                    "policies": [{"namespace": "team-a", "evictionTTL": 900_000_000_000_i64, "minimumPrefixTokens": 32,
                        "minimumMatchedTokens": 64, "routingFloorScore": 0.1, "lookupTimeoutMs": 25, "affinityRouting": true,
                        "eviction": "lru"}],
                    "tenants": [{"tenantID": "team-a", "maxIndexEntries": 1000, "isolationMode": "Fairness"},
                        {"tenantID": "team-c", "maxIndexEntries": 0, "isolationMode": "Fairness"}]}),
            ),
            (
                serde_json::json!([["ns", "z-pol", {"minimumPrefixTokens": 1}], ["ns", "a-pol", {"minimumPrefixTokens": 2}]]),
                none(),
                serde_json::json!({"version": 7, "policies": [{"namespace": "ns", "minimumPrefixTokens": 2, "eviction": "lru"}]}),
            ),
            (
                none(),
                serde_json::json!([
                    ["ns-b", "x", {"tenantID": "t", "quota": {"maxIndexEntries": 5}}],
                    ["ns-a", "y", {"tenantID": "t", "quota": {"maxIndexEntries": 9_007_199_254_740_993_i64}}],
                    ["ns-a", "x", {"tenantID": "t"}], ["ns-c", "x", {"tenantID": "a", "quota": {"maxIndexEntries": 1}}]]),
                serde_json::json!({"version": 7, "policies": [], "tenants": [
                    {"tenantID": "t", "maxIndexEntries": 9_007_199_254_740_993_i64}, {"tenantID": "a", "maxIndexEntries": 1}]}),
            ),
            (
                serde_json::json!([["ns", "p", {"eviction": "LFU", "affinityRouting": "Disabled", "routingFloorScore": "0",
                    "minimumMatchedTokens": 0, "evictionTTL": "soon",
                    "strategy": {"enableChainMatching": true, "requireChain": false, "enableTenantHot": true}}]]),
                none(),
                serde_json::json!({"version": 7, "policies": [{"namespace": "ns", "eviction": "lfu", "affinityRouting": false,
                    "routingFloorScore": 0,
                    "strategy": {"enableChainMatching": true, "requireChain": false, "enableTenantHot": true}}]}),
            ),
        ] {
            assert_eq!(body(policies, tenants), wanted);
        }
    }

    /// controller:145
    #[test]
    fn a_score_that_is_none_counts_as_the_default() {
        for bad in ["1e99", "not-a-number", "-1.5", "NaN", "inf", ""] {
            assert_eq!(floor(bad).to_string(), "0.1", "{bad}");
        }
        assert_eq!(floor("0"), 0.0);
        assert_eq!(floor("12345678.5"), 12_345_678.5);
    }

    #[test]
    fn the_body_does_not_depend_on_the_order_of_the_listing() {
        let a = serde_json::json!(["ns-a", "p", {"minimumPrefixTokens": 1}]);
        let b = serde_json::json!(["ns-b", "p", {"minimumPrefixTokens": 2}]);
        let none = serde_json::json!([]);
        assert_eq!(body(serde_json::json!([a, b]), none.clone()), body(serde_json::json!([b, a]), none));
    }
}
