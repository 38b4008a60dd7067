//! A simulated engine: prefix caches that fill, reuse and evict as random prompts with shared prefixes come in, and that
//! can say at any moment what they really hold.
//!
//! ```text
//! universe ──prompt──> rank's cache { device LRU ──> host LRU } ──events──> event::batch ──> fake_engine
//!     │                     └──────────── held() ── what an index may claim
//!     └─ every block that can ever be announced
//! ```
//!
//! Pure: no clock, no socket, and the same seeds give the same events. [`ChurnOptions::seed`] chooses the prompts that
//! exist, [`ChurnOptions::run`] the order in which they come: a restarted engine sees the same world in another order.

mod cache;
mod lru;
mod universe;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};

use self::cache::Cache;
pub use self::universe::{MAX_DEPTH, Universe};
use super::event::{Event, Medium};
use super::script::Shape;

/// What to simulate. [`Default`] gives the documented defaults.
#[derive(Debug, Clone)]
pub struct ChurnOptions {
    /// Which prompts exist. Default 1.
    pub seed: u64,
    /// In which order they come. Default 0.
    pub run: u64,
    /// Tokens of a block. Default 16.
    pub block_size: NonZeroU32,
    /// Blocks that exist. Default 600.
    pub blocks: usize,
    /// Blocks that fit into the device memory of one rank. Default 200.
    pub capacity: usize,
    /// Blocks that fit into its host memory. Default 0, no such tier.
    pub host_capacity: usize,
    /// Data-parallel ranks. Default 1.
    pub ranks: usize,
    /// Adapters that prompts use beside the base model. Default none.
    pub adapters: Vec<String>,
    /// One of so many prompts stores its new blocks in two copies. 0, the default: none.
    pub twice_every: u32,
    /// One of so many prompts is a reset of one rank's cache instead. 0, the default: none.
    pub clear_every: u32,
    /// Shape of the events; decides also how host copies are announced. Default [`Shape::Tuple`].
    pub shape: Shape,
}

impl Default for ChurnOptions {
    fn default() -> Self {
        Self {
            seed: 1,
            run: 0,
            block_size: NonZeroU32::MIN.saturating_add(15),
            blocks: 600,
            capacity: 200,
            host_capacity: 0,
            ranks: 1,
            adapters: Vec::new(),
            twice_every: 0,
            clear_every: 0,
            shape: Shape::default(),
        }
    }
}

/// A block that a cache holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Held {
    /// Block of the [`Universe`].
    pub node: usize,
    /// 0 is the base model, then the adapters in order.
    pub adapter: usize,
    /// The warmest copy.
    pub medium: Medium,
}

/// What one prompt did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The rank that ran it.
    pub rank: usize,
    /// What its publisher says; nothing when everything was held.
    pub events: Vec<Event>,
}

/// The engine.
#[derive(Debug)]
pub struct Churn {
    options: ChurnOptions,
    universe: Arc<Universe>,
    ranks: Vec<Cache>,
    rng: SmallRng,
    queried: u64,
    hit: u64,
}

impl Churn {
    /// An engine with empty caches.
    #[must_use]
    pub fn new(options: ChurnOptions) -> Self {
        let universe = Arc::new(Universe::new(options.seed, options.block_size, options.blocks));
        let ranks = (0..options.ranks.max(1)).map(|_| Cache::new(Arc::clone(&universe), options.clone())).collect();
        let rng = SmallRng::seed_from_u64(options.seed.rotate_left(32) ^ options.run);
        Self { options, universe, ranks, rng, queried: 0, hit: 0 }
    }

    /// Every block that can be announced.
    #[must_use]
    pub fn universe(&self) -> &Universe {
        &self.universe
    }

    /// What was asked for.
    #[must_use]
    pub fn options(&self) -> &ChurnOptions {
        &self.options
    }

    /// Runs the next prompt, or resets a cache.
    pub fn step(&mut self) -> Step {
        let rng = &mut self.rng;
        let rank = rng.random_range(0..self.ranks.len());
        let node = rng.random_range(0..self.universe.len().max(1));
        let adapter = rng.random_range(0..=self.options.adapters.len());
        let mut one_of = |every: u32| every > 0 && rng.random_ratio(1, every);
        let (clear, twice) = (one_of(self.options.clear_every), one_of(self.options.twice_every));
        let Some(cache) = self.ranks.get_mut(rank) else { return Step { rank, events: Vec::new() } };
        if clear {
            return Step { rank, events: cache.clear(true) };
        }
        let prompt = self.universe.prompt(node);
        let (events, reused) = cache.prompt(&prompt, adapter, twice);
        let size = u64::from(self.options.block_size.get());
        self.queried += size * prompt.len() as u64;
        self.hit += size * reused as u64;
        Step { rank, events }
    }

    /// Empties all caches. Each rank says so only with its next prompt, as an engine that sleeps.
    pub fn sleep(&mut self) {
        for cache in &mut self.ranks {
            cache.clear(false);
        }
    }

    /// What is held, over all ranks: each block once, under its warmest tier.
    #[must_use]
    pub fn held(&self) -> Vec<Held> {
        let mut held: BTreeMap<(usize, usize), Medium> = BTreeMap::new();
        for block in self.ranks.iter().flat_map(Cache::held) {
            let medium = held.entry((block.node, block.adapter)).or_insert(block.medium);
            *medium = block.medium.min(*medium);
        }
        held.into_iter().map(|((node, adapter), medium)| Held { node, adapter, medium }).collect()
    }

    /// Share of device memory in use by the fullest rank.
    #[must_use]
    pub fn usage(&self) -> f64 {
        self.ranks.iter().map(Cache::usage).fold(0.0, f64::max)
    }

    /// Tokens looked up in the caches so far, and tokens found there.
    #[must_use]
    pub fn queries(&self) -> (u64, u64) {
        (self.queried, self.hit)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// What somebody believes who hears every event.
    #[derive(Default)]
    struct Listener {
        copies: HashMap<(u64, Medium), u32>,
    }

    impl Listener {
        fn hear(&mut self, events: &[Event]) {
            for event in events {
                match event {
                    Event::Stored { hashes, parent, tokens, block_size, medium, .. } => {
                        assert_eq!(tokens.len(), hashes.len() * *block_size as usize);
                        let known = |hash: &u64| {
                            [Medium::Gpu, Medium::Cpu].iter().any(|&m| self.copies.contains_key(&(*hash, m)))
                        };
                        assert!(parent.iter().all(known), "a parent that is not there");
                        hashes.iter().for_each(|&hash| *self.copies.entry((hash, *medium)).or_default() += 1);
                    }
                    Event::Removed { hashes, medium } => {
                        for &hash in hashes {
                            let copies = self.copies.get_mut(&(hash, *medium)).expect("only what is there is removed");
                            *copies -= 1;
                            if *copies == 0 {
                                self.copies.remove(&(hash, *medium));
                            }
                        }
                    }
                    Event::Cleared => self.copies.clear(),
                }
            }
        }
    }

    fn check(options: ChurnOptions, sleep: bool) {
        let capacity = options.capacity;
        let mut churn = Churn::new(options);
        let mut listeners: Vec<Listener> = (0..churn.options.ranks).map(|_| Listener::default()).collect();
        let (mut removed, mut cleared) = (0, 0);
        for number in 0..2_000 {
            if sleep && number % 300 == 299 {
                churn.sleep();
                assert_eq!(churn.held(), []);
            }
            let step = churn.step();
            removed += step.events.iter().filter(|event| matches!(event, Event::Removed { .. })).count();
            cleared += step.events.iter().filter(|event| **event == Event::Cleared).count();
            listeners[step.rank].hear(&step.events);
            let device = listeners[step.rank].copies.iter().filter(|((_, medium), _)| *medium == Medium::Gpu);
            assert!(device.map(|(_, copies)| *copies as usize).sum::<usize>() <= capacity);
            if sleep {
                continue; // what it says lags behind what it holds
            }
            let held: Vec<(u64, Medium)> =
                churn.held().iter().map(|held| (churn.universe.hash(held.node, held.adapter), held.medium)).collect();
            let believed =
                |hash: u64, medium| listeners.iter().any(|listener| listener.copies.contains_key(&(hash, medium)));
            for &(hash, medium) in &held {
                assert!(believed(hash, medium) && (medium == Medium::Gpu || !believed(hash, Medium::Gpu)));
            }
            let hashes: std::collections::HashSet<u64> =
                listeners.iter().flat_map(|listener| listener.copies.keys()).map(|(hash, _)| *hash).collect();
            assert_eq!(hashes.len(), held.len());
        }
        assert!(removed > 50 && churn.usage() > 0.3 && churn.queries().1 > 0, "{removed} {:?}", churn.queries());
        assert_eq!(cleared > 0, sleep || churn.options.clear_every > 0);
    }

    fn small() -> ChurnOptions {
        ChurnOptions { block_size: NonZeroU32::MIN, capacity: 60, blocks: 200, ..ChurnOptions::default() }
    }

    #[test]
    fn events_tell_exactly_what_is_held() {
        let adapters = vec!["a".to_owned(), "b".to_owned()];
        check(small(), false);
        check(ChurnOptions { ranks: 2, adapters, clear_every: 200, ..small() }, false);
        check(ChurnOptions { host_capacity: 40, twice_every: 5, ..small() }, false);
        check(ChurnOptions { ranks: 3, ..small() }, true);
    }

    #[test]
    fn a_seed_fixes_the_world_and_a_run_the_order() {
        let events = |seed, run| {
            let mut churn = Churn::new(ChurnOptions { seed, run, ..ChurnOptions::default() });
            (0..20).map(|_| churn.step().events).collect::<Vec<_>>()
        };
        assert_eq!(events(1, 0), events(1, 0));
        assert_ne!(events(1, 0), events(1, 1));
        assert_ne!(events(1, 0), events(2, 0));
    }
}
