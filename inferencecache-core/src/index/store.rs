//! The writer's side of pages: where blocks and records are put, and what is locked meanwhile.
//!
//! Nothing here knows replicas, orders or counts of anything; that is the ledger's.
//!
//! Ordering: [`Store::lock`] stores an odd version and fences with Release before anything behind the page changes;
//! [`Store::commit`] stores the even one with Release. Readers load it with Acquire, what is behind it Relaxed, fence with
//! Acquire and load it again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::index::arena::{Arena, MAX_CLASS, NIL, Strip};
use crate::index::page::{Cell, Cells, Fields, Head, Layout, MAX_PAGES, Record, Records, room};
use crate::index::table::{Table, Word};

/// Bits of a use count; above them the generation of its entry. A count that reaches its end stays there.
const COUNT_BITS: u32 = 32;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

/// Credits received by the entry of this counter.
pub(super) fn uses_of(counter: u64) -> u64 {
    counter & COUNT_MASK
}

/// The generation of this counter.
pub(super) fn generation_of(counter: u64) -> u32 {
    (counter >> COUNT_BITS) as u32
}

/// Adds 1 to a counter that is still in `generation`. Lock-free; against a successor in the same place the
/// compare-exchange alone is enough.
pub(super) fn credit(counter: &AtomicU64, generation: u32) {
    let mut seen = counter.load(Ordering::Relaxed);
    while generation_of(seen) == generation && uses_of(seen) != COUNT_MASK {
        match counter.compare_exchange_weak(seen, seen + 1, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return,
            Err(now) => seen = now,
        }
    }
}

/// Where a replica's new pages go: heads side by side, hash lines side by side.
#[derive(Debug, Default)]
pub(super) struct Ground {
    heads: Strip,
    lines: Strip,
    /// Pages that were begun here.
    pages: u32,
}

impl Ground {
    /// Pages to set memory aside for: an eighth of those there have been, up to eight.
    fn ahead(&self) -> u32 {
        (self.pages / 8).clamp(1, 8).ilog2()
    }
}

/// The memory of one partition.
#[derive(Debug)]
pub(super) struct Store {
    seed: u64,
    heads: Arena,
    lines: Arena,
    counts: Arena,
    table: Table,
    /// Pages that the operation in progress has locked.
    locked: Vec<u32>,
    /// One past the highest page there has been.
    pages: u32,
}

impl Store {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            seed,
            heads: Arena::of(MAX_PAGES * 2),
            lines: Arena::new(),
            counts: Arena::new(),
            table: Table::new(seed),
            locked: Vec::new(),
            pages: 0,
        }
    }

    // === operations ===

    /// What readers have to look through since this operation, if that has changed.
    pub(super) fn layout(&mut self) -> Option<Layout> {
        let Self { heads, lines, counts, table, .. } = self;
        let arenas = [&mut *heads, &mut *lines, &mut *counts, &mut table.buckets];
        let mut changed = std::mem::take(&mut table.turned);
        for arena in arenas {
            changed |= std::mem::take(&mut arena.grown);
        }
        changed.then(|| Layout {
            heads: heads.chunks().clone(),
            lines: lines.chunks().clone(),
            counts: counts.chunks().clone(),
            buckets: table.buckets.chunks().clone(),
            directories: table.directories().clone(),
        })
    }

    /// The pages that the operation has changed so far.
    pub(super) fn changed(&self) -> &[u32] {
        &self.locked
    }

    /// Makes everything the operation did visible at once. The layout must have been told before.
    pub(super) fn commit(&mut self) {
        self.table.commit();
        for page in self.locked.drain(..) {
            if let Some(head) = self.heads.chunks().line(page * 2) {
                let seen = head.get(0);
                if seen & 1 == 1 {
                    head.word(0).store(seen + 1, Ordering::Release);
                }
            }
        }
    }

    /// From here on the operation may change the page.
    pub(super) fn lock(&mut self, page: u32) {
        let head = self.heads.line(page * 2);
        let seen = head.get(0);
        if seen & 1 == 0 {
            head.set(0, seen + 1);
            fence(Ordering::Release);
            self.locked.push(page);
        }
    }

    // === blocks ===

    pub(super) fn head(&self, page: u32) -> Head<'_> {
        Head(self.heads.pair(page * 2))
    }

    /// Every page that holds something.
    pub(super) fn pages(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.pages).filter(|&page| self.head(page).live() != 0)
    }

    /// One past the highest page.
    pub(super) fn end(&self) -> u32 {
        self.pages
    }

    pub(super) fn hash(&self, word: Word) -> u64 {
        word.hash(self.seed)
    }

    /// Asks memory for the table's share of a word that will be looked for soon.
    pub(super) fn touch(&self, hash: u64) -> u64 {
        self.table.touch(hash)
    }

    fn cells(&self) -> Cells<'_> {
        Cells { heads: self.heads.chunks(), lines: self.lines.chunks() }
    }

    /// Where a word is stored: page and position.
    pub(super) fn find(&self, word: Word, hash: u64) -> Option<(u32, u32)> {
        let cells = self.cells();
        let is = |cell| {
            let cell = Cell::unpack(cell);
            cells.line(cell).is_some_and(|line| line.get(cell.position as usize % 8) == word.bits)
                && cells
                    .head(cell.page)
                    .is_some_and(|head| head.wide() == word.wide && head.live() >> cell.position & 1 == 1)
        };
        let cell = Cell::unpack(self.table.find(hash, is)?);
        Some((cell.page, cell.position))
    }

    /// The word at a position, whether live or not; nothing when the position has no line.
    pub(super) fn word(&self, page: u32, position: u32) -> Option<Word> {
        let head = self.head(page);
        let line = head.eighth(position / 8);
        (line != NIL).then(|| Word { bits: self.lines.line(line).get(position as usize % 8), wide: head.wide() })
    }

    /// An empty page, locked.
    pub(super) fn new_page(&mut self, wide: bool, counted: bool, ground: &mut Ground) -> Option<u32> {
        let ahead = ground.ahead();
        let line = self.heads.take_from(&mut ground.heads, 1, 1 + ahead)?;
        let page = line / 2;
        ground.pages = ground.pages.saturating_add(1);
        self.pages = self.pages.max(page + 1);
        self.lock(page);
        let head = self.head(page);
        head.set_live(0);
        head.set_extent(NIL);
        head.set_count(0);
        head.set_shape(0, counted, wide);
        (0..8).for_each(|eighth| head.set_eighth(eighth, NIL));
        Some(page)
    }

    /// Stores a new word at a position that is not live.
    pub(super) fn put(&mut self, page: u32, position: u32, word: Word, hash: u64, ground: &mut Ground) -> bool {
        self.lock(page);
        let eighth = position / 8;
        let mut line = self.head(page).eighth(eighth);
        if line == NIL {
            let ahead = ground.ahead();
            let Some(fresh) = self.lines.take_from(&mut ground.lines, 0, 3 + ahead) else { return false };
            line = fresh;
            self.head(page).set_eighth(eighth, line);
        }
        self.lines.line(line).set(position as usize % 8, word.bits);
        let cells = Cells { heads: self.heads.chunks(), lines: self.lines.chunks() };
        if !self.table.insert(cells, hash, Cell { page, position }.pack()) {
            return false;
        }
        let head = self.head(page);
        head.set_live(head.live() | 1 << position);
        true
    }

    /// Gives back what was set aside and not used.
    pub(super) fn leave(&mut self, ground: Ground) {
        self.heads.give_strip(ground.heads, 1);
        self.lines.give_strip(ground.lines, 0);
    }

    /// Gives back a new page into which nothing was put.
    pub(super) fn give_page(&mut self, page: u32) {
        for eighth in 0..8 {
            let line = self.head(page).eighth(eighth);
            if line != NIL {
                self.head(page).set_eighth(eighth, NIL);
                self.lines.give(line, 0);
            }
        }
        self.heads.give(page * 2, 1);
    }

    /// Forgets the word at a live position that nobody holds any more, and the page with the last one.
    pub(super) fn take_out(&mut self, page: u32, position: u32) {
        self.lock(page);
        let head = self.head(page);
        let (eighth, line) = (position / 8, head.eighth(position / 8));
        let bits = self.lines.line(line).get(position as usize % 8);
        let hash = Word { bits, wide: head.wide() }.hash(self.seed);
        self.table.remove(hash, Cell { page, position }.pack());
        let head = self.head(page);
        let live = head.live() & !(1 << position);
        head.set_live(live);
        if live >> (eighth * 8) & 0xff == 0 {
            head.set_eighth(eighth, NIL);
            self.lines.give(line, 0);
        }
        if live == 0 {
            self.heads.give(page * 2, 1);
        }
    }

    // === records ===

    /// The records of a page, and their number.
    pub(super) fn records(&self, page: u32) -> impl Iterator<Item = Record<'_>> {
        let mut records: Records<'_> = self.head(page).records(self.lines.chunks());
        std::iter::from_fn(move || records.next().ok().flatten())
    }

    /// Where the record of this number is: line and word.
    fn spot(&self, page: u32, index: u32) -> Record<'_> {
        let head = self.head(page);
        let (class, counted) = (head.class(), head.counted());
        let (mut extent, mut index) = (head.extent(), index);
        while index >= room(class, counted) {
            index -= room(class, counted);
            extent = self.lines.line(extent + (1 << class) - 1).half(15);
        }
        let (line, at) = if counted { (index, 0) } else { (index / 2, 4 * (index as usize & 1)) };
        let line = if class == 0 { &self.heads.pair(page * 2)[1] } else { self.lines.line(extent + line) };
        Record { line, at }
    }

    /// A record by number.
    pub(super) fn record(&self, page: u32, index: u32) -> Record<'_> {
        self.spot(page, index)
    }

    /// Adds a record at the end. False when memory has no number left for it.
    pub(super) fn push(&mut self, page: u32, fields: &Fields) -> bool {
        let head = self.head(page);
        let (count, class, counted) = (head.count(), head.class(), head.counted());
        if class == MAX_CLASS && count.is_multiple_of(room(class, counted)) {
            let Some(extent) = self.lines.take(class) else { return false };
            self.last_extent(page, count).set_half(15, extent);
        } else if class < MAX_CLASS && count == room(class, counted) && !self.resize(page, class + 1) {
            return false;
        }
        self.head(page).set_count(count + 1);
        self.spot(page, count).set(fields, counted);
        true
    }

    /// Removes a record; the last one takes its number.
    pub(super) fn drop_record(&mut self, page: u32, index: u32) {
        let head = self.head(page);
        let (class, counted, wide, last) = (head.class(), head.counted(), head.wide(), head.count() - 1);
        if index != last {
            let fields = self.spot(page, last).get(counted);
            self.spot(page, index).set(&fields, counted);
        }
        self.head(page).set_count(last);
        if last == 0 && class > 0 {
            let head = self.head(page);
            let extent = head.extent();
            head.set_extent(NIL);
            head.set_shape(0, counted, wide);
            self.lines.give(extent, class);
        } else if class == MAX_CLASS && last.is_multiple_of(room(class, counted)) {
            let extent = self.last_extent(page, last).half(15);
            self.lines.give(extent, class);
        } else if class > 0 && last <= room(class - 1, counted) / 2 {
            // If there is no memory to shrink into, it stays large.
            self.resize(page, class - 1);
        }
    }

    /// The last line of the extent that holds the record before number `count`.
    fn last_extent(&self, page: u32, count: u32) -> &crate::index::arena::Line {
        let head = self.head(page);
        let (class, room) = (head.class(), room(head.class(), head.counted()));
        let mut extent = head.extent();
        for _ in 1..count / room {
            extent = self.lines.line(extent + (1 << class) - 1).half(15);
        }
        self.lines.line(extent + (1 << class) - 1)
    }

    /// Moves the records, which fit into one extent of either class.
    fn resize(&mut self, page: u32, class: u32) -> bool {
        let extent = if class == 0 { Some(NIL) } else { self.lines.take(class) };
        let Some(extent) = extent else { return false };
        let head = self.head(page);
        let (old, was, counted, wide, count) = (head.extent(), head.class(), head.counted(), head.wide(), head.count());
        let lines = if counted { count } else { count.div_ceil(2) };
        for line in 0..lines {
            let from = if was == 0 { &head.0[1] } else { self.lines.line(old + line) };
            let to = if class == 0 { &head.0[1] } else { self.lines.line(extent + line) };
            (0..8).for_each(|word| to.set(word, from.get(word)));
        }
        head.set_extent(extent);
        head.set_shape(class, counted, wide);
        if was > 0 {
            self.lines.give(old, was);
        }
        true
    }

    /// All records of a page, taken out of it.
    pub(super) fn drain(&mut self, page: u32) -> Vec<Fields> {
        let counted = self.head(page).counted();
        let fields = self.records(page).map(|record| record.get(counted)).collect();
        while self.head(page).count() > 0 {
            self.drop_record(page, self.head(page).count() - 1);
        }
        fields
    }

    // === counters ===

    /// A new list of counters, without any yet.
    pub(super) fn new_counters(&mut self) -> u32 {
        let Some(line) = self.lines.take(0) else { return NIL };
        (0..8).for_each(|eighth| self.lines.line(line).set_half(eighth, NIL));
        line
    }

    /// Makes sure that there is a counter for each of these positions.
    pub(super) fn want_counters(&mut self, counters: u32, mask: u64) {
        if counters == NIL {
            return;
        }
        for eighth in (0..8).filter(|eighth| mask >> (8 * eighth) & 0xff != 0) {
            if self.lines.line(counters).half(eighth) == NIL
                && let Some(line) = self.counts.take(0)
            {
                self.lines.line(counters).set_half(eighth, line);
            }
        }
    }

    /// Forgets a list whose counters were all retired.
    pub(super) fn drop_counters(&mut self, counters: u32) {
        if counters == NIL {
            return;
        }
        for eighth in 0..8 {
            let line = self.lines.line(counters).half(eighth);
            if line != NIL {
                self.counts.give(line, 0);
            }
        }
        self.lines.give(counters, 0);
    }

    fn counter(&self, counters: u32, position: u32) -> Option<&AtomicU64> {
        let line = self.lines.chunks().line(counters)?.half(position as usize / 8);
        Some(self.counts.chunks().line(line)?.word(position as usize % 8))
    }

    pub(super) fn uses(&self, counters: u32, position: u32) -> u64 {
        self.counter(counters, position).map_or(0, |counter| uses_of(counter.load(Ordering::Relaxed)))
    }

    /// Sets the uses of an entry that nobody has captured yet.
    pub(super) fn set_uses(&self, counters: u32, position: u32, uses: u32) {
        if let Some(counter) = self.counter(counters, position) {
            let generation = u64::from(generation_of(counter.load(Ordering::Relaxed)));
            counter.store(generation << COUNT_BITS | u64::from(uses), Ordering::Relaxed);
        }
    }

    /// Starts the next generation of the counters at these positions, with no uses.
    pub(super) fn retire(&self, counters: u32, mask: u64) {
        for position in bits(mask) {
            if let Some(counter) = self.counter(counters, position) {
                let generation = generation_of(counter.load(Ordering::Relaxed)).wrapping_add(1);
                counter.store(u64::from(generation) << COUNT_BITS, Ordering::Relaxed);
            }
        }
    }
}

/// The positions of a mask, ascending.
pub(super) fn bits(mut mask: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let position = (mask != 0).then(|| mask.trailing_zeros());
        mask &= mask.wrapping_sub(1);
        position
    })
}

/// A layout in which there is nothing.
pub(super) fn empty_layout(seed: u64) -> Arc<Layout> {
    Arc::new(Store::new(seed).layout().expect("a new store has not been told yet"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::page::Tokens;

    fn fields(slot: u32) -> Fields {
        let tokens = Tokens { base: 16, step: 16 };
        Fields {
            mask: 1 << (slot % 64),
            seen: -i64::from(slot),
            slot,
            tier: -1,
            tokens,
            uses: u64::from(slot),
            counters: slot,
        }
    }

    /// One page with ever more and then ever fewer records, with and without counters.
    #[test]
    fn records_stay_what_they_were_while_their_number_changes() {
        for counted in [false, true] {
            let mut store = Store::new(1);
            let page = store.new_page(false, counted, &mut Ground::default()).expect("there is room");
            let mut model: Vec<u32> = Vec::new();
            let check = |store: &Store, model: &[u32]| {
                assert_eq!(store.records(page).count(), model.len());
                for (record, &slot) in store.records(page).zip(model) {
                    let (got, want) = (record.get(counted), fields(slot));
                    assert_eq!((got.mask, got.seen, got.slot, got.tier), (want.mask, want.seen, slot, -1));
                    assert_eq!(got.tokens, want.tokens);
                    assert!(!counted || (got.uses, got.counters) == (want.uses, slot));
                }
            };
            for slot in 0..700 {
                assert!(store.push(page, &fields(slot)));
                model.push(slot);
                if slot % 7 == 0 {
                    check(&store, &model);
                }
            }
            let mut x = 1u64;
            while !model.is_empty() {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let index = (x >> 33) as usize % model.len();
                model.swap_remove(index);
                store.drop_record(page, index as u32);
                if x >> 62 == 0 {
                    assert!(store.push(page, &fields(9)));
                    model.push(9);
                }
                if model.len().is_multiple_of(7) {
                    check(&store, &model);
                }
            }
        }
    }

    #[test]
    fn a_credit_never_reaches_the_next_generation() {
        let mut store = Store::new(1);
        let counters = store.new_counters();
        store.want_counters(counters, 1 << 9);
        let counter = store.counter(counters, 9).expect("wanted");
        credit(counter, 0);
        assert_eq!(store.uses(counters, 9), 1);
        store.retire(counters, 1 << 9);
        let counter = store.counter(counters, 9).expect("wanted");
        credit(counter, 0);
        assert_eq!(store.uses(counters, 9), 0);
        credit(counter, 1);
        assert_eq!(store.uses(counters, 9), 1);
    }
}
