//! Batches made from a few numbers.
//!
//! Tokens count up from a first one, engine hashes from 57344. All blocks travel in one batch, split over its events; each
//! event names the last block of the one before as its parent, so a late joiner never sees a child without its parent.

use std::num::NonZeroU32;

use inferencecache_core::fingerprint::prefix_digests;
use thiserror::Error;

use super::msgpack::Writer;

/// Engine hash of the first block.
pub const FIRST_HASH: i64 = 0xE000;
/// Most tokens of a script.
pub const MAX_TOKENS: u64 = 16_777_216;

/// Shape of the events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Shape {
    /// Positional arrays, as older engines send them.
    #[default]
    Tuple,
    /// Maps with the tag under `type`, as current engines send them.
    Map,
}

/// What to publish. [`Default`] gives the documented defaults.
#[derive(Debug, Clone)]
pub struct Script {
    /// Tokens of each block. Default 128.
    pub block_size: i64,
    /// Blocks. Default 1.
    pub num_blocks: i64,
    /// Events that they are split over. Default 1.
    pub events: i64,
    /// First token. Default 0.
    pub start_token: i64,
    /// Whether to leave the tokens out. Default `false`.
    pub omit_token_ids: bool,
    /// Default [`Shape::Tuple`].
    pub shape: Shape,
    /// Medium of the copies; device memory when empty. Default empty.
    pub medium: String,
    /// Name of the adapter; the base model when empty. Default empty.
    pub lora_name: String,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            block_size: 128,
            num_blocks: 1,
            events: 1,
            start_token: 0,
            omit_token_ids: false,
            shape: Shape::default(),
            medium: String::new(),
            lora_name: String::new(),
        }
    }
}

/// A script that cannot be played.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ScriptError {
    /// See the text.
    #[error("-block-size must be positive")]
    BlockSize,
    /// See the text.
    #[error("-num-blocks must be positive")]
    NumBlocks,
    /// See the text.
    #[error("-block-size times -num-blocks must not exceed {MAX_TOKENS}")]
    TooManyTokens,
    /// See the text.
    #[error("-events must lie between 1 and -num-blocks")]
    Events,
    /// See the text.
    #[error("-start-token must not be negative, and the last token must fit 32 bits")]
    Tokens,
}

/// A script that was checked.
#[derive(Debug, Clone)]
pub struct Play {
    block_size: NonZeroU32,
    num_blocks: u32,
    events: u32,
    start_token: u32,
    script: Script,
}

impl Script {
    /// Checks the numbers.
    ///
    /// # Errors
    ///
    /// [`ScriptError`], in the order of its variants.
    pub fn check(self) -> Result<Play, ScriptError> {
        let positive = |value: i64| u32::try_from(value).ok().filter(|&value| value > 0);
        if self.block_size <= 0 {
            return Err(ScriptError::BlockSize);
        }
        if self.num_blocks <= 0 {
            return Err(ScriptError::NumBlocks);
        }
        let tokens = self.block_size.checked_mul(self.num_blocks).and_then(|tokens| u64::try_from(tokens).ok());
        let tokens = tokens.filter(|&tokens| tokens <= MAX_TOKENS).ok_or(ScriptError::TooManyTokens)?;
        let block_size = positive(self.block_size).and_then(NonZeroU32::new).ok_or(ScriptError::TooManyTokens)?;
        let num_blocks = positive(self.num_blocks).ok_or(ScriptError::TooManyTokens)?;
        let events = positive(self.events).filter(|&events| events <= num_blocks).ok_or(ScriptError::Events)?;
        let start_token = u32::try_from(self.start_token)
            .ok()
            .filter(|&start| u64::from(start) + tokens - 1 <= u64::from(u32::MAX))
            .ok_or(ScriptError::Tokens)?;
        Ok(Play { block_size, num_blocks, events, start_token, script: self })
    }
}

impl Play {
    /// The digests that the blocks must lead to, with the tokens of each prefix. None when the tokens are left out.
    #[must_use]
    pub fn expected(&self) -> Vec<(u64, u32)> {
        if self.script.omit_token_ids {
            return Vec::new();
        }
        let size = self.block_size.get();
        let tokens: Vec<u32> = (self.start_token..=self.start_token + (size * self.num_blocks - 1)).collect();
        let mut digests = Vec::new();
        prefix_digests(&tokens, self.block_size, &mut digests);
        digests.into_iter().zip((1..).map(|blocks| blocks * size)).collect()
    }

    /// The batch that stores all blocks.
    #[must_use]
    pub fn stored(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.array(2).float64(0.0).array(self.events as usize);
        let mut first = 0;
        for event in 0..self.events {
            // Earlier events take the remainder.
            let blocks = self.num_blocks / self.events + u32::from(event < self.num_blocks % self.events);
            self.store(&mut writer, first, blocks);
            first += blocks;
        }
        writer.into_bytes()
    }

    /// The batch that removes all blocks, last one first.
    #[must_use]
    pub fn removed(&self) -> Vec<u8> {
        let mut writer = Writer::new();
        writer.array(2).float64(0.0).array(1);
        let medium = !self.script.medium.is_empty();
        match self.script.shape {
            Shape::Tuple => writer.array(2 + usize::from(medium)).str("BlockRemoved"),
            Shape::Map => writer.map(2 + usize::from(medium)).str("type").str("BlockRemoved").str("block_hashes"),
        };
        writer.array(self.num_blocks as usize);
        (0..self.num_blocks).rev().for_each(|block| {
            writer.int64(hash(block));
        });
        if medium {
            self.key(&mut writer, "medium").str(&self.script.medium);
        }
        writer.into_bytes()
    }

    fn store(&self, writer: &mut Writer, first: u32, blocks: u32) {
        let script = &self.script;
        // Positions are filled from the left, so an adapter needs a medium before it.
        let (medium, name) = (!script.medium.is_empty(), !script.lora_name.is_empty());
        let medium = medium || name && script.shape == Shape::Tuple;
        let optional = usize::from(medium) + usize::from(name);
        match script.shape {
            Shape::Tuple => writer.array(6 + optional).str("BlockStored"),
            Shape::Map => writer.map(6 + optional).str("type").str("BlockStored"),
        };
        self.key(writer, "block_hashes").array(blocks as usize);
        for block in first..first + blocks {
            writer.int64(hash(block));
        }
        self.key(writer, "parent_block_hash");
        match first.checked_sub(1) {
            Some(parent) => writer.int64(hash(parent)),
            None => writer.nil(),
        };
        self.key(writer, "token_ids");
        if script.omit_token_ids {
            writer.nil();
        } else {
            let size = self.block_size.get();
            writer.array((blocks * size) as usize);
            for i in first * size..(first + blocks) * size {
                writer.int64(i64::from(self.start_token) + i64::from(i));
            }
        }
        self.key(writer, "block_size").int32(i32::try_from(self.block_size.get()).unwrap_or(i32::MAX));
        self.key(writer, "lora_id").nil();
        if medium {
            self.key(writer, "medium").str(if script.medium.is_empty() { "GPU" } else { &script.medium });
        }
        if name {
            self.key(writer, "lora_name").str(&script.lora_name);
        }
    }

    /// Writes the key of a field, in maps.
    fn key<'w>(&self, writer: &'w mut Writer, key: &str) -> &'w mut Writer {
        match self.script.shape {
            Shape::Tuple => writer,
            Shape::Map => writer.str(key),
        }
    }
}

fn hash(block: u32) -> i64 {
    FIRST_HASH + i64::from(block)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    // subscriber:142 subscriber:143
    #[test]
    fn one_block_of_two_tokens_is_the_published_payload() {
        let script = Script { block_size: 2, ..Script::default() };
        let play = script.clone().check().unwrap();
        assert_eq!(
            hex(&play.stored()),
            "92cb00000000000000009196ab426c6f636b53746f72656491d3000000000000e000c092d30000000000000000d300000000000000\
             01d200000002c0"
        );
        let play = Script { omit_token_ids: true, ..script }.check().unwrap();
        assert_eq!(
            hex(&play.stored()),
            "92cb00000000000000009196ab426c6f636b53746f72656491d3000000000000e000c0c0d200000002c0"
        );
        assert_eq!(play.expected(), []);
    }

    // subscriber:145
    #[test]
    fn numbers_out_of_range_are_refused() {
        for (script, error) in [
            (Script { block_size: 0, ..Script::default() }, ScriptError::BlockSize),
            (Script { num_blocks: 0, ..Script::default() }, ScriptError::NumBlocks),
            (Script { block_size: 4096, num_blocks: 4097, ..Script::default() }, ScriptError::TooManyTokens),
            (Script { block_size: i64::MAX, num_blocks: 2, ..Script::default() }, ScriptError::TooManyTokens),
            (Script { events: 4, num_blocks: 3, ..Script::default() }, ScriptError::Events),
            (Script { events: 0, ..Script::default() }, ScriptError::Events),
            (Script { start_token: -1, ..Script::default() }, ScriptError::Tokens),
            (Script { start_token: 4_294_967_295 - 126, ..Script::default() }, ScriptError::Tokens),
        ] {
            assert_eq!(script.check().unwrap_err(), error);
        }
        assert!(Script { block_size: 4096, num_blocks: 4096, ..Script::default() }.check().is_ok());
        assert!(Script { start_token: 4_294_967_295 - 127, ..Script::default() }.check().is_ok());
    }
}
