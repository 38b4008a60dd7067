//! A `LookupRouteRequest`, read in place.

use inferencecache_core::{HashList, Question};

use super::hashes::Hashes;
use super::reader::{Fault, Reader, Span};

/// A request: its bytes, and where its fields are.
#[derive(Debug, Default)]
pub struct LookupRequest {
    buffer: Vec<u8>,
    model: Span,
    tenant: Span,
    scheme: Span,
    adapter: Span,
    prompt: Span,
    prefix_hash: Span,
    prefix_token_count: i32,
    ttft_ms: i32,
    hashes: Hashes,
    counts: Vec<i32>,
    tokens: Vec<u32>,
}

impl LookupRequest {
    /// Reads one message.
    ///
    /// # Errors
    ///
    /// [`Fault`] exactly where prost refuses the message.
    pub fn read(message: &[u8]) -> Result<Self, Fault> {
        let mut request = Self::default();
        request.read_again(message)?;
        Ok(request)
    }

    /// Reads one message into the memory of another.
    ///
    /// # Errors
    ///
    /// As [`LookupRequest::read`]; then the request is half written and only good to be read again.
    #[expect(clippy::cast_possible_truncation, reason = "the format drops higher bits")]
    pub fn read_again(&mut self, message: &[u8]) -> Result<(), Fault> {
        self.clear();
        self.buffer.extend_from_slice(message);
        let mut reader = Reader::new(message);
        while let Some((number, wire)) = reader.field()? {
            match number {
                1 => self.model = reader.text(number, wire)?,
                2 => self.tenant = reader.text(number, wire)?,
                3 => self.prefix_hash = reader.bytes(number, wire)?,
                4 => self.prefix_token_count = reader.int32(number, wire)?,
                5 => self.scheme = reader.text(number, wire)?,
                6 => {
                    let mut slo = reader.message(number, wire)?;
                    while let Some((number, wire)) = slo.field()? {
                        match number {
                            1 => self.ttft_ms = slo.int32(number, wire)?,
                            2 => drop(slo.int32(number, wire)?),
                            _ => slo.skip(number, wire)?,
                        }
                    }
                }
                7 => self.hashes.read(&mut reader, number, wire)?,
                8 => reader.numbers(number, wire, |count| self.counts.push(count as i32))?,
                9 => reader.numbers(number, wire, |token| self.tokens.push(token as u32))?,
                10 => self.prompt = reader.text(number, wire)?,
                11 => self.adapter = reader.text(number, wire)?,
                _ => reader.skip(number, wire)?,
            }
        }
        Ok(())
    }

    /// Forgets the message, keeps the memory of its lists.
    pub fn clear(&mut self) {
        let Self { buffer, hashes, counts, tokens, .. } = std::mem::take(self);
        (self.buffer, self.hashes, self.counts, self.tokens) = (buffer, hashes, counts, tokens);
        self.buffer.clear();
        self.hashes.clear();
        self.counts.clear();
        self.tokens.clear();
    }

    /// Bytes that its lists occupy, used or not.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.buffer.capacity() + self.hashes.memory() + self.counts.capacity() * 4 + self.tokens.capacity() * 4
    }

    /// Model.
    #[must_use]
    pub fn model(&self) -> &str {
        self.model.text(&self.buffer)
    }

    /// Adapter.
    #[must_use]
    pub fn adapter(&self) -> &str {
        self.adapter.text(&self.buffer)
    }

    /// Text to tokenise.
    #[must_use]
    pub fn prompt(&self) -> &str {
        self.prompt.text(&self.buffer)
    }

    /// Block hashes, root first.
    #[must_use]
    pub fn block_hashes(&self) -> HashList<'_> {
        self.hashes.all()
    }

    /// What is asked.
    #[must_use]
    pub fn question(&self) -> Question<'_> {
        Question {
            tenant: self.tenant.text(&self.buffer),
            model: self.model(),
            scheme: self.scheme.text(&self.buffer),
            adapter: self.adapter(),
            prefix_hash: self.prefix_hash.of(&self.buffer),
            prefix_token_count: self.prefix_token_count,
            block_hashes: self.hashes.all(),
            block_token_counts: &self.counts,
            token_ids: &self.tokens,
            prompt_text: self.prompt(),
            ttft_ms: self.ttft_ms,
        }
    }
}
