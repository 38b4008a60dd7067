//! The read sides that look across partitions: cache state, aggregates, the snapshot.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::index::Index;
use crate::index::api::{Aggregate, CacheState, ReplicaRow, Snapshot, TenantRow};
use crate::time::Micros;
use crate::update::Stats;

impl Index {
    pub(super) fn read_state(&self, tenant: &str, model: &str) -> CacheState {
        let writer = self.writer.lock();
        let Some(model) = writer.tenants.get(tenant).and_then(|tenant| tenant.models.get(model)) else {
            return CacheState::default();
        };
        let replicas =
            model.members.iter().filter_map(|(id, member)| member.stats().map(|row| (id.clone(), row.stats))).collect();
        CacheState { replicas, total_prefixes: model.counts.keys.get() }
    }

    pub(super) fn read_aggregate(&self) -> Aggregate {
        let writer = self.writer.lock();
        let by_tenant: BTreeMap<Arc<str>, u64> = writer
            .tenants
            .iter()
            .filter(|(_, tenant)| !tenant.reserved && tenant.keys.get() > 0)
            .map(|(id, tenant)| (id.clone(), tenant.keys.get()))
            .collect();
        Aggregate { total: by_tenant.values().sum(), by_tenant }
    }

    pub(super) fn read_counts(&self) -> BTreeMap<Arc<str>, u64> {
        let writer = self.writer.lock();
        let mut counts = BTreeMap::new();
        for tenant in writer.tenants.values().filter(|tenant| !tenant.reserved) {
            for (id, model) in tenant.models.iter().filter(|(_, model)| model.counts.keys.get() > 0) {
                *counts.entry(id.clone()).or_insert(0) += model.counts.keys.get();
            }
        }
        counts
    }

    pub(super) fn read_snapshot(&self) -> Snapshot {
        let mut writer = self.writer.lock();
        let mut rows: BTreeMap<(Arc<str>, Arc<str>), Merged> = BTreeMap::new();
        let mut tenants = Vec::new();
        let mut pids = Vec::new();
        for (id, tenant) in writer.tenants.iter().filter(|(_, tenant)| !tenant.reserved) {
            // Models come in ascending order, so that on equal clocks the smallest id stays.
            for model in tenant.models.values() {
                for (replica, member) in &model.members {
                    if let Some(row) = member.stats() {
                        let merged = rows.entry((id.clone(), replica.clone())).or_default();
                        let newer =
                            |known: &(Stats, Micros, Micros)| (row.last_seen, row.reported) > (known.1, known.2);
                        if merged.stats.as_ref().is_none_or(newer) {
                            merged.stats = Some((row.stats, row.last_seen, row.reported));
                        }
                    }
                }
                pids.extend(model.scopes.values().flat_map(|scope| scope.partitions.values().copied()));
            }
            tenants.push(TenantRow { tenant: id.clone(), index_entries: tenant.keys.get(), hit_rate: None });
        }
        for pid in pids {
            let Some(ledger) = writer.ledger(pid) else { continue };
            let tenant = ledger.key.tenant.clone();
            ledger.holdings(|replica, holds, newest| {
                let merged = rows.entry((tenant.clone(), replica.clone())).or_default();
                merged.holds += holds;
                merged.newest = merged.newest.max(Some(newest));
            });
        }
        drop(writer);
        for tenant in &mut tenants {
            let rates = rows
                .range((tenant.tenant.clone(), Arc::from(""))..)
                .take_while(|((id, _), _)| *id == tenant.tenant)
                .filter_map(|(_, merged)| merged.stats.map(|(stats, ..)| f64::from(stats.hit_rate)));
            let (sum, n) = rates.fold((0.0, 0u32), |(sum, n), rate| (sum + rate, n + 1));
            #[expect(clippy::cast_possible_truncation, reason = "published in single precision")]
            let mean = (sum / f64::from(n)) as f32;
            tenant.hit_rate = (n > 0).then_some(mean);
        }
        tenants.retain(|tenant| tenant.index_entries > 0 || tenant.hit_rate.is_some());
        Snapshot {
            total_prefixes: tenants.iter().map(|tenant| tenant.index_entries).sum(),
            replicas: rows
                .into_iter()
                .map(|((tenant, replica), merged)| ReplicaRow {
                    tenant,
                    replica,
                    stats: merged.stats.map(|(stats, last_seen, _)| (stats, last_seen)),
                    prefix_count: merged.holds,
                    last_event_at: merged.newest,
                })
                .collect(),
            tenants,
        }
    }
}

/// One (tenant, replica) over its models and partitions.
#[derive(Default)]
struct Merged {
    stats: Option<(Stats, Micros, Micros)>,
    holds: u64,
    newest: Option<Micros>,
}
