//! What a policy says, and what it comes to: stored values, defaults and clamps.

use crate::resolve::Eviction;
use crate::time::Micros;

/// Matched-token floor of a tenant without a policy.
pub const DEFAULT_MINIMUM_MATCHED_TOKENS: i32 = 64;

/// Score floor of a tenant whose policy names none.
pub const DEFAULT_ROUTING_FLOOR_SCORE: f32 = 0.1;

/// The policy of one namespace as it was sent. [`Default`] is the entry that says nothing.
///
/// Where 0 and "unset" mean different things the field is an [`Option`]; elsewhere they are one.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Policy {
    /// Namespace; equals the tenant of the lookups it applies to. An entry without one is dropped.
    pub namespace: String,
    /// Freshness lifetime in nanoseconds; not above 0 is the index's own.
    pub eviction_ttl_ns: i64,
    /// Fewest prefix tokens of a request for a positive hint; not above 0 is no gate.
    pub minimum_prefix_tokens: i32,
    /// Fewest matched tokens of a returned replica; not above 0 is no floor.
    pub minimum_matched_tokens: i32,
    /// Lowest best score that is still a hint; not above 0 is no floor. Unset is [`DEFAULT_ROUTING_FLOOR_SCORE`].
    pub routing_floor_score: Option<f32>,
    /// Budget of a lookup in milliseconds; not above 0 is none.
    pub lookup_timeout_ms: i32,
    /// Victim order; `lfu` in any case is LFU, anything else LRU.
    pub eviction: String,
    /// Gates; unset is the same as all of them unset.
    pub strategy: Option<StrategyGates>,
    /// Whether a prompt that nobody holds is answered with a consistent pick. Unset is yes.
    pub affinity_routing: Option<bool>,
}

/// Which ways of answering are open to a namespace.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StrategyGates {
    /// Whether chains are matched. Unset is yes.
    pub enable_chain_matching: Option<bool>,
    /// Whether a request must carry a chain. Unset is no.
    pub require_chain: Option<bool>,
    /// Whether replicas that are merely warm are an answer. Unset is yes.
    pub enable_tenant_hot: Option<bool>,
}

/// The quota of one tenant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TenantQuota {
    /// Tenant; equals the tenant of the reports it applies to. An entry without one is dropped.
    pub tenant: String,
    /// Most distinct prefixes; 0 admits nothing, a negative one is stored as 0.
    pub max_index_entries: i64,
    /// Carried, not interpreted.
    pub isolation_mode: String,
}

/// What applies to one tenant: every knob resolved and clamped. [`Default`] is a tenant without a policy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Effective {
    /// Freshness lifetime in microseconds, above 0; `None` is the index's own.
    pub ttl: Option<Micros>,
    /// Victim order under the cap.
    pub eviction: Eviction,
    /// Fewest prefix tokens of a request for a positive hint; 0 is no gate.
    pub minimum_prefix_tokens: i32,
    /// Fewest matched tokens of a returned replica; 0 is no floor.
    pub minimum_matched_tokens: i32,
    /// Lowest best score that is still a hint; 0 is no floor.
    pub routing_floor_score: f32,
    /// Budget of a lookup in milliseconds; 0 is none.
    pub lookup_timeout_ms: u32,
    /// Whether chains are matched.
    pub enable_chain_matching: bool,
    /// Whether a request must carry a chain.
    pub require_chain: bool,
    /// Whether replicas that are merely warm are an answer.
    pub enable_tenant_hot: bool,
    /// Whether a prompt that nobody holds is answered with a consistent pick.
    pub affinity_routing: bool,
}

// === impl Effective ===

impl Effective {
    /// A tenant without a policy.
    pub const DEFAULT: Self = Self {
        ttl: None,
        eviction: Eviction::Lru,
        minimum_prefix_tokens: 0,
        minimum_matched_tokens: DEFAULT_MINIMUM_MATCHED_TOKENS,
        routing_floor_score: DEFAULT_ROUTING_FLOOR_SCORE,
        lookup_timeout_ms: 0,
        enable_chain_matching: true,
        require_chain: false,
        enable_tenant_hot: true,
        affinity_routing: true,
    };
}

impl Default for Effective {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl From<&Policy> for Effective {
    fn from(policy: &Policy) -> Self {
        let default = Self::DEFAULT;
        let gates = policy.strategy.unwrap_or_default();
        // A comparison, not `max`, so that NaN is no floor either.
        let floor = |score: f32| if score > 0.0 { score } else { 0.0 };
        Self {
            ttl: micros(policy.eviction_ttl_ns),
            eviction: Eviction::parse(&policy.eviction),
            minimum_prefix_tokens: policy.minimum_prefix_tokens.max(0),
            minimum_matched_tokens: policy.minimum_matched_tokens.max(0),
            routing_floor_score: policy.routing_floor_score.map_or(default.routing_floor_score, floor),
            lookup_timeout_ms: u32::try_from(policy.lookup_timeout_ms).unwrap_or(0),
            enable_chain_matching: gates.enable_chain_matching.unwrap_or(default.enable_chain_matching),
            require_chain: gates.require_chain.unwrap_or(default.require_chain),
            enable_tenant_hot: gates.enable_tenant_hot.unwrap_or(default.enable_tenant_hot),
            affinity_routing: policy.affinity_routing.unwrap_or(default.affinity_routing),
        }
    }
}

/// Rounds up: a lifetime below one microsecond must not become 0, which would be the default.
fn micros(nanos: i64) -> Option<Micros> {
    (nanos > 0).then(|| nanos / 1000 + i64::from(nanos % 1000 > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lifetimes_round_up_to_microseconds() {
        assert_eq!(micros(i64::MIN), None);
        assert_eq!(micros(0), None);
        assert_eq!(micros(1), Some(1));
        assert_eq!(micros(1000), Some(1));
        assert_eq!(micros(1001), Some(2));
        assert_eq!(micros(900_000_000_000), Some(900_000_000));
        assert_eq!(micros(i64::MAX), Some(9_223_372_036_854_776));
    }

    #[test]
    fn an_entry_that_says_nothing_turns_only_the_matched_token_floor_off() {
        let bare = Effective::from(&Policy::default());
        assert_eq!(bare, Effective { minimum_matched_tokens: 0, ..Effective::DEFAULT });
    }

    #[test]
    fn what_is_negative_is_off() {
        let policy = Policy {
            eviction_ttl_ns: -5,
            minimum_prefix_tokens: -1,
            minimum_matched_tokens: -1,
            routing_floor_score: Some(-1.0),
            lookup_timeout_ms: -4,
            eviction: "arc".to_owned(),
            ..Policy::default()
        };
        let want = Effective { minimum_matched_tokens: 0, routing_floor_score: 0.0, ..Effective::DEFAULT };
        assert_eq!(Effective::from(&policy), want);
        let policy = Policy { routing_floor_score: Some(f32::NAN), ..policy };
        assert_eq!(Effective::from(&policy), want);
    }

    #[test]
    fn what_is_set_is_kept() {
        let policy = Policy {
            namespace: "blue".to_owned(),
            eviction_ttl_ns: 900_000_000_000,
            minimum_prefix_tokens: 32,
            minimum_matched_tokens: 128,
            routing_floor_score: Some(5.0),
            lookup_timeout_ms: 25,
            eviction: "LfU".to_owned(),
            strategy: Some(StrategyGates {
                enable_chain_matching: Some(false),
                require_chain: Some(true),
                enable_tenant_hot: Some(false),
            }),
            affinity_routing: Some(false),
        };
        let want = Effective {
            ttl: Some(900_000_000),
            eviction: Eviction::Lfu,
            minimum_prefix_tokens: 32,
            minimum_matched_tokens: 128,
            routing_floor_score: 5.0,
            lookup_timeout_ms: 25,
            enable_chain_matching: false,
            require_chain: true,
            enable_tenant_hot: false,
            affinity_routing: false,
        };
        assert_eq!(Effective::from(&policy), want);
    }
}
