//! Where the fields of an event stand, in both shapes and over all engine versions.
//!
//! ```text
//!               1       2        3        4           5        6       7              8           9        10
//! BlockStored   hashes  parent   tokens   block size  lora id  medium  name or extra  extra keys  group    kind
//! BlockRemoved  hashes  medium   group
//! ```
//!
//! Later fields exist in maps only. Position 7 is vLLM's adapter name, or SGLang's map of metadata. A map may name its
//! tag last and repeat a key; the last one counts. So all fields are gathered first and read once the tag is known,
//! except for the tokens, which go straight into the caller's buffer.

use super::Malformed;
use super::event::{BlockHash, BlockRemoved, BlockStored, Counts, EngineEvent, ExtraKeys, Hashes, Locality};
use super::msgpack::{Reader, Token, Truncated};

/// Most tokens of one event; with more it is malformed. Bounds the buffer at 16 MiB, four times the longest prompt that
/// the index accepts.
pub const MAX_TOKENS: usize = 1 << 22;

/// Tokens for which the buffer is kept between batches.
pub(super) const TOKENS_KEPT: usize = 1 << 17;

/// Largest block size of an event.
const MAX_BLOCK_SIZE: u64 = 1 << 20;

/// Decodes the next event. The reader then stands behind it, whether it was well-formed or not.
///
/// # Errors
///
/// [`Truncated`] when the reader ran out: the caller has not checked the structure.
pub(super) fn decode<'t, 'p: 't>(
    reader: &mut Reader<'p>,
    tokens: &'t mut Vec<u32>,
) -> Result<Result<EngineEvent<'t>, Malformed>, Truncated> {
    tokens.clear();
    let mut fields = Fields::default();
    let mut ahead = *reader;
    let complete = match ahead.read()? {
        Token::Array(count) => {
            *reader = ahead;
            fields.gather_array(count, reader, tokens)?
        }
        Token::Map(count) => {
            *reader = ahead;
            fields.gather_map(count, reader, tokens)?
        }
        _ => {
            reader.skip()?;
            false
        }
    };
    Ok(match fields.tag {
        Tag::Other => Ok(EngineEvent::Unknown),
        Tag::Cleared => Ok(EngineEvent::Cleared),
        Tag::Stored if complete => fields.stored(tokens).map(EngineEvent::Stored).ok_or(Malformed),
        Tag::Removed if complete => fields.removed().map(EngineEvent::Removed).ok_or(Malformed),
        Tag::None | Tag::Stored | Tag::Removed => Err(Malformed),
    })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Tag {
    /// Missing, or not text.
    #[default]
    None,
    Stored,
    Removed,
    Cleared,
    Other,
}

impl Tag {
    fn read(value: Token<'_>) -> Self {
        match value.bytes() {
            None => Self::None,
            Some(b"BlockStored") => Self::Stored,
            Some(b"BlockRemoved") => Self::Removed,
            Some(b"AllBlocksCleared") => Self::Cleared,
            Some(_) => Self::Other,
        }
    }
}

/// Fields whose encoded value is kept until the tag is known.
#[derive(Debug, Clone, Copy)]
enum Field {
    Hashes,
    Parent,
    BlockSize,
    LoraId,
    Medium,
    /// vLLM's adapter name, or SGLang's metadata at the same position.
    LoraName,
    ExtraKeys,
    Group,
    Kind,
    Locality,
    CacheSalt,
    Remaining,
}

const FIELDS: usize = Field::Remaining as usize + 1;

/// What one position of an array holds.
#[derive(Debug, Clone, Copy)]
enum Slot {
    Is(Field),
    Tokens,
}

const STORED: [Slot; 10] = [
    Slot::Is(Field::Hashes),
    Slot::Is(Field::Parent),
    Slot::Tokens,
    Slot::Is(Field::BlockSize),
    Slot::Is(Field::LoraId),
    Slot::Is(Field::Medium),
    Slot::Is(Field::LoraName),
    Slot::Is(Field::ExtraKeys),
    Slot::Is(Field::Group),
    Slot::Is(Field::Kind),
];
/// Elements without which a positional `BlockStored` is malformed, the tag included.
const STORED_NEEDS: u32 = 5;

const REMOVED: [Slot; 3] = [Slot::Is(Field::Hashes), Slot::Is(Field::Medium), Slot::Is(Field::Group)];
/// The same for `BlockRemoved`.
const REMOVED_NEEDS: u32 = 2;

/// What a map key names.
fn named(key: &[u8]) -> Option<Slot> {
    Some(Slot::Is(match key {
        b"token_ids" => return Some(Slot::Tokens),
        b"block_hashes" => Field::Hashes,
        b"parent_block_hash" => Field::Parent,
        b"block_size" => Field::BlockSize,
        b"lora_id" => Field::LoraId,
        b"medium" => Field::Medium,
        b"lora_name" => Field::LoraName,
        b"extra_keys" => Field::ExtraKeys,
        b"group_idx" => Field::Group,
        b"kv_cache_spec_kind" => Field::Kind,
        b"locality" => Field::Locality,
        b"cache_salt" => Field::CacheSalt,
        b"remaining_copy_counts" => Field::Remaining,
        _ => return None,
    }))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Tokens {
    #[default]
    Absent,
    Read,
    Malformed,
}

#[derive(Debug, Default)]
struct Fields<'p> {
    tag: Tag,
    tokens: Tokens,
    values: [Option<&'p [u8]>; FIELDS],
}

impl<'p> Fields<'p> {
    /// Returns whether the elements that the tag requires are there.
    fn gather_array(&mut self, count: u32, reader: &mut Reader<'p>, tokens: &mut Vec<u32>) -> Result<bool, Truncated> {
        if count == 0 {
            return Ok(false);
        }
        self.tag = Tag::read(Reader::new(reader.value()?).read()?);
        let (slots, needs) = match self.tag {
            Tag::Stored => (&STORED[..], STORED_NEEDS),
            Tag::Removed => (&REMOVED[..], REMOVED_NEEDS),
            _ => (&[][..], 1),
        };
        let mut slots = slots.iter().copied();
        for _ in 1..count {
            self.take(slots.next(), reader, tokens)?;
        }
        Ok(count >= needs)
    }

    /// Returns whether the keys that the tag requires are there.
    fn gather_map(&mut self, count: u32, reader: &mut Reader<'p>, tokens: &mut Vec<u32>) -> Result<bool, Truncated> {
        for _ in 0..count {
            match Reader::new(reader.value()?).read()? {
                Token::Str(b"type") => self.tag = Tag::read(Reader::new(reader.value()?).read()?),
                Token::Str(key) => self.take(named(key), reader, tokens)?,
                _ => reader.skip()?,
            }
        }
        let has = |field| self.value(field).is_some();
        Ok(match self.tag {
            Tag::Stored => has(Field::Hashes) && has(Field::BlockSize) && self.tokens != Tokens::Absent,
            Tag::Removed => has(Field::Hashes),
            _ => true,
        })
    }

    fn take(&mut self, slot: Option<Slot>, reader: &mut Reader<'p>, tokens: &mut Vec<u32>) -> Result<(), Truncated> {
        match slot {
            None => reader.skip()?,
            Some(Slot::Is(field)) => self.values[field as usize] = Some(reader.value()?),
            Some(Slot::Tokens) => self.tokens = read_tokens(reader, tokens)?,
        }
        Ok(())
    }

    fn stored<'t>(&self, tokens: &'t [u32]) -> Option<BlockStored<'t>>
    where
        'p: 't,
    {
        if self.tokens != Tokens::Read {
            return None;
        }
        let block_size = match self.token(Field::BlockSize) {
            Token::Unsigned(0) | Token::Nil if tokens.is_empty() => 0,
            Token::Unsigned(size @ 1..=MAX_BLOCK_SIZE) => u32::try_from(size).ok()?,
            _ => return None,
        };
        let parent = match self.token(Field::Parent) {
            Token::Nil => None,
            hash => Some(BlockHash::from_token(hash)?),
        };
        let lora_id = match self.token(Field::LoraId) {
            Token::Nil => None,
            id => Some(id.signed()?),
        };
        let name = self.token(Field::LoraName);
        let lora_name = match name.bytes() {
            // A name that cannot be read is still a name: never the base model.
            Some(bytes) => Some(std::str::from_utf8(bytes).ok()?).filter(|name| !name.is_empty()),
            None => None,
        };
        let salted = text(self.token(Field::CacheSalt)).is_some()
            || matches!(name, Token::Map(_)) && self.value(Field::LoraName).is_some_and(metadata_has_salt);
        Some(BlockStored {
            hashes: Hashes::decode(self.value(Field::Hashes)?)?,
            parent,
            tokens,
            block_size,
            lora_id,
            lora_name,
            medium: text(self.token(Field::Medium)),
            locality: self.locality(),
            group: self.token(Field::Group).signed(),
            kind: text(self.token(Field::Kind)),
            extra_keys: self.value(Field::ExtraKeys).and_then(ExtraKeys::decode),
            salted,
        })
    }

    fn removed<'t>(&self) -> Option<BlockRemoved<'t>>
    where
        'p: 't,
    {
        Some(BlockRemoved {
            hashes: Hashes::decode(self.value(Field::Hashes)?)?,
            medium: text(self.token(Field::Medium)),
            locality: self.locality(),
            group: self.token(Field::Group).signed(),
            remaining: self.value(Field::Remaining).and_then(Counts::decode),
        })
    }

    fn value(&self, field: Field) -> Option<&'p [u8]> {
        self.values[field as usize]
    }

    /// The field's value or header; nil when it is absent.
    fn token(&self, field: Field) -> Token<'p> {
        self.value(field).and_then(|value| Reader::new(value).read().ok()).unwrap_or(Token::Nil)
    }

    fn locality(&self) -> Option<Locality> {
        let name = text(self.token(Field::Locality))?;
        if name.eq_ignore_ascii_case("local") {
            Some(Locality::Local)
        } else if name.eq_ignore_ascii_case("remote") {
            Some(Locality::Remote)
        } else {
            None
        }
    }
}

/// Text that is there and not empty.
fn text(value: Token<'_>) -> Option<&str> {
    std::str::from_utf8(value.bytes()?).ok().filter(|text| !text.is_empty())
}

fn metadata_has_salt(map: &[u8]) -> bool {
    let mut reader = Reader::new(map);
    let Ok(Token::Map(count)) = reader.read() else { return false };
    let mut salted = false;
    for _ in 0..count {
        let (Ok(key), Ok(value)) = (reader.value(), reader.value()) else { break };
        if let (Ok(Token::Str(b"cache_salt")), Ok(value)) = (Reader::new(key).read(), Reader::new(value).read()) {
            salted = text(value).is_some();
        }
    }
    salted
}

/// Reads a list of token ids into the buffer. A pair stands for its first member.
fn read_tokens(reader: &mut Reader<'_>, tokens: &mut Vec<u32>) -> Result<Tokens, Truncated> {
    tokens.clear();
    let mut ahead = *reader;
    let count = match ahead.read()? {
        Token::Nil => {
            *reader = ahead;
            return Ok(Tokens::Read);
        }
        Token::Array(count) if usize::try_from(count).is_ok_and(|count| count <= MAX_TOKENS) => count,
        _ => {
            reader.skip()?;
            return Ok(Tokens::Malformed);
        }
    };
    for _ in 0..count {
        let mut value = ahead.read()?;
        if let Token::Array(2) = value {
            value = ahead.read()?;
            if let Token::Unsigned(_) = value {
                ahead.skip()?;
            }
        }
        match value {
            Token::Unsigned(id) if id <= u64::from(u32::MAX) => {
                #[expect(clippy::cast_possible_truncation, reason = "checked above")]
                tokens.push(id as u32);
            }
            _ => {
                // Start over, so that the reader ends behind the list however this element was nested.
                tokens.clear();
                reader.skip()?;
                return Ok(Tokens::Malformed);
            }
        }
    }
    *reader = ahead;
    Ok(Tokens::Read)
}
