//! The writer's side of the whole index, behind one lock: tenants, models, scopes, partitions, and every count derived
//! from them. Counts are booked where holds change (see `books`); [`Writer::settle`] does what follows from that by name.
//!
//! Invariants, checked by the test kit after every step (numbers of the specification): P1 no key without holders and no
//! empty inner map; P2 totals are the sums; P3 keys per tenant and model; P4 serving counts; P6 aggregates agree.
//!
//! No callback (sink, clock, resolver) runs under the lock.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::index::books::{Books, Change, Count, ModelCounts};
use crate::index::catalog::{Catalog, Scope, ScopeKey};
use crate::index::hints::Hints;
use crate::index::ledger::Ledger;
use crate::index::partition::{Partition, PartitionKey};
use crate::index::replicas::{Replica, StatRow};
use crate::index::report::{Gauge, Report};
use crate::resolve::{Eviction, Resolvers};
use crate::time::Micros;

/// Position of a stats row in the order of liveness.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct StatKey {
    /// Rows of reserved tenants come last: they neither count against the bound nor make room.
    pub(super) reserved: bool,
    pub(super) last_seen: Micros,
    pub(super) tenant: Arc<str>,
    pub(super) model: Arc<str>,
    pub(super) replica: Arc<str>,
}

/// Keys that a replica holds in a scope, over all adapters.
#[derive(Debug, Default)]
struct Served {
    count: Arc<Count>,
    /// Whether readers see the replica as serving.
    shown: bool,
}

#[derive(Debug, Default)]
pub(super) struct ScopeState {
    shared: Arc<Scope>,
    serving: HashMap<Arc<str>, Served, foldhash::fast::RandomState>,
    pub(super) partitions: BTreeMap<Arc<str>, u32>,
}

#[derive(Debug)]
pub(super) struct Model {
    pub(super) counts: Arc<ModelCounts>,
    gauge: Option<Arc<Gauge>>,
    pub(super) scopes: BTreeMap<Arc<str>, ScopeState>,
    pub(super) members: BTreeMap<Arc<str>, Arc<Replica>>,
}

#[derive(Debug)]
pub(super) struct Tenant {
    pub(super) reserved: bool,
    pub(super) keys: Arc<Count>,
    /// The victim order its partitions are kept in.
    eviction: Eviction,
    /// Whether its partitions keep prefixes by age.
    aged: bool,
    pub(super) models: BTreeMap<Arc<str>, Model>,
    /// The oldest prefix of each partition, while `aged`.
    oldest: BTreeSet<(Micros, Arc<PartitionKey>, u32)>,
}

impl Tenant {
    fn partitions(&self) -> Vec<u32> {
        let scopes = self.models.values().flat_map(|model| model.scopes.values());
        scopes.flat_map(|scope| scope.partitions.values().copied()).collect()
    }
}

/// Everything the writer's lock guards.
#[derive(Debug, Default)]
pub(super) struct Writer {
    pub(super) tenants: BTreeMap<Arc<str>, Tenant>,
    ledgers: Vec<Option<Ledger>>,
    free: Vec<u32>,
    /// The last partition number given out; each asking takes one.
    numbers: u64,
    /// The first victim of each partition outside reserved tenants: a lower bound, exact but for credits.
    victims: BTreeSet<(u64, Micros, Arc<PartitionKey>, u32)>,
    pub(super) stat_order: BTreeSet<StatKey>,
    /// Stats rows outside reserved tenants.
    pub(super) real_stats: u64,
    gauges: HashMap<Arc<str>, Arc<Gauge>, foldhash::fast::RandomState>,
    /// Revision of the eviction resolver whose answers the partitions follow.
    revision: Option<u64>,
    hints: Hints,
}

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

/// What never changes about an index, for the writer's use.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) catalog: Catalog,
    pub(super) seed: u64,
    pub(super) reserved: Vec<String>,
    pub(super) resolvers: Resolvers,
    /// Nobody listens to gauges.
    pub(super) silent: bool,
    /// Tenants that keep prefixes by age; changed under the writer's lock.
    pub(super) aged: AtomicU64,
}

impl Writer {
    // === finding and making ===

    pub(super) fn ledger(&mut self, pid: u32) -> Option<&mut Ledger> {
        self.ledgers.get_mut(pid as usize)?.as_mut()
    }

    /// The ledger of a partition, unless that has gone meanwhile and its number is another's.
    pub(super) fn same_ledger(&mut self, pid: u32, shared: &Arc<Partition>) -> Option<&mut Ledger> {
        self.ledger(pid).filter(|ledger| Arc::ptr_eq(&ledger.shared, shared))
    }

    /// The ledger of these names, if it is that of this partition.
    pub(super) fn ledger_of(
        &mut self,
        names: (&str, &str, &str, &str),
        shared: &Arc<Partition>,
    ) -> Option<&mut Ledger> {
        let (tenant, model, scheme, adapter) = names;
        let scopes = &self.tenants.get(tenant)?.models.get(model)?.scopes;
        let pid = *scopes.get(scheme)?.partitions.get(adapter)?;
        self.same_ledger(pid, shared)
    }

    /// Every partition there is now.
    pub(super) fn partitions(&self) -> impl Iterator<Item = (u32, &Ledger)> {
        (0u32..).zip(&self.ledgers).filter_map(|(pid, ledger)| Some((pid, ledger.as_ref()?)))
    }

    /// The partitions of (tenant, model), all schemes; of one adapter if it is named.
    pub(super) fn partitions_of(&self, tenant: &str, model: &str, adapter: Option<&str>) -> Vec<u32> {
        let Some(model) = self.tenants.get(tenant).and_then(|tenant| tenant.models.get(model)) else {
            return Vec::new();
        };
        model
            .scopes
            .values()
            .flat_map(|scope| &scope.partitions)
            .filter(|(name, _)| adapter.is_none_or(|adapter| *adapter == ***name))
            .map(|(_, &pid)| pid)
            .collect()
    }

    fn model(&mut self, ground: &Ground, tenant: &str, model: &str) -> (Arc<str>, &mut Tenant, Arc<str>) {
        let tenant_id = known(&self.tenants, tenant);
        if !self.tenants.contains_key(tenant) {
            // Its victim order is asked for when one is first needed.
            self.revision = None;
        }
        let entry = self.tenants.entry(tenant_id.clone()).or_insert_with(|| Tenant {
            reserved: ground.reserved.iter().any(|reserved| *reserved == *tenant),
            keys: Arc::default(),
            eviction: Eviction::default(),
            aged: false,
            models: BTreeMap::new(),
            oldest: BTreeSet::new(),
        });
        let model_id = known(&entry.models, model);
        entry.models.entry(model_id.clone()).or_insert_with(|| Model {
            counts: Arc::default(),
            gauge: None,
            scopes: BTreeMap::new(),
            members: BTreeMap::new(),
        });
        (tenant_id, entry, model_id)
    }

    /// The member for a replica id, made if need be.
    pub(super) fn member(&mut self, ground: &Ground, tenant: &str, model: &str, replica: &str) -> Arc<Replica> {
        let found = self.tenants.get(tenant).and_then(|tenant| tenant.models.get(model));
        if let Some(member) = found.and_then(|model| model.members.get(replica)) {
            return member.clone();
        }
        let (_, tenant, model) = self.model(ground, tenant, model);
        let members = &mut tenant.models.get_mut(&model).expect("just made").members;
        let made = Arc::new(Replica::new(replica));
        members.insert(made.id.clone(), made.clone());
        made
    }

    /// The partition of these names, made if need be.
    pub(super) fn partition(&mut self, ground: &Ground, tenant: &str, model: &str, scheme: &str, adapter: &str) -> u32 {
        let scope = self.tenants.get(tenant).and_then(|tenant| tenant.models.get(model)?.scopes.get(scheme));
        if let Some(&pid) = scope.and_then(|scope| scope.partitions.get(adapter)) {
            return pid;
        }
        self.numbers += 1;
        let number = self.numbers;
        let next = self.free.last().copied().unwrap_or_else(|| u32::try_from(self.ledgers.len()).unwrap_or(u32::MAX));
        let (tenant_id, tenant, model_id) = self.model(ground, tenant, model);
        let (eviction, aged, reserved, keys) = (tenant.eviction, tenant.aged, tenant.reserved, tenant.keys.clone());
        let model = tenant.models.get_mut(&model_id).expect("just made");
        let scheme_id = known(&model.scopes, scheme);
        let scope = model.scopes.entry(scheme_id.clone()).or_insert_with(|| {
            let made = ScopeState::default();
            ground.catalog.add_scope(ScopeKey(tenant_id.clone(), model_id.clone(), scheme_id.clone()), &made.shared);
            made
        });
        let adapter: Arc<str> = adapter.into();
        let key = PartitionKey { tenant: tenant_id, model: model_id, scheme: scheme_id, adapter: adapter.clone() };
        let key = Arc::new(key);
        let words = ground.catalog.wide_words.clone();
        let shared = Partition::new(key.clone(), (ground.seed, number), words, scope.shared.clone());
        let books =
            Books { reserved, totals: ground.catalog.totals.clone(), tenant: keys, model: model.counts.clone() };
        books.model.partitions.add(1);
        let ledger = Ledger::new(key, shared, books, (eviction, aged));
        ground.catalog.add_partition(&ledger.key, &ledger.shared);
        scope.partitions.insert(adapter, next);
        if self.free.pop().is_none() {
            self.ledgers.push(None);
        }
        self.ledgers[next as usize] = Some(ledger);
        next
    }

    /// The partition of these names and the replica's slot in it, made if need be.
    pub(super) fn place(&mut self, ground: &Ground, names: (&str, &str, &str, &str), replica: &str) -> (u32, u32) {
        let hint = self.hints.get(names, replica);
        if let Some(ledger) = self.ledger(hint.0)
            && ledger.is_slot(hint.1, replica)
            && ledger.key.names() == names
        {
            return hint;
        }
        let (tenant, model, scheme, adapter) = names;
        let member = self.member(ground, tenant, model, replica);
        let pid = self.partition(ground, tenant, model, scheme, adapter);
        let models = self.tenants.get_mut(tenant).map(|tenant| &mut tenant.models);
        let scope = models.and_then(|models| models.get_mut(model)?.scopes.get_mut(scheme));
        let served = scope.map(|scope| scope.serving.entry(member.id.clone()).or_default().count.clone());
        let slot = self.ledger(pid).map_or(0, |ledger| ledger.slot(&member, &served.unwrap_or_default()));
        self.hints.set(names, replica, (pid, slot));
        (pid, slot)
    }

    /// The slots of a replica in the partitions of (tenant, model), all schemes; of one adapter if it is named.
    pub(super) fn places(&mut self, tenant: &str, model: &str, adapter: Option<&str>, replica: &str) -> Places {
        let names = (tenant, model, "", "");
        let hint = self.hints.get(names, replica);
        if let Some(ledger) = self.ledger(hint.0)
            && ledger.is_slot(hint.1, replica)
            && (&*ledger.key.tenant, &*ledger.key.model) == (tenant, model)
            && ledger.books.model.partitions.get() == 1
            && adapter.is_none_or(|adapter| *adapter == *ledger.key.adapter)
        {
            return Places::One(hint);
        }
        let pids = self.partitions_of(tenant, model, adapter);
        let slot = |pid: u32| self.ledgers.get(pid as usize)?.as_ref()?.slot_of(replica);
        let places: Vec<(u32, u32)> = pids.into_iter().filter_map(|pid| Some((pid, slot(pid)?))).collect();
        if let [place] = places[..] {
            self.hints.set(names, replica, place);
        }
        Places::Some(places)
    }

    // === keeping derived state ===

    /// Does what follows from a change in a partition, and makes it an empty one.
    pub(super) fn settle(
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
    pub(super) fn sync(&mut self, ground: &Ground, pid: u32) {
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
    pub(super) fn forget_model(&mut self, ground: &Ground, tenant: &str, model: &str) {
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
    pub(super) fn forget_gauges(&mut self, drained: &[Arc<Gauge>]) {
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

    // === stats ===

    /// Replaces, moves or removes the stats row of a replica.
    pub(super) fn set_stats(
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

    // === orders across partitions ===

    /// The partition with the first victim, and the bound it is known under.
    pub(super) fn first_victim(&self) -> Option<(u64, Micros, u32)> {
        self.victims.first().map(|&(uses, seen, _, pid)| (uses, seen, pid))
    }

    /// The partition with the oldest prefix of a tenant.
    pub(super) fn first_oldest(&self, tenant: &str) -> Option<u32> {
        self.tenants.get(tenant)?.oldest.first().map(|&(.., pid)| pid)
    }

    /// Starts or stops keeping a tenant's prefixes in order of age.
    pub(super) fn keep_ages(&mut self, ground: &Ground, tenant: &str, keep: bool) {
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
    pub(super) fn unasked(&self, revision: Option<u64>) -> Vec<Arc<str>> {
        if revision.is_some() && revision == self.revision {
            Vec::new()
        } else {
            self.tenants.keys().cloned().collect()
        }
    }

    /// Keeps the partitions of these tenants in these orders from now on.
    pub(super) fn follow(&mut self, ground: &Ground, answers: &[(Arc<str>, Eviction)], revision: Option<u64>) {
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
    pub(super) fn eviction_of(&self, tenant: &str) -> Eviction {
        self.tenants.get(tenant).map(|tenant| tenant.eviction).unwrap_or_default()
    }
}

/// Where a replica holds something.
#[derive(Debug)]
pub(super) enum Places {
    /// In the only partition there is.
    One((u32, u32)),
    /// In these: partition and slot.
    Some(Vec<(u32, u32)>),
}

impl Places {
    pub(super) fn get(&self) -> &[(u32, u32)] {
        match self {
            Self::One(place) => std::slice::from_ref(place),
            Self::Some(places) => places,
        }
    }
}

/// The key already in use for a name, or a new one.
fn known<V>(map: &BTreeMap<Arc<str>, V>, name: &str) -> Arc<str> {
    map.get_key_value(name).map_or_else(|| name.into(), |(key, _)| key.clone())
}
