//! How an image is cut into frames, so that whoever reads it knows of each whether it is whole.
//!
//! ```text
//!  magic │ version │ (length │ kind │ payload │ checksum)* │ end
//! ```
//!
//! * All numbers are little-endian. A checksum covers its frame and, through its seed, everything before it.
//! * The last frame says how many there were before it; nothing follows it.
//! * Memory to read a frame grows with what is really there, never with what a length claims.

use std::io::{self, Read, Write};

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::RestoreError;

const MAGIC: [u8; 8] = *b"ic-index";
/// Of everything in an image. Another version is not read.
pub(super) const VERSION: u32 = 1;
/// Longest payload.
const MAX_FRAME: u32 = 64 << 20;
/// Kind of the last frame.
const END: u8 = 0;

const CUT: RestoreError = RestoreError::Damaged("it ends too early");

#[derive(Debug)]
pub(super) struct FrameWriter<W> {
    to: W,
    chain: u64,
    frames: u64,
    bytes: u64,
}

impl<W: Write> FrameWriter<W> {
    pub(super) fn begin(mut to: W) -> io::Result<Self> {
        let mut header = MAGIC.to_vec();
        header.extend_from_slice(&VERSION.to_le_bytes());
        to.write_all(&header)?;
        Ok(Self { to, chain: xxh3_64_with_seed(&header, 0), frames: 0, bytes: header.len() as u64 })
    }

    /// `kind` is not 0.
    pub(super) fn frame(&mut self, kind: u8, payload: &[u8]) -> io::Result<()> {
        let length = u32::try_from(payload.len()).ok().filter(|&length| length <= MAX_FRAME);
        let length = length.ok_or_else(|| io::Error::other("more than 64 MiB in one page of the index"))?;
        let head = head(length, kind);
        self.chain = checksum(self.chain, head, payload);
        self.to.write_all(&head)?;
        self.to.write_all(payload)?;
        self.to.write_all(&self.chain.to_le_bytes())?;
        self.frames += 1;
        self.bytes += (head.len() + payload.len() + 8) as u64;
        Ok(())
    }

    /// Ends the image and says how many bytes it has.
    pub(super) fn end(mut self) -> io::Result<u64> {
        let frames = self.frames;
        self.frame(END, &frames.to_le_bytes())?;
        self.to.flush()?;
        Ok(self.bytes)
    }
}

#[derive(Debug)]
pub(super) struct FrameReader<R> {
    from: R,
    chain: u64,
    frames: u64,
    bytes: u64,
    payload: Vec<u8>,
}

impl<R: Read> FrameReader<R> {
    pub(super) fn begin(mut from: R) -> Result<Self, RestoreError> {
        let mut header = [0; 12];
        read(&mut from, &mut header).map_err(|why| match why {
            RestoreError::Io(why) => RestoreError::Io(why),
            _ => RestoreError::NotAnImage,
        })?;
        let [magic @ .., a, b, c, d] = header;
        if magic != MAGIC {
            return Err(RestoreError::NotAnImage);
        }
        let version = u32::from_le_bytes([a, b, c, d]);
        if version != VERSION {
            return Err(RestoreError::Version(version));
        }
        let chain = xxh3_64_with_seed(&header, 0);
        Ok(Self { from, chain, frames: 0, bytes: header.len() as u64, payload: Vec::new() })
    }

    /// The next frame; nothing once the image has ended as it should.
    pub(super) fn next(&mut self) -> Result<Option<(u8, &[u8])>, RestoreError> {
        let mut head = [0; 5];
        read(&mut self.from, &mut head)?;
        let [a, b, c, d, kind] = head;
        let length = u32::from_le_bytes([a, b, c, d]);
        if length > MAX_FRAME {
            return Err(RestoreError::Damaged("a length that cannot be"));
        }
        self.payload.clear();
        let got = Read::by_ref(&mut self.from).take(u64::from(length)).read_to_end(&mut self.payload);
        if got.map_err(RestoreError::Io)? < length as usize {
            return Err(CUT);
        }
        let mut sum = [0; 8];
        read(&mut self.from, &mut sum)?;
        self.chain = checksum(self.chain, head, &self.payload);
        if self.chain.to_le_bytes() != sum {
            return Err(RestoreError::Damaged("a checksum is wrong"));
        }
        self.bytes += u64::from(length) + 13;
        if kind != END {
            self.frames += 1;
            return Ok(Some((kind, &self.payload)));
        }
        if self.payload != self.frames.to_le_bytes() {
            return Err(RestoreError::Damaged("frames are missing"));
        }
        let rest = Read::by_ref(&mut self.from).take(1).read_to_end(&mut Vec::new());
        match rest.map_err(RestoreError::Io)? {
            0 => Ok(None),
            _ => Err(RestoreError::Damaged("something follows its end")),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }
}

fn head(length: u32, kind: u8) -> [u8; 5] {
    let [a, b, c, d] = length.to_le_bytes();
    [a, b, c, d, kind]
}

fn checksum(chain: u64, [a, b, c, d, kind]: [u8; 5], payload: &[u8]) -> u64 {
    xxh3_64_with_seed(payload, chain ^ u64::from_le_bytes([a, b, c, d, kind, 0, 0, 0]))
}

fn read(from: &mut impl Read, to: &mut [u8]) -> Result<(), RestoreError> {
    from.read_exact(to)
        .map_err(|why| if why.kind() == io::ErrorKind::UnexpectedEof { CUT } else { RestoreError::Io(why) })
}
