//! How the table grows: a full segment doubles or splits, and the directory points at its successors.
//!
//! A split leaves everything in the bucket of the same number, so that it needs neither search nor room.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::index::arena::MAX_CLASS;
use crate::index::page::{Cell, Cells};
use crate::index::table::bucket::{SLOTS, cell_at, put, set_version, tag_at, version};
use crate::index::table::{Directories, GONE, Segment, Table, Word, index_in, shard_of, tag_of};

/// A cell on its way to another segment: its hash, and the number of the bucket it was in.
#[derive(Debug, Clone, Copy)]
struct Moved {
    hash: u64,
    cell: u32,
    bucket: u32,
}

impl Table {
    /// The first segment of a directory.
    pub(super) fn found(&mut self, hash: u64) -> bool {
        let Some(segment) = self.fresh(0, 0) else { return false };
        self.directories[shard_of(hash)][0].store(segment.pack(), Ordering::Release);
        true
    }

    /// An empty segment. It comes locked: what this operation has already done must not show before the commit.
    fn fresh(&mut self, class: u32, depth: u32) -> Option<Segment> {
        let line = self.buckets.take(class)?;
        for bucket in line..line + (1 << class) {
            let cells = self.buckets.line(bucket);
            set_version(cells, (version(cells, Ordering::Relaxed) | 1).wrapping_add(2), Ordering::Relaxed);
            fence(Ordering::Release);
            cells.set(0, cells.get(0) & 0xffff_ffff);
            cells.set(1, 0);
            self.locked.push(bucket);
        }
        Some(Segment { line, class, depth })
    }

    /// Doubles a full segment or splits it in two.
    pub(super) fn grow(&mut self, words: Cells<'_>, full: Segment, hash: u64) -> bool {
        let moved = self.moved(words, full);
        let fresh = if full.class == MAX_CLASS {
            self.halve(full, &moved)
        } else {
            // If chance will have it that twice the room does not do, four times the room does.
            (full.class + 1..=MAX_CLASS).find_map(|class| Some(vec![self.refill(full, class, &moved)?]))
        };
        let Some(fresh) = fresh else { return false };
        self.turn(full, &fresh, hash);
        for line in full.line..full.line + (1 << full.class) {
            self.lock(line);
        }
        self.buckets.give(full.line, full.class);
        true
    }

    /// What is in a segment.
    fn moved(&self, words: Cells<'_>, full: Segment) -> Vec<Moved> {
        // In steps, so that the loads of a step do not wait for each other.
        let mut cells = Vec::with_capacity(SLOTS << full.class);
        for bucket in 0..1 << full.class {
            let line = self.buckets.line(full.line + bucket);
            let used = (0..SLOTS).filter(|&slot| tag_at(line, slot) != 0).map(|slot| Cell::unpack(cell_at(line, slot)));
            cells.extend(used.map(|cell| {
                let head = words.head(cell.page);
                (bucket, cell, head.map(|head| (head.eighth(cell.position / 8), head.wide())))
            }));
        }
        let mut moved = Vec::with_capacity(cells.len());
        moved.extend(cells.iter().filter_map(|&(bucket, cell, place)| {
            let (line, wide) = place?;
            let bits = words.lines.line(line)?.get(cell.position as usize % 8);
            Some(Moved { hash: Word { bits, wide }.hash(self.seed), cell: cell.pack(), bucket })
        }));
        moved
    }

    /// One segment of another size with what was in a full one; nothing when that does not fit.
    fn refill(&mut self, full: Segment, class: u32, moved: &[Moved]) -> Option<Segment> {
        let fresh = self.fresh(class, full.depth)?;
        let fits = moved.iter().all(|moved| self.place(fresh, moved.hash, moved.cell));
        if !fits {
            self.buckets.give(fresh.line, fresh.class);
        }
        fits.then_some(fresh)
    }

    /// Two segments with what was in a full one: everything stays in the bucket of the same number. Nothing when that
    /// separates nothing, which only hashes that are all alike can bring about.
    fn halve(&mut self, full: Segment, moved: &[Moved]) -> Option<Vec<Segment>> {
        let upper = |moved: &Moved| usize::from((moved.hash << 8) >> (63 - full.depth) & 1 == 1);
        let above = moved.iter().filter(|moved| upper(moved) == 1).count();
        if above == 0 || above == moved.len() {
            return None;
        }
        let fresh = [self.fresh(full.class, full.depth + 1)?, self.fresh(full.class, full.depth + 1)?];
        let mut used = [[0usize; 1 << MAX_CLASS]; 2];
        for moved in moved {
            let (half, bucket) = (upper(moved), moved.bucket as usize);
            let slot = used[half][bucket];
            put(self.buckets.line(fresh[half].line + moved.bucket), slot, tag_of(moved.hash), moved.cell);
            used[half][bucket] = slot + 1;
        }
        Some(fresh.to_vec())
    }

    /// Points the directory at the successors of a segment.
    fn turn(&mut self, full: Segment, fresh: &[Segment], hash: u64) {
        let shard = shard_of(hash);
        let depth = |directory: &[AtomicU64]| directory.len().trailing_zeros();
        if fresh.len() == 2 && depth(&self.directories[shard]) == full.depth {
            let old = self.directories[shard].clone();
            let copy = |i: usize| AtomicU64::new(old[i / 2].load(Ordering::Relaxed));
            let doubled: Arc<[AtomicU64]> = (0..old.len() * 2).map(copy).collect();
            let mut directories = Directories::clone(&self.directories);
            directories[shard] = doubled;
            self.directories = Arc::new(directories);
            self.turned = true;
            for entry in old.iter() {
                entry.store(GONE, Ordering::Release);
            }
        }
        let directory = &self.directories[shard];
        // The entries that shared the full segment lie side by side.
        let span = 1usize << (depth(directory) - full.depth);
        let start = index_in(directory, hash) & !(span - 1);
        for (i, entry) in directory[start..start + span].iter().enumerate() {
            let successor = if fresh.len() == 2 && i >= span / 2 { fresh[1] } else { fresh[0] };
            entry.store(successor.pack(), Ordering::Release);
        }
    }
}
