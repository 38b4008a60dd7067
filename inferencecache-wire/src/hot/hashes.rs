//! Lists of hashes: words of 8 bytes while all are of that length, otherwise places in an arena.

use inferencecache_core::HashList;

use super::reader::{Fault, Reader, Wire};

/// A list of hashes in reading order.
#[derive(Debug, Default)]
pub(super) struct Hashes {
    words: Vec<[u8; 8]>,
    /// Bytes of all hashes, once one of them had another length.
    arena: Vec<u8>,
    /// Their places in the arena; empty while all are words.
    spans: Vec<(u32, u32)>,
}

/// Part of a list: the hashes of one chain.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Part {
    start: u32,
    end: u32,
}

impl Part {
    pub(super) fn len(self) -> usize {
        (self.end - self.start) as usize
    }
}

impl Hashes {
    pub(super) fn clear(&mut self) {
        self.words.clear();
        self.arena.clear();
        self.spans.clear();
    }

    pub(super) fn len(&self) -> usize {
        if self.spans.is_empty() { self.words.len() } else { self.spans.len() }
    }

    #[expect(clippy::cast_possible_truncation, reason = "no longer than a message, whose places fit")]
    pub(super) fn part(&self, start: usize) -> Part {
        Part { start: start as u32, end: self.len() as u32 }
    }

    /// Takes the hash in a field that was just met, and those that follow it directly in the usual form.
    #[inline]
    pub(super) fn read(&mut self, reader: &mut Reader<'_>, number: u32, wire: Wire) -> Result<(), Fault> {
        let rest = reader.rest();
        let head = [(number << 3 | 2).to_le_bytes()[0], 8];
        // The key of the first was taken already; a field number above 15 has a longer key and takes the slow way.
        if wire == Wire::Bytes && number < 16 && self.spans.is_empty() && rest.first() == Some(&8) && rest.len() >= 9 {
            let mut taken = 9;
            self.words.extend(rest[1..].first_chunk::<8>());
            for field in rest[9..].as_chunks::<10>().0 {
                let [a, b, word @ ..] = field;
                if [*a, *b] != head {
                    break;
                }
                self.words.push(*word);
                taken += 10;
            }
            reader.skip_seen(taken);
            return Ok(());
        }
        let hash = reader.slice(number, wire)?;
        self.push(hash);
        Ok(())
    }

    #[expect(clippy::cast_possible_truncation, reason = "no longer than a message, whose places fit")]
    fn push(&mut self, hash: &[u8]) {
        if self.spans.is_empty() {
            if let Ok(word) = <[u8; 8]>::try_from(hash) {
                self.words.push(word);
                return;
            }
            self.arena.extend_from_slice(self.words.as_flattened());
            self.spans.extend((0..self.words.len() as u32).map(|i| (i * 8, i * 8 + 8)));
            self.words.clear();
        }
        let start = self.arena.len() as u32;
        self.arena.extend_from_slice(hash);
        self.spans.push((start, self.arena.len() as u32));
    }

    /// Bytes that it occupies, used or not.
    pub(super) fn memory(&self) -> usize {
        self.words.capacity() * 8 + self.arena.capacity() + self.spans.capacity() * 8
    }

    /// Length of the longest hash of a part, in bytes.
    pub(super) fn longest(&self, part: Part) -> usize {
        if self.spans.is_empty() {
            return if part.len() == 0 { 0 } else { 8 };
        }
        let spans = self.spans.get(part.start as usize..part.end as usize).unwrap_or_default();
        spans.iter().map(|(start, end)| (end - start) as usize).max().unwrap_or(0)
    }

    /// A part as the index takes it.
    pub(super) fn list(&self, part: Part) -> HashList<'_> {
        let range = part.start as usize..part.end as usize;
        if self.spans.is_empty() {
            HashList::Words(self.words.get(range).unwrap_or_default())
        } else {
            HashList::Spans(&self.arena, self.spans.get(range).unwrap_or_default())
        }
    }

    /// The whole list.
    pub(super) fn all(&self) -> HashList<'_> {
        self.list(self.part(0))
    }
}
