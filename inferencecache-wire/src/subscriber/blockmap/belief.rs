//! What may be said again, and until when.
//!
//! Engines announce a block once, so what is held must be repeated or the server forgets it. A block whose removal may have
//! been missed must not be: then the belief in it would never end.
//!
//! | A block is | because | it is |
//! |---|---|---|
//! | sound | the engine stored it and nothing speaks against it | repeated regularly, and after a loss of the server |
//! | suspect | a copy went while others remain by our count | told again after a loss of the server, not regularly |
//! | unconfirmed | a batch was lost since it was stored | never told again |
//! | doubted | device memory cannot hold so many, or the engine has not spoken of it for too long | never told again |
//!
//! A further store makes any of them sound. A pair is repeated by a block that has its copy in the pair's tier.

use std::ops::Range;

use super::blocks::{AGES, BlockId};
use super::pairs::PairId;
use super::places::DEVICE;
use super::streams::StreamId;
use super::{BlockMap, Op, Report, Tier};

/// Parts into which the longest age of a belief is divided; ages are no finer.
pub const AGE_STEPS: u32 = AGES / 2;

/// How much doubt a repetition bears.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Doubt {
    /// None: suspect blocks are left out.
    None,
    /// Suspect blocks are repeated as well.
    Suspect,
}

/// State of the repetition and of the doubts.
#[derive(Debug, Default)]
pub(super) struct Belief {
    /// Distinguishes one walk over all blocks from the one before.
    round: u8,
    /// Where the search for dirty pairs goes on, so that a long list is not walked from its start each time.
    cursor: usize,
    /// The engine tells how much device memory holds.
    bounded: bool,
    /// Steps of age since the start.
    step: u64,
}

impl BlockMap {
    /// Places to walk for [`repeat`](Self::repeat).
    #[must_use]
    pub fn places(&self) -> usize {
        self.blocks.slots()
    }

    /// Begins a walk over everything that is held.
    pub fn begin_round(&mut self) {
        self.belief.round = self.belief.round % super::pairs::ROUNDS + 1;
    }

    /// Appends the reports of what may be repeated in a range of places. Within one round each pair comes at most once.
    pub fn repeat(&mut self, places: Range<usize>, doubt: Doubt, out: &mut Vec<Report>) {
        let round = self.belief.round;
        for slot in places.start..places.end.min(self.blocks.slots()) {
            let Some((id, pair, report)) = self.tellable(slot) else { continue };
            let passes = doubt == Doubt::Suspect || !self.blocks.is_suspect(id);
            if passes && self.pairs.enter_round(pair, round) {
                out.push(report);
            }
        }
    }

    /// Takes up to `limit` waiting pairs and appends their reports. Those that have become doubtful are given up.
    pub fn take_dirty(&mut self, limit: usize, out: &mut Vec<Report>) {
        let enough = out.len() + limit;
        for _ in 0..self.blocks.slots() {
            if self.pairs.dirty() == 0 || out.len() >= enough {
                return;
            }
            if self.belief.cursor >= self.blocks.slots() {
                self.belief.cursor = 0;
            }
            let found = self.tellable(self.belief.cursor);
            self.belief.cursor += 1;
            if let Some((_, pair, report)) = found
                && self.pairs.take_dirty(pair)
            {
                out.push(report);
            }
        }
        self.pairs.give_up_dirty();
    }

    /// Everything that may be told again must be.
    pub fn mark_all_dirty(&mut self) {
        self.pairs.give_up_dirty();
        for slot in 0..self.blocks.slots() {
            if let Some((_, pair, _)) = self.tellable(slot) {
                self.pairs.mark_dirty(pair);
            }
        }
    }

    /// Some pair must be told again, if there is one.
    pub fn mark_any_dirty(&mut self) {
        if let Some((_, pair, _)) = (0..self.blocks.slots()).find_map(|slot| self.tellable(slot)) {
            self.pairs.mark_dirty(pair);
        }
    }

    /// Time has passed: `step` counts parts of the longest age, [`AGE_STEPS`] of them. Blocks that the engine has not spoken
    /// of for longer are doubted, those in device memory only while its capacity is not known.
    pub fn age(&mut self, step: u64) {
        let passed = step.saturating_sub(self.belief.step);
        self.belief.step = step;
        for _ in 0..passed.min(u64::from(AGES)) {
            self.blocks.tick();
            for slot in 0..self.blocks.slots() {
                let Some(id) = self.blocks.live(slot).filter(|&id| self.blocks.is_old(id)) else { continue };
                let excused = self.belief.bounded && self.blocks.places(id).any(|place| place == DEVICE);
                if !excused && self.believed(id) && self.blocks.pair(id).is_some() {
                    self.blocks.set_doubted(id);
                    self.tally.aged += 1;
                }
            }
        }
    }

    /// Device memory holds so many blocks; `None` when that is not known. Of what is believed beyond it, the least recently
    /// stored is doubted.
    pub fn bound(&mut self, capacity: Option<u64>) {
        self.belief.bounded = capacity.is_some();
        let Some(capacity) = capacity.and_then(|blocks| usize::try_from(blocks).ok()) else { return };
        if self.blocks.indexed() <= capacity {
            return;
        }
        let (mut room, mut next) = (capacity, self.blocks.newest());
        while let Some(id) = next {
            next = self.blocks.older(id);
            let in_device = self.blocks.pair(id).is_some() && self.blocks.places(id).any(|place| place == DEVICE);
            if !in_device || !self.believed(id) {
                continue;
            }
            match room.checked_sub(1) {
                Some(left) => room = left,
                None => {
                    self.blocks.set_doubted(id);
                    self.tally.over_capacity += 1;
                }
            }
        }
    }

    /// Tokens of the block that was stored last, if its size is known.
    #[must_use]
    pub fn block_size(&self) -> Option<u32> {
        self.blocks.newest().map(|id| self.blocks.block_size(id)).filter(|&size| size > 0)
    }

    /// An engine has dropped its cache and no event says so. `engine` is its rank, or the connection of one that names no
    /// rank; `None` means all. Returns whether anybody was meant.
    pub fn dropped(&mut self, engine: Option<i64>, ops: &mut Vec<Op>) -> bool {
        let streams = self.streams.of_engine(engine);
        if streams.is_empty() && engine.is_some() {
            return false;
        }
        if self.streams.blocks_outside(&streams) == 0 {
            streams.iter().for_each(|&stream| self.note_departures(stream));
            self.forget_all();
            ops.push(Op::Clear);
        } else {
            for stream in streams {
                self.cleared(stream, ops);
            }
        }
        true
    }

    /// Whether nothing but what was counted speaks about the block: neither a lost batch nor a doubt.
    pub(super) fn believed(&self, id: BlockId) -> bool {
        let epoch = self.streams.get(StreamId(self.blocks.home(id).stream)).epoch;
        self.blocks.epoch(id) == epoch && !self.blocks.is_doubted(id)
    }

    /// What the block in a slot lets us tell about its pair.
    fn tellable(&self, slot: usize) -> Option<(BlockId, PairId, Report)> {
        let id = self.blocks.live(slot)?;
        let pair = self.blocks.pair(id)?;
        let report = self.pairs.report(pair)?;
        let warmest = self.blocks.places(id).map(|place| self.places.tier(place)).min();
        (warmest == Some(report.tier) && report.tier != Tier::Remote && self.believed(id)).then_some((id, pair, report))
    }
}
