//! A `LookupRouteResponse`, written straight from the router's answer.

use std::cell::Cell;
use std::time::Duration;

use bytes::BufMut;
use inferencecache_core::{Answer, Row};

/// Bytes that a score has beside its id and the lengths: two floats, two numbers of up to 10 bytes, their keys.
const FIXED: usize = 2 * 5 + 2 * 11;

/// An answer on its way out.
#[derive(Debug, Default)]
pub struct LookupReply {
    /// What the router says.
    pub answer: Box<Answer>,
    /// Partition of the request; echoed if it was consulted.
    pub adapter: String,
    /// Time since the request was met.
    pub latency: Duration,
}

thread_local! {
    /// The last answer that was written on this thread, for its memory.
    static SCRATCH: Cell<Option<Box<Answer>>> = const { Cell::new(None) };
}

impl LookupReply {
    /// An empty answer, in the memory of the last one that was written on this thread.
    #[must_use]
    pub fn scratch() -> Box<Answer> {
        SCRATCH.take().unwrap_or_default()
    }

    /// Gives the answer's memory to the next of this thread.
    pub fn recycle(self) {
        let mut answer = self.answer;
        answer.clear(); // lets go of replica ids
        let _ = SCRATCH.try_with(|slot| slot.set(Some(answer)));
    }

    /// Appends the message.
    pub fn write(&self, out: &mut impl BufMut) {
        for row in self.answer.rows() {
            write_score(row, out);
        }
        put_bytes(2, self.answer.reason.as_str().as_bytes(), out);
        let micros = i64::try_from(self.latency.as_micros()).unwrap_or(i64::MAX);
        put_number(3, micros.cast_unsigned(), out);
        if !self.answer.tokens.is_empty() {
            let length = self.answer.tokens.iter().map(|&token| varint_len(u64::from(token))).sum::<usize>();
            put_varint(key(4, BYTES), out);
            put_varint(length as u64, out);
            self.answer.tokens.iter().for_each(|&token| put_varint(u64::from(token), out));
        }
        if self.answer.consulted {
            put_bytes(5, self.adapter.as_bytes(), out);
        }
    }

    /// About how many bytes [`LookupReply::write`] appends, never fewer.
    #[must_use]
    pub fn room(&self) -> usize {
        let scores = self.answer.rows().iter().map(|row| row.replica.len() + FIXED + 12);
        scores.sum::<usize>() + self.answer.tokens.len() * 5 + self.adapter.len() + 64
    }
}

const VARINT: u32 = 0;
const BYTES: u32 = 2;
const FIXED32: u32 = 5;

const fn key(number: u32, wire: u32) -> u64 {
    (number << 3 | wire) as u64
}

fn write_score(row: &Row, out: &mut impl BufMut) {
    // What follows the id, gathered first because the length stands in front.
    let mut tail = Small::default();
    tail.float(2, row.score);
    tail.number(3, i64::from(row.matched_tokens).cast_unsigned());
    tail.float(4, row.hit_prob);
    tail.number(5, i64::from(crate::convert::tier(row.tier)).cast_unsigned());
    let id = row.replica.as_bytes();
    let named = if id.is_empty() { 0 } else { 1 + varint_len(id.len() as u64) + id.len() };
    put_varint(key(1, BYTES), out);
    put_varint((named + tail.len) as u64, out);
    put_bytes(1, id, out);
    out.put_slice(tail.bytes());
}

/// The fixed part of a score.
#[derive(Default)]
struct Small {
    bytes: [u8; FIXED],
    len: usize,
}

impl Small {
    fn float(&mut self, number: u32, value: f32) {
        // Minus zero is left out too, as prost does.
        if value != 0.0 {
            self.push(&[key(number, FIXED32).to_le_bytes()[0]]);
            self.push(&value.to_le_bytes());
        }
    }

    fn number(&mut self, number: u32, value: u64) {
        if value != 0 {
            self.push(&[key(number, VARINT).to_le_bytes()[0]]);
            let mut value = value;
            while value >= 0x80 {
                self.push(&[value.to_le_bytes()[0] | 0x80]);
                value >>= 7;
            }
            self.push(&[value.to_le_bytes()[0]]);
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        // FIXED is the sum of all there is, so nothing is ever cut off.
        if let Some(room) = self.bytes.get_mut(self.len..self.len + bytes.len()) {
            room.copy_from_slice(bytes);
            self.len += bytes.len();
        }
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

fn put_bytes(number: u32, bytes: &[u8], out: &mut impl BufMut) {
    if !bytes.is_empty() {
        put_varint(key(number, BYTES), out);
        put_varint(bytes.len() as u64, out);
        out.put_slice(bytes);
    }
}

fn put_number(number: u32, value: u64, out: &mut impl BufMut) {
    if value != 0 {
        put_varint(key(number, VARINT), out);
        put_varint(value, out);
    }
}

fn put_varint(mut value: u64, out: &mut impl BufMut) {
    while value >= 0x80 {
        out.put_u8(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.put_u8(value.to_le_bytes()[0]);
}

fn varint_len(value: u64) -> usize {
    (value | 1).ilog2() as usize / 7 + 1
}
