//! The orders of a partition: by age, by use count, and of whole prefixes by age.

use std::collections::{BTreeSet, HashMap};

use super::Ledger;
use crate::index::entries::{Entry, entry};
use crate::index::order::{HashKey, Seat};
use crate::index::partition::Word;
use crate::resolve::Eviction;
use crate::time::Micros;

/// Prefixes by the newest `last_seen` of their holders.
#[derive(Debug, Default)]
pub(super) struct Ages {
    order: BTreeSet<(Micros, HashKey, Word)>,
    of: HashMap<Word, Micros, foldhash::fast::RandomState>,
}

impl Ages {
    fn set(&mut self, hash: &HashKey, word: Word, age: Option<Micros>) {
        let known = match age {
            Some(age) => self.of.insert(word, age),
            None => self.of.remove(&word),
        };
        if known == age {
            return;
        }
        if let Some(known) = known {
            self.order.remove(&(known, hash.clone(), word));
        }
        if let Some(age) = age {
            self.order.insert((age, hash.clone(), word));
        }
    }
}

impl Ledger {
    // === orders ===

    fn seat(&self, index: u32, seen: Micros) -> Option<Seat> {
        let slot = self.read(index, Entry::replica);
        let replica = self.slots.get(slot as usize)?.as_ref()?.replica.clone();
        Some(Seat { seen, hash: self.key_of(self.marks[index as usize].word), replica, index })
    }

    pub(super) fn order(&mut self, index: u32, seen: Micros) {
        let Some(seat) = self.seat(index, seen) else { return };
        if let Some(order) = &mut self.uses {
            let uses = entry(&self.shared.entries.chunks(), index).map_or(0, Entry::uses);
            self.marks[index as usize].uses = uses;
            order.insert((uses, seat.clone()));
        }
        self.time.insert(seat);
    }

    pub(super) fn unorder(&mut self, index: u32, seen: Micros) {
        let Some(seat) = self.seat(index, seen) else { return };
        self.time.remove(&seat);
        if let Some(order) = &mut self.uses {
            order.remove(&(self.marks[index as usize].uses, seat));
        }
    }

    /// Adopts a victim order: builds or forgets the order by use counts.
    #[expect(clippy::mutable_key_type, reason = "a seat orders by the replica's id, which never changes")]
    pub(in crate::index) fn set_eviction(&mut self, eviction: Eviction) {
        if (eviction == Eviction::Lfu) == self.uses.is_some() {
            return;
        }
        self.uses = None;
        if eviction == Eviction::Lfu {
            let chunks = self.shared.entries.chunks();
            let mut order = BTreeSet::new();
            for seat in &self.time {
                let uses = entry(&chunks, seat.index).map_or(0, Entry::uses);
                self.marks[seat.index as usize].uses = uses;
                order.insert((uses, seat.clone()));
            }
            self.uses = Some(order);
        }
    }

    /// A lower bound of (uses, last_seen) over the entries; exact but for credits since.
    pub(in crate::index) fn victim_bound(&self) -> Option<(u64, Micros)> {
        match &self.uses {
            None => self.time.first().map(|seat| (0, seat.seen)),
            Some(order) => order.first().map(|(uses, seat)| (*uses, seat.seen)),
        }
    }

    /// The entry that goes first under the cap, with its exact (uses, last_seen).
    pub(in crate::index) fn victim(&mut self) -> Option<(u64, Micros, u32)> {
        let Some(order) = &mut self.uses else {
            return self.time.first().map(|seat| (0, seat.seen, seat.index));
        };
        let chunks = self.shared.entries.chunks();
        loop {
            let (uses, seat) = order.first()?;
            let now = entry(&chunks, seat.index).map_or(*uses, Entry::uses);
            if now == *uses {
                return Some((now, seat.seen, seat.index));
            }
            // Credits only grow a count, so the head moves back until one is found that has not been credited since.
            let (_, seat) = order.pop_first()?;
            self.marks[seat.index as usize].uses = now;
            order.insert((now, seat));
        }
    }

    /// The entry last seen longest ago.
    pub(in crate::index) fn stalest(&self) -> Option<(Micros, u32)> {
        self.time.first().map(|seat| (seat.seen, seat.index))
    }

    fn key_of(&self, word: Word) -> HashKey {
        match word {
            Word::Narrow(bits) => HashKey::narrow(bits),
            Word::Wide(bits) => self.wide.get(&bits).map_or(HashKey::narrow(0), HashKey::wide),
        }
    }

    // === prefix ages, for quotas ===

    /// Starts or stops keeping prefixes in order of age.
    pub(in crate::index) fn keep_ages(&mut self, keep: bool) {
        if keep == self.ages.is_some() {
            return;
        }
        self.ages = None;
        if keep {
            let mut ages = Ages::default();
            // In order of time, so the last one stays.
            for seat in &self.time {
                ages.of.insert(self.marks[seat.index as usize].word, seat.seen);
            }
            ages.order = ages.of.iter().map(|(&word, &age)| (age, self.key_of(word), word)).collect();
            self.ages = Some(ages);
        }
    }

    pub(in crate::index) fn oldest_age(&self) -> Option<Micros> {
        self.ages.as_ref().and_then(|ages| ages.order.first()).map(|(age, ..)| *age)
    }

    /// The prefix whose newest holder is the oldest.
    pub(in crate::index) fn oldest_prefix(&self) -> Option<Word> {
        self.ages.as_ref()?.order.first().map(|(.., word)| *word)
    }

    /// Keeps the age of a prefix after one of its holds was removed, created or moved from `old` to `new`.
    pub(super) fn age_after(&mut self, word: Word, old: Option<Micros>, new: Option<Micros>) {
        let Some(age) = self.ages.as_ref().map(|ages| ages.of.get(&word).copied()) else { return };
        let age = match (age, new) {
            (None, new) => new,
            (Some(age), Some(new)) if new >= age => Some(new),
            // The newest one went or moved back: somebody else may be the newest now.
            (age, _) if age == old => self.newest_of(word),
            (age, _) => age,
        };
        let hash = self.key_of(word);
        if let Some(ages) = &mut self.ages {
            ages.set(&hash, word, age);
        }
    }

    fn newest_of(&self, word: Word) -> Option<Micros> {
        let chunks = self.shared.entries.chunks();
        let mut newest = None;
        let mut index = self.find(word)?.value;
        while let Some(cell) = entry(&chunks, index) {
            newest = newest.max(Some(cell.last_seen()));
            index = cell.next();
        }
        newest
    }
}
