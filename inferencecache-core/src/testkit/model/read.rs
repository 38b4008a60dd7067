//! Reads that count: state, aggregate, snapshot, gauges.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Inner, Key, StatRow, State};
use crate::index::{Aggregate, CacheState, ReplicaRow, Snapshot, TenantRow};

impl Inner {
    pub(super) fn cache_state(&self, tenant: &str, model: &str) -> CacheState {
        let state = self.state.lock();
        let of_model = state.rows.iter().filter(|row| &*row.tenant == tenant && &*row.model == model);
        let mut replicas: Vec<_> = of_model.map(|row| (row.replica.clone(), row.stats)).collect();
        replicas.sort_by(|a, b| a.0.cmp(&b.0));
        let keys = state.keys().into_iter().filter(|key| &*key.tenant == tenant && &*key.model == model);
        CacheState { replicas, total_prefixes: keys.count() as u64 }
    }

    pub(super) fn aggregate(&self) -> Aggregate {
        let state = self.state.lock();
        let mut aggregate = Aggregate::default();
        for key in self.visible_keys(&state) {
            aggregate.total += 1;
            *aggregate.by_tenant.entry(key.tenant.clone()).or_default() += 1;
        }
        aggregate
    }

    pub(super) fn entry_counts_by_model(&self) -> BTreeMap<Arc<str>, u64> {
        let state = self.state.lock();
        let mut by_model = BTreeMap::new();
        for key in self.visible_keys(&state) {
            *by_model.entry(key.model.clone()).or_default() += 1;
        }
        by_model
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        let state = self.state.lock();
        let keys = self.visible_keys(&state);
        let rows: Vec<&StatRow> = state.rows.iter().filter(|row| !self.is_reserved(&row.tenant)).collect();
        let held: Vec<_> = state.entries.iter().filter(|held| !self.is_reserved(&held.key.tenant)).collect();

        let mut pairs: BTreeSet<(Arc<str>, Arc<str>)> = BTreeSet::new();
        pairs.extend(rows.iter().map(|row| (row.tenant.clone(), row.replica.clone())));
        pairs.extend(held.iter().map(|held| (held.key.tenant.clone(), held.replica.clone())));
        let mut replicas = Vec::new();
        for (tenant, replica) in pairs {
            let own = rows.iter().filter(|row| row.tenant == tenant && row.replica == replica);
            let chosen = own.max_by_key(|row| (row.last_seen, row.stats_reported, Reverse(&row.model)));
            let holds = held.iter().filter(|held| held.key.tenant == tenant && held.replica == replica);
            replicas.push(ReplicaRow {
                stats: chosen.map(|row| (row.stats, row.last_seen)),
                prefix_count: holds.clone().count() as u64,
                last_event_at: holds.map(|held| held.last_seen).max(),
                tenant,
                replica,
            });
        }

        let names: BTreeSet<Arc<str>> =
            keys.iter().map(|key| key.tenant.clone()).chain(rows.iter().map(|row| row.tenant.clone())).collect();
        let mut tenants = Vec::new();
        for tenant in names {
            let own = replicas.iter().filter(|row| row.tenant == tenant);
            let rates: Vec<f64> = own.filter_map(|row| row.stats).map(|(stats, _)| f64::from(stats.hit_rate)).collect();
            let mean = rates.iter().sum::<f64>() / rates.len() as f64;
            tenants.push(TenantRow {
                index_entries: keys.iter().filter(|key| key.tenant == tenant).count() as u64,
                hit_rate: if rates.is_empty() { None } else { Some(mean as f32) },
                tenant,
            });
        }
        Snapshot { replicas, tenants, total_prefixes: keys.len() as u64 }
    }

    fn visible_keys<'a>(&self, state: &'a State) -> BTreeSet<&'a Key> {
        state.keys().into_iter().filter(|key| !self.is_reserved(&key.tenant)).collect()
    }
}

impl State {
    /// The distinct prefixes.
    fn keys(&self) -> BTreeSet<&Key> {
        self.entries.iter().map(|held| &held.key).collect()
    }
}
