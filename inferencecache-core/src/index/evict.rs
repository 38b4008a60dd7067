//! What makes room: the tenant's quota, the global cap, and age.
//!
//! All three read the head of an order; none looks at more than what it removes. Each holds the lock for at most 256
//! removals at a time.

use std::collections::HashMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::index::Index;
use crate::index::books::Change;
use crate::index::report::Report;
use crate::index::writer::StatKey;
use crate::metrics::EvictionCause;
use crate::resolve::Eviction;
use crate::time::Micros;

const SLICE: u32 = 256;

impl Index {
    /// Removes the tenant's oldest prefixes, with all their holders, until it holds no more than its budget.
    pub(super) fn enforce_quota(&self, tenant: &str, budget: Option<u64>, report: &mut Report) {
        if budget.is_none() && self.ground.aged.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut change = Change::default();
        loop {
            let mut writer = self.writer.lock();
            let Some(state) = writer.tenants.get(tenant) else { return };
            let Some(budget) = budget else {
                return writer.keep_ages(&self.ground, tenant, false);
            };
            if state.keys.get() <= budget {
                return;
            }
            writer.keep_ages(&self.ground, tenant, true);
            for _ in 0..SLICE {
                if writer.tenants.get(tenant).is_none_or(|tenant| tenant.keys.get() <= budget) {
                    return;
                }
                let Some(pid) = writer.first_oldest(tenant) else { return };
                let Some(ledger) = writer.ledger(pid) else { return };
                if !ledger.remove_oldest(&mut change) {
                    return;
                }
                ledger.commit();
                let key = ledger.key.clone();
                writer.settle(&self.ground, &key, &mut change, report);
                report.over_quota(1);
                writer.sync(&self.ground, pid);
            }
        }
    }

    /// Removes the first entries of the global victim order until exactly the cap remains.
    pub(super) fn enforce_cap(&self, report: &mut Report) {
        let cap = self.options.max_entries;
        let over = || {
            let (total, reserved) = self.ground.catalog.storage();
            if cap > 0 { total.saturating_sub(reserved).saturating_sub(cap) } else { 0 }
        };
        let mut change = Change::default();
        while over() > 0 {
            self.follow_evictions();
            let mut writer = self.writer.lock();
            let mut budget = SLICE;
            while budget > 0 && over() > 0 {
                let Some((uses, seen, pid)) = writer.first_victim() else { return };
                let Some(ledger) = writer.ledger(pid) else { return };
                // All of this rank in this partition go before anything of the next: its names come before theirs.
                let most = u32::try_from(over()).unwrap_or(u32::MAX).min(budget);
                ledger.remove_victims((uses, seen), most, &mut change);
                ledger.commit();
                let key = ledger.key.clone();
                let algorithm = writer.eviction_of(&key.tenant);
                let removed = change.gone;
                writer.settle(&self.ground, &key, &mut change, report);
                report.evicted(algorithm, EvictionCause::Cap, removed);
                budget -= removed;
                // Credited since: its partition moves back in the order.
                writer.sync(&self.ground, pid);
            }
        }
    }

    /// Asks for the victim order of each tenant, without a lock, and brings the partitions into it.
    fn follow_evictions(&self) {
        let Some(resolver) = &self.ground.resolvers.eviction else { return };
        let revision = resolver.revision();
        let tenants = self.writer.lock().unasked(revision);
        if !tenants.is_empty() {
            let answers: Vec<_> =
                tenants.into_iter().map(|tenant| (tenant.clone(), resolver.eviction(&tenant))).collect();
            self.writer.lock().follow(&self.ground, &answers, revision);
        }
    }

    /// Removes every entry and stats row that has outlived its tenant's TTL.
    pub(super) fn sweep_expired(&self) {
        let now = self.options.clock.now();
        let mut rules: HashMap<Arc<str>, (Micros, Eviction)> = HashMap::new();
        let mut rule = |tenant: &Arc<str>| {
            *rules.entry(tenant.clone()).or_insert_with(|| {
                (self.ground.resolvers.ttl(tenant, self.options.ttl), self.ground.resolvers.eviction(tenant))
            })
        };
        let (mut report, mut change) = (Report::default(), Change::default());
        let partitions: Vec<_> = {
            let writer = self.writer.lock();
            writer.partitions().map(|(pid, ledger)| (pid, ledger.key.clone(), ledger.shared.clone())).collect()
        };
        for (pid, key, shared) in partitions {
            let (ttl, algorithm) = rule(&key.tenant);
            loop {
                let mut writer = self.writer.lock();
                let Some(ledger) = writer.same_ledger(pid, &shared) else { break };
                let more = ledger.expire(now, ttl, SLICE, &mut change);
                ledger.commit();
                let removed = change.gone;
                if removed > 0 {
                    writer.settle(&self.ground, &key, &mut change, &mut report);
                    report.evicted(algorithm, EvictionCause::Ttl, removed);
                    writer.sync(&self.ground, pid);
                }
                if !more {
                    break;
                }
            }
        }
        self.sweep_stats(now, &mut rule);
        self.tell("", report);
    }

    fn sweep_stats(&self, now: Micros, rule: &mut impl FnMut(&Arc<str>) -> (Micros, Eviction)) {
        let mut after = None;
        loop {
            let slice: Vec<StatKey> = {
                let writer = self.writer.lock();
                let from = after.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
                writer.stat_order.range((from, Bound::Unbounded)).take(SLICE as usize).cloned().collect()
            };
            let expired = slice.iter().filter(|row| now.saturating_sub(row.last_seen) >= rule(&row.tenant).0);
            let expired: Vec<&StatKey> = expired.collect();
            if !expired.is_empty() {
                let mut writer = self.writer.lock();
                for row in expired {
                    // Unless it has been reported meanwhile.
                    if writer.stat_order.contains(row) {
                        writer.set_stats(&self.ground, &row.tenant, &row.model, &row.replica, None);
                    }
                }
            }
            match slice.into_iter().last() {
                Some(last) => after = Some(last),
                None => return,
            }
        }
    }
}
