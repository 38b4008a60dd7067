//! Everything the index holds, as plain lists, and the invariants of its derived state (P1 to P5), for tests.

use std::sync::Arc;

use crate::index::Index;
use crate::testkit::{Dump, DumpEntry, DumpStats, Inspect};

impl Inspect for Index {
    fn dump(&self) -> Dump {
        let writer = self.writer.lock();
        let mut entries = Vec::new();
        for (_, ledger) in writer.partitions() {
            ledger.dump(|hash, replica, token_count, last_seen, tier, access_count| {
                entries.push(DumpEntry {
                    tenant: ledger.key.tenant.clone(),
                    model: ledger.key.model.clone(),
                    scheme: ledger.key.scheme.clone(),
                    adapter: ledger.key.adapter.clone(),
                    hash,
                    replica: replica.clone(),
                    token_count,
                    last_seen,
                    tier,
                    access_count,
                });
            });
        }
        let mut stats = Vec::new();
        for (tenant, state) in &writer.tenants {
            for (model, state) in &state.models {
                for (replica, member) in &state.members {
                    if let Some(row) = member.stats() {
                        stats.push(DumpStats {
                            tenant: tenant.clone(),
                            model: model.clone(),
                            replica: replica.clone(),
                            stats: row.stats,
                            last_seen: row.last_seen,
                            stats_reported: row.reported,
                        });
                    }
                }
            }
        }
        Dump::new(entries, stats)
    }
}

impl Index {
    /// Checks the derived state against a dump of what is held. For tests, at rest.
    ///
    /// # Errors
    /// The first invariant that does not hold, by its number in the specification.
    pub fn check(&self) -> Result<(), String> {
        let dump = self.dump();
        let (total, reserved) = self.ground.catalog.storage();
        let writer = self.writer.lock();
        let is_reserved = |tenant: &str| self.options.reserved.iter().any(|id| *id == *tenant);
        let must = |rule: &str, holds: bool| if holds { Ok(()) } else { Err(rule.to_owned()) };
        must("P2 total", total == dump.entries.len() as u64)?;
        let in_reserved = dump.entries.iter().filter(|entry| is_reserved(&entry.tenant)).count() as u64;
        must("P2 reserved", reserved == in_reserved)?;
        let keys = dump.keys();
        for (id, tenant) in &writer.tenants {
            let held = keys.iter().filter(|key| *key.0 == **id).count() as u64;
            must("P3 keys of tenant", tenant.keys.get() == held && self.ground.catalog.has_tenant(id) == (held > 0))?;
            must("P1 no empty tenant", !tenant.models.is_empty())?;
            for (name, model) in &tenant.models {
                let held = keys.iter().filter(|key| *key.0 == **id && *key.1 == **name).count() as u64;
                must("P3 keys of model", model.counts.keys.get() == held)?;
                must("P3 model known", self.ground.catalog.has_model(id, name) == (held > 0))?;
                must("P1 no empty model", !model.scopes.is_empty() || !model.members.is_empty())?;
                must("P1 no idle member", model.members.values().all(|m| m.holds.get() > 0 || m.stats().is_some()))?;
                must("P1 no empty scope", model.scopes.values().all(|scope| !scope.partitions.is_empty()))?;
            }
        }
        must("P3 no other tenant", keys.iter().all(|key| writer.tenants.contains_key(key.0)))?;
        let serving = dump.serving();
        for ((tenant, model, scheme), replicas) in &serving {
            let shown: Option<Vec<Arc<str>>> = self.ground.catalog.with_scope(tenant, model, scheme, |scope| {
                scope.serving.load().iter().map(|replica| replica.id.clone()).collect()
            });
            let shown = shown.unwrap_or_default();
            must("P4 serving", shown.iter().map(|id| &**id).eq(replicas.keys().copied()))?;
        }
        must("P5 stats rows", writer.stat_order.len() == dump.stats.len())?;
        must("P1 no empty partition", writer.partitions().all(|(_, ledger)| ledger.keys > 0))
    }
}
