//! A reader for MessagePack that cannot be led astray.
//!
//! It walks one frame from front to back. Lengths announced by the input are never allocated for and nesting is never
//! recursed into: every step consumes at least one byte, so that the frame's own length bounds time and memory.

use thiserror::Error;

/// The bytes end inside a value, or use the one byte that MessagePack reserves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("truncated or invalid MessagePack")]
pub struct Truncated;

/// One value, or the header of one that contains others. Text is bytes: nothing promises UTF-8.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Token<'p> {
    /// `nil`.
    Nil,
    /// `true` or `false`.
    Bool(bool),
    /// An integer that is not negative, of any width.
    Unsigned(u64),
    /// A negative integer, of any width.
    Negative(i64),
    /// `float32` or `float64`.
    Float(f64),
    /// `str`.
    Str(&'p [u8]),
    /// `bin`.
    Bin(&'p [u8]),
    /// Header of an array of that many values.
    Array(u32),
    /// Header of a map of that many keys, each followed by its value.
    Map(u32),
    /// An extension type, already skipped.
    Extension,
}

impl<'p> Token<'p> {
    /// The bytes of a `str` or `bin`.
    #[must_use]
    pub fn bytes(self) -> Option<&'p [u8]> {
        match self {
            Self::Str(bytes) | Self::Bin(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The 64-bit two's complement of an integer.
    #[must_use]
    pub fn word(self) -> Option<u64> {
        match self {
            Self::Unsigned(value) => Some(value),
            Self::Negative(value) => Some(value.cast_unsigned()),
            _ => None,
        }
    }

    /// An integer in the signed 64-bit range.
    #[must_use]
    pub fn signed(self) -> Option<i64> {
        match self {
            Self::Unsigned(value) => i64::try_from(value).ok(),
            Self::Negative(value) => Some(value),
            _ => None,
        }
    }
}

/// A position in a frame.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'p> {
    rest: &'p [u8],
}

impl<'p> Reader<'p> {
    /// Starts at the first byte.
    #[must_use]
    pub fn new(bytes: &'p [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Reads one value, or the header of an array or map.
    ///
    /// # Errors
    ///
    /// [`Truncated`]; the position is then meaningless.
    pub fn read(&mut self) -> Result<Token<'p>, Truncated> {
        let tag = self.byte()?;
        Ok(match tag {
            0x00..=0x7f => Token::Unsigned(u64::from(tag)),
            0x80..=0x8f => Token::Map(u32::from(tag & 0x0f)),
            0x90..=0x9f => Token::Array(u32::from(tag & 0x0f)),
            0xa0..=0xbf => Token::Str(self.take(usize::from(tag & 0x1f))?),
            0xc0 => Token::Nil,
            0xc1 => return Err(Truncated),
            0xc2 => Token::Bool(false),
            0xc3 => Token::Bool(true),
            0xc4 => Token::Bin(self.sized::<1>()?),
            0xc5 => Token::Bin(self.sized::<2>()?),
            0xc6 => Token::Bin(self.sized::<4>()?),
            0xc7 => self.extension::<1>()?,
            0xc8 => self.extension::<2>()?,
            0xc9 => self.extension::<4>()?,
            0xca => Token::Float(f64::from(f32::from_be_bytes(self.array()?))),
            0xcb => Token::Float(f64::from_be_bytes(self.array()?)),
            0xcc => Token::Unsigned(self.uint::<1>()?),
            0xcd => Token::Unsigned(self.uint::<2>()?),
            0xce => Token::Unsigned(self.uint::<4>()?),
            0xcf => Token::Unsigned(self.uint::<8>()?),
            0xd0 => integer(i64::from(i8::from_be_bytes(self.array()?))),
            0xd1 => integer(i64::from(i16::from_be_bytes(self.array()?))),
            0xd2 => integer(i64::from(i32::from_be_bytes(self.array()?))),
            0xd3 => integer(i64::from_be_bytes(self.array()?)),
            0xd4..=0xd8 => {
                // A type byte, then 1, 2, 4, 8 or 16 bytes.
                self.take(1 + (1 << (tag - 0xd4)))?;
                Token::Extension
            }
            0xd9 => Token::Str(self.sized::<1>()?),
            0xda => Token::Str(self.sized::<2>()?),
            0xdb => Token::Str(self.sized::<4>()?),
            0xdc => Token::Array(self.count::<2>()?),
            0xdd => Token::Array(self.count::<4>()?),
            0xde => Token::Map(self.count::<2>()?),
            0xdf => Token::Map(self.count::<4>()?),
            0xe0..=0xff => Token::Negative(i64::from(tag.cast_signed())),
        })
    }

    /// Passes over one whole value, however deep.
    ///
    /// # Errors
    ///
    /// [`Truncated`] when the value does not end within the frame.
    pub fn skip(&mut self) -> Result<(), Truncated> {
        // Saturation cannot end the loop early: no frame holds 2^64 values.
        let mut left: u64 = 1;
        while left > 0 {
            left -= 1;
            match self.read()? {
                Token::Array(count) => left = left.saturating_add(u64::from(count)),
                Token::Map(count) => left = left.saturating_add(2 * u64::from(count)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Passes over one whole value and returns its bytes.
    ///
    /// # Errors
    ///
    /// As [`skip`](Self::skip).
    pub fn value(&mut self) -> Result<&'p [u8], Truncated> {
        let start = self.rest;
        self.skip()?;
        Ok(&start[..start.len() - self.rest.len()])
    }

    /// What has not been read yet.
    #[must_use]
    pub fn rest(&self) -> &'p [u8] {
        self.rest
    }

    fn byte(&mut self) -> Result<u8, Truncated> {
        let (&first, rest) = self.rest.split_first().ok_or(Truncated)?;
        self.rest = rest;
        Ok(first)
    }

    fn take(&mut self, length: usize) -> Result<&'p [u8], Truncated> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Truncated> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(Truncated)?;
        self.rest = rest;
        Ok(*taken)
    }

    fn uint<const N: usize>(&mut self) -> Result<u64, Truncated> {
        Ok(self.array::<N>()?.iter().fold(0, |value, &byte| value << 8 | u64::from(byte)))
    }

    fn count<const N: usize>(&mut self) -> Result<u32, Truncated> {
        u32::try_from(self.uint::<N>()?).map_err(|_| Truncated)
    }

    fn sized<const N: usize>(&mut self) -> Result<&'p [u8], Truncated> {
        let length = usize::try_from(self.uint::<N>()?).map_err(|_| Truncated)?;
        self.take(length)
    }

    fn extension<const N: usize>(&mut self) -> Result<Token<'p>, Truncated> {
        let length = usize::try_from(self.uint::<N>()?).map_err(|_| Truncated)?;
        self.take(1)?;
        self.take(length)?;
        Ok(Token::Extension)
    }
}

fn integer<'p>(value: i64) -> Token<'p> {
    u64::try_from(value).map_or(Token::Negative(value), Token::Unsigned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Token<'_>, Truncated> {
        Reader::new(bytes).read()
    }

    #[test]
    fn integers_of_every_width_read_alike() {
        let sevens: [&[u8]; 9] = [
            &[7],
            &[0xcc, 7],
            &[0xcd, 0, 7],
            &[0xce, 0, 0, 0, 7],
            &[0xcf, 0, 0, 0, 0, 0, 0, 0, 7],
            &[0xd0, 7],
            &[0xd1, 0, 7],
            &[0xd2, 0, 0, 0, 7],
            &[0xd3, 0, 0, 0, 0, 0, 0, 0, 7],
        ];
        for bytes in sevens {
            assert_eq!(read(bytes), Ok(Token::Unsigned(7)), "{bytes:x?}");
        }
        for bytes in [&[0xff][..], &[0xd0, 0xff], &[0xd1, 0xff, 0xff], &[0xd2, 0xff, 0xff, 0xff, 0xff]] {
            assert_eq!(read(bytes), Ok(Token::Negative(-1)), "{bytes:x?}");
        }
    }

    #[test]
    fn an_integer_has_one_word_whatever_its_sign() {
        assert_eq!(Token::Negative(-1).word(), Some(u64::MAX));
        assert_eq!(Token::Unsigned(u64::MAX).word(), Some(u64::MAX));
        assert_eq!(Token::Unsigned(u64::MAX).signed(), None);
    }

    #[test]
    fn every_prefix_of_a_value_is_truncated() {
        let value =
            [0x83, 0xa1, b'a', 0x92, 1, 0xc4, 2, 9, 9, 0xa1, b'b', 0xc7, 1, 5, 0, 0xa1, b'c', 0xd6, 1, 0, 0, 0, 0];
        for end in 0..value.len() {
            assert_eq!(Reader::new(&value[..end]).skip(), Err(Truncated), "{end}");
        }
        let mut reader = Reader::new(&value);
        assert_eq!(reader.value(), Ok(&value[..]));
        assert!(reader.rest().is_empty());
    }

    #[test]
    fn depth_and_announced_lengths_cost_nothing() {
        let deep = vec![0x91; 1_000_000];
        assert_eq!(Reader::new(&deep).skip(), Err(Truncated));
        let wide = [0xdd, 0xff, 0xff, 0xff, 0xff].repeat(1000);
        assert_eq!(Reader::new(&wide).skip(), Err(Truncated));
        assert_eq!(read(&[0xc6, 0x7f, 0xff, 0xff, 0xff, 1]), Err(Truncated));
        assert_eq!(read(&[0xc1]), Err(Truncated));
    }
}
