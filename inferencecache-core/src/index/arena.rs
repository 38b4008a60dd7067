//! Numbered cache lines that the writer hands out and readers walk without waiting.
//!
//! ```text
//!  chunks:  [ 0..8 ) [ 8..64 ) [ 64..1024 ) [ 1024..2048 ) …      line 1030 = chunk 3, offset 6
//! ```
//!
//! Every word is an atomic, so that a reader may look at a line while it changes: what it read counts only if a version
//! says so afterwards (see `page` and `table`). Loads and stores are Relaxed here; the order comes from the versions.
//!
//! Invariants: a line never moves; an extent of 2^k lines lies within one chunk; an arena whose lines carry versions is
//! never shared with another kind of line, so versions only grow.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// No line, no page, no replica.
pub(super) const NIL: u32 = u32::MAX;
/// Lines of the largest extent, as a power of two.
pub(super) const MAX_CLASS: u32 = 6;
/// Lines of a chunk, but for the first few, which keep a small partition small.
const CHUNK: u32 = 1024;
const FIRST: u32 = 8;
const SECOND: u32 = 64;
/// Lines of one arena.
const MAX_LINES: u32 = 1 << 29;

/// Eight words of one cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Line([AtomicU64; 8]);

impl Line {
    pub(super) fn word(&self, at: usize) -> &AtomicU64 {
        &self.0[at & 7]
    }
    pub(super) fn get(&self, at: usize) -> u64 {
        self.0[at & 7].load(Ordering::Relaxed)
    }
    pub(super) fn set(&self, at: usize, word: u64) {
        self.0[at & 7].store(word, Ordering::Relaxed);
    }
    /// Whether its words are these.
    #[inline]
    pub(super) fn is(&self, words: &[[u8; 8]; 8]) -> bool {
        // Without a branch for each.
        let differences = self.0.iter().zip(words);
        differences.fold(0, |all, (word, other)| all | word.load(Ordering::Relaxed) ^ u64::from_ne_bytes(*other)) == 0
    }
    /// Half a word: `at` counts 32-bit halves, the low one first.
    #[expect(clippy::cast_possible_truncation, reason = "that half is what is wanted")]
    pub(super) fn half(&self, at: usize) -> u32 {
        (self.get(at >> 1) >> (32 * (at & 1))) as u32
    }
    /// For the writer.
    pub(super) fn set_half(&self, at: usize, half: u32) {
        let shift = 32 * (at & 1);
        let word = self.get(at >> 1) & !(u64::from(u32::MAX) << shift);
        self.set(at >> 1, word | u64::from(half) << shift);
    }
}

/// How many lines from the first on have these words.
// By itself: the registers suffice.
#[inline(never)]
pub(super) fn lines_alike(lines: &[Line], words: &[[[u8; 8]; 8]]) -> usize {
    lines.iter().zip(words).take_while(|(line, words)| line.is(words)).count()
}

/// The chunks of one generation.
#[derive(Debug, Default, Clone)]
pub(super) struct Chunks(Vec<Arc<[Line]>>);

fn split(line: u32) -> (usize, usize) {
    let (chunk, offset) = if line >= CHUNK {
        (2 + line / CHUNK, line % CHUNK)
    } else if line >= SECOND {
        (2, line - SECOND)
    } else if line >= FIRST {
        (1, line - FIRST)
    } else {
        (0, line)
    };
    (chunk as usize, offset as usize)
}

impl Chunks {
    /// A line, or nothing when this generation is older than the line.
    #[inline]
    pub(super) fn line(&self, line: u32) -> Option<&Line> {
        let (chunk, offset) = split(line);
        self.0.get(chunk)?.get(offset)
    }

    /// Two neighbouring lines, an extent of class 1.
    #[inline]
    pub(super) fn pair(&self, line: u32) -> Option<&[Line; 2]> {
        let (chunk, offset) = split(line);
        self.0.get(chunk)?.get(offset..)?.first_chunk()
    }

    /// Neighbouring lines from this one on, at most so many and none beyond its chunk.
    #[inline]
    pub(super) fn side_by_side(&self, line: u32, most: usize) -> Option<&[Line]> {
        let (chunk, offset) = split(line);
        let lines = self.0.get(chunk)?.get(offset..)?;
        lines.get(..most.min(lines.len())).filter(|lines| !lines.is_empty())
    }

    /// The lines of an extent.
    pub(super) fn extent(&self, line: u32, class: u32) -> Option<&[Line]> {
        let (chunk, offset) = split(line);
        self.0.get(chunk)?.get(offset..offset + (1usize << class))
    }
}

/// Lines set aside for one user, so that what it stores one after the other lies side by side. Readers of it then need few
/// pages of the processor's own tables, and its neighbours are already on their way.
#[derive(Debug, Default)]
pub(super) struct Strip {
    next: u32,
    end: u32,
}

/// The writer's side: which lines are in use.
#[derive(Debug)]
pub(super) struct Arena {
    chunks: Arc<Chunks>,
    next: u32,
    /// Lines that there may ever be.
    most: u32,
    free: [Vec<u32>; MAX_CLASS as usize + 1],
    /// Grown since readers were last told.
    pub(super) grown: bool,
}

impl Arena {
    pub(super) fn new() -> Self {
        Self::of(MAX_LINES)
    }

    /// One that has fewer than `most` lines.
    pub(super) fn of(most: u32) -> Self {
        Self { chunks: Arc::default(), next: 0, most, free: Default::default(), grown: true }
    }

    pub(super) fn chunks(&self) -> &Arc<Chunks> {
        &self.chunks
    }

    /// A line in use.
    pub(super) fn line(&self, line: u32) -> &Line {
        self.chunks.line(line).expect("the writer keeps no number of a line that is not there")
    }

    /// A pair of lines in use.
    pub(super) fn pair(&self, line: u32) -> &[Line; 2] {
        self.chunks.pair(line).expect("the writer keeps no number of a pair that is not there")
    }

    /// An extent of 2^class lines as its last user left them; nothing when the numbers are used up.
    pub(super) fn take(&mut self, class: u32) -> Option<u32> {
        if let Some(line) = self.free[class as usize].pop() {
            return Some(line);
        }
        // Cut in two what is free and larger, rather than grow.
        for larger in class + 1..=MAX_CLASS {
            if let Some(line) = self.free[larger as usize].pop() {
                for half in (class..larger).rev() {
                    self.free[half as usize].push(line + (1 << half));
                }
                return Some(line);
            }
        }
        let size = 1u32 << class;
        loop {
            // Extents lie at multiples of their size, and never across the end of a chunk.
            let aligned = self.next.next_multiple_of(size);
            let line = if size > FIRST { aligned.max(size) } else { aligned };
            if line >= self.most - size {
                return None;
            }
            if self.chunks.line(line + size - 1).is_none() {
                self.grow();
                continue;
            }
            self.free[0].extend(self.next..line);
            self.next = line + size;
            return Some(line);
        }
    }

    /// An extent out of a strip, which is replaced by one of 2^size lines when it is used up. What has been given back is
    /// used first.
    pub(super) fn take_from(&mut self, strip: &mut Strip, class: u32, size: u32) -> Option<u32> {
        if strip.next == strip.end {
            if let Some(line) = self.free[class as usize].pop() {
                return Some(line);
            }
            let Some(line) = self.take(size) else { return self.take(class) };
            *strip = Strip { next: line, end: line + (1 << size) };
        }
        let line = strip.next;
        strip.next += 1 << class;
        Some(line)
    }

    /// Gives back what is left of a strip of extents of this class.
    pub(super) fn give_strip(&mut self, strip: Strip, class: u32) {
        (strip.next..strip.end).step_by(1 << class).for_each(|line| self.give(line, class));
    }

    pub(super) fn give(&mut self, line: u32, class: u32) {
        self.free[class as usize].push(line);
    }

    fn grow(&mut self) {
        let size = match self.chunks.0.len() {
            0 => FIRST,
            1 => SECOND - FIRST,
            2 => CHUNK - SECOND,
            _ => CHUNK,
        } as usize;
        let mut grown = Chunks::clone(&self.chunks);
        grown.0.push((0..size).map(|_| Line::default()).collect());
        self.chunks = Arc::new(grown);
        self.grown = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_never_overlap() {
        let mut arena = Arena::new();
        let mut taken: Vec<(u32, u32)> = Vec::new();
        let mut x = 1u64;
        for step in 0..3000 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if step % 3 == 2 {
                let (line, class) = taken.swap_remove((x >> 33) as usize % taken.len());
                arena.give(line, class);
            } else {
                let class = (x >> 40) as u32 % (MAX_CLASS + 1);
                let line = arena.take(class).expect("there are plenty");
                assert!(arena.chunks().extent(line, class).is_some_and(|extent| extent.len() == 1 << class));
                taken.push((line, class));
            }
        }
        taken.sort_unstable();
        assert!(taken.windows(2).all(|pair| pair[0].0 + (1 << pair[0].1) <= pair[1].0));
    }

    #[test]
    fn halves_do_not_disturb_each_other() {
        let line = Line::default();
        line.set_half(2, 7);
        line.set_half(3, 9);
        line.set_half(2, 8);
        assert_eq!((line.half(2), line.half(3), line.get(1)), (8, 9, 9 << 32 | 8));
    }
}
