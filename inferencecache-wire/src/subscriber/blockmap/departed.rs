//! Blocks that have left a stream, remembered for a while.
//!
//! A child can be stored after its parent was evicted. A parent that was neither announced nor removed, on a stream of
//! which nothing was missed, is different: its batch was lost before it got a number.

use std::collections::HashSet;
use std::hash::BuildHasher;

use foldhash::fast::RandomState;

use crate::kvevents::BlockHash;

/// Hashes of one generation. Two are kept, so at least so many of the last departures are known.
const GENERATION: usize = 8192;

#[derive(Debug, Default)]
pub(super) struct Departed {
    hasher: RandomState,
    recent: HashSet<u64, RandomState>,
    older: HashSet<u64, RandomState>,
}

impl Departed {
    pub(super) fn note(&mut self, group: u8, hash: BlockHash<'_>) {
        if self.recent.len() >= GENERATION {
            std::mem::swap(&mut self.recent, &mut self.older);
            self.recent.clear();
        }
        self.recent.insert(self.print(group, hash));
    }

    pub(super) fn contains(&self, group: u8, hash: BlockHash<'_>) -> bool {
        let print = self.print(group, hash);
        self.recent.contains(&print) || self.older.contains(&print)
    }

    fn print(&self, group: u8, hash: BlockHash<'_>) -> u64 {
        match hash {
            BlockHash::Word(word) => self.hasher.hash_one((group, word)),
            BlockHash::Bytes(bytes) => self.hasher.hash_one((group, bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_departures_are_known_and_no_more_than_two_generations() {
        let mut departed = Departed::default();
        for word in 0..100_000 {
            departed.note(0, BlockHash::Word(word));
            assert!(departed.contains(0, BlockHash::Word(word)));
            assert!(departed.recent.len() + departed.older.len() <= 2 * GENERATION);
        }
        assert!(departed.contains(0, BlockHash::Word(100_000 - 8192)));
        assert!(!departed.contains(0, BlockHash::Word(0)) && !departed.contains(1, BlockHash::Word(99_999)));
    }
}
