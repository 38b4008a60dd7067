//! What a version could not say: an older body means what a tenant without a policy gets.
//!
//! | knob | since | before that |
//! |---|---|---|
//! | `minimumMatchedTokens` | 4 | 64, also for a 0 |
//! | `routingFloorScore` | 5 | 0.1 |
//! | `strategy` | 6 | chains matched, not required; warm replicas allowed |
//! | `affinityRouting` | 7 | on |
//!
//! An older body may carry a newer key; then the value stands.

use inferencecache_core::policy::{
    DEFAULT_MINIMUM_MATCHED_TOKENS, DEFAULT_ROUTING_FLOOR_SCORE, Effective, Policy, PolicySet, StrategyGates,
    TenantQuota,
};

use super::schema::{self, Snapshot};
use super::{Decoded, Oddities};

/// The version that is written, and the newest that is read.
pub const VERSION: i64 = 7;
/// The oldest version that is read.
pub const MINIMUM_VERSION: i64 = 3;

/// Fills in what the version of `snapshot` could not say.
pub(super) fn normalise(snapshot: Snapshot, mut oddities: Oddities) -> Decoded {
    let Snapshot { version, policies, tenants } = snapshot;
    let keyed = policies.iter().filter(|policy| !policy.namespace.is_empty());
    oddities.silent_floors = count(keyed.filter(|policy| version > 3 && policy.minimum_matched_tokens.is_none()));
    let keyed = tenants.iter().filter(|tenant| !tenant.tenant_id.is_empty());
    oddities.missing_budgets = count(keyed.filter(|tenant| tenant.max_index_entries.is_none()));
    let set = PolicySet::new(
        policies.into_iter().map(|policy| fill(version, stored(policy))),
        tenants.into_iter().map(|tenant| TenantQuota {
            tenant: tenant.tenant_id,
            max_index_entries: tenant.max_index_entries.unwrap_or(0),
            isolation_mode: tenant.isolation_mode,
        }),
    );
    Decoded { version, set, oddities }
}

fn fill(version: i64, mut policy: Policy) -> Policy {
    if version < 4 && policy.minimum_matched_tokens == 0 {
        policy.minimum_matched_tokens = DEFAULT_MINIMUM_MATCHED_TOKENS;
    }
    if version < 5 {
        policy.routing_floor_score.get_or_insert(DEFAULT_ROUTING_FLOOR_SCORE);
    }
    if version < 6 {
        let gates = policy.strategy.get_or_insert_default();
        gates.enable_chain_matching.get_or_insert(Effective::DEFAULT.enable_chain_matching);
        gates.require_chain.get_or_insert(Effective::DEFAULT.require_chain);
        gates.enable_tenant_hot.get_or_insert(Effective::DEFAULT.enable_tenant_hot);
    }
    if version < 7 {
        policy.affinity_routing.get_or_insert(Effective::DEFAULT.affinity_routing);
    }
    policy
}

fn stored(policy: schema::Policy) -> Policy {
    Policy {
        namespace: policy.namespace,
        eviction_ttl_ns: policy.eviction_ttl,
        minimum_prefix_tokens: policy.minimum_prefix_tokens,
        minimum_matched_tokens: policy.minimum_matched_tokens.unwrap_or(0),
        routing_floor_score: policy.routing_floor_score,
        lookup_timeout_ms: policy.lookup_timeout_ms,
        eviction: policy.eviction,
        strategy: policy.strategy.map(|strategy| StrategyGates {
            enable_chain_matching: strategy.enable_chain_matching,
            require_chain: strategy.require_chain,
            enable_tenant_hot: strategy.enable_tenant_hot,
        }),
        affinity_routing: policy.affinity_routing,
    }
}

fn count<T>(elements: impl Iterator<Item = T>) -> u32 {
    u32::try_from(elements.count()).unwrap_or(u32::MAX)
}
