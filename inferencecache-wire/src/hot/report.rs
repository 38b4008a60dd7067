//! A `CacheStateUpdate`, read in place.

use inferencecache_core::route::{MAX_BLOCKS, MAX_HASH_BYTES, MAX_ID_BYTES};
use inferencecache_core::time::Micros;
use inferencecache_core::{Entry, Stats, Update};

use super::hashes::{Hashes, Part};
use super::reader::{Fault, Reader, Span};
use crate::convert::{Refused, stamp};

/// A report: its bytes, and where its fields are.
#[derive(Debug, Default)]
pub struct Report {
    buffer: Vec<u8>,
    replica: Span,
    model: Span,
    tenant: Span,
    scheme: Span,
    adapter: Span,
    timestamp: Micros,
    stats: Option<Stats>,
    prefixes: Vec<Prefix>,
    hashes: Hashes,
    counts: Vec<i32>,
}

/// One `PrefixEntry`.
#[derive(Debug, Clone, Copy, Default)]
struct Prefix {
    hash: Span,
    adapter: Span,
    tokens: i32,
    tier: i32,
    hashes: Part,
    counts: (u32, u32),
}

impl Report {
    /// Reads one message.
    ///
    /// # Errors
    ///
    /// [`Fault`] exactly where prost refuses the message.
    pub fn read(message: &[u8]) -> Result<Self, Fault> {
        let mut report = Self::default();
        report.read_again(message)?;
        Ok(report)
    }

    /// Reads one message into the memory of another.
    ///
    /// # Errors
    ///
    /// As [`Report::read`]; then the report is half written and only good to be read again.
    pub fn read_again(&mut self, message: &[u8]) -> Result<(), Fault> {
        self.clear();
        self.buffer.extend_from_slice(message);
        let mut reader = Reader::new(message);
        while let Some((number, wire)) = reader.field()? {
            match number {
                1 => self.replica = reader.text(number, wire)?,
                2 => self.model = reader.text(number, wire)?,
                3 => self.tenant = reader.text(number, wire)?,
                4 => self.scheme = reader.text(number, wire)?,
                5 => self.timestamp = reader.number(number, wire)?.cast_signed(),
                6 => {
                    let inner = reader.message(number, wire)?;
                    self.read_prefix(inner)?;
                }
                7 => {
                    let inner = reader.message(number, wire)?;
                    let stats = self.stats.get_or_insert_default();
                    read_stats(inner, stats)?;
                }
                8 => self.adapter = reader.text(number, wire)?,
                _ => reader.skip(number, wire)?,
            }
        }
        Ok(())
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "counts fit like places, and the format drops higher bits")]
    fn read_prefix(&mut self, mut reader: Reader<'_>) -> Result<(), Fault> {
        let mut prefix = Prefix::default();
        let (first_hash, first_count) = (self.hashes.len(), self.counts.len());
        while let Some((number, wire)) = reader.field()? {
            match number {
                1 => prefix.hash = reader.bytes(number, wire)?,
                2 => prefix.tokens = reader.int32(number, wire)?,
                3 => self.hashes.read(&mut reader, number, wire)?,
                4 => reader.numbers(number, wire, |count| self.counts.push(count as i32))?,
                5 => prefix.tier = reader.int32(number, wire)?,
                6 => prefix.adapter = reader.text(number, wire)?,
                _ => reader.skip(number, wire)?,
            }
        }
        prefix.hashes = self.hashes.part(first_hash);
        prefix.counts = (first_count as u32, self.counts.len() as u32);
        self.prefixes.push(prefix);
        Ok(())
    }

    /// Forgets the message, keeps the memory of its lists.
    pub fn clear(&mut self) {
        let Self { buffer, prefixes, hashes, counts, .. } = std::mem::take(self);
        (self.buffer, self.prefixes, self.hashes, self.counts) = (buffer, prefixes, hashes, counts);
        self.buffer.clear();
        self.prefixes.clear();
        self.hashes.clear();
        self.counts.clear();
    }

    /// Bytes that its lists occupy, used or not.
    #[must_use]
    pub fn memory(&self) -> usize {
        let lists = self.hashes.memory() + self.counts.capacity() * 4 + self.prefixes.capacity() * size_of::<Prefix>();
        self.buffer.capacity() + lists
    }

    /// Who reports.
    #[must_use]
    pub fn replica(&self) -> &str {
        self.replica.text(&self.buffer)
    }

    /// Its model.
    #[must_use]
    pub fn model(&self) -> &str {
        self.model.text(&self.buffer)
    }

    /// Its tenant.
    #[must_use]
    pub fn tenant(&self) -> &str {
        self.tenant.text(&self.buffer)
    }

    /// The update within the limits, its entries in `entries`, or `None` when it is dropped whole.
    pub fn update<'a, 'm: 'a>(
        &'m self,
        now: Micros,
        entries: &'a mut Vec<Entry<'m>>,
        refused: &mut Refused,
    ) -> Option<Update<'a>> {
        if [self.replica, self.tenant, self.model, self.scheme].iter().any(|key| key.len() > MAX_ID_BYTES) {
            refused.oversized_key += 1;
            return None;
        }
        let timestamp = stamp(self.timestamp, now, refused);
        // Looked up once: entries rarely name an adapter of their own.
        let inherited = self.adapter.text(&self.buffer);
        entries.reserve(self.prefixes.len());
        for prefix in &self.prefixes {
            let adapter = if prefix.adapter.len() == 0 { inherited } else { prefix.adapter.text(&self.buffer) };
            let counts = (prefix.counts.1 - prefix.counts.0) as usize;
            let cause = if adapter.len() > MAX_ID_BYTES {
                &mut refused.oversized_adapter
            } else if prefix.hashes.len().max(counts) > MAX_BLOCKS {
                &mut refused.oversized_chain
            } else if prefix.hash.len() > MAX_HASH_BYTES || self.hashes.longest(prefix.hashes) > MAX_HASH_BYTES {
                &mut refused.oversized_hash
            } else {
                entries.push(Entry {
                    adapter,
                    tier: prefix.tier,
                    prefix_hash: prefix.hash.of(&self.buffer),
                    token_count: prefix.tokens,
                    block_hashes: self.hashes.list(prefix.hashes),
                    block_token_counts: &self.counts[prefix.counts.0 as usize..prefix.counts.1 as usize],
                });
                continue;
            };
            *cause += 1;
        }
        Some(Update {
            replica: self.replica(),
            model: self.model(),
            tenant: self.tenant(),
            scheme: self.scheme.text(&self.buffer),
            adapter: "", // already handed down to the entries
            timestamp,
            entries,
            stats: self.stats,
        })
    }
}

fn read_stats(mut reader: Reader<'_>, stats: &mut Stats) -> Result<(), Fault> {
    while let Some((number, wire)) = reader.field()? {
        match number {
            // The update's replica is the one that counts; the client's version is opaque.
            1 | 5 => drop(reader.text(number, wire)?),
            2 => stats.cache_memory_bytes = reader.number(number, wire)?.cast_signed(),
            3 => stats.hit_rate = reader.float(number, wire)?,
            4 => stats.pressure = reader.float(number, wire)?,
            6 => stats.t2_hit_tokens = reader.number(number, wire)?.cast_signed(),
            7 => stats.t2_query_tokens = reader.number(number, wire)?.cast_signed(),
            _ => reader.skip(number, wire)?,
        }
    }
    Ok(())
}
