//! What is in a frame: pages of one partition, or load figures. Both directions, and what a reader insists on.
//!
//! ```text
//!  pages   tenant · model · scheme · adapter · replicas · page*
//!  page    shape · held · words · number of records · record*
//!  record  mask · last seen · replica's number · tier · base · step · use counts, if the page has them
//!  stats   (tenant · model · replica · figures · liveness · reported)*
//! ```
//!
//! A text is its length in 32 bits and its bytes. Reading borrows from the frame, and yields nothing at the first thing
//! that no index writes.

use crate::index::page::Tokens;
use crate::index::replicas::StatRow;
use crate::index::store::bits;
use crate::time::Micros;
use crate::update::Stats;

/// Bytes of a record without use counts.
const RECORD: usize = 32;
const WIDE: u8 = 1;
const COUNTED: u8 = 2;

/// Appends to a frame.
pub(in crate::index) trait Put {
    fn put_u8(&mut self, value: u8);
    fn put_u32(&mut self, value: u32);
    fn put_u64(&mut self, value: u64);
    fn put_bytes(&mut self, bytes: &[u8]);
}

impl Put for Vec<u8> {
    fn put_u8(&mut self, value: u8) {
        self.push(value);
    }
    fn put_u32(&mut self, value: u32) {
        self.extend_from_slice(&value.to_le_bytes());
    }
    fn put_u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }
    fn put_bytes(&mut self, bytes: &[u8]) {
        self.put_u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        self.extend_from_slice(bytes);
    }
}

/// What is left of a frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bytes<'a>(pub(super) &'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*taken)
    }
    fn u8(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }
    pub(super) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
    fn i32(&mut self) -> Option<i32> {
        self.array().map(i32::from_le_bytes)
    }
    fn i64(&mut self) -> Option<i64> {
        self.array().map(i64::from_le_bytes)
    }
    fn f32(&mut self) -> Option<f32> {
        self.array().map(f32::from_le_bytes)
    }
    fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.u32()?;
        self.take(length as usize)
    }
    pub(super) fn text(&mut self) -> Option<&'a str> {
        std::str::from_utf8(self.bytes()?).ok()
    }
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A record of a page.
#[derive(Debug)]
pub(in crate::index) struct RecordImage<'a> {
    pub(in crate::index) mask: u64,
    pub(in crate::index) seen: Micros,
    /// Which of the frame's replicas.
    pub(in crate::index) replica: u32,
    pub(in crate::index) tier: i32,
    pub(in crate::index) tokens: Tokens,
    /// Four bytes a position of the mask, in order; empty where uses are not counted.
    uses: &'a [u8],
}

impl RecordImage<'_> {
    /// Use counts, position by position.
    pub(in crate::index) fn uses(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        let counts = self.uses.chunks_exact(4).map(|four| four.try_into().map_or(0, u32::from_le_bytes));
        bits(self.mask).zip(counts)
    }
}

/// A page. Reused from one to the next.
#[derive(Debug)]
pub(in crate::index) struct PageImage<'a> {
    pub(in crate::index) wide: bool,
    pub(in crate::index) counted: bool,
    /// Positions that anybody holds.
    pub(in crate::index) held: u64,
    /// Their hashes.
    pub(in crate::index) words: [&'a [u8]; 64],
    /// No two of one replica share a position; together they are what is held.
    pub(in crate::index) records: Vec<RecordImage<'a>>,
}

/// The first half of a page: its shape and what is held; a word for each held position follows, then the records.
pub(in crate::index) fn put_shape(to: &mut Vec<u8>, wide: bool, counted: bool, held: u64) {
    to.put_u8((u8::from(wide) * WIDE) | (u8::from(counted) * COUNTED));
    to.put_u64(held);
}

pub(in crate::index) fn put_record(
    to: &mut Vec<u8>,
    (mask, seen): (u64, Micros),
    replica: u32,
    tier: i32,
    tokens: Tokens,
) {
    to.put_u64(mask);
    to.put_u64(seen as u64);
    to.put_u32(replica);
    to.put_u32(tier as u32);
    to.put_u32(tokens.base as u32);
    to.put_u32(tokens.step as u32);
}

impl<'a> PageImage<'a> {
    pub(super) fn new() -> Self {
        Self { wide: false, counted: false, held: 0, words: [&[]; 64], records: Vec::new() }
    }

    /// Reads the next page. `covered` is scratch, one word a replica of the frame, all 0.
    pub(super) fn read(&mut self, from: &mut Bytes<'a>, covered: &mut [u64]) -> Option<()> {
        let shape = from.u8().filter(|&shape| shape <= (WIDE | COUNTED))?;
        (self.wide, self.counted) = (shape & WIDE != 0, shape & COUNTED != 0);
        self.held = from.u64().filter(|&held| held != 0)?;
        for position in bits(self.held) {
            let word = if self.wide {
                from.bytes().filter(|hash| !hash.is_empty() && hash.len() != 8)?
            } else {
                from.take(8)?
            };
            *self.words.get_mut(position as usize)? = word;
        }
        let number = from.u32()? as usize;
        if number > from.0.len() / RECORD {
            return None;
        }
        self.records.clear();
        let mut union = 0;
        for _ in 0..number {
            let record = self.record(from)?;
            let covered = covered.get_mut(record.replica as usize)?;
            if record.mask & *covered != 0 {
                return None;
            }
            *covered |= record.mask;
            union |= record.mask;
            self.records.push(record);
        }
        for record in &self.records {
            *covered.get_mut(record.replica as usize)? = 0;
        }
        (union == self.held).then_some(())
    }

    fn record(&self, from: &mut Bytes<'a>) -> Option<RecordImage<'a>> {
        let mask = from.u64().filter(|&mask| mask != 0 && mask & !self.held == 0)?;
        let (seen, replica) = (from.i64()?, from.u32()?);
        let tier = from.i32().filter(|&tier| tier > 0)?;
        let tokens = Tokens { base: from.i32()?, step: from.i32()? };
        // The rule is a line: if both ends are counts of tokens, so is what is between them.
        for end in [mask.trailing_zeros(), 63 - mask.leading_zeros()] {
            let count = i64::from(tokens.base) + i64::from(tokens.step) * i64::from(end);
            i32::try_from(count).ok().filter(|&count| count >= 0)?;
        }
        let uses = if self.counted { from.take(mask.count_ones() as usize * 4)? } else { &[] };
        Some(RecordImage { mask, seen, replica, tier, tokens, uses })
    }
}

pub(super) fn put_stats(to: &mut Vec<u8>, names: [&str; 3], row: &StatRow) {
    names.into_iter().for_each(|name| to.put_bytes(name.as_bytes()));
    let Stats { cache_memory_bytes, hit_rate, pressure, t2_hit_tokens, t2_query_tokens } = row.stats;
    to.put_u64(cache_memory_bytes as u64);
    to.put_u32(hit_rate.to_bits());
    to.put_u32(pressure.to_bits());
    for value in [t2_hit_tokens, t2_query_tokens, row.last_seen, row.reported] {
        to.put_u64(value as u64);
    }
}

/// Tenant, model and replica, and its row.
pub(super) fn read_stats<'a>(from: &mut Bytes<'a>) -> Option<([&'a str; 3], StatRow)> {
    let names = [from.text()?, from.text()?, from.text().filter(|replica| !replica.is_empty())?];
    let stats = Stats {
        cache_memory_bytes: from.i64()?,
        hit_rate: from.f32()?,
        pressure: from.f32()?,
        t2_hit_tokens: from.i64()?,
        t2_query_tokens: from.i64()?,
    };
    Some((names, StatRow { stats: stats.sanitised(), last_seen: from.i64()?, reported: from.i64()? }))
}
