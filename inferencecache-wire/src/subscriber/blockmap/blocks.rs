//! The slab of engine blocks: found by (stream, group, hash), ordered by their last store.
//!
//! A block takes 40 bytes, plus about 10 in the index, plus its pair. Hashes of 8 bytes stay inline; 32-byte ones and odd
//! lengths live in slabs of their own, so that a store allocates nothing once the slabs have grown.

mod one;
mod slab;

use std::hash::{BuildHasher, Hasher};

use foldhash::fast::RandomState;
use hashbrown::HashTable;

use self::slab::{Slab, index};
use super::places::Place;
use crate::kvevents::{BlockHash, MAX_HASH_BYTES};

/// Index of a block; valid until the block is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockId(u32);

/// Whose block: the engine's hashes mean something only within one stream and group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Home {
    pub(super) stream: u8,
    pub(super) group: u8,
}

/// Places in which one block can have copies at a time; a copy in a further place is not tracked.
const PLACES: usize = 4;

const NONE: u32 = u32::MAX;

/// How the hash of a block is kept.
const KIND: u32 = 0b11;
const KIND_WORD: u32 = 0;
const KIND_32: u32 = 1;
const KIND_ODD: u32 = 2;
const FREE: u32 = 1 << 2;
/// A copy went away while others remained: the engine's account and ours may differ.
const SUSPECT: u32 = 1 << 3;
/// It is not told again until it is stored again.
const DOUBTED: u32 = 1 << 4;
/// When it was last confirmed, on a clock of [`AGES`] steps.
const STAMP_SHIFT: u32 = 5;
const STAMP: u32 = (AGES - 1) << STAMP_SHIFT;
const SIZE_SHIFT: u32 = 11;

/// Steps of the clock that tells ages apart; the older half of them is "old".
pub(super) const AGES: u32 = 64;

#[derive(Debug, Clone, Copy)]
struct Block {
    /// The hash itself, or its index in a slab.
    key: u64,
    /// `NONE` for a block that must not be indexed.
    pair: u32,
    /// Flags, and the block size above them.
    shape: u32,
    /// Neighbours in store order. In a free slot, `next` is the next free one.
    previous: u32,
    next: u32,
    epoch: u16,
    home: Home,
    places: [Place; PLACES],
    /// Copies in each of the places; 0 is a free place. For a block that must not be indexed, the first one counts all.
    copies: [u16; PLACES],
}

/// What became of one copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Copies {
    /// There was none.
    None,
    /// Others remain in the same place.
    Remain,
    /// It was the last one in this place.
    LastIn(Place),
}

#[derive(Debug)]
pub(super) struct Blocks {
    slots: Vec<Block>,
    free: u32,
    index: HashTable<u32>,
    hasher: RandomState,
    long: Slab<[u8; 32]>,
    odd: Slab<[u8; MAX_HASH_BYTES + 1]>,
    /// Ends of the list in store order.
    oldest: u32,
    newest: u32,
    indexed: usize,
    /// The present, below [`AGES`].
    clock: u32,
}

impl Default for Blocks {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            free: NONE,
            index: HashTable::new(),
            hasher: RandomState::default(),
            long: Slab::default(),
            odd: Slab::default(),
            oldest: NONE,
            newest: NONE,
            indexed: 0,
            clock: 0,
        }
    }
}

impl Blocks {
    pub(super) fn len(&self) -> usize {
        self.index.len()
    }

    pub(super) fn indexed(&self) -> usize {
        self.indexed
    }

    pub(super) fn find(&self, home: Home, hash: BlockHash<'_>) -> Option<BlockId> {
        self.index
            .find(self.digest(home, hash), |&slot| {
                let block = &self.slots[slot as usize];
                block.home == home && self.hash_of(block) == hash
            })
            .map(|&slot| BlockId(slot))
    }

    /// Adds a block that is not there yet, without a pair and without copies, as the newest. `None` when ids run out.
    pub(super) fn insert(&mut self, home: Home, hash: BlockHash<'_>) -> Option<BlockId> {
        let (key, kind) = match hash {
            BlockHash::Word(word) => (word, KIND_WORD),
            BlockHash::Bytes(bytes) => match <[u8; 32]>::try_from(bytes) {
                Ok(long) => (u64::from(self.long.insert(long)?), KIND_32),
                Err(_) => {
                    let mut odd = [0; MAX_HASH_BYTES + 1];
                    let length = bytes.len().min(MAX_HASH_BYTES);
                    odd[0] = u8::try_from(length).unwrap_or_default();
                    odd[1..=length].copy_from_slice(&bytes[..length]);
                    (u64::from(self.odd.insert(odd)?), KIND_ODD)
                }
            },
        };
        let block = Block {
            key,
            pair: NONE,
            shape: kind | self.clock << STAMP_SHIFT,
            previous: NONE,
            next: NONE,
            epoch: 0,
            home,
            places: [Place(0); PLACES],
            copies: [0; PLACES],
        };
        let slot = if self.free == NONE {
            let slot = u32::try_from(self.slots.len()).ok().filter(|&slot| slot != NONE)?;
            self.slots.push(block);
            slot
        } else {
            let slot = self.free;
            self.free = self.slots[slot as usize].next;
            self.slots[slot as usize] = block;
            slot
        };
        self.append(slot);
        let digest = self.digest(home, hash);
        // Growth rehashes every block; the table is taken out so that the hashes can be read meanwhile.
        let mut index = std::mem::take(&mut self.index);
        index.insert_unique(digest, slot, |&slot| {
            let block = &self.slots[slot as usize];
            self.digest(block.home, self.hash_of(block))
        });
        self.index = index;
        Some(BlockId(slot))
    }

    /// Forgets a block. Its copies and its pair are the caller's to settle.
    pub(super) fn remove(&mut self, id: BlockId) {
        let block = self.slots[id.0 as usize];
        let digest = self.digest(block.home, self.hash_of(&block));
        if let Ok(entry) = self.index.find_entry(digest, |&slot| slot == id.0) {
            entry.remove();
        }
        if block.pair != NONE {
            self.indexed -= 1;
        }
        self.unlink(id.0);
        match block.shape & KIND {
            KIND_32 => self.long.remove(block.key),
            KIND_ODD => self.odd.remove(block.key),
            _ => {}
        }
        let freed = &mut self.slots[id.0 as usize];
        (freed.shape, freed.pair, freed.next) = (FREE, NONE, self.free);
        self.free = id.0;
    }

    pub(super) fn clear(&mut self) {
        self.slots.clear();
        self.index.clear();
        self.long.clear();
        self.odd.clear();
        (self.free, self.oldest, self.newest, self.indexed) = (NONE, NONE, NONE, 0);
    }

    /// The least recently stored block.
    pub(super) fn oldest(&self) -> Option<BlockId> {
        (self.oldest != NONE).then_some(BlockId(self.oldest))
    }

    /// The most recently stored block.
    pub(super) fn newest(&self) -> Option<BlockId> {
        (self.newest != NONE).then_some(BlockId(self.newest))
    }

    /// The block that was stored just before another.
    pub(super) fn older(&self, id: BlockId) -> Option<BlockId> {
        let previous = self.slots[id.0 as usize].previous;
        (previous != NONE).then_some(BlockId(previous))
    }

    /// Number of slots, free ones included.
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }

    /// The block in a slot.
    pub(super) fn live(&self, slot: usize) -> Option<BlockId> {
        self.slots.get(slot).filter(|block| block.shape & FREE == 0)?;
        u32::try_from(slot).ok().map(BlockId)
    }

    /// The clock of ages moves on by one step. What is old already stays so, however far the clock runs.
    pub(super) fn tick(&mut self) {
        self.clock = (self.clock + 1) % AGES;
        for block in &mut self.slots {
            if block.shape & STAMP == self.clock << STAMP_SHIFT {
                let old = (self.clock + AGES / 2 - 1) % AGES;
                block.shape = block.shape & !STAMP | old << STAMP_SHIFT;
            }
        }
    }

    /// Whether a block was last confirmed more than half a round of the clock ago.
    pub(super) fn is_old(&self, id: BlockId) -> bool {
        let stamp = (self.slots[id.0 as usize].shape & STAMP) >> STAMP_SHIFT;
        (self.clock + AGES - stamp) % AGES > AGES / 2
    }

    /// Any block of a stream, searching slots from `from` on; with the slot to go on from.
    pub(super) fn of_stream(&self, stream: u8, from: usize) -> Option<(BlockId, usize)> {
        let offset =
            self.slots.get(from..)?.iter().position(|block| block.shape & FREE == 0 && block.home.stream == stream)?;
        Some((BlockId(u32::try_from(from + offset).ok()?), from + offset + 1))
    }

    /// All blocks, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = BlockId> + '_ {
        (0..).zip(&self.slots).filter(|(_, block)| block.shape & FREE == 0).map(|(slot, _)| BlockId(slot))
    }

    // === private ===

    fn hash_of<'s>(&'s self, block: &Block) -> BlockHash<'s> {
        match block.shape & KIND {
            KIND_32 => BlockHash::Bytes(&self.long.values[index(block.key)][..]),
            KIND_ODD => {
                let odd = &self.odd.values[index(block.key)];
                BlockHash::Bytes(&odd[1..=usize::from(odd[0])])
            }
            _ => BlockHash::Word(block.key),
        }
    }

    fn digest(&self, home: Home, hash: BlockHash<'_>) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u16(u16::from_be_bytes([home.stream, home.group]));
        match hash {
            BlockHash::Word(word) => hasher.write_u64(word),
            BlockHash::Bytes(bytes) => hasher.write(bytes),
        }
        hasher.finish()
    }

    fn append(&mut self, slot: u32) {
        let newest = self.newest;
        let block = &mut self.slots[slot as usize];
        (block.previous, block.next) = (newest, NONE);
        match newest {
            NONE => self.oldest = slot,
            newest => self.slots[newest as usize].next = slot,
        }
        self.newest = slot;
    }

    fn unlink(&mut self, slot: u32) {
        let Block { previous, next, .. } = self.slots[slot as usize];
        match previous {
            NONE => self.oldest = next,
            previous => self.slots[previous as usize].next = next,
        }
        match next {
            NONE => self.newest = previous,
            next => self.slots[next as usize].previous = previous,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOME: Home = Home { stream: 0, group: 0 };

    #[test]
    fn a_block_takes_forty_bytes() {
        assert_eq!(size_of::<Block>(), 40);
    }

    #[test]
    fn blocks_are_found_by_stream_group_and_hash_of_any_length() {
        let mut blocks = Blocks::default();
        let bytes: Vec<u8> = (0..64).collect();
        let mut homes = Vec::new();
        for stream in 0..2 {
            for group in 0..2 {
                homes.push(Home { stream, group });
            }
        }
        let hashes: Vec<BlockHash<'_>> = (1..=64).filter_map(|n| BlockHash::from_bytes(&bytes[..n])).collect();
        let mut ids = Vec::new();
        for &home in &homes {
            for &hash in &hashes {
                assert_eq!(blocks.find(home, hash), None);
                ids.push((home, hash, blocks.insert(home, hash).unwrap()));
            }
        }
        for &(home, hash, id) in &ids {
            assert_eq!(blocks.find(home, hash), Some(id));
        }
        for &(home, hash, id) in ids.iter().step_by(2) {
            blocks.remove(id);
            assert_eq!(blocks.find(home, hash), None);
        }
        for &(home, hash, id) in ids.iter().skip(1).step_by(2) {
            assert_eq!(blocks.find(home, hash), Some(id));
        }
        assert_eq!(blocks.len(), ids.len() / 2);
    }

    #[test]
    fn the_oldest_is_the_one_stored_longest_ago() {
        let mut blocks = Blocks::default();
        let ids: Vec<BlockId> = (0..3).map(|n| blocks.insert(HOME, BlockHash::Word(n)).unwrap()).collect();
        assert_eq!(blocks.oldest(), Some(ids[0]));
        blocks.confirm(ids[0], 1);
        assert_eq!(blocks.oldest(), Some(ids[1]));
        blocks.remove(ids[1]);
        assert_eq!(blocks.oldest(), Some(ids[2]));
        blocks.remove(ids[2]);
        blocks.remove(ids[0]);
        assert_eq!(blocks.oldest(), None);
    }
}
