//! What the server is told about: pairs of adapter and digest, each with the copies that engine blocks have of it.
//!
//! Several engine blocks can carry one pair: the same tokens at two hashes, in two groups, or on two ranks. The pair is
//! held while one of them is, and its tier is the warmest one of any copy.

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use super::{AdapterId, Report, Ticks, Tier};

/// Index of a pair; valid until its last block goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PairId(pub(super) u32);

/// The last report of a pair waits for a retry.
const DIRTY: u8 = 1;
/// A report of the pair may have reached the server.
const SENT: u8 = 2;
/// A call with a report of the pair is in flight.
const SENDING: u8 = 4;
/// The slot is free.
const FREE: u8 = 8;
/// The last walk over all blocks that came upon the pair; 0 for none.
const ROUND_SHIFT: u8 = 4;
/// Walks that are told apart.
pub(super) const ROUNDS: u8 = 15;

#[derive(Debug, Clone, Copy)]
struct Pair {
    digest: u64,
    /// Blocks with a copy in device memory, and in T2.
    t1: u32,
    t2: u32,
    /// Blocks in all, remote ones included. In a free slot: the next free one.
    blocks: u32,
    /// Tokens of the whole prefix, saturated to what the wire carries.
    tokens: u32,
    /// When a report was last acknowledged, on the caller's clock; 0 when the last one was not yet.
    acknowledged_at: Ticks,
    adapter: AdapterId,
    /// Tier of the last report that was handed on: 1 or 2, 0 for none.
    handed_on: u8,
    flags: u8,
}

const NONE: u32 = u32::MAX;

/// The table of pairs.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    slots: Vec<Pair>,
    free: Option<u32>,
    index: HashTable<u32>,
    hasher: RandomState,
    dirty: usize,
}

impl Pairs {
    pub(super) fn dirty(&self) -> usize {
        self.dirty
    }

    /// Number of slots, for [`sweep`](Self::sweep).
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn find(&self, adapter: AdapterId, digest: u64) -> Option<PairId> {
        let slots = &self.slots;
        self.index
            .find(self.hasher.hash_one(digest), |&slot| {
                let pair = &slots[slot as usize];
                pair.digest == digest && pair.adapter == adapter
            })
            .map(|&slot| PairId(slot))
    }

    /// The pair, created without copies when it is new. The caller adds a block at once.
    pub(super) fn obtain(&mut self, adapter: AdapterId, digest: u64, tokens: u32) -> Option<PairId> {
        if let Some(id) = self.find(adapter, digest) {
            return Some(id);
        }
        let pair =
            Pair { digest, t1: 0, t2: 0, blocks: 0, tokens, acknowledged_at: 0, adapter, handed_on: 0, flags: 0 };
        let slot = match self.free {
            Some(slot) => {
                let next = self.slots[slot as usize].blocks;
                self.free = (next != NONE).then_some(next);
                self.slots[slot as usize] = pair;
                slot
            }
            None => {
                let slot = u32::try_from(self.slots.len()).ok().filter(|&slot| slot != NONE)?;
                self.slots.push(pair);
                slot
            }
        };
        let (slots, hasher) = (&self.slots, &self.hasher);
        // Only the digest is hashed, so that all adapters of one digest lie on one probe sequence.
        self.index.insert_unique(hasher.hash_one(digest), slot, |&slot| hasher.hash_one(slots[slot as usize].digest));
        Some(PairId(slot))
    }

    pub(super) fn adapter(&self, id: PairId) -> AdapterId {
        self.slots[id.0 as usize].adapter
    }

    pub(super) fn digest(&self, id: PairId) -> u64 {
        self.slots[id.0 as usize].digest
    }

    pub(super) fn tokens(&self, id: PairId) -> u32 {
        self.slots[id.0 as usize].tokens
    }

    /// The warmest tier that any block has; `None` when there is nothing to report.
    pub(super) fn tier(&self, id: PairId) -> Option<Tier> {
        let pair = &self.slots[id.0 as usize];
        if pair.t1 > 0 {
            Some(Tier::T1)
        } else if pair.t2 > 0 {
            Some(Tier::T2)
        } else {
            None
        }
    }

    /// The report of the pair as it is now; `None` when there is nothing to report.
    pub(super) fn report(&self, id: PairId) -> Option<Report> {
        let pair = &self.slots[id.0 as usize];
        let tier = self.tier(id)?;
        Some(Report { digest: pair.digest, tokens: pair.tokens, adapter: pair.adapter, tier })
    }

    pub(super) fn add_block(&mut self, id: PairId) {
        self.slots[id.0 as usize].blocks += 1;
    }

    /// One block fewer. The pair ends with its last one; `true` says that it did.
    pub(super) fn remove_block(&mut self, id: PairId) -> bool {
        let pair = &mut self.slots[id.0 as usize];
        pair.blocks -= 1;
        if pair.blocks > 0 {
            return false;
        }
        let digest = pair.digest;
        if pair.flags & DIRTY != 0 {
            self.dirty -= 1;
        }
        pair.flags = FREE;
        pair.blocks = self.free.unwrap_or(NONE);
        self.free = Some(id.0);
        if let Ok(entry) = self.index.find_entry(self.hasher.hash_one(digest), |&slot| slot == id.0) {
            entry.remove();
        }
        true
    }

    pub(super) fn add_copy(&mut self, id: PairId, tier: Tier) {
        let pair = &mut self.slots[id.0 as usize];
        match tier {
            Tier::T1 => pair.t1 += 1,
            Tier::T2 => pair.t2 += 1,
            Tier::Remote => {}
        }
    }

    pub(super) fn remove_copy(&mut self, id: PairId, tier: Tier) {
        let pair = &mut self.slots[id.0 as usize];
        match tier {
            Tier::T1 => pair.t1 -= 1,
            Tier::T2 => pair.t2 -= 1,
            Tier::Remote => {}
        }
    }

    /// Reports of the same digest under other adapters.
    pub(super) fn siblings(&self, adapter: AdapterId, digest: u64) -> impl Iterator<Item = Report> + '_ {
        self.index
            .iter_hash(self.hasher.hash_one(digest))
            .map(|&slot| PairId(slot))
            .filter(move |&id| self.digest(id) == digest && self.adapter(id) != adapter)
            .filter_map(|id| self.report(id))
    }

    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.index.clear();
        (self.free, self.dirty) = (None, 0);
    }

    /// Copies in T1 and T2, and blocks, of every pair.
    #[cfg(test)]
    pub(super) fn counts(&self) -> std::collections::HashMap<u32, [u32; 3]> {
        let live = (0..).zip(&self.slots).filter(|(_, pair)| pair.flags & FREE == 0);
        live.map(|(slot, pair)| (slot, [pair.t1, pair.t2, pair.blocks])).collect()
    }

    // === delivery ===

    /// Whether a report of the pair may have reached the server.
    pub(super) fn sent(&self, id: PairId) -> bool {
        self.slots[id.0 as usize].flags & (SENT | SENDING) != 0
    }

    pub(super) fn mark_sent(&mut self, id: PairId) {
        self.slots[id.0 as usize].flags |= SENT;
    }

    pub(super) fn set_sending(&mut self, id: PairId, sending: bool) {
        let flags = &mut self.slots[id.0 as usize].flags;
        *flags = if sending { *flags | SENDING } else { *flags & !SENDING };
    }

    /// When a report of this tier was acknowledged, if no other report was handed on since.
    pub(super) fn acknowledged(&self, id: PairId, tier: Tier) -> Option<Ticks> {
        let pair = &self.slots[id.0 as usize];
        (pair.handed_on == wire_tier(tier) && pair.acknowledged_at > 0).then_some(pair.acknowledged_at)
    }

    pub(super) fn hand_on(&mut self, id: PairId, tier: Tier) {
        let pair = &mut self.slots[id.0 as usize];
        (pair.handed_on, pair.acknowledged_at) = (wire_tier(tier), 0);
    }

    pub(super) fn acknowledge(&mut self, id: PairId, tier: Tier, now: Ticks) {
        let pair = &mut self.slots[id.0 as usize];
        if pair.handed_on == wire_tier(tier) {
            pair.acknowledged_at = now.max(1);
        }
    }

    pub(super) fn mark_dirty(&mut self, id: PairId) {
        let pair = &mut self.slots[id.0 as usize];
        if pair.flags & DIRTY == 0 {
            pair.flags |= DIRTY;
            self.dirty += 1;
        }
    }

    /// Takes the mark of a pair that waits; `false` when it has none.
    pub(super) fn take_dirty(&mut self, id: PairId) -> bool {
        let flags = &mut self.slots[id.0 as usize].flags;
        let was = *flags & DIRTY != 0;
        *flags &= !DIRTY;
        self.dirty -= usize::from(was);
        was
    }

    /// No pair waits any more.
    pub(super) fn give_up_dirty(&mut self) {
        if self.dirty > 0 {
            self.slots.iter_mut().for_each(|pair| pair.flags &= !DIRTY);
            self.dirty = 0;
        }
    }

    /// Whether a walk comes upon the pair for the first time. Only pairs with several blocks can be met twice.
    pub(super) fn enter_round(&mut self, id: PairId, round: u8) -> bool {
        let pair = &mut self.slots[id.0 as usize];
        if pair.blocks < 2 {
            return true;
        }
        let met = pair.flags >> ROUND_SHIFT == round;
        pair.flags = pair.flags & ((1 << ROUND_SHIFT) - 1) | round << ROUND_SHIFT;
        !met
    }

    /// Appends the reports of the pairs in a range of slots.
    pub(super) fn sweep(&self, slots: std::ops::Range<usize>, out: &mut Vec<Report>) {
        let end = slots.end.min(self.slots.len());
        for slot in slots.start..end {
            if self.slots[slot].flags & FREE == 0 {
                out.extend(self.report(PairId(u32::try_from(slot).unwrap_or(NONE))));
            }
        }
    }
}

fn wire_tier(tier: Tier) -> u8 {
    match tier {
        Tier::T1 => 1,
        Tier::T2 => 2,
        Tier::Remote => 3,
    }
}
