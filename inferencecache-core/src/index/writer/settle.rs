//! What follows from a change in a partition: presence by name, who serves, gauges, and what is forgotten once it is empty.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::index::books::{Change, Count};
use crate::index::partition::PartitionKey;
use crate::index::replicas::{Replica, StatRow};
use crate::index::report::{Gauge, Report};
use crate::index::writer::{Ground, ScopeState, Served, StatKey, Writer};

impl ScopeState {
    /// A replica has begun or ceased to hold something of the scope.
    fn turn(&mut self, replica: &Arc<Replica>, served: &Arc<Count>) {
        let serves = served.get() > 0;
        let shown = match self.serving.get_mut(&replica.id) {
            Some(known) => std::mem::replace(&mut known.shown, serves),
            None if serves => {
                self.serving.insert(replica.id.clone(), Served { count: served.clone(), shown: true });
                false
            }
            None => false,
        };
        if !serves {
            self.serving.remove(&replica.id);
        }
        if serves != shown {
            let old = self.shared.serving.load();
            self.shared.serve(if serves { old.with(replica) } else { old.without(&replica.id) });
        }
    }
}

impl Writer {
    /// Does what follows from a change in a partition, and makes it an empty one.
    pub(in crate::index) fn settle(
        &mut self,
        ground: &Ground,
        key: &Arc<PartitionKey>,
        change: &mut Change,
        report: &mut Report,
    ) {
        let keys = std::mem::take(&mut change.keys);
        let levels = std::mem::take(&mut change.levels);
        change.gone = 0;
        if !levels && change.turned.is_empty() && (keys == 0 || ground.silent) {
            return;
        }
        let model = self.tenants.get_mut(&key.tenant).and_then(|tenant| {
            let model = tenant.models.get_mut(&key.model)?;
            Some((tenant.reserved, &tenant.keys, model))
        });
        let Some((reserved, of_tenant, model)) = model else { return change.turned.clear() };
        if levels {
            ground.catalog.set_tenant(&key.tenant, of_tenant.get() > 0);
            ground.catalog.set_model(&key.tenant, &key.model, model.counts.keys.get() > 0);
        }
        if !reserved && keys != 0 && !ground.silent {
            let gauge = model.gauge.get_or_insert_with(|| {
                let made = || Arc::new(Gauge::new(&key.model));
                self.gauges.entry(key.model.clone()).or_insert_with(made).clone()
            });
            gauge.keys.fetch_add(keys as u64, Ordering::Release);
            report.touched(gauge);
        }
        for (replica, served) in change.turned.drain(..) {
            if let Some(scope) = model.scopes.get_mut(&key.scheme) {
                scope.turn(&replica, &served);
            }
            let is = |member: &Arc<Replica>| Arc::ptr_eq(member, &replica);
            if replica.holds.get() == 0 && replica.stats().is_none() && model.members.get(&replica.id).is_some_and(is) {
                model.members.remove(&replica.id);
            }
        }
    }

    /// Brings a partition's items in the orders across partitions up to date; forgets an empty partition.
    pub(in crate::index) fn sync(&mut self, ground: &Ground, pid: u32) {
        let Some(ledger) = self.ledgers.get_mut(pid as usize).and_then(Option::as_mut) else { return };
        let victim = ledger.victim_bound().filter(|_| !ledger.books.reserved);
        if victim != ledger.victim {
            if let Some((uses, seen)) = ledger.victim {
                self.victims.remove(&(uses, seen, ledger.key.clone(), pid));
            }
            if let Some((uses, seen)) = victim {
                self.victims.insert((uses, seen, ledger.key.clone(), pid));
            }
            ledger.victim = victim;
        }
        let oldest = ledger.oldest_age();
        if oldest != ledger.oldest
            && let Some(tenant) = self.tenants.get_mut(&ledger.key.tenant)
        {
            if let Some(age) = ledger.oldest {
                tenant.oldest.remove(&(age, ledger.key.clone(), pid));
            }
            if let Some(age) = oldest {
                tenant.oldest.insert((age, ledger.key.clone(), pid));
            }
            ledger.oldest = oldest;
        }
        if ledger.keys == 0 {
            let key = ledger.key.clone();
            ledger.shared.reset();
            self.ledgers[pid as usize] = None;
            self.free.push(pid);
            self.forget_partition(ground, &key);
        }
    }

    fn forget_partition(&mut self, ground: &Ground, key: &PartitionKey) {
        if let Some(model) = self.tenants.get_mut(&key.tenant).and_then(|tenant| tenant.models.get_mut(&key.model))
            && let Some(scope) = model.scopes.get_mut(&key.scheme)
        {
            scope.partitions.remove(&key.adapter);
            model.counts.partitions.add(-1);
            ground.catalog.remove_partition(key);
            if scope.partitions.is_empty() {
                model.scopes.remove(&key.scheme);
                ground.catalog.remove_scope(&key.tenant, &key.model, &key.scheme);
            }
        }
        self.forget_model(ground, &key.tenant, &key.model);
    }

    /// Forgets a model without keys and members, and its tenant with the last one.
    pub(in crate::index) fn forget_model(&mut self, ground: &Ground, tenant: &str, model: &str) {
        let Some(entry) = self.tenants.get_mut(tenant) else { return };
        if entry.models.get(model).is_some_and(|model| model.scopes.is_empty() && model.members.is_empty()) {
            entry.models.remove(model);
            if entry.models.is_empty() {
                ground.aged.fetch_sub(u64::from(entry.aged), Ordering::Relaxed);
                self.tenants.remove(tenant);
            }
        }
    }

    /// Forgets gauges that were told to be 0 and still are.
    pub(in crate::index) fn forget_gauges(&mut self, drained: &[Arc<Gauge>]) {
        for gauge in drained {
            if gauge.keys.load(Ordering::Acquire) == 0
                && let Some(known) = self.gauges.get(&gauge.model)
                && Arc::ptr_eq(known, gauge)
                && !self
                    .tenants
                    .values()
                    .any(|tenant| tenant.models.get(&gauge.model).is_some_and(|m| m.counts.keys.get() > 0))
            {
                self.gauges.remove(&gauge.model);
                for tenant in self.tenants.values_mut() {
                    if let Some(model) = tenant.models.get_mut(&gauge.model) {
                        model.gauge = None;
                    }
                }
            }
        }
    }

    /// Replaces, moves or removes the stats row of a replica.
    pub(in crate::index) fn set_stats(
        &mut self,
        ground: &Ground,
        tenant: &str,
        model: &str,
        replica: &str,
        row: Option<StatRow>,
    ) {
        let Some((tenant_id, entry)) = self.tenants.get_key_value(tenant).map(|(id, _)| id.clone()).and_then(|id| {
            let entry = self.tenants.get_mut(tenant)?;
            Some((id, entry))
        }) else {
            return;
        };
        let Some((model_id, _)) = entry.models.get_key_value(model) else { return };
        let model_id = model_id.clone();
        let Some(state) = entry.models.get_mut(model) else { return };
        let Some(member) = state.members.get_mut(replica) else { return };
        let reserved = entry.reserved;
        let key = |row: &StatRow| StatKey {
            reserved,
            last_seen: row.last_seen,
            tenant: tenant_id.clone(),
            model: model_id.clone(),
            replica: member.id.clone(),
        };
        if let Some(old) = member.stats() {
            self.stat_order.remove(&key(&old));
            self.real_stats -= u64::from(!reserved);
        }
        if let Some(new) = &row {
            self.stat_order.insert(key(new));
            self.real_stats += u64::from(!reserved);
        }
        member.set_stats(row);
        if row.is_none() && member.holds.get() == 0 {
            state.members.remove(replica);
            self.forget_model(ground, tenant, model);
        }
    }
}
