//! Replicas as readers meet them: their names and load figures, by slot in a partition and as the sorted set that
//! serves a scope.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::{ArcSwap, ArcSwapOption};

use crate::index::books::Count;
use crate::time::Micros;
use crate::update::Stats;

/// One row of load figures with its two clocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct StatRow {
    pub(super) stats: Stats,
    /// Liveness: moved by reports and by REPLICA_UPDATED.
    pub(super) last_seen: Micros,
    /// When the numbers themselves arrived.
    pub(super) reported: Micros,
}

/// One replica of one (tenant, model).
#[derive(Debug)]
pub(super) struct Replica {
    pub(super) id: Arc<str>,
    /// Storage entries of it, in all partitions of the (tenant, model).
    pub(super) holds: Count,
    stats: ArcSwapOption<StatRow>,
    /// Whether there is a row, so that most readers need not look for it.
    reports: AtomicBool,
}

impl Replica {
    pub(super) fn new(id: &str) -> Self {
        Self { id: id.into(), holds: Count::default(), stats: ArcSwapOption::empty(), reports: AtomicBool::new(false) }
    }

    pub(super) fn stats(&self) -> Option<StatRow> {
        if self.reports.load(Ordering::Acquire) { self.stats.load().as_deref().copied() } else { None }
    }

    pub(super) fn set_stats(&self, row: Option<StatRow>) {
        let reports = row.is_some();
        self.stats.store(row.map(Arc::new));
        self.reports.store(reports, Ordering::Release);
    }
}

const CHUNK: usize = 32;

/// A replica and its id, side by side.
#[derive(Debug, Clone)]
pub(super) struct Name {
    pub(super) id: Arc<str>,
    pub(super) replica: Arc<Replica>,
}

/// Slot → replica, at one instant. A change copies one chunk, the list of chunks and the ranks.
#[derive(Debug, Default, Clone)]
pub(super) struct NameTable {
    chunks: Vec<Arc<[Option<Name>; CHUNK]>>,
    /// Slots in order of id.
    sorted: Vec<u32>,
    /// Slot → place in that order.
    ranks: Vec<u32>,
}

impl NameTable {
    /// The replica in `slot`, if it still holds anything.
    pub(super) fn get(&self, slot: u32) -> Option<&Name> {
        self.chunks.get(slot as usize / CHUNK)?[slot as usize % CHUNK].as_ref()
    }

    /// Whether there is a replica in `slot`.
    pub(super) fn is_known(&self, slot: u32) -> bool {
        self.rank(slot) != u32::MAX
    }

    /// The place of `slot` among all in order of id.
    pub(super) fn rank(&self, slot: u32) -> u32 {
        self.ranks.get(slot as usize).copied().unwrap_or(u32::MAX)
    }

    fn id(&self, slot: u32) -> &str {
        self.get(slot).map_or("", |name| &name.id)
    }
}

/// The names of one partition. A cleared replica's slot is emptied first, which hides all its entries at once.
#[derive(Debug, Default)]
pub(super) struct Names {
    table: ArcSwap<NameTable>,
}

impl Names {
    pub(super) fn load(&self) -> arc_swap::Guard<Arc<NameTable>> {
        self.table.load()
    }

    /// Lets go of all slots. For the writer, when none is in use any more.
    pub(super) fn reset(&self) {
        self.table.store(Arc::default());
    }

    /// For the writer.
    pub(super) fn set(&self, slot: u32, replica: Option<Arc<Replica>>) {
        let mut table = NameTable::clone(&self.table.load());
        let chunk = slot as usize / CHUNK;
        while table.chunks.len() <= chunk {
            table.chunks.push(Arc::new(std::array::from_fn(|_| None)));
        }
        table.ranks.resize(table.chunks.len() * CHUNK, u32::MAX);
        table.sorted.retain(|&other| other != slot);
        table.ranks[slot as usize] = u32::MAX;
        let mut names = (*table.chunks[chunk]).clone();
        names[slot as usize % CHUNK] = replica.map(|replica| Name { id: replica.id.clone(), replica });
        table.chunks[chunk] = Arc::new(names);
        if table.get(slot).is_some() {
            let place = table.sorted.partition_point(|&other| table.id(other) < table.id(slot));
            table.sorted.insert(place, slot);
        }
        for (rank, &slot) in (0u32..).zip(&table.sorted) {
            table.ranks[slot as usize] = rank;
        }
        self.table.store(Arc::new(table));
    }
}

/// Replicas that hold at least one key of a scope, sorted by id. Immutable; a change copies one leaf.
#[derive(Debug, Clone, Default)]
pub(super) struct ServingSet {
    leaves: Vec<Arc<Vec<Arc<Replica>>>>,
    len: usize,
}

const LEAF: usize = 64;

impl ServingSet {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Replica>> {
        self.leaves.iter().flat_map(|leaf| leaf.iter())
    }

    /// The `n`th in order of id.
    pub(super) fn nth(&self, mut n: usize) -> Option<&Arc<Replica>> {
        for leaf in &self.leaves {
            if n < leaf.len() {
                return leaf.get(n);
            }
            n -= leaf.len();
        }
        None
    }

    fn leaf_of(&self, id: &str) -> usize {
        self.leaves.partition_point(|leaf| leaf.last().is_some_and(|last| *last.id < *id))
    }

    pub(super) fn with(&self, replica: &Arc<Replica>) -> Self {
        let mut leaves = self.leaves.clone();
        let at = self.leaf_of(&replica.id).min(leaves.len().saturating_sub(1));
        let mut leaf = leaves.get(at).map(|leaf| Vec::clone(leaf)).unwrap_or_default();
        leaf.insert(leaf.partition_point(|other| *other.id < *replica.id), replica.clone());
        let upper = (leaf.len() > LEAF).then(|| leaf.split_off(LEAF / 2));
        if at < leaves.len() {
            leaves[at] = Arc::new(leaf);
        } else {
            leaves.push(Arc::new(leaf));
        }
        if let Some(upper) = upper {
            leaves.insert(at + 1, Arc::new(upper));
        }
        Self { leaves, len: self.len + 1 }
    }

    pub(super) fn without(&self, id: &str) -> Self {
        let at = self.leaf_of(id);
        let mut leaves = self.leaves.clone();
        let Some(found) = leaves.get(at).and_then(|leaf| leaf.iter().position(|other| *other.id == *id)) else {
            return self.clone();
        };
        let mut leaf = Vec::clone(&leaves[at]);
        leaf.remove(found);
        if leaf.is_empty() {
            leaves.remove(at);
        } else {
            leaves[at] = Arc::new(leaf);
        }
        Self { leaves, len: self.len - 1 }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_serving_set_stays_sorted() {
        let mut set = ServingSet::default();
        let mut model = BTreeSet::new();
        let mut x = 1u64;
        for _ in 0..4000 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let id = format!("r-{}", x >> 54);
            if model.remove(&id) {
                set = set.without(&id);
            } else {
                set = set.with(&Arc::new(Replica::new(&id)));
                model.insert(id);
            }
            assert_eq!(set.len(), model.len());
        }
        assert!(set.iter().map(|r| &*r.id).eq(model.iter().map(String::as_str)));
        assert!((0..model.len()).all(|n| set.nth(n).map(|r| &*r.id) == model.iter().nth(n).map(String::as_str)));
        assert!(set.nth(model.len()).is_none());
    }
}
