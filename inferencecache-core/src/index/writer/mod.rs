//! The writer's side of the whole index, behind one lock: tenants, models, scopes, partitions, and every count derived
//! from them.
//!
//! * `mod`: what there is, found and made by name.
//! * `settle`: what follows from a change. Counts are booked where holds change (see `books`).
//! * `across`: orders that span partitions, for quota and cap.
//!
//! Invariants, checked by the test kit after every step (numbers of the specification): P1 no key without holders and no
//! empty inner map; P2 totals are the sums; P3 keys per tenant and model; P4 serving counts; P6 aggregates agree.
//!
//! No callback (sink, clock, resolver) runs under the lock.

mod across;
mod settle;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::index::books::{Books, Count, ModelCounts};
use crate::index::catalog::{Catalog, Scope, ScopeKey};
use crate::index::hints::Hints;
use crate::index::ledger::Ledger;
use crate::index::partition::{Partition, PartitionKey};
use crate::index::replicas::Replica;
use crate::index::report::Gauge;
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
