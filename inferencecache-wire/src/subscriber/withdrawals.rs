//! What the server must be told about pairs that the map has forgotten, while it cannot be told anything.
//!
//! What is held needs no queue, the map has it. What is *not* held any more does: a bounded set of pairs. Each pair is in
//! it at most once, and leaves it when it is stored again.

use std::collections::HashMap;

use inferencecache_core::time::Micros;

use super::blockmap::{AdapterId, Report};

/// Pairs that are remembered. With more, the server is told to forget the replica and gets everything that is held.
pub const MAX_WITHDRAWALS: usize = 65_536;

/// What became of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is gone.
    Evicted,
    /// It moved to a tier that announces nothing, so that the map does not have it any more.
    Moved {
        /// Tokens of its prefix.
        tokens: u32,
    },
}

/// One pair to tell about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Withdrawal {
    /// Partition.
    pub adapter: AdapterId,
    /// Digest.
    pub digest: u64,
    /// When it happened.
    pub at: Micros,
    /// What happened.
    pub fate: Fate,
}

/// The set is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

/// A bounded set of withdrawals.
#[derive(Debug, Default)]
pub struct Withdrawals {
    list: Vec<Withdrawal>,
    places: HashMap<(AdapterId, u64), usize>,
}

impl Withdrawals {
    /// Number of pairs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Adds a pair; a later fate replaces an earlier one.
    ///
    /// # Errors
    ///
    /// [`Full`] when there are [`MAX_WITHDRAWALS`] others.
    pub fn insert(&mut self, withdrawal: Withdrawal) -> Result<(), Full> {
        let key = (withdrawal.adapter, withdrawal.digest);
        if let Some(&place) = self.places.get(&key) {
            self.list[place] = withdrawal;
            return Ok(());
        }
        if self.list.len() >= MAX_WITHDRAWALS {
            return Err(Full);
        }
        self.places.insert(key, self.list.len());
        self.list.push(withdrawal);
        Ok(())
    }

    /// Whether the pair is in the set.
    #[must_use]
    pub fn contains(&self, adapter: AdapterId, digest: u64) -> bool {
        self.places.contains_key(&(adapter, digest))
    }

    /// Takes a pair out; `true` when it was there.
    pub fn remove(&mut self, adapter: AdapterId, digest: u64) -> bool {
        let Some(place) = self.places.remove(&(adapter, digest)) else { return false };
        self.list.swap_remove(place);
        if let Some(moved) = self.list.get(place) {
            self.places.insert((moved.adapter, moved.digest), place);
        }
        true
    }

    /// Takes any pair for which `ready` holds out of the last few; `None` when they must all wait.
    pub fn pop(&mut self, ready: impl Fn(&Withdrawal) -> bool) -> Option<Withdrawal> {
        const LOOK: usize = 64;
        let withdrawal = *self.list.iter().rev().take(LOOK).find(|withdrawal| ready(withdrawal))?;
        self.remove(withdrawal.adapter, withdrawal.digest);
        Some(withdrawal)
    }

    /// Forgets all pairs.
    pub fn clear(&mut self) {
        self.list.clear();
        self.places.clear();
    }
}

impl Withdrawal {
    /// The report of a pair that moved.
    #[must_use]
    pub fn moved(&self) -> Option<Report> {
        match self.fate {
            Fate::Evicted => None,
            Fate::Moved { tokens } => {
                Some(Report { digest: self.digest, tokens, adapter: self.adapter, tier: super::blockmap::Tier::T2 })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evicted(digest: u64) -> Withdrawal {
        Withdrawal { adapter: AdapterId::BASE, digest, at: 1, fate: Fate::Evicted }
    }

    #[test]
    fn a_pair_is_in_the_set_once_and_can_be_taken_out() {
        let mut set = Withdrawals::default();
        for digest in 0..10 {
            set.insert(evicted(digest)).unwrap();
            set.insert(evicted(digest)).unwrap();
        }
        assert_eq!(set.len(), 10);
        assert!(set.remove(AdapterId::BASE, 3) && !set.remove(AdapterId::BASE, 3));
        let mut left: Vec<u64> = std::iter::from_fn(|| set.pop(|_| true)).map(|w| w.digest).collect();
        left.sort_unstable();
        assert_eq!(left, [0, 1, 2, 4, 5, 6, 7, 8, 9]);
        assert!(set.is_empty() && set.places.is_empty());
    }

    #[test]
    fn the_set_is_bounded() {
        let mut set = Withdrawals::default();
        for digest in 0..MAX_WITHDRAWALS as u64 {
            set.insert(evicted(digest)).unwrap();
        }
        assert_eq!(set.insert(evicted(u64::MAX)), Err(Full));
        set.insert(evicted(5)).unwrap();
        assert_eq!(set.pop(|w| w.digest == 5), None);
    }
}
