//! A hash table from 64-bit key words to entry indices: one writer, readers that never wait for it.
//!
//! ```text
//!  Directory (2^depth)        Segment (1 to 64 buckets)      Bucket (one cache line)
//!  ┌───┬───┬───┬───┐          ┌────────┬────────┬──          ┌─────────┬──────────┬─────────┐
//!  │ 0 │ 0 │ 1 │ 2 │ ──────>  │ bucket │ bucket │ …  ──────> │ version │ 5 values │ 5 words │
//!  └───┴───┴───┴───┘          └────────┴────────┴──          └─────────┴──────────┴─────────┘
//! ```
//!
//! A word lives in one of two buckets of one segment. A full segment doubles up to 64 buckets, then splits in two, so
//! that growth never copies more than a segment and the directory of pointers.
//!
//! How readers stay consistent without waiting: the writer makes a bucket's version odd before it changes anything that
//! is reached through the bucket (the slots and the entries behind them), and even again when the whole operation is
//! done. A reader notes each version it met and checks all of them at the end; if none moved, everything it read was
//! true at one instant. A segment that was replaced keeps odd versions for ever.
//!
//! Ordering: [`lock`](Op::lock) stores the odd version and then fences with Release before the data stores; readers load
//! the version with Acquire, the data Relaxed, fence with Acquire and load the version again. Commit stores with Release.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use arc_swap::ArcSwap;

/// Slots of a bucket: what fits into a cache line beside the version.
const SLOTS: usize = 5;
/// Buckets of a segment before it splits.
const MAX_BUCKETS: usize = 64;

#[derive(Debug)]
#[repr(align(64))]
struct Bucket {
    version: AtomicU32,
    /// Entry index plus 1; 0 is a free slot.
    values: [AtomicU32; SLOTS],
    words: [AtomicU64; SLOTS],
}

impl Bucket {
    fn new(version: u32) -> Self {
        Self {
            version: AtomicU32::new(version),
            values: [const { AtomicU32::new(0) }; SLOTS],
            words: [const { AtomicU64::new(0) }; SLOTS],
        }
    }

    fn find(&self, word: u64) -> Option<(usize, u32)> {
        (0..SLOTS).find_map(|slot| {
            if self.words[slot].load(Ordering::Relaxed) != word {
                return None;
            }
            let value = self.values[slot].load(Ordering::Relaxed);
            (value != 0).then(|| (slot, value - 1))
        })
    }

    fn free_slot(&self) -> Option<usize> {
        (0..SLOTS).find(|&slot| self.values[slot].load(Ordering::Relaxed) == 0)
    }

    fn put(&self, slot: usize, word: u64, value: u32) {
        self.words[slot].store(word, Ordering::Relaxed);
        self.values[slot].store(value + 1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(super) struct Segment {
    /// How many leading hash bits all its words share.
    depth: u32,
    buckets: Box<[Bucket]>,
    /// Replaced by a larger one or by two; its versions stay odd.
    retired: AtomicBool,
}

impl Segment {
    fn new(depth: u32, buckets: usize, version: u32) -> Self {
        Self { depth, buckets: (0..buckets).map(|_| Bucket::new(version)).collect(), retired: AtomicBool::new(false) }
    }

    /// The two buckets of a hash; the same one twice in a segment of one.
    fn homes(&self, hash: u64) -> (usize, usize) {
        let mask = self.buckets.len() - 1;
        #[expect(clippy::cast_possible_truncation, reason = "only the low bits are kept")]
        let (first, second) = (hash as usize & mask, (hash >> 20) as usize & mask);
        (first, if first == second { (first ^ 1) & mask } else { second })
    }

    fn words(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.buckets.iter().flat_map(|bucket| {
            (0..SLOTS).filter_map(|slot| {
                let value = bucket.values[slot].load(Ordering::Relaxed);
                (value != 0).then(|| (bucket.words[slot].load(Ordering::Relaxed), value - 1))
            })
        })
    }

    fn place(&self, hash: u64, word: u64, value: u32) -> Option<usize> {
        let (first, second) = self.homes(hash);
        for bucket in [first, second] {
            if let Some(slot) = self.buckets[bucket].free_slot() {
                self.buckets[bucket].put(slot, word, value);
                return Some(bucket);
            }
        }
        None
    }
}

/// Pointers on one page of the directory.
const PAGE: usize = 64;

/// One generation of the pointers to segments, in pages, so that a split copies one page and the list of pages.
#[derive(Debug)]
pub(super) struct Directory {
    depth: u32,
    pages: Vec<Arc<Vec<Arc<Segment>>>>,
}

impl Directory {
    fn new(depth: u32, segments: impl Iterator<Item = Arc<Segment>>) -> Self {
        let mut segments = segments.peekable();
        let mut pages = Vec::with_capacity((1usize << depth).div_ceil(PAGE));
        while segments.peek().is_some() {
            pages.push(Arc::new(segments.by_ref().take(PAGE).collect()));
        }
        Self { depth, pages }
    }

    fn index(&self, hash: u64) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "depth is far below 32")]
        let index = hash.checked_shr(64 - self.depth).unwrap_or(0) as usize;
        index
    }

    fn segment(&self, index: usize) -> &Arc<Segment> {
        &self.pages[index / PAGE][index % PAGE]
    }

    /// The directory with the pointers to `full` turned to its successors: one, or the lower and the upper half.
    fn replacing(&self, full: &Arc<Segment>, fresh: &[Arc<Segment>]) -> Self {
        let depth = if fresh.len() == 1 { self.depth } else { self.depth.max(full.depth + 1) };
        let successor = |index: usize| match fresh {
            [only] => only.clone(),
            halves => halves[index >> (depth - full.depth - 1) & 1].clone(),
        };
        if depth > self.depth {
            let doubled = (0..2usize << self.depth).map(|index| {
                let old = self.segment(index >> 1);
                if Arc::ptr_eq(old, full) { successor(index) } else { old.clone() }
            });
            return Self::new(depth, doubled);
        }
        let mut pages = self.pages.clone();
        for (number, page) in pages.iter_mut().enumerate() {
            if page.iter().any(|segment| Arc::ptr_eq(segment, full)) {
                let turned = page
                    .iter()
                    .enumerate()
                    .map(|(i, old)| if Arc::ptr_eq(old, full) { successor(number * PAGE + i) } else { old.clone() });
                *page = Arc::new(turned.collect());
            }
        }
        Self { depth, pages }
    }
}

/// A version that a reader met.
#[derive(Debug, Clone, Copy)]
pub(super) struct Read {
    segment: u32,
    bucket: u32,
    version: u32,
}

/// The reader met a bucket that is being written: it must start over.
#[derive(Debug)]
pub(super) struct Conflict;

/// Where a word is stored.
#[derive(Debug, Clone)]
pub(super) struct Place {
    segment: Arc<Segment>,
    bucket: usize,
    slot: usize,
    /// The entry index stored there.
    pub(super) value: u32,
}

/// One writer operation: the buckets it has locked so far, over all tables of a partition.
#[derive(Debug, Default)]
pub(super) struct Op {
    locked: Vec<(Arc<Segment>, u32)>,
}

impl Op {
    fn lock(&mut self, segment: &Arc<Segment>, bucket: usize) {
        let version = &segment.buckets[bucket].version;
        let seen = version.load(Ordering::Relaxed);
        if seen & 1 == 0 {
            version.store(seen.wrapping_add(1), Ordering::Relaxed);
            fence(Ordering::Release);
            #[expect(clippy::cast_possible_truncation, reason = "a segment has few buckets")]
            self.locked.push((segment.clone(), bucket as u32));
        }
    }

    /// Makes everything the operation did visible at once.
    pub(super) fn commit(&mut self) {
        for (segment, bucket) in self.locked.drain(..) {
            if !segment.retired.load(Ordering::Relaxed) {
                let version = &segment.buckets[bucket as usize].version;
                version.store(version.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
            }
        }
    }
}

/// The table. Only the holder of the index's writer lock may call the `&mut Op` methods.
#[derive(Debug)]
pub(super) struct Table {
    seed: u64,
    directory: ArcSwap<Directory>,
}

impl Table {
    pub(super) fn new(seed: u64) -> Self {
        let directory = Directory::new(0, std::iter::once(Arc::new(Segment::new(0, 1, 0))));
        Self { seed, directory: ArcSwap::from_pointee(directory) }
    }

    fn hash(&self, word: u64) -> u64 {
        // The finaliser of SplitMix64: a bijection, so distinct words keep distinct hashes, keyed against chosen words.
        let mut hash = word ^ self.seed;
        hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        hash ^ (hash >> 31)
    }

    // === for readers ===

    /// The pointers to read through; keep them for one attempt.
    pub(super) fn directory(&self) -> arc_swap::Guard<Arc<Directory>> {
        self.directory.load()
    }

    /// The entry index of `word`, noting the versions met.
    pub(super) fn read(
        &self,
        directory: &Directory,
        word: u64,
        reads: &mut Vec<Read>,
    ) -> Result<Option<u32>, Conflict> {
        let hash = self.hash(word);
        let index = directory.index(hash);
        let segment = directory.segment(index);
        let (first, second) = segment.homes(hash);
        for bucket in [first, second] {
            let cell = &segment.buckets[bucket];
            let version = cell.version.load(Ordering::Acquire);
            if version & 1 == 1 {
                return Err(Conflict);
            }
            #[expect(clippy::cast_possible_truncation, reason = "directories and segments are far smaller")]
            reads.push(Read { segment: index as u32, bucket: bucket as u32, version });
            if let Some((_, value)) = cell.find(word) {
                return Ok(Some(value));
            }
            if first == second {
                break;
            }
        }
        Ok(None)
    }

    /// Whether every version noted since is still what it was.
    pub(super) fn validate(directory: &Directory, reads: &[Read]) -> bool {
        fence(Ordering::Acquire);
        reads.iter().all(|read| {
            let segment = directory.segment(read.segment as usize);
            segment.buckets[read.bucket as usize].version.load(Ordering::Relaxed) == read.version
        })
    }

    // === for the writer ===

    /// Lets go of the memory of a table from which every word was removed.
    pub(super) fn reset(&self) {
        self.directory.store(Arc::new(Directory::new(0, std::iter::once(Arc::new(Segment::new(0, 1, 0))))));
    }

    /// Where `word` is stored.
    pub(super) fn find(&self, word: u64) -> Option<Place> {
        let hash = self.hash(word);
        let directory = self.directory.load();
        let segment = directory.segment(directory.index(hash));
        let (first, second) = segment.homes(hash);
        [first, second].into_iter().find_map(|bucket| {
            let (slot, value) = segment.buckets[bucket].find(word)?;
            Some(Place { segment: segment.clone(), bucket, slot, value })
        })
    }

    /// Locks the bucket at `place`: whatever is reached through it may change from now on.
    pub(super) fn touch(op: &mut Op, place: &Place) {
        op.lock(&place.segment, place.bucket);
    }

    /// Points a stored word at another entry.
    pub(super) fn set(op: &mut Op, place: &Place, value: u32) {
        Self::touch(op, place);
        place.segment.buckets[place.bucket].values[place.slot].store(value + 1, Ordering::Relaxed);
    }

    /// Forgets a stored word.
    pub(super) fn remove(op: &mut Op, place: &Place) {
        Self::touch(op, place);
        place.segment.buckets[place.bucket].values[place.slot].store(0, Ordering::Relaxed);
    }

    /// Stores a word that is not there yet.
    pub(super) fn insert(&self, op: &mut Op, word: u64, value: u32) {
        let hash = self.hash(word);
        loop {
            let directory = self.directory.load();
            let segment = directory.segment(directory.index(hash));
            let (first, second) = segment.homes(hash);
            for bucket in [first, second] {
                if let Some(slot) = segment.buckets[bucket].free_slot() {
                    op.lock(segment, bucket);
                    segment.buckets[bucket].put(slot, word, value);
                    return;
                }
            }
            self.grow(op, &directory, &segment.clone());
        }
    }

    fn grow(&self, op: &mut Op, directory: &Directory, full: &Arc<Segment>) {
        let words: Vec<(u64, u32)> = full.words().collect();
        let fresh = if full.buckets.len() < MAX_BUCKETS {
            vec![Arc::new(self.build(full.depth, full.buckets.len() * 2, &words))]
        } else {
            let bit = 63 - full.depth;
            let (upper, lower): (Vec<_>, Vec<_>) = words.iter().partition(|(word, _)| self.hash(*word) >> bit & 1 == 1);
            let half = |words: &[(u64, u32)]| Arc::new(self.build(full.depth + 1, MAX_BUCKETS, words));
            vec![half(&lower), half(&upper)]
        };
        // Readers of the replaced segment must start over, however late they look.
        full.retired.store(true, Ordering::Relaxed);
        for bucket in &full.buckets {
            let seen = bucket.version.load(Ordering::Relaxed);
            bucket.version.store(seen | 1, Ordering::Relaxed);
        }
        fence(Ordering::Release);
        // The new ones come locked: what this operation has already done must not show before the commit.
        for segment in &fresh {
            for bucket in 0..segment.buckets.len() {
                #[expect(clippy::cast_possible_truncation, reason = "a segment has few buckets")]
                op.locked.push((segment.clone(), bucket as u32));
            }
        }
        self.directory.store(Arc::new(directory.replacing(full, &fresh)));
    }

    /// A locked segment with these words in it, larger than asked for if they do not fit.
    fn build(&self, depth: u32, buckets: usize, words: &[(u64, u32)]) -> Segment {
        let segment = Segment::new(depth, buckets, 1);
        for &(word, value) in words {
            if segment.place(self.hash(word), word, value).is_none() {
                return self.build(depth, buckets * 2, words);
            }
        }
        segment
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn get(table: &Table, word: u64) -> Option<u32> {
        let directory = table.directory();
        let mut reads = Vec::new();
        let value = table.read(&directory, word, &mut reads).expect("nobody writes");
        assert!(Table::validate(&directory, &reads));
        value
    }

    #[test]
    fn grows_and_shrinks_like_a_map() {
        let table = Table::new(7);
        let mut model = HashMap::new();
        let mut op = Op::default();
        let mut word = 1u64;
        for step in 0..60_000u32 {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let key = word >> 50;
            match table.find(key) {
                Some(place) if step % 3 == 0 => {
                    assert_eq!(model.remove(&key), Some(place.value));
                    Table::remove(&mut op, &place);
                }
                Some(place) => {
                    assert_eq!(model.insert(key, step), Some(place.value));
                    Table::set(&mut op, &place, step);
                }
                None => {
                    assert_eq!(model.insert(key, step), None);
                    table.insert(&mut op, key, step);
                }
            }
            op.commit();
        }
        for key in 0..1 << 14 {
            assert_eq!(get(&table, key), model.get(&key).copied(), "word {key}");
        }
    }

    #[test]
    fn a_reader_that_met_an_old_version_is_told() {
        let table = Table::new(1);
        let mut op = Op::default();
        table.insert(&mut op, 5, 50);
        op.commit();
        let directory = table.directory();
        let mut reads = Vec::new();
        assert_eq!(table.read(&directory, 5, &mut reads).expect("quiet"), Some(50));
        let place = table.find(5).expect("stored");
        Table::set(&mut op, &place, 51);
        assert!(!Table::validate(&directory, &reads), "locked");
        assert!(table.read(&directory, 5, &mut Vec::new()).is_err(), "locked buckets cannot be read");
        op.commit();
        assert!(!Table::validate(&directory, &reads), "changed");
    }

    #[test]
    fn a_replaced_segment_invalidates_its_readers() {
        let table = Table::new(1);
        let mut op = Op::default();
        table.insert(&mut op, 1, 1);
        op.commit();
        let directory = table.directory();
        let mut reads = Vec::new();
        table.read(&directory, 1, &mut reads).expect("quiet");
        for word in 2..2000 {
            table.insert(&mut op, word, 9);
            op.commit();
        }
        assert!(!Table::validate(&directory, &reads));
        assert_eq!(get(&table, 1), Some(1));
    }
}
