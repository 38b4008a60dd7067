//! The writer's half of one partition: who holds what, in which order it goes, and what each replica has.
//!
//! * `mod`: replicas and their slots.
//! * `place`: where the blocks of a report are put.
//! * `holds`: records made, changed and removed.
//! * `image`: pages copied out and put back.
//! * `lines`: orders by age and use, for TTL, cap and quota.

mod holds;
mod image;
mod lines;
mod place;

use std::collections::HashMap;
use std::sync::Arc;

pub(super) use image::{Copied, Restored};
pub(super) use place::Block;

use crate::index::arena::NIL;
use crate::index::books::{Books, Change, Count};
use crate::index::ledger::lines::Ages;
use crate::index::order::{HashKey, Order, Ties};
use crate::index::page::Fields;
use crate::index::partition::{Partition, PartitionKey};
use crate::index::replicas::Replica;
use crate::index::store::{Ground, Store};
use crate::index::table::Word;
use crate::resolve::Eviction;
use crate::time::Micros;

/// What one replica holds here.
#[derive(Debug)]
struct Slot {
    replica: Arc<Replica>,
    /// Its holds in all partitions of the scope.
    served: Arc<Count>,
    ground: Ground,
    holds: u64,
    /// Newest `last_seen` among its entries; unknown after that entry went or aged.
    newest: Option<Micros>,
    /// Hidden from readers; its entries are being removed.
    cleared: bool,
    /// Every page with a record of it, and some that had one.
    pages: Vec<u32>,
    /// How many of them have one.
    live: usize,
    /// Where the last block of its last report was put.
    tail: Tail,
}

/// A page and position, and the tokens up to there.
#[derive(Debug, Clone, Copy)]
struct Tail {
    page: u32,
    position: u32,
    tokens: i32,
}

const NO_TAIL: Tail = Tail { page: NIL, position: 0, tokens: 0 };

/// The writer's half of a partition.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) key: Arc<PartitionKey>,
    pub(super) shared: Arc<Partition>,
    pub(super) books: Books,
    /// Distinct prefixes.
    pub(super) keys: u64,
    store: Store,
    slots: Vec<Option<Slot>>,
    free_slots: Vec<u32>,
    slot_of: HashMap<Arc<str>, u32, foldhash::fast::RandomState>,
    wide: HashMap<u64, Arc<Box<[u8]>>, foldhash::fast::RandomState>,
    next_wide: u64,
    eviction: Eviction,
    /// Whether new pages count uses: somebody has asked for counters once.
    counting: bool,
    order: Order,
    ties: Ties,
    ages: Option<Ages>,
    /// Scratch: the records of one replica in one page.
    own: Vec<(u32, Fields)>,
    /// The item of this partition in the global victim order.
    pub(super) victim: Option<(u64, Micros)>,
    /// The item of this partition in its tenant's quota order.
    pub(super) oldest: Option<Micros>,
}

impl Ledger {
    pub(super) fn new(
        key: Arc<PartitionKey>,
        shared: Partition,
        books: Books,
        (eviction, aged): (Eviction, bool),
    ) -> Self {
        let store = Store::new(shared.seed);
        Self {
            key,
            shared: Arc::new(shared),
            books,
            keys: 0,
            store,
            slots: Vec::new(),
            free_slots: Vec::new(),
            slot_of: HashMap::default(),
            wide: HashMap::default(),
            next_wide: 0,
            eviction,
            counting: false,
            order: Order::default(),
            ties: Ties::default(),
            ages: aged.then(Ages::default),
            own: Vec::new(),
            victim: None,
            oldest: None,
        }
    }

    /// Makes everything the operation did visible at once.
    pub(super) fn commit(&mut self) {
        self.settle_ages();
        if let Some(layout) = self.store.layout() {
            self.shared.layout.store(Arc::new(layout));
        }
        self.store.commit();
    }

    // === replicas ===

    /// The slot of a replica, made if need be. `served` counts its holds in the scope.
    pub(super) fn slot(&mut self, replica: &Arc<Replica>, served: &Arc<Count>) -> u32 {
        if let Some(&slot) = self.slot_of.get(&replica.id) {
            return slot;
        }
        let made = Slot {
            replica: replica.clone(),
            served: served.clone(),
            ground: Ground::default(),
            holds: 0,
            newest: None,
            cleared: false,
            pages: Vec::new(),
            live: 0,
            tail: NO_TAIL,
        };
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).unwrap_or(NIL - 1)
        });
        self.slots[slot as usize] = Some(made);
        self.slot_of.insert(replica.id.clone(), slot);
        self.shared.names.set(slot, Some(replica.clone()));
        slot
    }

    /// The slot of a replica that holds something.
    pub(super) fn slot_of(&self, replica: &str) -> Option<u32> {
        self.slot_of.get(replica).copied()
    }

    /// Whether this is the slot of a replica.
    pub(super) fn is_slot(&self, slot: u32, replica: &str) -> bool {
        let slot = self.slots.get(slot as usize).and_then(Option::as_ref);
        slot.is_some_and(|slot| *slot.replica.id == *replica && !slot.cleared)
    }

    fn slot_at(&mut self, slot: u32) -> Option<&mut Slot> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    fn id_of(&self, slot: u32) -> &str {
        self.slots.get(slot as usize).and_then(Option::as_ref).map_or("", |slot| &slot.replica.id)
    }

    /// Lets go of a slot whose replica holds nothing any more.
    fn free_slot(&mut self, slot: u32) {
        if let Some(found) = self.slots.get_mut(slot as usize).and_then(Option::take) {
            if !found.cleared {
                self.slot_of.remove(&found.replica.id);
                self.shared.names.set(slot, None);
            }
            self.store.leave(found.ground);
            self.free_slots.push(slot);
        }
    }

    /// Hides everything a replica holds from readers, at once; [`Ledger::remove_some`] then removes it in slices.
    pub(super) fn clear(&mut self, replica: &str) -> Option<u32> {
        let slot = self.slot_of.remove(replica)?;
        self.shared.names.set(slot, None);
        if let Some(found) = self.slot_at(slot) {
            found.cleared = true;
        }
        Some(slot)
    }

    /// Removes about `limit` holds of a cleared slot. Says whether there may be more.
    pub(super) fn remove_some(&mut self, slot: u32, limit: u32, change: &mut Change) -> bool {
        let before = change.gone;
        while change.gone - before < limit {
            match self.slot_at(slot).filter(|slot| slot.cleared).map(|slot| slot.pages.pop()) {
                Some(Some(page)) => self.remove(page, slot, u64::MAX, change),
                _ => return false,
            }
        }
        true
    }

    /// Every replica that holds something: its id, how much, and the newest time it was seen.
    pub(super) fn holdings(&mut self, mut each: impl FnMut(&Arc<str>, u64, Micros)) {
        for (number, slot) in (0u32..).zip(self.slots.iter_mut()) {
            let Some(slot) = slot.as_mut().filter(|slot| slot.holds > 0) else { continue };
            let newest = slot.newest.unwrap_or_else(|| {
                let records = slot.pages.iter().flat_map(|&page| self.store.records(page));
                let own = records.filter(|record| record.slot() == number);
                own.map(|record| record.seen()).max().unwrap_or(Micros::MIN)
            });
            slot.newest = Some(newest);
            each(&slot.replica.id, slot.holds, newest);
        }
    }

    // === words ===

    fn new_wide(&mut self, hash: &[u8]) -> Word {
        let bits = self.next_wide;
        self.next_wide += 1;
        self.wide.insert(bits, Arc::new(hash.into()));
        self.shared.add_wide(hash, bits);
        Word { bits, wide: true }
    }

    fn forget_wide(&mut self, word: Word) {
        if word.wide
            && let Some(hash) = self.wide.remove(&word.bits)
        {
            self.shared.remove_wide(&hash);
        }
    }

    fn key_of(&self, word: Word) -> HashKey {
        if word.wide {
            self.wide.get(&word.bits).map_or(HashKey::narrow(0), HashKey::wide)
        } else {
            HashKey::narrow(u64::from_be(word.bits))
        }
    }

    /// Every entry, for inspection: hash, replica, tokens, last seen, tier, uses.
    #[cfg(feature = "testkit")]
    pub(super) fn dump(&self, mut each: impl FnMut(Vec<u8>, &Arc<str>, i32, Micros, i32, u64)) {
        for page in self.store.pages() {
            let counted = self.store.head(page).counted();
            for record in self.store.records(page) {
                let fields = record.get(counted);
                let Some(Some(slot)) = self.slots.get(fields.slot as usize) else { continue };
                for position in crate::index::store::bits(fields.mask) {
                    let Some(word) = self.store.word(page, position) else { continue };
                    let hash = match self.wide.get(&word.bits).filter(|_| word.wide) {
                        Some(hash) => hash.to_vec(),
                        None => word.bits.to_ne_bytes().to_vec(),
                    };
                    let uses = if counted { self.store.uses(fields.counters, position) } else { 0 };
                    let tokens = fields.tokens.at(position);
                    each(hash, &slot.replica.id, tokens, fields.seen, fields.tier, uses);
                }
            }
        }
    }
}
