//! Orders that span partitions: the cap's victims, a tenant's oldest prefixes, and which order each tenant follows.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::index::writer::{Ground, Writer};
use crate::resolve::Eviction;
use crate::time::Micros;

impl Writer {
    /// The partition with the first victim, and the bound it is known under.
    pub(in crate::index) fn first_victim(&self) -> Option<(u64, Micros, u32)> {
        self.victims.first().map(|&(uses, seen, _, pid)| (uses, seen, pid))
    }

    /// The partition with the oldest prefix of a tenant.
    pub(in crate::index) fn first_oldest(&self, tenant: &str) -> Option<u32> {
        self.tenants.get(tenant)?.oldest.first().map(|&(.., pid)| pid)
    }

    /// Starts or stops keeping a tenant's prefixes in order of age.
    pub(in crate::index) fn keep_ages(&mut self, ground: &Ground, tenant: &str, keep: bool) {
        let Some(entry) = self.tenants.get_mut(tenant) else { return };
        if entry.aged == keep {
            return;
        }
        entry.aged = keep;
        ground.aged.fetch_add(if keep { 1 } else { u64::MAX }, Ordering::Relaxed);
        let pids: Vec<u32> = entry
            .models
            .values()
            .flat_map(|m| m.scopes.values())
            .flat_map(|s| s.partitions.values().copied())
            .collect();
        for pid in pids {
            if let Some(ledger) = self.ledger(pid) {
                ledger.keep_ages(keep);
            }
            self.sync(ground, pid);
        }
    }

    /// The tenants whose victim order must be asked for, unless the resolver's revision says that nothing has changed.
    pub(in crate::index) fn unasked(&self, revision: Option<u64>) -> Vec<Arc<str>> {
        if revision.is_some() && revision == self.revision {
            Vec::new()
        } else {
            self.tenants.keys().cloned().collect()
        }
    }

    /// Keeps the partitions of these tenants in these orders from now on.
    pub(in crate::index) fn follow(
        &mut self,
        ground: &Ground,
        answers: &[(Arc<str>, Eviction)],
        revision: Option<u64>,
    ) {
        self.revision = revision;
        for (id, eviction) in answers {
            let Some(tenant) = self.tenants.get_mut(id).filter(|tenant| tenant.eviction != *eviction) else { continue };
            tenant.eviction = *eviction;
            for pid in tenant.partitions() {
                if let Some(ledger) = self.ledger(pid) {
                    ledger.set_eviction(*eviction);
                }
                self.sync(ground, pid);
            }
        }
    }

    /// The victim order that a tenant's partitions follow.
    pub(in crate::index) fn eviction_of(&self, tenant: &str) -> Eviction {
        self.tenants.get(tenant).map(|tenant| tenant.eviction).unwrap_or_default()
    }
}
