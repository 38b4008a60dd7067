//! Which blocks lie in one tier, and which goes first.

use std::collections::{BTreeMap, HashMap};

/// A block under an adapter: node of the universe, number of the adapter (0 is the base model).
pub(super) type Key = (usize, usize);

/// Blocks in the order of their last use. A block may have several copies; each takes room.
#[derive(Debug, Default)]
pub(super) struct Lru {
    entries: HashMap<Key, Entry>,
    order: BTreeMap<u64, Key>,
    copies: usize,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    stamp: u64,
    copies: usize,
}

impl Lru {
    pub(super) fn contains(&self, key: Key) -> bool {
        self.entries.contains_key(&key)
    }

    /// Copies held.
    pub(super) fn len(&self) -> usize {
        self.copies
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = Key> {
        self.entries.keys().copied()
    }

    /// Adds a copy. `stamp` must be new.
    pub(super) fn store(&mut self, key: Key, stamp: u64) {
        let entry = self.entries.entry(key).or_insert(Entry { stamp, copies: 0 });
        self.order.remove(&entry.stamp);
        *entry = Entry { stamp, copies: entry.copies + 1 };
        self.order.insert(stamp, key);
        self.copies += 1;
    }

    /// Marks a block that is held as used. `stamp` must be new.
    pub(super) fn touch(&mut self, key: Key, stamp: u64) {
        if let Some(entry) = self.entries.get_mut(&key) {
            self.order.remove(&entry.stamp);
            entry.stamp = stamp;
            self.order.insert(stamp, key);
        }
    }

    /// Takes one copy of the block that was not used for longest; `true` when it was the last one.
    pub(super) fn take_oldest(&mut self) -> Option<(Key, bool)> {
        let (&stamp, &key) = self.order.first_key_value()?;
        self.copies -= 1;
        let entry = self.entries.get_mut(&key)?;
        entry.copies -= 1;
        let last = entry.copies == 0;
        if last {
            self.entries.remove(&key);
            self.order.remove(&stamp);
        }
        Some((key, last))
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_copy_goes_first() {
        let mut lru = Lru::default();
        lru.store((1, 0), 1);
        lru.store((2, 0), 2);
        lru.store((2, 0), 3);
        lru.touch((1, 0), 4);
        lru.touch((9, 0), 5);
        assert_eq!((lru.len(), lru.keys().count()), (3, 2));
        assert_eq!(lru.take_oldest(), Some(((2, 0), false)));
        assert!(lru.contains((2, 0)));
        assert_eq!(lru.take_oldest(), Some(((2, 0), true)));
        assert_eq!(lru.take_oldest(), Some(((1, 0), true)));
        assert_eq!((lru.take_oldest(), lru.len()), (None, 0));
    }
}
