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
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// No line, no page, no replica.
pub(super) const NIL: u32 = u32::MAX;
/// Lines of the largest extent, as a power of two.
pub(super) const MAX_CLASS: u32 = 6;
/// Lines of a chunk, but for the first few, which keep a small partition small.
const CHUNK: u32 = 1024;
const FIRST: u32 = 8;
const SECOND: u32 = 64;
/// Lines of one arena: what fits into a cell number (a line and one of its eight words) of 32 bits.
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

/// Lines, and for each what it belongs to, if the arena keeps that.
#[derive(Debug)]
pub(super) struct Chunk {
    lines: Box<[Line]>,
    owners: Box<[AtomicU32]>,
}

/// The chunks of one generation.
#[derive(Debug, Default, Clone)]
pub(super) struct Chunks(Vec<Arc<Chunk>>);

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
    pub(super) fn line(&self, line: u32) -> Option<&Line> {
        let (chunk, offset) = split(line);
        self.0.get(chunk)?.lines.get(offset)
    }

    /// The lines of an extent.
    pub(super) fn extent(&self, line: u32, class: u32) -> Option<&[Line]> {
        let (chunk, offset) = split(line);
        self.0.get(chunk)?.lines.get(offset..offset + (1usize << class))
    }

    /// What a line belongs to.
    pub(super) fn owner(&self, line: u32) -> Option<&AtomicU32> {
        let (chunk, offset) = split(line);
        self.0.get(chunk)?.owners.get(offset)
    }
}

/// The writer's side: which lines are in use.
#[derive(Debug)]
pub(super) struct Arena {
    chunks: Arc<Chunks>,
    owned: bool,
    next: u32,
    free: [Vec<u32>; MAX_CLASS as usize + 1],
    /// Grown since readers were last told.
    pub(super) grown: bool,
}

impl Arena {
    pub(super) fn new(owned: bool) -> Self {
        Self { chunks: Arc::default(), owned, next: 0, free: Default::default(), grown: true }
    }

    pub(super) fn chunks(&self) -> &Arc<Chunks> {
        &self.chunks
    }

    /// A line in use.
    pub(super) fn line(&self, line: u32) -> &Line {
        self.chunks.line(line).expect("the writer keeps no number of a line that is not there")
    }

    pub(super) fn set_owner(&self, line: u32, owner: u32) {
        if let Some(cell) = self.chunks.owner(line) {
            cell.store(owner, Ordering::Relaxed);
        }
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
            if line >= MAX_LINES - size {
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
        grown.0.push(Arc::new(Chunk {
            lines: (0..size).map(|_| Line::default()).collect(),
            owners: (0..if self.owned { size } else { 0 }).map(|_| AtomicU32::new(NIL)).collect(),
        }));
        self.chunks = Arc::new(grown);
        self.grown = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_never_overlap() {
        let mut arena = Arena::new(false);
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
