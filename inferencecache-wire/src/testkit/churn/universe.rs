//! All prompts that a simulated engine may ever see: a tree of blocks, so that prompts share prefixes and come again.
//!
//! The same seed gives the same tree, whoever builds it; so a test knows every block that can ever be announced.

use std::num::NonZeroU32;

use inferencecache_core::fingerprint::{Roll, prefix_digest};
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};

/// Longest prompt, in blocks.
pub const MAX_DEPTH: usize = 16;

/// One block of the tree, and by that the prompt which ends with it.
#[derive(Debug, Clone)]
struct Node {
    parent: Option<usize>,
    depth: usize,
    tokens: Vec<u32>,
    digest: u64,
}

/// The tree.
#[derive(Debug, Clone)]
pub struct Universe {
    block_size: NonZeroU32,
    nodes: Vec<Node>,
}

impl Universe {
    /// A tree of so many blocks.
    #[must_use]
    pub fn new(seed: u64, block_size: NonZeroU32, blocks: usize) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let mut nodes: Vec<Node> = Vec::with_capacity(blocks);
        for number in 0..blocks {
            // Long chains from recent blocks, and branches anywhere; now and then another beginning.
            let parent = match number {
                0 => None,
                _ if rng.random_ratio(1, 32) => None,
                _ if rng.random_ratio(1, 2) => Some(number - 1),
                _ => Some(rng.random_range(0..number)),
            };
            let parent = parent.filter(|&parent| nodes.get(parent).is_some_and(|node| node.depth < MAX_DEPTH));
            let tokens: Vec<u32> = (0..block_size.get()).map(|_| rng.random_range(0..150_000)).collect();
            let above = parent.and_then(|parent| nodes.get(parent));
            let digest = Roll::after(above.map(|node| node.digest)).push(&tokens);
            let depth = 1 + above.map_or(0, |node| node.depth);
            nodes.push(Node { parent, depth, tokens, digest });
        }
        Self { block_size, nodes }
    }

    /// Number of blocks.
    #[must_use]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is no block.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Tokens of each block.
    #[must_use]
    pub fn block_size(&self) -> NonZeroU32 {
        self.block_size
    }

    /// The blocks of the prompt that ends with `node`, first one first.
    #[must_use]
    pub fn prompt(&self, node: usize) -> Vec<usize> {
        let above = |&node: &usize| self.nodes.get(node).and_then(|node| node.parent);
        let mut prompt: Vec<usize> = std::iter::successors(Some(node), above).collect();
        prompt.reverse();
        prompt
    }

    /// Tokens of one block.
    #[must_use]
    pub fn tokens(&self, node: usize) -> &[u32] {
        self.nodes.get(node).map_or(&[], |node| &node.tokens)
    }

    /// Digest of the prompt that ends with the block, and its number of tokens.
    #[must_use]
    pub fn digest(&self, node: usize) -> (u64, u64) {
        self.nodes.get(node).map_or((0, 0), |node| (node.digest, node.depth as u64 * u64::from(self.block_size.get())))
    }

    /// The engine's own name of the block under an adapter (0 is the base model). The same in every process, as with engines
    /// whose hash seed is fixed: what an earlier process announced must not be taken for news of a later one.
    #[must_use]
    pub fn hash(&self, node: usize, adapter: usize) -> u64 {
        prefix_digest(Some(self.digest(node).0), 1 + adapter as u64)
    }
}

#[cfg(test)]
mod tests {
    use inferencecache_core::fingerprint::prefix_digests;

    use super::*;

    #[test]
    fn prompts_share_prefixes_and_have_the_digests_of_their_tokens() {
        let size = NonZeroU32::new(4).unwrap();
        let universe = Universe::new(7, size, 300);
        let mut roots = 0;
        for node in 0..universe.len() {
            let prompt = universe.prompt(node);
            assert!((1..=MAX_DEPTH).contains(&prompt.len()) && prompt.last() == Some(&node));
            roots += usize::from(prompt.len() == 1);
            let tokens: Vec<u32> = prompt.iter().flat_map(|&node| universe.tokens(node)).copied().collect();
            let mut digests = Vec::new();
            prefix_digests(&tokens, size, &mut digests);
            assert_eq!(universe.digest(node), (digests[prompt.len() - 1], 4 * prompt.len() as u64));
            assert_ne!(universe.hash(node, 0), universe.hash(node, 1));
        }
        assert!((2..100).contains(&roots), "{roots}");
        let again = Universe::new(7, size, 300);
        assert!((0..300).all(|node| again.digest(node) == universe.digest(node)));
        assert_ne!(Universe::new(8, size, 300).digest(299), universe.digest(299));
    }
}
