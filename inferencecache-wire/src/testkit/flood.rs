//! As many stored blocks as anybody asks for: new prompts without end, of which the oldest tails are removed.
//!
//! The engine that this stands for has more room than it announces removals for, so whoever listens must bound what it keeps.

use std::collections::VecDeque;
use std::num::NonZeroU32;

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};

use super::event::{Event, Medium};

/// Blocks of each prompt.
const PROMPT: usize = 64;
/// Stored blocks that may still be removed; those beyond stay for ever.
const REMOVABLE: usize = 65_536;

/// The source.
#[derive(Debug)]
pub struct Flood {
    rng: SmallRng,
    block_size: NonZeroU32,
    /// Last block of each prompt at the back, so that children go before their parents.
    stored: VecDeque<Vec<u64>>,
    removable: usize,
    next: u64,
}

impl Flood {
    /// The same seed gives the same events.
    #[must_use]
    pub fn new(seed: u64, block_size: NonZeroU32) -> Self {
        Self { rng: SmallRng::seed_from_u64(seed), block_size, stored: VecDeque::new(), removable: 0, next: 1 }
    }

    /// Events that store so many new blocks, and then remove so many of the oldest (fewer while there are too few).
    pub fn batch(&mut self, store: usize, remove: usize) -> Vec<Event> {
        let mut events = Vec::with_capacity(store / PROMPT + 2);
        let mut left = store;
        while left > 0 {
            let blocks = left.min(PROMPT);
            left -= blocks;
            events.push(self.prompt(blocks));
        }
        let mut hashes = Vec::with_capacity(remove);
        while hashes.len() < remove {
            let Some(prompt) = self.stored.front_mut() else { break };
            match prompt.pop() {
                Some(hash) => {
                    hashes.push(hash);
                    self.removable -= 1;
                }
                None => {
                    self.stored.pop_front();
                }
            }
        }
        if !hashes.is_empty() {
            events.push(Event::Removed { hashes, medium: Medium::Gpu });
        }
        events
    }

    fn prompt(&mut self, blocks: usize) -> Event {
        let tokens = (0..blocks * self.block_size.get() as usize).map(|_| self.rng.random_range(0..150_000)).collect();
        // An odd factor: every number gives another hash.
        let hashes: Vec<u64> = (self.next..).take(blocks).map(|n| n.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
        self.next += blocks as u64;
        if self.removable + blocks <= REMOVABLE {
            self.removable += blocks;
            self.stored.push_back(hashes.clone());
        }
        Event::Stored {
            hashes,
            parent: None,
            tokens,
            block_size: self.block_size.get(),
            medium: Medium::Gpu,
            adapter: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_block_is_new_and_only_stored_ones_are_removed() {
        let mut flood = Flood::new(1, NonZeroU32::MIN);
        let mut held = std::collections::HashSet::new();
        let (mut stored, mut removed) = (0, 0);
        for _ in 0..300 {
            for event in flood.batch(1000, 50) {
                match event {
                    Event::Stored { hashes, tokens, .. } => {
                        assert_eq!(hashes.len(), tokens.len());
                        stored += hashes.len();
                        assert!(hashes.into_iter().all(|hash| held.insert(hash)));
                    }
                    Event::Removed { hashes, .. } => {
                        removed += hashes.len();
                        assert!(hashes.into_iter().all(|hash| held.remove(&hash)));
                    }
                    Event::Cleared => unreachable!("never cleared"),
                }
            }
        }
        assert_eq!((stored, removed), (300_000, 15_000));
        assert!(flood.removable <= REMOVABLE);
    }
}
