//! What is known of one block: whose it is, where its copies are, and how far it is believed.

use super::{Block, BlockId, Blocks, Copies, DOUBTED, Home, NONE, PLACES, SIZE_SHIFT, STAMP, STAMP_SHIFT, SUSPECT};
use crate::kvevents::BlockHash;
use crate::subscriber::blockmap::pairs::PairId;
use crate::subscriber::blockmap::places::{Place, PlaceSet};

impl Blocks {
    pub(in crate::subscriber::blockmap) fn hash(&self, id: BlockId) -> BlockHash<'_> {
        self.hash_of(&self.slots[id.0 as usize])
    }

    pub(in crate::subscriber::blockmap) fn home(&self, id: BlockId) -> Home {
        self.slots[id.0 as usize].home
    }

    pub(in crate::subscriber::blockmap) fn pair(&self, id: BlockId) -> Option<PairId> {
        let pair = self.slots[id.0 as usize].pair;
        (pair != NONE).then_some(PairId(pair))
    }

    pub(in crate::subscriber::blockmap) fn set_pair(&mut self, id: BlockId, pair: Option<PairId>) {
        let block = &mut self.slots[id.0 as usize];
        let was = block.pair != NONE;
        block.pair = pair.map_or(NONE, |pair| pair.0);
        match (was, pair.is_some()) {
            (false, true) => self.indexed += 1,
            (true, false) => self.indexed -= 1,
            _ => {}
        }
    }

    pub(in crate::subscriber::blockmap) fn block_size(&self, id: BlockId) -> u32 {
        self.slots[id.0 as usize].shape >> SIZE_SHIFT
    }

    pub(in crate::subscriber::blockmap) fn set_block_size(&mut self, id: BlockId, size: u32) {
        let block = &mut self.slots[id.0 as usize];
        block.shape = block.shape & ((1 << SIZE_SHIFT) - 1) | size << SIZE_SHIFT;
    }

    pub(in crate::subscriber::blockmap) fn is_suspect(&self, id: BlockId) -> bool {
        self.slots[id.0 as usize].shape & SUSPECT != 0
    }

    pub(in crate::subscriber::blockmap) fn set_suspect(&mut self, id: BlockId) {
        self.slots[id.0 as usize].shape |= SUSPECT;
    }

    pub(in crate::subscriber::blockmap) fn is_doubted(&self, id: BlockId) -> bool {
        self.slots[id.0 as usize].shape & DOUBTED != 0
    }

    pub(in crate::subscriber::blockmap) fn set_doubted(&mut self, id: BlockId) {
        self.slots[id.0 as usize].shape |= DOUBTED;
    }

    pub(in crate::subscriber::blockmap) fn epoch(&self, id: BlockId) -> u16 {
        self.slots[id.0 as usize].epoch
    }

    pub(in crate::subscriber::blockmap) fn set_epoch(&mut self, id: BlockId, epoch: u16) {
        self.slots[id.0 as usize].epoch = epoch;
    }

    /// The engine has just said that the block is there: it becomes the newest, and beyond doubt.
    pub(in crate::subscriber::blockmap) fn confirm(&mut self, id: BlockId, epoch: u16) {
        let block = &mut self.slots[id.0 as usize];
        block.shape = block.shape & !(SUSPECT | DOUBTED | STAMP) | self.clock << STAMP_SHIFT;
        block.epoch = epoch;
        self.unlink(id.0);
        self.append(id.0);
    }

    /// Adds copies of an indexed block. `true` when the place is a new one for it.
    pub(in crate::subscriber::blockmap) fn add_copies(&mut self, id: BlockId, place: Place, number: u16) -> bool {
        let block = &mut self.slots[id.0 as usize];
        let at = |block: &Block| (0..PLACES).find(|&i| block.copies[i] > 0 && block.places[i] == place);
        if let Some(i) = at(block) {
            block.copies[i] = block.copies[i].saturating_add(number);
            return false;
        }
        let Some(i) = block.copies.iter().position(|&copies| copies == 0) else { return false };
        (block.places[i], block.copies[i]) = (place, number);
        true
    }

    /// Takes one copy of an indexed block out of one of `places`, or sets how many remain there.
    pub(in crate::subscriber::blockmap) fn remove_copy(
        &mut self,
        id: BlockId,
        places: PlaceSet,
        remaining: Option<u16>,
    ) -> Copies {
        let block = &mut self.slots[id.0 as usize];
        let Some(i) = (0..PLACES).find(|&i| block.copies[i] > 0 && places.contains(block.places[i])) else {
            return Copies::None;
        };
        block.copies[i] = remaining.unwrap_or(block.copies[i] - 1);
        if block.copies[i] > 0 { Copies::Remain } else { Copies::LastIn(block.places[i]) }
    }

    /// The places in which an indexed block has copies.
    pub(in crate::subscriber::blockmap) fn places(&self, id: BlockId) -> impl Iterator<Item = Place> + use<> {
        let block = self.slots[id.0 as usize];
        (0..PLACES).filter(move |&i| block.copies[i] > 0).map(move |i| block.places[i])
    }

    /// Forgets where the copies are; the number of them is returned.
    pub(in crate::subscriber::blockmap) fn take_copies(&mut self, id: BlockId) -> u16 {
        let copies = std::mem::take(&mut self.slots[id.0 as usize].copies);
        copies.into_iter().fold(0, u16::saturating_add)
    }

    /// Copies of a block that must not be indexed.
    pub(in crate::subscriber::blockmap) fn opaque_copies(&mut self, id: BlockId) -> &mut u16 {
        &mut self.slots[id.0 as usize].copies[0]
    }
}
