//! The vocabulary of engine events: what a decoded event says, borrowed from the frame it came in.

use super::msgpack::{Reader, Token};

/// Longest engine hash, in bytes.
pub const MAX_HASH_BYTES: usize = 64;

/// An engine's own name for a block. It links stores, parents and removals of one stream and means nothing elsewhere.
///
/// An integer and the 8 bytes of its big-endian two's complement are one identity, so are -1 and 2^64-1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockHash<'p> {
    /// An integer, or exactly 8 bytes.
    Word(u64),
    /// 1 to 64 bytes, but not 8.
    Bytes(&'p [u8]),
}

impl<'p> BlockHash<'p> {
    /// The hash a value stands for; `None` when it is no hash.
    #[must_use]
    pub fn from_token(token: Token<'p>) -> Option<Self> {
        match token {
            Token::Str(bytes) | Token::Bin(bytes) => Self::from_bytes(bytes),
            other => other.word().map(Self::Word),
        }
    }

    /// The hash that `bytes` spell; `None` when there are none or more than [`MAX_HASH_BYTES`].
    #[must_use]
    pub fn from_bytes(bytes: &'p [u8]) -> Option<Self> {
        match bytes.len() {
            8 => bytes.first_chunk().map(|word| Self::Word(u64::from_be_bytes(*word))),
            1..=MAX_HASH_BYTES => Some(Self::Bytes(bytes)),
            _ => None,
        }
    }
}

/// Hashes of one event, decoded while they are read. They were checked when the event was decoded.
#[derive(Debug, Clone, Copy, Default)]
pub struct Hashes<'p> {
    values: &'p [u8],
    len: usize,
}

impl<'p> Hashes<'p> {
    /// Checks every element of an encoded array. `None` when it is no array or one element is no hash.
    pub(super) fn decode(array: &'p [u8]) -> Option<Self> {
        let mut reader = Reader::new(array);
        let Ok(Token::Array(count)) = reader.read() else { return None };
        let list = Self { values: reader.rest(), len: usize::try_from(count).ok()? };
        for _ in 0..count {
            BlockHash::from_token(reader.read().ok()?)?;
        }
        Some(list)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// In the order of the event.
    pub fn iter(&self) -> impl Iterator<Item = BlockHash<'p>> + use<'p> {
        let mut reader = Reader::new(self.values);
        (0..self.len).map_while(move |_| BlockHash::from_token(reader.read().ok()?))
    }
}

/// Non-negative integers, parallel to the hashes of an event.
#[derive(Debug, Clone, Copy)]
pub struct Counts<'p> {
    values: &'p [u8],
    len: usize,
}

impl<'p> Counts<'p> {
    /// Checks every element of an encoded array. `None` when it is no array or one element is no count.
    pub(super) fn decode(array: &'p [u8]) -> Option<Self> {
        let mut reader = Reader::new(array);
        let Ok(Token::Array(count)) = reader.read() else { return None };
        let list = Self { values: reader.rest(), len: usize::try_from(count).ok()? };
        for _ in 0..count {
            let Ok(Token::Unsigned(_)) = reader.read() else { return None };
        }
        Some(list)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// In the order of the event.
    pub fn iter(&self) -> impl Iterator<Item = u64> + use<'p> {
        let mut reader = Reader::new(self.values);
        (0..self.len).map_while(move |_| match reader.read() {
            Ok(Token::Unsigned(count)) => Some(count),
            _ => None,
        })
    }
}

/// What an engine mixed into its own hash of each block beside the tokens: one list or nil per block.
#[derive(Debug, Clone, Copy)]
pub struct ExtraKeys<'p> {
    values: &'p [u8],
    len: usize,
}

impl<'p> ExtraKeys<'p> {
    /// `None` when the value is no array.
    pub(super) fn decode(array: &'p [u8]) -> Option<Self> {
        let mut reader = Reader::new(array);
        let Ok(Token::Array(count)) = reader.read() else { return None };
        Some(Self { values: reader.rest(), len: usize::try_from(count).ok()? })
    }

    /// The first block whose keys hold anything but `allowed`; `None` when there is no such block.
    #[must_use]
    pub fn first_other_than(&self, allowed: Option<&str>) -> Option<usize> {
        let mut reader = Reader::new(self.values);
        (0..self.len).find(|_| !only(&mut reader, allowed).unwrap_or(false))
    }
}

/// Whether the next value is nil, `allowed`, or a list of nothing else.
fn only(reader: &mut Reader<'_>, allowed: Option<&str>) -> Option<bool> {
    let is_allowed = |token: Token<'_>| matches!(token, Token::Str(text) if Some(text) == allowed.map(str::as_bytes));
    let count = match reader.read().ok()? {
        Token::Nil => return Some(true),
        Token::Array(count) => count,
        token => return Some(is_allowed(token)),
    };
    let mut clean = true;
    for _ in 0..count {
        let mut value = Reader::new(reader.value().ok()?);
        clean &= is_allowed(value.read().ok()?);
    }
    Some(clean)
}

/// Whether a copy is on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Locality {
    /// On this host.
    Local,
    /// Elsewhere.
    Remote,
}

/// The engine says that it holds blocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct BlockStored<'p> {
    /// Names of the blocks, in prompt order.
    pub hashes: Hashes<'p>,
    /// The block they continue; `None` at the start of a prompt.
    pub parent: Option<BlockHash<'p>>,
    /// Their tokens. Empty in an announcement that only names blocks.
    pub tokens: &'p [u32],
    /// Tokens of each block, 1 to 1048576; 0 only when there are no tokens.
    pub block_size: u32,
    /// The engine's number for the adapter. Any number is an adapter, 0 too.
    pub lora_id: Option<i64>,
    /// Name of the adapter.
    pub lora_name: Option<&'p str>,
    /// Where the copy is, as the engine spells it; `None` is device memory.
    pub medium: Option<&'p str>,
    /// Whether that is on this host.
    pub locality: Option<Locality>,
    /// KV-cache group of a hybrid model.
    pub group: Option<i64>,
    /// Kind of attention of that group.
    pub kind: Option<&'p str>,
    /// What else than tokens identifies each block.
    pub extra_keys: Option<ExtraKeys<'p>>,
    /// Whether a tenant's salt separates these blocks from others with the same tokens.
    pub salted: bool,
}

/// The engine says that it dropped one copy of each of some blocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct BlockRemoved<'p> {
    /// Names of the blocks.
    pub hashes: Hashes<'p>,
    /// Where the copy was; `None` is device memory.
    pub medium: Option<&'p str>,
    /// Whether that was on this host.
    pub locality: Option<Locality>,
    /// KV-cache group of a hybrid model.
    pub group: Option<i64>,
    /// Copies that remain there, parallel to the hashes.
    pub remaining: Option<Counts<'p>>,
}

/// One event of an engine.
#[derive(Debug, Clone, Copy)]
pub enum EngineEvent<'p> {
    /// Blocks were stored.
    Stored(BlockStored<'p>),
    /// Blocks were removed.
    Removed(BlockRemoved<'p>),
    /// The prefix cache was emptied.
    Cleared,
    /// A kind of event that says nothing about blocks.
    Unknown,
}
