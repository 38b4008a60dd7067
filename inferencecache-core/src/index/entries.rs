//! The entries of a partition: one for each (prefix, replica), in chunks that readers walk without waiting.
//!
//! Entries of one prefix form a list through `next`. All fields are guarded by the version of the bucket that leads to
//! the prefix (see `table`), except `uses`, which readers credit at any time: it packs the generation of the slot above
//! a 40-bit counter, so that a late credit can never reach a successor in the same slot.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering};

use arc_swap::ArcSwap;

use crate::time::Micros;

/// No entry.
pub(super) const NIL: u32 = u32::MAX;
const COUNT_BITS: u32 = 40;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

#[derive(Debug)]
pub(super) struct Entry {
    next: AtomicU32,
    replica: AtomicU32,
    tokens: AtomicI32,
    tier: AtomicI32,
    last_seen: AtomicI64,
    uses: AtomicU64,
}

impl Entry {
    fn empty() -> Self {
        Self {
            next: AtomicU32::new(NIL),
            replica: AtomicU32::new(NIL),
            tokens: AtomicI32::new(0),
            tier: AtomicI32::new(0),
            last_seen: AtomicI64::new(0),
            uses: AtomicU64::new(0),
        }
    }

    pub(super) fn next(&self) -> u32 {
        self.next.load(Ordering::Relaxed)
    }
    pub(super) fn replica(&self) -> u32 {
        self.replica.load(Ordering::Relaxed)
    }
    pub(super) fn tokens(&self) -> i32 {
        self.tokens.load(Ordering::Relaxed)
    }
    pub(super) fn tier(&self) -> i32 {
        self.tier.load(Ordering::Relaxed)
    }
    pub(super) fn last_seen(&self) -> Micros {
        self.last_seen.load(Ordering::Relaxed)
    }
    /// Credits received since the entry was created.
    pub(super) fn uses(&self) -> u64 {
        self.uses.load(Ordering::Relaxed) & COUNT_MASK
    }
    pub(super) fn generation(&self) -> u32 {
        (self.uses.load(Ordering::Relaxed) >> COUNT_BITS) as u32
    }

    pub(super) fn set_next(&self, next: u32) {
        self.next.store(next, Ordering::Relaxed);
    }
    pub(super) fn set_replica(&self, replica: u32) {
        self.replica.store(replica, Ordering::Relaxed);
    }
    /// What a report overwrites. Never the use count.
    pub(super) fn refresh(&self, tokens: i32, tier: i32, last_seen: Micros) {
        self.tokens.store(tokens, Ordering::Relaxed);
        self.tier.store(tier, Ordering::Relaxed);
        self.last_seen.store(last_seen, Ordering::Relaxed);
    }
    /// Starts the next generation of the slot, with no uses.
    pub(super) fn retire(&self) {
        let generation = (self.uses.load(Ordering::Relaxed) >> COUNT_BITS).wrapping_add(1);
        self.uses.store(generation << COUNT_BITS, Ordering::Relaxed);
    }

    /// Adds 1 to the use count if the slot is still in `generation`. Lock-free; pairs with [`Entry::retire`] by the
    /// compare-exchange alone.
    pub(super) fn credit(&self, generation: u32) {
        let mut seen = self.uses.load(Ordering::Relaxed);
        while seen >> COUNT_BITS == u64::from(generation) && seen & COUNT_MASK != COUNT_MASK {
            match self.uses.compare_exchange_weak(seen, seen + 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }
}

/// The chunk list of one generation.
pub(super) type Chunks = Vec<Arc<[Entry]>>;

// A partition of a few entries stays small; a large one grows by a kilo-entry at a time.
const FIRST: u32 = 8;
const SECOND: u32 = 64;
const CHUNK: u32 = 1024;

/// The entry at `index`, or nothing when the chunk list is older than the index.
pub(super) fn entry(chunks: &Chunks, index: u32) -> Option<&Entry> {
    let (chunk, offset) = if index < FIRST {
        (0, index)
    } else if index < SECOND {
        (1, index - FIRST)
    } else {
        (2 + (index - SECOND) / CHUNK, (index - SECOND) % CHUNK)
    };
    chunks.get(chunk as usize)?.get(offset as usize)
}

/// The growing list of chunks.
#[derive(Debug, Default)]
pub(super) struct Entries {
    chunks: ArcSwap<Chunks>,
}

impl Entries {
    pub(super) fn chunks(&self) -> arc_swap::Guard<Arc<Chunks>> {
        self.chunks.load()
    }

    /// Lets go of all entries. For the writer, when none is in use any more.
    pub(super) fn reset(&self) {
        self.chunks.store(Arc::default());
    }

    /// Makes sure that `index` exists. For the writer.
    pub(super) fn reserve(&self, index: u32) {
        let chunks = self.chunks.load();
        if entry(&chunks, index).is_some() {
            return;
        }
        let size = match chunks.len() {
            0 => FIRST,
            1 => SECOND - FIRST,
            _ => CHUNK,
        };
        let mut grown = Chunks::clone(&chunks);
        grown.push((0..size).map(|_| Entry::empty()).collect());
        self.chunks.store(Arc::new(grown));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_has_its_own_entry() {
        let entries = Entries::default();
        for index in 0..5000 {
            entries.reserve(index);
            let chunks = entries.chunks();
            let cell = entry(&chunks, index).expect("reserved");
            assert_eq!(cell.replica(), NIL, "index {index} is fresh");
            cell.set_replica(index);
        }
        let chunks = entries.chunks();
        assert!((0..5000).all(|index| entry(&chunks, index).is_some_and(|e| e.replica() == index)));
    }

    #[test]
    fn a_credit_never_reaches_the_next_generation() {
        let cell = Entry::empty();
        cell.credit(0);
        assert_eq!(cell.uses(), 1);
        cell.retire();
        cell.credit(0);
        assert_eq!((cell.uses(), cell.generation()), (0, 1));
        cell.credit(1);
        assert_eq!(cell.uses(), 1);
    }
}
