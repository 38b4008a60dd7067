//! Reads the fields of one protobuf message in order, over one contiguous buffer.

use thiserror::Error;

/// How deep groups and messages may be nested.
const DEPTH: u32 = 100;

/// Why a message cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Fault {
    /// A number does not end, or is larger than 64 bits.
    #[error("a number is cut off or too large")]
    Number,
    /// A field's key has no such form.
    #[error("a field key is invalid")]
    Key,
    /// A field's length reaches beyond its message.
    #[error("a field ends beyond its message")]
    Length,
    /// A field of the contract has another wire type there.
    #[error("field {0} has an unexpected wire type")]
    WireType(u32),
    /// A text is not UTF-8.
    #[error("field {0} is not valid UTF-8")]
    Text(u32),
    /// Groups do not match, or are nested too deep.
    #[error("groups do not match or are nested too deep")]
    Group,
}

/// How a field is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wire {
    Varint,
    Fixed64,
    Bytes,
    GroupStart,
    GroupEnd,
    Fixed32,
}

/// A place in the buffer: first byte, and the one behind the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Span(pub(super) u32, pub(super) u32);

impl Span {
    pub(super) fn of(self, buffer: &[u8]) -> &[u8] {
        buffer.get(self.0 as usize..self.1 as usize).unwrap_or_default()
    }

    /// The text there, which was found to be valid when it was read.
    pub(super) fn text(self, buffer: &[u8]) -> &str {
        std::str::from_utf8(self.of(buffer)).unwrap_or_default()
    }

    pub(super) fn len(self) -> usize {
        (self.1 - self.0) as usize
    }
}

/// A reader of one message, or of one within another. Places count from the start of the whole buffer.
#[derive(Debug, Clone)]
pub(super) struct Reader<'a> {
    /// Up to the end of this message.
    bytes: &'a [u8],
    at: usize,
    depth: u32,
}

impl<'a> Reader<'a> {
    /// Of a whole message. Messages are far below 4 GiB; what lies beyond cannot be named and is an error.
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, depth: DEPTH }
    }

    /// Of the message in a field that was just met.
    #[inline]
    pub(super) fn message(&mut self, number: u32, wire: Wire) -> Result<Self, Fault> {
        let Span(start, end) = self.bytes(number, wire)?;
        if self.depth == 0 {
            return Err(Fault::Group);
        }
        let bytes = self.bytes.get(..end as usize).ok_or(Fault::Length)?;
        Ok(Self { bytes, at: start as usize, depth: self.depth - 1 })
    }

    /// What is left to read.
    #[inline]
    pub(super) fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.at..).unwrap_or_default()
    }

    /// Takes `count` bytes that were seen in [`Reader::rest`].
    #[inline]
    pub(super) fn skip_seen(&mut self, count: usize) {
        self.at += count;
    }

    /// The next field's number and wire type; `None` at the end.
    #[inline]
    pub(super) fn field(&mut self) -> Result<Option<(u32, Wire)>, Fault> {
        if self.at >= self.bytes.len() { Ok(None) } else { self.key().map(Some) }
    }

    #[inline]
    fn key(&mut self) -> Result<(u32, Wire), Fault> {
        let key = u32::try_from(self.varint()?).map_err(|_| Fault::Key)?;
        let wire = match key & 7 {
            0 => Wire::Varint,
            1 => Wire::Fixed64,
            2 => Wire::Bytes,
            3 => Wire::GroupStart,
            4 => Wire::GroupEnd,
            5 => Wire::Fixed32,
            _ => return Err(Fault::Key),
        };
        if key >> 3 == 0 { Err(Fault::Key) } else { Ok((key >> 3, wire)) }
    }

    #[inline]
    fn varint(&mut self) -> Result<u64, Fault> {
        match self.bytes.get(self.at) {
            Some(&byte) if byte < 0x80 => {
                self.at += 1;
                Ok(u64::from(byte))
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64, Fault> {
        let mut value = 0;
        for (i, &byte) in self.rest().iter().take(10).enumerate() {
            // The tenth byte has room for the last bit alone.
            if i == 9 && byte > 1 {
                return Err(Fault::Number);
            }
            value |= u64::from(byte & 0x7f) << (7 * i);
            if byte < 0x80 {
                self.at += i + 1;
                return Ok(value);
            }
        }
        Err(Fault::Number)
    }

    /// The number in a field that was just met.
    #[inline]
    pub(super) fn number(&mut self, number: u32, wire: Wire) -> Result<u64, Fault> {
        if wire == Wire::Varint { self.varint() } else { Err(Fault::WireType(number)) }
    }

    /// The same as 32 signed bits: higher ones are dropped, as the format wants it.
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the format says so")]
    pub(super) fn int32(&mut self, number: u32, wire: Wire) -> Result<i32, Fault> {
        self.number(number, wire).map(|value| value as i32)
    }

    /// A single-precision number.
    pub(super) fn float(&mut self, number: u32, wire: Wire) -> Result<f32, Fault> {
        if wire != Wire::Fixed32 {
            return Err(Fault::WireType(number));
        }
        let raw = self.rest().first_chunk::<4>().ok_or(Fault::Length)?;
        self.at += 4;
        Ok(f32::from_le_bytes(*raw))
    }

    /// The bytes in a field that was just met.
    #[inline]
    pub(super) fn bytes(&mut self, number: u32, wire: Wire) -> Result<Span, Fault> {
        if wire != Wire::Bytes {
            return Err(Fault::WireType(number));
        }
        let length = self.varint()?;
        let length = usize::try_from(length).ok().filter(|&length| length <= self.bytes.len() - self.at);
        let start = self.at;
        self.at += length.ok_or(Fault::Length)?;
        let place = |at: usize| u32::try_from(at).map_err(|_| Fault::Length);
        Ok(Span(place(start)?, place(self.at)?))
    }

    /// The same, as they are.
    pub(super) fn slice(&mut self, number: u32, wire: Wire) -> Result<&'a [u8], Fault> {
        self.bytes(number, wire).map(|span| span.of(self.bytes))
    }

    /// The text in a field that was just met.
    #[inline]
    pub(super) fn text(&mut self, number: u32, wire: Wire) -> Result<Span, Fault> {
        let span = self.bytes(number, wire)?;
        match std::str::from_utf8(span.of(self.bytes)) {
            Ok(_) => Ok(span),
            Err(_) => Err(Fault::Text(number)),
        }
    }

    /// The numbers in a field that was just met, packed or single.
    #[inline]
    pub(super) fn numbers(&mut self, number: u32, wire: Wire, mut each: impl FnMut(u64)) -> Result<(), Fault> {
        if wire != Wire::Bytes {
            each(self.number(number, wire)?);
            return Ok(());
        }
        let Span(start, end) = self.bytes(number, wire)?;
        let mut packed = Self { bytes: &self.bytes[..end as usize], at: start as usize, depth: self.depth };
        while packed.at < packed.bytes.len() {
            each(packed.varint()?);
        }
        Ok(())
    }

    /// Passes over a field that the contract does not know.
    pub(super) fn skip(&mut self, number: u32, wire: Wire) -> Result<(), Fault> {
        self.skip_within(number, wire, self.depth)
    }

    fn skip_within(&mut self, number: u32, wire: Wire, depth: u32) -> Result<(), Fault> {
        if depth == 0 {
            return Err(Fault::Group);
        }
        let fixed = match wire {
            Wire::Varint => return self.varint().map(|_| ()),
            Wire::Bytes => return self.bytes(number, wire).map(|_| ()),
            Wire::Fixed32 => 4,
            Wire::Fixed64 => 8,
            Wire::GroupEnd => return Err(Fault::Group),
            Wire::GroupStart => loop {
                let (inner, wire) = self.key()?;
                if wire == Wire::GroupEnd {
                    return if inner == number { Ok(()) } else { Err(Fault::Group) };
                }
                self.skip_within(inner, wire, depth - 1)?;
            },
        };
        if fixed > self.bytes.len() - self.at {
            return Err(Fault::Length);
        }
        self.at += fixed;
        Ok(())
    }
}
