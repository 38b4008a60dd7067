//! Which of the inputs of a question counts, and whether it is acceptable.
//!
//! Exactly one is used: the hashes as sent, else the token ids, else the text. What is refused is not replaced by an
//! input of lower preference.

use std::num::NonZeroU32;

use crate::fingerprint;

use super::Question;
use super::answer::{Derived, FailOpen};

/// Most blocks of a chain on the wire. A chain that is fingerprinted here follows [`MAX_TOKENS`].
pub const MAX_BLOCKS: usize = 65_536;
/// Longest hash in bytes.
pub const MAX_HASH_BYTES: usize = 64;
/// Longest tenant, model, scheme or adapter in bytes.
pub const MAX_ID_BYTES: usize = 512;
/// Most token ids, sent or produced.
pub const MAX_TOKENS: usize = 1_048_576;
/// Longest prompt text in bytes.
pub const MAX_TEXT_BYTES: usize = 1_048_576;

/// The input in effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Input {
    /// Whether it was fingerprinted here, from tokens.
    pub(super) derived: bool,
    /// Whether the index is asked for a chain; else for the exact key.
    pub(super) chain: bool,
    /// Tokens that it claims to cover.
    pub(super) tokens: i64,
}

/// What became of the inputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resolved {
    /// This one is in effect.
    Input(Input),
    /// The text is; it must be tokenised.
    Text,
}

/// Whether the text of `question` will be the input in effect, sizes aside.
pub(super) fn is_text(question: &Question<'_>, chain_matching: bool) -> bool {
    let explicit = !question.prefix_hash.is_empty() || (chain_matching && question.as_query().is_chain());
    !question.prompt_text.is_empty() && question.token_ids.is_empty() && !explicit
}

/// Whether the wire carries a chain that satisfies a policy which demands one: not empty, and as many counts as hashes.
pub(super) fn has_chain(question: &Question<'_>) -> bool {
    !question.block_hashes.is_empty() && question.block_hashes.len() == question.block_token_counts.len()
}

/// Picks the input in effect; token ids are fingerprinted into `derived`.
pub(super) fn resolve(
    question: &Question<'_>,
    chain_matching: bool,
    block_size: NonZeroU32,
    derived: &mut Derived,
) -> Result<Resolved, FailOpen> {
    if is_oversized(question) {
        return Err(FailOpen::OversizedRequest);
    }
    let wire = question.as_query();
    let exact = Input { derived: false, chain: false, tokens: question.prefix_token_count.into() };
    if chain_matching && wire.is_chain() {
        if wire.block_hashes.len() != wire.block_token_counts.len() {
            return Err(FailOpen::UnbalancedChain);
        }
        let tokens = wire.block_token_counts.iter().copied().map(i64::from).sum();
        return Ok(Resolved::Input(Input { derived: false, chain: true, tokens }));
    }
    if !question.prefix_hash.is_empty() {
        return Ok(Resolved::Input(exact));
    }
    if !question.token_ids.is_empty() {
        return derive(question.token_ids, chain_matching, block_size, derived).map(Resolved::Input);
    }
    if !question.prompt_text.is_empty() {
        let fits = question.prompt_text.len() <= MAX_TEXT_BYTES;
        return if fits { Ok(Resolved::Text) } else { Err(FailOpen::OversizedText) };
    }
    if wire.is_chain() {
        return Err(FailOpen::IgnoredChain);
    }
    Ok(Resolved::Input(exact))
}

/// Fingerprints tokens into `derived`.
pub(super) fn derive(
    tokens: &[u32],
    chain: bool,
    block_size: NonZeroU32,
    derived: &mut Derived,
) -> Result<Input, FailOpen> {
    if tokens.len() > MAX_TOKENS {
        return Err(FailOpen::OversizedTokens);
    }
    derived.keys.clear();
    derived.counts.clear();
    fingerprint::chain(tokens, block_size, &mut derived.keys, &mut derived.counts);
    if derived.keys.is_empty() {
        return Err(FailOpen::SubBlock);
    }
    let tokens = derived.counts.iter().copied().map(i64::from).sum();
    Ok(Input { derived: true, chain, tokens })
}

/// Whether anything exceeds the published sizes, also in a chain that policy ignores.
fn is_oversized(question: &Question<'_>) -> bool {
    let ids = [question.tenant, question.model, question.scheme, question.adapter];
    ids.iter().any(|id| id.len() > MAX_ID_BYTES)
        || question.block_hashes.len().max(question.block_token_counts.len()) > MAX_BLOCKS
        || question.prefix_hash.len() > MAX_HASH_BYTES
        || question.block_hashes.iter().any(|hash| hash.len() > MAX_HASH_BYTES)
}
