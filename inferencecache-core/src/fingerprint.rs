//! Digests of token content: the names under which prefixes are indexed.
//!
//! ```text
//! tokens   t0 … t15 │ t16 … t31 │ t32 …          full blocks only, the tail is dropped
//! content     C0    │    C1     │                XXH3-64, seed 1337, of the block's ids as little-endian u32
//! prefix   P0 = C0  │ P1 = h(P0, C1)             XXH3-64, seed 1337, of two little-endian u64
//! key      P0 as 8 bytes big-endian, …
//! ```
//!
//! The construction is frozen: subscriber, server and gateways compute the same digest on their own. With a parent, the
//! first digest continues from it; a parent of 0 is a parent, which is why it is an [`Option`].
//!
//! Everything here is pure. Results are appended to buffers of the caller, tokens pass through a buffer on the stack:
//! nothing allocates per block. The digest is no proof of content; a collision costs a cache miss in the engine.

use std::num::NonZeroU32;

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

/// Seed of every hash.
pub const SEED: u64 = 1337;

/// Tokens that fit into the stack buffer.
const CHUNK: usize = 256;

/// Digest of the tokens of one block, without regard to what precedes it.
#[must_use]
pub fn content_digest(tokens: &[u32]) -> u64 {
    let mut buffer = [0; 4 * CHUNK];
    if tokens.len() <= CHUNK {
        return xxh3_64_with_seed(little_endian(tokens, &mut buffer), SEED);
    }
    let mut hasher = Xxh3::with_seed(SEED);
    for chunk in tokens.chunks(CHUNK) {
        hasher.update(little_endian(chunk, &mut buffer));
    }
    hasher.digest()
}

/// Digest of the prefix that ends with a block of digest `content` and begins with the prefix of digest `parent`.
#[must_use]
pub fn prefix_digest(parent: Option<u64>, content: u64) -> u64 {
    let Some(parent) = parent else { return content };
    let mut step = [0; 16];
    step[..8].copy_from_slice(&parent.to_le_bytes());
    step[8..].copy_from_slice(&content.to_le_bytes());
    xxh3_64_with_seed(&step, SEED)
}

/// Appends to `out` the digest of every prefix of `tokens` that is a whole number of blocks.
pub fn prefix_digests(tokens: &[u32], block_size: NonZeroU32, out: &mut Vec<u64>) {
    prefix_digests_from(tokens, block_size, None, out);
}

/// The same for tokens that follow the prefix of digest `parent`.
pub fn prefix_digests_from(tokens: &[u32], block_size: NonZeroU32, parent: Option<u64>, out: &mut Vec<u64>) {
    out.extend(digests(tokens, block_size, Roll::after(parent)));
}

/// Appends the prefixes of `tokens` as a lookup carries them: to `keys` the wire form of each digest, and to `counts` the
/// number of tokens of each block, which is always `block_size`.
pub fn chain(tokens: &[u32], block_size: NonZeroU32, keys: &mut Vec<[u8; 8]>, counts: &mut Vec<i32>) {
    let before = keys.len();
    keys.extend(digests(tokens, block_size, Roll::new()).map(wire_bytes));
    let count = i32::try_from(block_size.get()).unwrap_or(i32::MAX);
    counts.resize(counts.len() + (keys.len() - before), count);
}

/// A digest as it travels and as it is indexed: 8 bytes, big-endian.
#[must_use]
pub const fn wire_bytes(digest: u64) -> [u8; 8] {
    digest.to_be_bytes()
}

/// A prefix that grows block by block.
///
/// ```
/// use inferencecache_core::fingerprint::{Roll, prefix_digests};
///
/// let tokens: Vec<u32> = (1..=32).collect();
/// let mut whole = Vec::new();
/// prefix_digests(&tokens, 16.try_into().unwrap(), &mut whole);
///
/// let mut roll = Roll::new();
/// assert_eq!(roll.push(&tokens[..16]), whole[0]);
/// assert_eq!(Roll::after(Some(whole[0])).push(&tokens[16..]), whole[1]);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Roll {
    digest: Option<u64>,
}

impl Roll {
    /// The empty prefix.
    #[must_use]
    pub const fn new() -> Self {
        Self { digest: None }
    }

    /// The prefix of digest `parent`; the empty one when `None`.
    #[must_use]
    pub const fn after(parent: Option<u64>) -> Self {
        Self { digest: parent }
    }

    /// Appends one block and returns the digest of the prefix that now ends with it.
    pub fn push(&mut self, block: &[u32]) -> u64 {
        let digest = prefix_digest(self.digest, content_digest(block));
        self.digest = Some(digest);
        digest
    }

    /// Digest of the prefix so far; `None` while it is empty.
    #[must_use]
    pub const fn digest(&self) -> Option<u64> {
        self.digest
    }
}

fn digests(tokens: &[u32], block_size: NonZeroU32, mut roll: Roll) -> impl ExactSizeIterator<Item = u64> {
    // A size that does not fit the address space exceeds every slice, so that no block is full.
    let size = usize::try_from(block_size.get()).unwrap_or(usize::MAX);
    tokens.chunks_exact(size).map(move |block| roll.push(block))
}

/// The ids as bytes, in the order in which they are hashed. At most [`CHUNK`] of them.
fn little_endian<'a>(tokens: &[u32], buffer: &'a mut [u8; 4 * CHUNK]) -> &'a [u8] {
    for (bytes, token) in buffer.chunks_exact_mut(4).zip(tokens) {
        bytes.copy_from_slice(&token.to_le_bytes());
    }
    &buffer[..4 * tokens.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    // fingerprint:10
    #[test]
    fn ids_are_hashed_as_little_endian_words() {
        let mut buffer = [0; 4 * CHUNK];
        assert_eq!(little_endian(&[16_909_060], &mut buffer), [4, 3, 2, 1]);
    }

    // fingerprint:11
    #[test]
    fn keys_are_big_endian() {
        assert_eq!(wire_bytes(1), [0, 0, 0, 0, 0, 0, 0, 1]);
    }
}
