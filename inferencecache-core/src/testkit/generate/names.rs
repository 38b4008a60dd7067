//! The words that operations are made of.

use std::fmt;
use std::sync::Arc;

use rand::Rng;

use crate::RESERVED_TENANT;

/// What there is much of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Shape {
    /// Nothing: a handful of hashes and replicas, so everything collides.
    Small,
    /// Blocks: long chains that share roots and branch.
    Chains,
    /// Replicas: more than a machine word has bits.
    Crowd,
}

/// A block hash, printed in hex.
#[derive(Clone, PartialEq, Eq)]
pub struct Hash(pub Arc<[u8]>);

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The alphabet of one run.
#[derive(Debug, Clone)]
pub struct Names {
    /// What there is much of.
    pub shape: Shape,
    /// Two real tenants and a reserved one.
    pub tenants: Vec<Arc<str>>,
    /// Models.
    pub models: Vec<Arc<str>>,
    /// Schemes.
    pub schemes: Vec<Arc<str>>,
    /// Partitions, the base model among them.
    pub adapters: Vec<Arc<str>>,
    /// Replicas. Bytewise order is not numeric order.
    pub replicas: Vec<Arc<str>>,
    /// Hashes: one list from which anything is drawn, or several chains.
    pub chains: Vec<Vec<Hash>>,
    /// The empty string.
    pub empty: Arc<str>,
}

impl Names {
    /// The alphabet of `shape`.
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        let words = |list: &[&str]| list.iter().map(|&word| Arc::from(word)).collect();
        let replicas = match shape {
            Shape::Small | Shape::Chains => 4,
            Shape::Crowd => 130,
        };
        Self {
            shape,
            tenants: words(&["t", "u", RESERVED_TENANT]),
            models: words(&["m", "m2"]),
            schemes: words(&["vllm", "sglang"]),
            adapters: words(&["", "sql", "chat"]),
            replicas: (0..replicas).map(|n| Arc::from(format!("r{}", n + 8))).collect(),
            chains: match shape {
                Shape::Small => vec![look_alikes()],
                Shape::Chains => branches(),
                Shape::Crowd => vec![(0..24).map(|position| block(0, position, 8)).collect()],
            },
            empty: Arc::from(""),
        }
    }

    /// A word of `list`, rarely the empty one.
    pub(super) fn pick(&self, rng: &mut impl Rng, list: &[Arc<str>]) -> Arc<str> {
        if rng.random_ratio(1, 100) { self.empty.clone() } else { list[rng.random_range(0..list.len())].clone() }
    }

    /// A tenant; the first is named most.
    pub(super) fn tenant(&self, rng: &mut impl Rng) -> Arc<str> {
        if rng.random_ratio(1, 2) { self.tenants[0].clone() } else { self.pick(rng, &self.tenants) }
    }

    /// The first word of `list` most of the time.
    pub(super) fn mostly_first(&self, rng: &mut impl Rng, list: &[Arc<str>]) -> Arc<str> {
        if rng.random_ratio(4, 5) { list[0].clone() } else { self.pick(rng, list) }
    }

    /// Any hash, rarely the empty one.
    pub(super) fn hash(&self, rng: &mut impl Rng) -> Hash {
        if rng.random_ratio(1, 100) {
            return Hash(Arc::from([]));
        }
        let chain = &self.chains[rng.random_range(0..self.chains.len())];
        chain[rng.random_range(0..chain.len())].clone()
    }

    /// A run of hashes: part of one chain, or any.
    pub(super) fn run(&self, rng: &mut impl Rng) -> Vec<Hash> {
        if self.shape == Shape::Small {
            return (0..rng.random_range(1..=6)).map(|_| self.hash(rng)).collect();
        }
        if self.shape == Shape::Chains && rng.random_ratio(1, 60) {
            // More than an index has to apply as one operation.
            return (0..rng.random_range(250..600)).map(|position| block(9, position, 8)).collect();
        }
        let chain = &self.chains[rng.random_range(0..self.chains.len())];
        let start = if rng.random_ratio(2, 3) { 0 } else { rng.random_range(0..chain.len()) };
        let longest = (chain.len() - start).min(if rng.random_ratio(1, 4) { chain.len() } else { 20 });
        let mut run = chain[start..start + rng.random_range(1..=longest)].to_vec();
        if rng.random_ratio(1, 6) {
            let position = rng.random_range(0..run.len());
            run[position] = self.hash(rng);
        }
        run
    }
}

/// Hashes of several lengths that begin alike, or would be equal if padded or cut to eight bytes.
fn look_alikes() -> Vec<Hash> {
    let word = [0xa0, 1, 2, 3, 4, 5, 6, 7];
    let mut list: Vec<Vec<u8>> = (0..6_u8).map(|n| [&word[..7], &[n]].concat()).collect();
    list.push(word[..3].to_vec());
    list.push([&word[..3], &[0; 5]].concat());
    list.push([&word[..], &[0; 8]].concat());
    list.push([&word[..], &[9; 24]].concat());
    list.into_iter().map(|bytes| Hash(bytes.into())).collect()
}

/// Chains that share the first blocks of the first one, with hashes of other lengths in the last two.
fn branches() -> Vec<Vec<Hash>> {
    let lengths: [fn(u64) -> usize; 5] = [|_| 8, |_| 8, |_| 8, |_| 16, |position| [8, 3, 32][position as usize % 3]];
    let leaves_at = [0, 10, 64, 5, 0];
    let chain = |branch: usize| {
        let hash = |position: u64| {
            if position < leaves_at[branch] {
                block(0, position, 8)
            } else {
                block(branch, position, lengths[branch](position))
            }
        };
        (0..100).map(hash).collect()
    };
    (0..lengths.len()).map(chain).collect()
}

/// A hash of its own for each (branch, position), as scattered as real ones.
fn block(branch: usize, position: u64, length: usize) -> Hash {
    let mut state = (branch as u64) << 32 | position;
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.extend((mixed ^ mixed >> 31).to_be_bytes());
    }
    bytes.truncate(length);
    Hash(bytes.into())
}
