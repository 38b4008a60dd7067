//! A writer for MessagePack, as exact about widths as a test needs.

/// Bytes under construction.
#[derive(Debug, Clone, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What was written.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Header of an array.
    pub fn array(&mut self, len: usize) -> &mut Self {
        self.header(len, 0x90, 0xdc)
    }

    /// Header of a map.
    pub fn map(&mut self, len: usize) -> &mut Self {
        self.header(len, 0x80, 0xde)
    }

    /// Text, in the shortest form.
    pub fn str(&mut self, text: &str) -> &mut Self {
        match text.len() {
            short @ 0..32 => self.bytes.push(0xa0 | low(short)),
            byte @ 32..256 => self.bytes.extend([0xd9, low(byte)]),
            long => {
                self.bytes.push(0xdb);
                self.bytes.extend(four(long));
            }
        }
        self.bytes.extend(text.as_bytes());
        self
    }

    /// Bytes, such as a hash.
    pub fn bin(&mut self, bytes: &[u8]) -> &mut Self {
        match bytes.len() {
            byte @ 0..256 => self.bytes.extend([0xc4, low(byte)]),
            long => {
                self.bytes.push(0xc6);
                self.bytes.extend(four(long));
            }
        }
        self.bytes.extend(bytes);
        self
    }

    /// `nil`.
    pub fn nil(&mut self) -> &mut Self {
        self.bytes.push(0xc0);
        self
    }

    /// An integer in the shortest form.
    pub fn uint(&mut self, value: u64) -> &mut Self {
        let bytes = value.to_be_bytes();
        match value {
            0..0x80 => self.bytes.push(bytes[7]),
            0x80..0x100 => self.bytes.extend([0xcc, bytes[7]]),
            0x100..0x1_0000 => self.tagged(0xcd, &bytes[6..]),
            0x1_0000..0x1_0000_0000 => self.tagged(0xce, &bytes[4..]),
            _ => self.tagged(0xcf, &bytes),
        }
        self
    }

    /// A signed integer in four bytes, however small.
    pub fn int32(&mut self, value: i32) -> &mut Self {
        self.tagged(0xd2, &value.to_be_bytes());
        self
    }

    /// A signed integer in eight bytes, however small.
    pub fn int64(&mut self, value: i64) -> &mut Self {
        self.tagged(0xd3, &value.to_be_bytes());
        self
    }

    /// A float in eight bytes.
    pub fn float64(&mut self, value: f64) -> &mut Self {
        self.tagged(0xcb, &value.to_be_bytes());
        self
    }

    fn header(&mut self, len: usize, fixed: u8, wide: u8) -> &mut Self {
        match len {
            0..16 => self.bytes.push(fixed | low(len)),
            16..0x1_0000 => {
                let bytes = four(len);
                self.bytes.extend([wide, bytes[2], bytes[3]]);
            }
            _ => {
                self.bytes.push(wide + 1);
                self.bytes.extend(four(len));
            }
        }
        self
    }

    fn tagged(&mut self, tag: u8, bytes: &[u8]) {
        self.bytes.push(tag);
        self.bytes.extend(bytes);
    }
}

fn low(value: usize) -> u8 {
    four(value)[3]
}

/// Lengths beyond 32 bits cannot be written, and are not made.
fn four(value: usize) -> [u8; 4] {
    u32::try_from(value).unwrap_or(u32::MAX).to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kvevents::msgpack::{Reader, Token};

    #[test]
    fn what_is_written_is_read() {
        for value in [0, 127, 128, 255, 256, 65_535, 65_536, u64::from(u32::MAX), u64::from(u32::MAX) + 1, u64::MAX] {
            let mut writer = Writer::new();
            writer.uint(value);
            assert_eq!(Reader::new(&writer.into_bytes()).read(), Ok(Token::Unsigned(value)));
        }
        for len in [0, 15, 16, 65_535, 65_536] {
            let mut writer = Writer::new();
            writer.array(len).map(len);
            let bytes = writer.into_bytes();
            let mut reader = Reader::new(&bytes);
            let len = u32::try_from(len).unwrap();
            assert_eq!((reader.read(), reader.read()), (Ok(Token::Array(len)), Ok(Token::Map(len))));
        }
        for len in [0, 31, 32, 255, 256, 70_000] {
            let text = "x".repeat(len);
            let mut writer = Writer::new();
            writer.str(&text);
            assert_eq!(Reader::new(&writer.into_bytes()).read(), Ok(Token::Str(text.as_bytes())));
        }
    }
}
