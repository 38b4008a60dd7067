//! The writer's half of one partition: who holds what, in which order it expires, and the only code that changes the
//! reader-visible half.
//!
//! ```text
//!  key word ──table──> first entry ──next──> entry ──next──> …        holders of one prefix
//!  slot of a replica ──head──> entry <──prev/next──> entry …          what one replica holds
//!  time  (last_seen, hash)            every entry; LRU victims and the TTL sweep read its head
//!  uses  (count, last_seen, hash)     LFU namespaces only; counts grow under our feet and are re-keyed at the head
//!  ages  (newest last_seen, hash)     tenants over a quota only; one item for each prefix
//!  crowd (prefix, replica)            the holders behind the first few of a prefix, so that no list is searched
//! ```
//!
//! Ties are broken by hash and replica id, bytewise (see `order`).

mod lines;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use self::lines::Ages;

use crate::index::entries::{Entry, NIL, entry};
use crate::index::order::Seat;
use crate::index::partition::{Partition, PartitionKey, Word};
use crate::index::replicas::Replica;
use crate::index::table::{Op, Place, Table};
use crate::resolve::Eviction;
use crate::time::Micros;

/// What one replica holds here.
#[derive(Debug)]
struct Slot {
    replica: Arc<Replica>,
    head: u32,
    holds: u64,
    /// Newest `last_seen` among its entries; unknown after that entry went or aged.
    newest: Option<Micros>,
    /// Hidden from readers; its entries are being removed.
    cleared: bool,
}

/// What the writer knows of an entry beside what readers see.
#[derive(Debug, Clone, Copy)]
struct Mark {
    word: Word,
    /// Neighbours in the list of what its replica holds.
    prev: u32,
    next: u32,
    /// Predecessor in the list of holders of its prefix; the successor is the entry's own `next`.
    before: u32,
    /// The count under which `uses` holds the entry.
    uses: u64,
}

const NO_MARK: Mark = Mark { word: Word::Narrow(0), prev: NIL, next: NIL, before: NIL, uses: 0 };

/// Holders of a prefix that are looked through one by one; those behind them are found through `crowd`.
const NEAR: usize = 8;

/// A removed hold: whose it was, and whether the prefix went with it.
#[derive(Debug)]
pub(super) struct Removed {
    pub(super) replica: Arc<Replica>,
    pub(super) last: bool,
}

/// What an upsert created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Upsert {
    Refreshed,
    NewHold,
    NewPrefix,
}

/// The writer's half of a partition.
#[derive(Debug)]
pub(super) struct Ledger {
    pub(super) key: Arc<PartitionKey>,
    pub(super) shared: Arc<Partition>,
    /// Distinct prefixes.
    pub(super) keys: u64,
    marks: Vec<Mark>,
    free: Vec<u32>,
    slots: Vec<Option<Slot>>,
    free_slots: Vec<u32>,
    slot_of: HashMap<Arc<str>, u32, foldhash::fast::RandomState>,
    wide: HashMap<u64, Arc<Box<[u8]>>, foldhash::fast::RandomState>,
    next_wide: u64,
    time: BTreeSet<Seat>,
    uses: Option<BTreeSet<(u64, Seat)>>,
    ages: Option<Ages>,
    /// (prefix, slot) → entry of the holders that stand behind the first few of a crowded prefix.
    crowd: HashMap<(Word, u32), u32, foldhash::fast::RandomState>,
    /// The item of this partition in the global victim order.
    pub(super) victim: Option<(u64, Micros)>,
    /// The item of this partition in its tenant's quota order.
    pub(super) oldest: Option<Micros>,
}

impl Ledger {
    pub(super) fn new(key: Arc<PartitionKey>, shared: Partition, eviction: Eviction, aged: bool) -> Self {
        Self {
            key,
            shared: Arc::new(shared),
            keys: 0,
            marks: Vec::new(),
            free: Vec::new(),
            slots: Vec::new(),
            free_slots: Vec::new(),
            slot_of: HashMap::default(),
            wide: HashMap::default(),
            next_wide: 0,
            time: BTreeSet::new(),
            uses: (eviction == Eviction::Lfu).then(BTreeSet::new),
            ages: aged.then(Ages::default),
            crowd: HashMap::default(),
            victim: None,
            oldest: None,
        }
    }

    // === replicas ===

    /// The slot of a replica, made if need be.
    pub(super) fn slot(&mut self, replica: &Arc<Replica>) -> u32 {
        if let Some(&slot) = self.slot_of.get(&replica.id) {
            return slot;
        }
        let made = Slot { replica: replica.clone(), head: NIL, holds: 0, newest: None, cleared: false };
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.slots.push(None);
            to_index(self.slots.len() - 1)
        });
        self.slots[slot as usize] = Some(made);
        self.slot_of.insert(replica.id.clone(), slot);
        self.shared.names.set(slot, Some(replica.clone()));
        slot
    }

    /// Hides everything a replica holds from readers, at once; [`Ledger::remove_some`] then removes it in slices.
    pub(super) fn clear(&mut self, replica: &str) -> Option<u32> {
        let slot = self.slot_of.remove(replica)?;
        self.shared.names.set(slot, None);
        if let Some(Some(found)) = self.slots.get_mut(slot as usize) {
            found.cleared = true;
        }
        Some(slot)
    }

    /// Removes up to `limit` holds of a cleared slot; says of each what went.
    pub(super) fn remove_some(&mut self, op: &mut Op, slot: u32, limit: usize, mut gone: impl FnMut(Removed)) -> bool {
        for _ in 0..limit {
            match self.slots.get(slot as usize) {
                Some(Some(Slot { head, cleared: true, .. })) if *head != NIL => {
                    let index = *head;
                    gone(self.remove(op, index));
                }
                _ => return false,
            }
        }
        true
    }

    /// Every replica that holds something: its id, how much, and the newest time it was seen.
    pub(super) fn holdings(&mut self, mut each: impl FnMut(&Arc<str>, u64, Micros)) {
        let chunks = self.shared.entries.chunks();
        for slot in self.slots.iter_mut().flatten().filter(|slot| slot.holds > 0) {
            let newest = slot.newest.unwrap_or_else(|| {
                let mut newest = Micros::MIN;
                let mut index = slot.head;
                while let Some(cell) = entry(&chunks, index) {
                    newest = newest.max(cell.last_seen());
                    index = self.marks[index as usize].next;
                }
                newest
            });
            slot.newest = Some(newest);
            each(&slot.replica.id, slot.holds, newest);
        }
    }

    // === holds ===

    /// Creates or refreshes the hold of `slot` on `hash`.
    pub(super) fn upsert(
        &mut self,
        op: &mut Op,
        hash: &[u8],
        slot: u32,
        tokens: i32,
        tier: i32,
        seen: Micros,
    ) -> Upsert {
        let word = self.shared.word(hash).unwrap_or_else(|| self.new_wide(hash));
        let Some(place) = self.find(word) else {
            let index = self.allocate(word, slot);
            let (table, bits) = self.shared.table(word);
            table.insert(op, bits, index);
            self.begin(index, tokens, tier, seen);
            self.keys += 1;
            self.age_after(word, None, Some(seen));
            return Upsert::NewPrefix;
        };
        match self.hold_of(&place, word, slot) {
            Ok(index) => {
                Table::touch(op, &place);
                let old = self.read(index, Entry::last_seen);
                self.refresh(index, tokens, tier, seen);
                self.age_after(word, Some(old), Some(seen));
                Upsert::Refreshed
            }
            Err(far) => {
                let index = self.allocate(word, slot);
                self.cell(index, |cell| cell.set_next(place.value));
                self.marks[place.value as usize].before = index;
                if let Some(far) = far {
                    self.crowd.insert((word, self.read(far, Entry::replica)), far);
                }
                Table::set(op, &place, index);
                self.begin(index, tokens, tier, seen);
                self.age_after(word, None, Some(seen));
                Upsert::NewHold
            }
        }
    }

    /// Removes the hold of a replica on `hash`.
    pub(super) fn evict(&mut self, op: &mut Op, hash: &[u8], replica: &str) -> Option<Removed> {
        let slot = *self.slot_of.get(replica)?;
        let word = self.shared.word(hash)?;
        let place = self.find(word)?;
        let index = self.hold_of(&place, word, slot).ok()?;
        Some(self.remove(op, index))
    }

    /// Removes every hold on a prefix.
    pub(super) fn remove_prefix(&mut self, op: &mut Op, word: Word, mut gone: impl FnMut(Removed)) {
        while let Some(place) = self.find(word) {
            gone(self.remove(op, place.value));
        }
    }

    /// Removes one hold.
    pub(super) fn remove(&mut self, op: &mut Op, index: u32) -> Removed {
        let Mark { word, before, .. } = self.marks[index as usize];
        let (slot, next, seen) = self.read(index, |cell| (cell.replica(), cell.next(), cell.last_seen()));
        let last = before == NIL && next == NIL;
        if let Some(place) = self.find(word) {
            if last {
                Table::remove(op, &place);
                self.keys -= 1;
            } else if before == NIL {
                Table::set(op, &place, next);
            } else {
                Table::touch(op, &place);
                self.cell(before, |cell| cell.set_next(next));
            }
        }
        if next != NIL {
            self.marks[next as usize].before = before;
        }
        if !self.crowd.is_empty() {
            self.crowd.remove(&(word, slot));
        }
        self.age_after(word, Some(seen), None);
        self.unorder(index, seen);
        let replica = self.unlink(index, slot, seen);
        self.cell(index, |cell| {
            cell.retire();
            cell.set_next(NIL);
        });
        self.free.push(index);
        if last
            && let Word::Wide(bits) = word
            && let Some(hash) = self.wide.remove(&bits)
        {
            self.shared.remove_wide(&hash);
        }
        Removed { replica, last }
    }

    fn new_wide(&mut self, hash: &[u8]) -> Word {
        let bits = self.next_wide;
        self.next_wide += 1;
        self.wide.insert(bits, Arc::new(hash.into()));
        self.shared.add_wide(hash, bits);
        Word::Wide(bits)
    }

    fn find(&self, word: Word) -> Option<Place> {
        let (table, bits) = self.shared.table(word);
        table.find(bits)
    }

    /// The entry of `slot` among the holders of a prefix, or else the holder that the next one pushes out of sight: the
    /// last of the near ones, if there are that many.
    fn hold_of(&self, place: &Place, word: Word, slot: u32) -> Result<u32, Option<u32>> {
        let chunks = self.shared.entries.chunks();
        let mut index = place.value;
        for position in 1..=NEAR {
            let Some(cell) = entry(&chunks, index) else { return Err(None) };
            if cell.replica() == slot {
                return Ok(index);
            }
            if position == NEAR {
                return self.crowd.get(&(word, slot)).copied().ok_or(Some(index));
            }
            index = cell.next();
        }
        Err(None)
    }

    fn allocate(&mut self, word: Word, slot: u32) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.marks.push(NO_MARK);
            to_index(self.marks.len() - 1)
        });
        self.shared.entries.reserve(index);
        let mut next = NIL;
        if let Some(Some(slot)) = self.slots.get_mut(slot as usize) {
            next = slot.head;
            slot.head = index;
            slot.holds += 1;
        }
        self.marks[index as usize] = Mark { word, prev: NIL, next, before: NIL, uses: 0 };
        if next != NIL {
            self.marks[next as usize].prev = index;
        }
        self.cell(index, |cell| {
            cell.set_replica(slot);
            cell.set_next(NIL);
        });
        index
    }

    /// Takes an entry out of its replica's list, and the slot with the last one.
    fn unlink(&mut self, index: u32, slot: u32, seen: Micros) -> Arc<Replica> {
        let Mark { prev, next, .. } = self.marks[index as usize];
        if prev != NIL {
            self.marks[prev as usize].next = next;
        }
        if next != NIL {
            self.marks[next as usize].prev = prev;
        }
        let found = self.slots[slot as usize].as_mut().expect("an entry's slot lives as long as the entry");
        if found.head == index {
            found.head = next;
        }
        found.holds -= 1;
        if found.newest == Some(seen) {
            found.newest = None;
        }
        let replica = found.replica.clone();
        if found.holds == 0 {
            if !found.cleared {
                self.slot_of.remove(&replica.id);
                self.shared.names.set(slot, None);
            }
            self.slots[slot as usize] = None;
            self.free_slots.push(slot);
        }
        replica
    }

    fn begin(&mut self, index: u32, tokens: i32, tier: i32, seen: Micros) {
        self.cell(index, |cell| cell.refresh(tokens, tier, seen));
        self.order(index, seen);
        let slot = self.read(index, Entry::replica);
        self.note_newest(slot, None, seen);
    }

    fn refresh(&mut self, index: u32, tokens: i32, tier: i32, seen: Micros) {
        let (slot, old) = self.read(index, |cell| (cell.replica(), cell.last_seen()));
        if old != seen {
            self.unorder(index, old);
        }
        self.cell(index, |cell| cell.refresh(tokens, tier, seen));
        if old != seen {
            self.order(index, seen);
            self.note_newest(slot, Some(old), seen);
        }
    }

    fn note_newest(&mut self, slot: u32, old: Option<Micros>, seen: Micros) {
        if let Some(Some(slot)) = self.slots.get_mut(slot as usize) {
            slot.newest = match slot.newest {
                None if slot.holds == 1 => Some(seen),
                Some(newest) if seen >= newest => Some(seen),
                // The newest one moved back: somebody else may be the newest now.
                Some(newest) if old == Some(newest) => None,
                known => known,
            };
        }
    }

    /// The bytes of a stored hash.
    #[cfg(feature = "testkit")]
    pub(super) fn hash_of(&self, word: Word) -> Hash<'_> {
        match word {
            Word::Narrow(bits) => Hash::Narrow(bits.to_be_bytes()),
            Word::Wide(bits) => Hash::Wide(self.wide.get(&bits).map(|hash| &***hash).unwrap_or_default()),
        }
    }

    // === cells ===

    fn cell(&self, index: u32, act: impl FnOnce(&Entry)) {
        if let Some(cell) = entry(&self.shared.entries.chunks(), index) {
            act(cell);
        }
    }

    fn read<T>(&self, index: u32, read: impl FnOnce(&Entry) -> T) -> T {
        let chunks = self.shared.entries.chunks();
        read(entry(&chunks, index).expect("an index in use was reserved"))
    }

    /// Every entry, for inspection.
    #[cfg(feature = "testkit")]
    pub(super) fn dump(&self, mut each: impl FnMut(&[u8], &Arc<str>, &Entry)) {
        let chunks = self.shared.entries.chunks();
        for Seat { index, .. } in &self.time {
            let index = *index;
            let Some(cell) = entry(&chunks, index) else { continue };
            if let Some(Some(slot)) = self.slots.get(cell.replica() as usize) {
                each(self.hash_of(self.marks[index as usize].word).as_ref(), &slot.replica.id, cell);
            }
        }
    }
}

/// Bytes of a stored hash.
#[cfg(feature = "testkit")]
#[derive(Debug)]
pub(super) enum Hash<'a> {
    Narrow([u8; 8]),
    Wide(&'a [u8]),
}

#[cfg(feature = "testkit")]
impl AsRef<[u8]> for Hash<'_> {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Narrow(bytes) => bytes,
            Self::Wide(bytes) => bytes,
        }
    }
}

fn to_index(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(NIL - 1)
}
