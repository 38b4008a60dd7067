//! Per-tenant knobs: held in memory, replaced whole, read without a lock.
//!
//! ```text
//! a push ──> PolicySet ──replace──> PolicyStore ──view──> PolicyView ──effective(tenant)──> Effective ──> one lookup
//!            (normalised)           (one pointer)                  └──quota(tenant)──> the tenant's budget
//! ```
//!
//! 1. Policies and quotas change together: a reader has one view, from before or from after a push.
//! 2. What a set omits is gone; there is no merging.
//! 3. The reserved tenant has no entry, whatever was pushed. So has the empty one.
//! 4. A push touches no index entry; the new values apply at the next read, sweep or report.
//!
//! Policies are keyed by namespace and quotas by tenant id. Both are compared with the tenant of a request, but they are
//! separate axes: the same string in both is coincidence.
//!
//! Not here: the published JSON form and its versions, which belong to whoever receives pushes.

mod knobs;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use foldhash::fast::RandomState;
use parking_lot::Mutex;

use crate::RESERVED_TENANT;
use crate::resolve::{Eviction, EvictionResolver, QuotaResolver, TtlResolver};
use crate::time::Micros;

pub use self::knobs::{
    DEFAULT_MINIMUM_MATCHED_TOKENS, DEFAULT_ROUTING_FLOOR_SCORE, Effective, Policy, StrategyGates, TenantQuota,
};

/// Where the router learns what applies to a tenant. [`PolicyStore`] implements it; an embedder with a source of its own
/// may, too.
///
/// *Callers may assume* that an answer comes at once and is consistent in itself. They ask once per request.
pub trait RoutePolicy: Send + Sync + fmt::Debug + 'static {
    /// Everything that applies to a lookup of `tenant`.
    fn effective(&self, tenant: &str) -> Effective;
}

/// A full set of policies and quotas, normalised. [`Default`] is the empty one.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PolicySet {
    policies: HashMap<String, (Policy, Effective), RandomState>,
    tenants: HashMap<String, TenantQuota, RandomState>,
}

/// A [`PolicySet`] in force.
#[derive(Debug, Clone, Default)]
pub struct PolicyView {
    set: PolicySet,
    revision: u64,
}

/// The policies in force. Empty at start: then every tenant has the defaults.
#[derive(Debug, Default)]
pub struct PolicyStore {
    view: ArcSwap<PolicyView>,
    /// Held while one view is replaced by the next.
    writer: Mutex<()>,
}

// === impl PolicySet ===

impl PolicySet {
    /// Entries without a key and entries of the reserved tenant are dropped. Of two with one key the later is kept, whole.
    /// A negative budget becomes 0.
    #[must_use]
    pub fn new(policies: impl IntoIterator<Item = Policy>, tenants: impl IntoIterator<Item = TenantQuota>) -> Self {
        let keyed = |key: &str| !key.is_empty() && key != RESERVED_TENANT;
        let mut set = Self::default();
        for policy in policies {
            if keyed(&policy.namespace) {
                let effective = Effective::from(&policy);
                set.policies.insert(policy.namespace.clone(), (policy, effective));
            }
        }
        for mut quota in tenants {
            if keyed(&quota.tenant) {
                quota.max_index_entries = quota.max_index_entries.max(0);
                set.tenants.insert(quota.tenant.clone(), quota);
            }
        }
        set
    }

    /// The policies, in no particular order.
    pub fn policies(&self) -> impl ExactSizeIterator<Item = &Policy> {
        self.policies.values().map(|(policy, _)| policy)
    }

    /// The quotas, in no particular order.
    pub fn tenants(&self) -> impl ExactSizeIterator<Item = &TenantQuota> {
        self.tenants.values()
    }

    /// The policy of `namespace` as it was stored.
    #[must_use]
    pub fn policy(&self, namespace: &str) -> Option<&Policy> {
        self.policies.get(namespace).map(|(policy, _)| policy)
    }

    /// Everything that applies to `tenant`; the defaults when it has no policy.
    #[must_use]
    pub fn effective(&self, tenant: &str) -> Effective {
        self.policies.get(tenant).map_or(Effective::DEFAULT, |(_, effective)| *effective)
    }

    /// The budget of `tenant` in distinct prefixes, 0 or more; `None` is unbounded.
    #[must_use]
    pub fn quota(&self, tenant: &str) -> Option<i64> {
        self.tenants.get(tenant).map(|quota| quota.max_index_entries)
    }
}

// === impl PolicyView ===

impl PolicyView {
    /// What is in force.
    #[must_use]
    pub fn set(&self) -> &PolicySet {
        &self.set
    }

    /// How many times the content had changed when this view came into force; 0 before the first change.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// Everything that applies to `tenant`; the defaults when it has no policy.
    #[must_use]
    pub fn effective(&self, tenant: &str) -> Effective {
        self.set.effective(tenant)
    }

    /// The budget of `tenant` in distinct prefixes, 0 or more; `None` is unbounded.
    #[must_use]
    pub fn quota(&self, tenant: &str) -> Option<i64> {
        self.set.quota(tenant)
    }
}

// === impl PolicyStore ===

impl PolicyStore {
    /// A store without policies.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts `set` in force instead of what was, and says whether that changed anything.
    pub fn replace(&self, set: PolicySet) -> bool {
        let _one_at_a_time = self.writer.lock();
        let old = self.view.load();
        if old.set == set {
            return false;
        }
        self.view.store(Arc::new(PolicyView { set, revision: old.revision.wrapping_add(1) }));
        true
    }

    /// What is in force now, and stays as it is for as long as it is held.
    #[must_use]
    pub fn view(&self) -> Arc<PolicyView> {
        self.view.load_full()
    }

    /// How many times the content has changed.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.view.load().revision
    }
}

impl RoutePolicy for PolicyStore {
    fn effective(&self, tenant: &str) -> Effective {
        self.view.load().effective(tenant)
    }
}

impl TtlResolver for PolicyStore {
    fn ttl(&self, tenant: &str) -> Option<Micros> {
        self.view.load().effective(tenant).ttl
    }
}

impl EvictionResolver for PolicyStore {
    fn eviction(&self, tenant: &str) -> Eviction {
        self.view.load().effective(tenant).eviction
    }

    fn revision(&self) -> Option<u64> {
        Some(Self::revision(self))
    }
}

impl QuotaResolver for PolicyStore {
    fn quota(&self, tenant: &str) -> Option<i64> {
        self.view.load().quota(tenant)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(namespace: &str, minimum_prefix_tokens: i32) -> Policy {
        Policy { namespace: namespace.to_owned(), minimum_prefix_tokens, ..Policy::default() }
    }

    fn quota(tenant: &str, max_index_entries: i64) -> TenantQuota {
        TenantQuota { tenant: tenant.to_owned(), max_index_entries, ..TenantQuota::default() }
    }

    #[test]
    fn sets_drop_what_has_no_key_and_keep_the_later_of_two() {
        let set = PolicySet::new(
            [policy("", 1), policy("blue", 2), policy("blue", 3), policy(" ", 4)],
            [quota("", 1), quota("t", 2), quota("t", -9), quota("u", i64::MAX)],
        );
        assert_eq!(set.policies().len(), 2);
        assert_eq!(set.effective("blue").minimum_prefix_tokens, 3);
        assert_eq!(set.effective(" ").minimum_prefix_tokens, 4);
        assert_eq!(set.effective(""), Effective::DEFAULT);
        assert_eq!((set.quota(""), set.quota("t"), set.quota("u")), (None, Some(0), Some(i64::MAX)));
    }

    // policy:95-96 (the probe itself is tested with the server)
    #[test]
    fn nothing_applies_to_the_reserved_tenant() {
        let store = PolicyStore::new();
        store.replace(PolicySet::new(
            [Policy { eviction_ttl_ns: 1, eviction: "lfu".to_owned(), ..policy(RESERVED_TENANT, 9) }],
            [quota(RESERVED_TENANT, 0)],
        ));
        assert_eq!(RoutePolicy::effective(&store, RESERVED_TENANT), Effective::DEFAULT);
        assert_eq!(store.ttl(RESERVED_TENANT), None);
        assert_eq!(store.eviction(RESERVED_TENANT), Eviction::Lru);
        assert_eq!(QuotaResolver::quota(&store, RESERVED_TENANT), None);
    }

    // policy:97-100, policy:102
    #[test]
    fn a_push_replaces_everything() {
        let store = PolicyStore::new();
        assert_eq!(store.view().effective("blue"), Effective::DEFAULT);
        assert_eq!((store.view().quota("t"), store.revision()), (None, 0));

        let both = || PolicySet::new([policy("blue", 1), policy("green", 1)], [quota("t", 1)]);
        assert!(store.replace(both()));
        assert!(!store.replace(both()), "the same again is no change");
        assert_eq!(store.revision(), 1);
        let before = store.view();

        assert!(store.replace(PolicySet::new([policy("blue", 2)], [])));
        assert_eq!(store.view().effective("blue").minimum_prefix_tokens, 2);
        assert_eq!(store.view().effective("green"), Effective::DEFAULT);
        assert_eq!(QuotaResolver::quota(&store, "t"), None);
        assert_eq!(EvictionResolver::revision(&store), Some(2));
        assert_eq!(before.effective("green").minimum_prefix_tokens, 1, "a view that is held stays");
    }

    // policy:101
    #[test]
    fn readers_never_see_a_mixture() {
        const PUSHES: i64 = 500;
        let store = PolicyStore::new();
        let set = |n: i64| {
            let ms = i32::try_from(n).expect("a small number");
            PolicySet::new(
                [Policy { lookup_timeout_ms: ms, minimum_matched_tokens: ms, ..policy("blue", ms) }],
                [quota("blue", n)],
            )
        };
        store.replace(set(1));
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut last = 0;
                    while last < PUSHES {
                        let view = store.view();
                        let seen = view.quota("blue").expect("a quota");
                        let Effective {
                            minimum_prefix_tokens: a, minimum_matched_tokens: b, lookup_timeout_ms: c, ..
                        } = view.effective("blue");
                        assert_eq!([i64::from(a), i64::from(b), i64::from(c)], [seen; 3]);
                        assert!(seen >= last, "pushes are seen in order");
                        assert_eq!(view.revision(), seen.unsigned_abs());
                        last = seen;
                    }
                });
            }
            for n in 2..=PUSHES {
                store.replace(set(n));
                std::thread::yield_now();
            }
        });
    }
}
