//! From hashed words to cells: one writer, readers that never wait for it.
//!
//! ```text
//!  16 directories of uneven share     Segment (1 to 64 buckets)     Bucket (one cache line)
//!  ┌───┬───┬───┬───┐                  ┌────────┬────────┬──         ┌─────────┬─────────┬──────────┐
//!  │ 0 │ 0 │ 1 │ 2 │ ──────>          │ bucket │ bucket │ …  ─────> │ version │ 12 tags │ 12 cells │
//!  └───┴───┴───┴───┘                  └────────┴────────┴──         └─────────┴─────────┴──────────┘
//! ```
//!
//! A cell is a position of a page; there is the word itself, so a slot needs no more than a tag to tell most others
//! apart, and whoever follows a slot compares the whole word there. A word lives in one of two buckets of one segment. A
//! full segment doubles up to 64 buckets, then splits in two: growth never touches more than that. The directories have
//! uneven shares of the hashes, so that their segments fill up at different times and the table as a whole is always
//! about two thirds full.
//!
//! Versions: the writer makes a bucket's version odd before it changes a slot and even again when the whole operation is
//! done. Only a reader that found nothing needs them: it notes the versions and the directory entry and looks again at
//! the end. A reader that found its word relies on the version of the page it is in.

mod bucket;
mod grow;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::index::arena::{Arena, Chunks, Line};
use crate::index::page::Cells;
use crate::index::table::bucket::{
    cell_at, first_free, free_slots, marked, put, set_tag, set_version, slots_of, tag_at, version,
};

const SHARDS: usize = 16;
/// A directory that was replaced by a larger one says so in every entry.
const GONE: u64 = u64::MAX;

/// Which of the directories the top eight bits of a hash belong to: shares that grow by a sixteenth of an octave.
const SHARES: [u8; 256] = {
    let widths = [11, 12, 12, 13, 13, 14, 15, 15, 16, 17, 17, 18, 19, 20, 21, 23];
    let mut shares = [0; 256];
    let (mut at, mut shard) = (0, 0);
    while shard < SHARDS {
        let end = at + widths[shard];
        while at < end {
            #[expect(clippy::cast_possible_truncation, reason = "there are sixteen")]
            let number = shard as u8;
            shares[at] = number;
            at += 1;
        }
        shard += 1;
    }
    shares
};

/// The reader met something that is being written: it must start over.
#[derive(Debug)]
pub(super) struct Conflict;

/// The directories of one generation. Entries change in place until the directory doubles.
pub(super) type Directories = [Arc<[AtomicU64]>; SHARDS];

/// A 64-bit key: an 8-byte hash, or the stand-in of a hash of another length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Word {
    pub(super) bits: u64,
    pub(super) wide: bool,
}

impl Word {
    /// The word of a hash of 8 bytes: these bytes as they lie in memory.
    pub(super) fn narrow(hash: &[u8]) -> Option<Self> {
        Some(Self { bits: u64::from_ne_bytes(<[u8; 8]>::try_from(hash).ok()?), wide: false })
    }

    /// Where it belongs. Keyed against chosen words; a bijection of each kind, so distinct words keep distinct hashes.
    pub(super) fn hash(self, seed: u64) -> u64 {
        let mut hash = self.bits ^ if self.wide { !seed } else { seed };
        hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        hash ^ (hash >> 31)
    }
}

/// A directory entry: where a segment is, how large, and how many leading bits (after the shard's) its words share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Segment {
    line: u32,
    class: u32,
    depth: u32,
}

impl Segment {
    fn pack(self) -> u64 {
        1 << 48 | u64::from(self.depth) << 40 | u64::from(self.class) << 32 | u64::from(self.line)
    }

    #[expect(clippy::cast_possible_truncation, reason = "the parts are taken out one by one")]
    fn unpack(entry: u64) -> Option<Self> {
        let segment =
            Self { line: entry as u32, class: (entry >> 32) as u32 & 0xff, depth: (entry >> 40) as u32 & 0xff };
        (entry != 0 && entry != GONE).then_some(segment)
    }

    /// The two buckets of a hash; the same one twice in a segment of one.
    #[expect(clippy::cast_possible_truncation, reason = "only the low bits are kept")]
    fn homes(self, hash: u64) -> (u32, u32) {
        let mask = (1u32 << self.class) - 1;
        let (first, second) = (hash as u32 & mask, (hash >> 10) as u32 & mask);
        (self.line + first, self.line + if first == second { (first ^ 1) & mask } else { second })
    }
}

#[expect(clippy::cast_possible_truncation, reason = "eight bits of the hash")]
fn tag_of(hash: u64) -> u8 {
    ((hash >> 20) as u8).max(1)
}

fn shard_of(hash: u64) -> usize {
    SHARES[(hash >> 56) as usize] as usize
}

fn index_in(directory: &[AtomicU64], hash: u64) -> usize {
    let depth = directory.len().trailing_zeros();
    #[expect(clippy::cast_possible_truncation, reason = "directories are far smaller")]
    let index = (hash << 8).checked_shr(64 - depth).unwrap_or(0) as usize;
    index
}

// === readers ===

/// What a reader that found nothing has seen: true for as long as none of it changes.
#[derive(Debug)]
pub(super) struct Miss<'a> {
    slot: &'a AtomicU64,
    entry: u64,
    buckets: [Option<(&'a Line, u32)>; 2],
}

impl Miss<'_> {
    /// Whether it is still true. After a fence.
    pub(super) fn stands(&self) -> bool {
        self.slot.load(Ordering::Relaxed) == self.entry
            && self.buckets.iter().flatten().all(|(bucket, seen)| version(bucket, Ordering::Relaxed) == *seen)
    }
}

/// Where a hash belongs, on the way to finding out what is there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spot<'a> {
    slot: &'a AtomicU64,
    entry: u64,
    /// Its buckets; nothing where no segment is yet.
    homes: Option<[&'a Line; 2]>,
    tag: u8,
}

impl<'a> Spot<'a> {
    /// Reads the directory; a conflict when the buckets are younger than what this reader looks through.
    #[inline]
    pub(super) fn of(directories: &'a Directories, buckets: &'a Chunks, hash: u64) -> Result<Self, Conflict> {
        let directory = &directories[shard_of(hash)];
        let slot = &directory[index_in(directory, hash)];
        let entry = slot.load(Ordering::Acquire);
        if entry == GONE {
            return Err(Conflict);
        }
        let homes = match Segment::unpack(entry) {
            Some(segment) => {
                let (first, second) = segment.homes(hash);
                Some([buckets.line(first).ok_or(Conflict)?, buckets.line(second).ok_or(Conflict)?])
            }
            None => None,
        };
        Ok(Self { slot, entry, homes, tag: tag_of(hash) })
    }

    /// Asks memory for its buckets, so that they are near when they are needed.
    #[inline]
    pub(super) fn touch(&self) -> u64 {
        self.homes.map_or(0, |[first, second]| first.get(1) ^ second.get(1))
    }

    /// The first cell that may hold the word, unproven.
    #[inline]
    pub(super) fn first_cell(&self) -> Option<u32> {
        self.homes?
            .into_iter()
            .find_map(|bucket| slots_of(marked(bucket, self.tag)).next().map(|slot| cell_at(bucket, slot)))
    }

    /// Offers `check` each cell that may hold the word, until it takes one.
    #[inline]
    pub(super) fn probe<T>(
        &self,
        mut check: impl FnMut(u32) -> Result<Option<T>, Conflict>,
    ) -> Result<Result<T, Miss<'a>>, Conflict> {
        let mut miss = Miss { slot: self.slot, entry: self.entry, buckets: [None, None] };
        let Some(homes) = self.homes else { return Ok(Err(miss)) };
        // Both at once, so that the second is on its way when the first turns out to be the wrong one.
        let seen = homes.map(|bucket| version(bucket, Ordering::Acquire));
        let several = !std::ptr::eq(homes[0], homes[1]);
        for (number, bucket) in homes.into_iter().enumerate().take(1 + usize::from(several)) {
            for slot in slots_of(marked(bucket, self.tag)) {
                if let Some(found) = check(cell_at(bucket, slot))? {
                    return Ok(Ok(found));
                }
            }
            if seen[number] & 1 == 1 {
                return Err(Conflict);
            }
            miss.buckets[number] = Some((bucket, seen[number]));
        }
        Ok(Err(miss))
    }
}

// === the writer ===

/// The writer's side of the table.
#[derive(Debug)]
pub(super) struct Table {
    seed: u64,
    pub(super) buckets: Arena,
    directories: Arc<Directories>,
    /// Buckets that the operation in progress has locked.
    locked: Vec<u32>,
    /// A directory was replaced since readers were last told.
    pub(super) turned: bool,
}

impl Table {
    pub(super) fn new(seed: u64) -> Self {
        let empty = || Arc::from([AtomicU64::new(0)]);
        Self {
            seed,
            buckets: Arena::new(),
            directories: Arc::new(std::array::from_fn(|_| empty())),
            locked: Vec::new(),
            turned: true,
        }
    }

    pub(super) fn directories(&self) -> &Arc<Directories> {
        &self.directories
    }

    fn segment(&self, hash: u64) -> Option<Segment> {
        let directory = &self.directories[shard_of(hash)];
        Segment::unpack(directory[index_in(directory, hash)].load(Ordering::Relaxed))
    }

    /// Asks memory for the buckets of a hash, so that they are near when they are needed.
    pub(super) fn touch(&self, hash: u64) -> u64 {
        Spot::of(&self.directories, self.buckets.chunks(), hash).map_or(0, |spot| spot.touch())
    }

    /// The first cell of this hash that `is` takes.
    pub(super) fn find(&self, hash: u64, mut is: impl FnMut(u32) -> bool) -> Option<u32> {
        let segment = self.segment(hash)?;
        let (first, second) = segment.homes(hash);
        let tag = tag_of(hash);
        [first, second].into_iter().find_map(|bucket| {
            let bucket = self.buckets.line(bucket);
            let slots = slots_of(marked(bucket, tag)).filter(|&slot| tag_at(bucket, slot) == u64::from(tag));
            slots.map(|slot| cell_at(bucket, slot)).find(|&cell| is(cell))
        })
    }

    /// Stores a cell whose word is not there yet. False when there is no room for it in any way.
    pub(super) fn insert(&mut self, cells: Cells<'_>, hash: u64, cell: u32) -> bool {
        loop {
            let Some(segment) = self.segment(hash) else {
                if !self.found(hash) {
                    return false;
                }
                continue;
            };
            if self.place(segment, hash, cell) {
                return true;
            }
            if !self.grow(cells, segment, hash) {
                return false;
            }
        }
    }

    /// Forgets a cell.
    pub(super) fn remove(&mut self, hash: u64, cell: u32) {
        let Some(segment) = self.segment(hash) else { return };
        let (first, second) = segment.homes(hash);
        let tag = tag_of(hash);
        for line in [first, second] {
            let bucket = self.buckets.line(line);
            // A freed slot still shows its last cell.
            let is = |&slot: &usize| cell_at(bucket, slot) == cell && tag_at(bucket, slot) == u64::from(tag);
            if let Some(slot) = slots_of(marked(bucket, tag)).find(is) {
                self.lock(line);
                set_tag(self.buckets.line(line), slot, 0);
                return;
            }
        }
    }

    /// Lets readers rely on what the operation did.
    pub(super) fn commit(&mut self) {
        for line in self.locked.drain(..) {
            if let Some(bucket) = self.buckets.chunks().line(line) {
                let seen = version(bucket, Ordering::Relaxed);
                if seen & 1 == 1 {
                    set_version(bucket, seen.wrapping_add(1), Ordering::Release);
                }
            }
        }
    }

    fn lock(&mut self, line: u32) {
        let bucket = self.buckets.line(line);
        let seen = version(bucket, Ordering::Relaxed);
        if seen & 1 == 0 {
            set_version(bucket, seen.wrapping_add(1), Ordering::Relaxed);
            fence(Ordering::Release);
            self.locked.push(line);
        }
    }

    fn place(&mut self, segment: Segment, hash: u64, cell: u32) -> bool {
        let (first, second) = segment.homes(hash);
        let room = |line: u32| free_slots(self.buckets.line(line));
        let emptier = if room(first) >= room(second) { first } else { second };
        let Some(slot) = first_free(self.buckets.line(emptier)) else { return false };
        self.lock(emptier);
        put(self.buckets.line(emptier), slot, tag_of(hash), cell);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::index::page::Cell;

    /// A table over cells that are filled one after the other.
    struct World {
        table: Table,
        heads: Arena,
        lines: Arena,
        next: u32,
    }

    impl World {
        fn new() -> Self {
            Self { table: Table::new(7), heads: Arena::new(), lines: Arena::new(), next: 0 }
        }

        fn cells(&self) -> Cells<'_> {
            Cells { heads: self.heads.chunks(), lines: self.lines.chunks() }
        }

        fn insert(&mut self, bits: u64) -> u32 {
            let cell = Cell::unpack(self.next);
            if self.next.is_multiple_of(64) {
                assert_eq!(self.heads.take(1), Some(cell.page * 2));
                self.heads.line(cell.page * 2).set(3, 0);
            }
            if self.next.is_multiple_of(8) {
                let line = self.lines.take(0).expect("there are plenty");
                self.heads.line(cell.page * 2).set_half(8 + cell.position as usize / 8, line);
            }
            self.next += 1;
            self.cells().line(cell).expect("just taken").set(cell.position as usize % 8, bits);
            let Self { table, heads, lines, .. } = self;
            assert!(table.insert(Cells { heads: heads.chunks(), lines: lines.chunks() }, hash(bits), cell.pack()));
            self.table.commit();
            cell.pack()
        }

        fn get(&self, bits: u64) -> Option<u32> {
            let is = |cell| {
                let cell = Cell::unpack(cell);
                self.cells().line(cell).is_some_and(|line| line.get(cell.position as usize % 8) == bits)
            };
            let check = |cell| Ok(is(cell).then_some(cell));
            let spot = Spot::of(self.table.directories(), self.table.buckets.chunks(), hash(bits));
            match spot.and_then(|spot| spot.probe(check)) {
                Ok(Ok(cell)) => Some(cell),
                Ok(Err(miss)) => {
                    assert!(miss.stands());
                    None
                }
                Err(Conflict) => panic!("nobody writes"),
            }
        }
    }

    fn hash(bits: u64) -> u64 {
        Word { bits, wide: false }.hash(7)
    }

    #[test]
    fn it_holds_what_a_map_holds() {
        let mut world = World::new();
        let mut map = HashMap::new();
        let mut x = 1u64;
        for step in 0..60_000u64 {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let bits = x >> 48;
            if step % 3 == 2 {
                if let Some(cell) = map.remove(&bits) {
                    world.table.remove(hash(bits), cell);
                    world.table.commit();
                }
            } else {
                map.entry(bits).or_insert_with(|| world.insert(bits));
            }
        }
        for bits in 0..1 << 16 {
            assert_eq!(world.get(bits), map.get(&bits).copied(), "{bits}");
        }
    }

    #[test]
    fn a_miss_does_not_outlive_what_makes_it_wrong() {
        let mut world = World::new();
        for step in 0..3000 {
            let directories = world.table.directories().clone();
            let buckets = world.table.buckets.chunks().clone();
            let spot = Spot::of(&directories, &buckets, hash(step)).expect("nobody writes");
            let Ok(Err(miss)) = spot.probe::<u32>(|_| Ok(None)) else { panic!("nothing was accepted") };
            assert!(miss.stands());
            world.insert(step);
            assert!(!miss.stands(), "{step}");
        }
    }

    #[test]
    fn the_shares_cover_everything() {
        assert!((0..16).all(|shard| SHARES.contains(&shard)));
        assert!(SHARES.is_sorted());
    }
}
