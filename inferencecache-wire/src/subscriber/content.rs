//! Blocks that their tokens do not identify.
//!
//! The KV cache of a block may depend on an image, on a prompt embedding, or belong to a tenant who asked not to share it.
//! A digest of the tokens would match other content, and for salts it would tell by timing what another tenant has asked.
//! Such blocks, and everything that follows them, stay out of the index.

use crate::kvevents::BlockStored;

/// How many leading blocks of a store are identified by their tokens alone.
///
/// The adapter's own name among the extra keys is harmless: the adapter is part of the index key.
#[must_use]
pub fn identified_by_tokens(event: &BlockStored<'_>) -> usize {
    if event.salted {
        return 0;
    }
    let blocks = event.hashes.len();
    event.extra_keys.and_then(|keys| keys.first_other_than(event.lora_name)).map_or(blocks, |first| first.min(blocks))
}
