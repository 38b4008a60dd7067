//! Evictions: quota, cap, stats cap and sweep, each as "sort everything, drop from the front"; and what the sink hears.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::formula::age;
use super::{Inner, Key, State, Tally};
use crate::metrics::EvictionCause;
use crate::resolve::Eviction;
use crate::time::Micros;

impl State {
    /// Drops the tenant's oldest prefixes with all their holders until `budget` are left. Says how many it dropped.
    pub(super) fn enforce_quota(&mut self, tenant: &str, budget: i64) -> u64 {
        // A prefix is as old as its newest holder.
        let mut newest: BTreeMap<Key, Micros> = BTreeMap::new();
        for held in self.entries.iter().filter(|held| &*held.key.tenant == tenant) {
            let seen = newest.entry(held.key.clone()).or_insert(held.last_seen);
            *seen = held.last_seen.max(*seen);
        }
        let excess = (newest.len() as u64).saturating_sub(budget.unsigned_abs());
        let mut oldest_first: Vec<(Micros, Key)> = newest.into_iter().map(|(key, seen)| (seen, key)).collect();
        oldest_first.sort();
        let victims: BTreeSet<Key> = oldest_first.into_iter().take(excess as usize).map(|(_, key)| key).collect();
        if !victims.is_empty() {
            self.entries.retain(|held| !victims.contains(&held.key));
        }
        excess
    }
}

impl Inner {
    /// Drops single holds until the cap is met exactly.
    pub(super) fn enforce_cap(&self, state: &mut State, tally: &mut Tally) {
        let cap = self.options.max_entries;
        let counted = state.entries.iter().filter(|held| !self.is_reserved(&held.key.tenant)).count() as u64;
        if cap == 0 || counted <= cap {
            return;
        }
        let algorithms = self.algorithms(state);
        let mut order: Vec<(u64, Micros, Key, Arc<str>, u64)> = Vec::new();
        for held in state.entries.iter().filter(|held| !self.is_reserved(&held.key.tenant)) {
            let count = match algorithms[&held.key.tenant] {
                Eviction::Lfu => held.access_count,
                Eviction::Lru => 0,
            };
            order.push((count, held.last_seen, held.key.clone(), held.replica.clone(), held.id));
        }
        order.sort();
        for (_, _, key, _, id) in order.into_iter().take((counted - cap) as usize) {
            tally.add(algorithms[&key.tenant]);
            state.entries.retain(|held| held.id != id);
        }
    }

    /// Drops the stats rows with the oldest liveness. Reserved tenants' rows neither count nor go: they may not
    /// influence what a real tenant is answered.
    pub(super) fn cap_stats(&self, state: &mut State) {
        let cap = self.options.max_stats;
        let mut order: Vec<_> = state
            .rows
            .iter()
            .filter(|row| !self.is_reserved(&row.tenant))
            .map(|row| (row.last_seen, row.tenant.clone(), row.model.clone(), row.replica.clone()))
            .collect();
        let excess = (order.len() as u64).saturating_sub(cap);
        if cap == 0 || excess == 0 {
            return;
        }
        order.sort();
        for (_, tenant, model, replica) in order.into_iter().take(excess as usize) {
            state.rows.retain(|row| (&row.tenant, &row.model, &row.replica) != (&tenant, &model, &replica));
        }
    }

    pub(super) fn sweep(&self) {
        let now = self.now();
        let mut tally = Tally::default();
        {
            let mut state = self.state.lock();
            let algorithms = self.algorithms(&state);
            let tenants = state.entries.iter().map(|held| &held.key.tenant);
            let tenants = tenants.chain(state.rows.iter().map(|row| &row.tenant));
            let mut ttls: BTreeMap<Arc<str>, Micros> = BTreeMap::new();
            for tenant in tenants {
                ttls.entry(tenant.clone()).or_insert_with(|| self.ttl(tenant));
            }
            state.entries.retain(|held| {
                let expired = age(now, held.last_seen) >= ttls[&held.key.tenant];
                if expired {
                    tally.add(algorithms[&held.key.tenant]);
                }
                !expired
            });
            state.rows.retain(|row| age(now, row.last_seen) < ttls[&row.tenant]);
        }
        self.report(None, &tally, EvictionCause::Ttl);
    }

    /// The algorithm of each tenant that has entries, asked once each.
    fn algorithms(&self, state: &State) -> BTreeMap<Arc<str>, Eviction> {
        let mut algorithms = BTreeMap::new();
        for held in &state.entries {
            algorithms.entry(held.key.tenant.clone()).or_insert_with(|| self.eviction(&held.key.tenant));
        }
        algorithms
    }

    /// Tells the sink: quota evictions, other evictions, then every gauge whose value is not the one last told.
    pub(super) fn report(&self, tenant: Option<&str>, tally: &Tally, cause: EvictionCause) {
        let sink = &*self.options.sink;
        let mut published = self.published.lock();
        let live = self.entry_counts_by_model();
        if let Some(tenant) = tenant.filter(|_| tally.over_quota > 0) {
            sink.add_tenant_evictions(tenant, tally.over_quota);
        }
        for (algorithm, count) in [(Eviction::Lru, tally.lru), (Eviction::Lfu, tally.lfu)] {
            if count > 0 {
                sink.add_index_evictions(algorithm, cause, count);
            }
        }
        let models: BTreeSet<Arc<str>> = live.keys().chain(published.keys()).cloned().collect();
        for model in models {
            let count = live.get(&model).copied().unwrap_or(0);
            if published.get(&model).copied() != Some(count) {
                sink.set_index_entries(&model, count);
            }
        }
        *published = live;
    }
}
