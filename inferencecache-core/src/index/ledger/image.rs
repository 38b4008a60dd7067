//! Pages copied out of a partition, and put back into an empty one.
//!
//! A page comes back as it was, so that chains lie in order again. What it is filed under is made anew: with no uses,
//! which is where every victim order may begin.

use std::sync::Arc;

use crate::index::arena::NIL;
use crate::index::books::Change;
use crate::index::image::codec::{PageImage, Put, put_record, put_shape};
use crate::index::ledger::Ledger;
use crate::index::ledger::place::Run;
use crate::index::page::{Fields, Tokens};
use crate::index::store::{Ground, bits};
use crate::index::table::Word;
use crate::time::Micros;

/// Bytes of pages after which a copy pauses.
const SLICE_BYTES: usize = 64 << 10;
/// Pages it looks at before.
const SLICE_PAGES: u32 = 4096;

/// Pages copied out. Reused.
#[derive(Debug, Default)]
pub(in crate::index) struct Copied {
    /// The holders; records name them by number.
    pub(in crate::index) replicas: Vec<Arc<str>>,
    pub(in crate::index) pages: Vec<u8>,
    pub(in crate::index) entries: u64,
    /// Slot → number of its replica.
    numbers: Vec<u32>,
}

impl Copied {
    pub(in crate::index) fn clear(&mut self) {
        self.replicas.clear();
        self.pages.clear();
        self.numbers.clear();
        self.entries = 0;
    }
}

/// One replica while its pages come back.
#[derive(Debug)]
struct Owner {
    slot: u32,
    holds: u64,
    /// The last page it was noted in, and its counters there.
    page: u32,
    counters: u32,
}

/// What has come back so far of one frame.
#[derive(Debug)]
pub(in crate::index) struct Restored {
    owners: Vec<Owner>,
    keys: u64,
    no_room: u32,
    /// Scratch: the times of a page's records.
    times: Vec<Micros>,
}

/// The new page, which positions of it were put there, and those that were found elsewhere with where.
type Placed = (Option<u32>, u64, Vec<(u32, (u32, u32))>);

impl Restored {
    pub(in crate::index) fn of(slots: impl Iterator<Item = u32>) -> Self {
        let owners = slots.map(|slot| Owner { slot, holds: 0, page: NIL, counters: NIL }).collect();
        Self { owners, keys: 0, no_room: 0, times: Vec::new() }
    }
}

impl Ledger {
    /// Copies pages from this number on. Yields the one to go on with.
    pub(in crate::index) fn copy(&self, from: u32, to: &mut Copied) -> Option<u32> {
        to.numbers.resize(self.slots.len(), NIL);
        let end = self.store.end();
        for page in from..end.min(from.saturating_add(SLICE_PAGES)) {
            self.copy_page(page, to);
            if to.pages.len() >= SLICE_BYTES {
                return Some(page + 1);
            }
        }
        Some(from.saturating_add(SLICE_PAGES)).filter(|&next| next < end)
    }

    fn copy_page(&self, page: u32, to: &mut Copied) {
        let head = self.store.head(page);
        if head.live() == 0 {
            return;
        }
        // What is hidden already does not come back.
        let holder = |slot: u32| self.slots.get(slot as usize)?.as_ref().filter(|slot| !slot.cleared);
        let records = || self.store.records(page).filter(|record| holder(record.slot()).is_some());
        let (held, number) = records().fold((0, 0), |(held, number), record| (held | record.mask(), number + 1));
        if held == 0 {
            return;
        }
        let (wide, counted) = (head.wide(), head.counted());
        put_shape(&mut to.pages, wide, counted, held);
        for position in bits(held) {
            let word = self.store.word(page, position).map_or(0, |word| word.bits);
            if wide {
                to.pages.put_bytes(self.wide.get(&word).map_or(&[][..], |hash| &hash[..]));
            } else {
                to.pages.extend_from_slice(&word.to_ne_bytes());
            }
        }
        to.pages.put_u32(number);
        for record in records() {
            let Some(number) = to.numbers.get_mut(record.slot() as usize) else { continue };
            if *number == NIL
                && let Some(slot) = holder(record.slot())
            {
                *number = u32::try_from(to.replicas.len()).unwrap_or(NIL);
                to.replicas.push(slot.replica.id.clone());
            }
            let mask = record.mask();
            put_record(&mut to.pages, (mask, record.seen()), *number, record.tier(), record.tokens());
            if counted {
                for position in bits(mask) {
                    let uses = self.store.uses(record.counters(), position);
                    to.pages.put_u32(u32::try_from(uses).unwrap_or(u32::MAX));
                }
            }
            to.entries += u64::from(mask.count_ones());
        }
    }

    /// Puts a page back. Blocks that are stored already stay where they are.
    pub(in crate::index) fn restore(&mut self, image: &PageImage<'_>, restored: &mut Restored) {
        let Some(owner) = image.records.first().and_then(|first| restored.owners.get(first.replica as usize)) else {
            return;
        };
        let first = owner.slot;
        let mut ground = self.slot_at(first).map(|slot| std::mem::take(&mut slot.ground)).unwrap_or_default();
        let (page, fresh, elsewhere) = self.restore_words(image, &mut ground, restored);
        match self.slot_at(first) {
            Some(slot) => slot.ground = ground,
            None => self.store.leave(ground),
        }
        if let Some(page) = page {
            self.restore_records(page, fresh, image, restored);
        }
        for (position, (page, there)) in elsewhere {
            for record in image.records.iter().filter(|record| record.mask >> position & 1 == 1) {
                let Some(owner) = restored.owners.get_mut(record.replica as usize) else { continue };
                let tokens = Tokens::flat(record.tokens.at(position));
                let run = Run { page, mask: 1 << there, new: 0, tokens, tier: record.tier };
                owner.holds += u64::from(self.hold(page, owner.slot, &run, record.seen));
            }
        }
    }

    /// The new page with the words in it, which those are, and where the others were found.
    fn restore_words(&mut self, image: &PageImage<'_>, ground: &mut Ground, restored: &mut Restored) -> Placed {
        let narrow = bits(image.held).filter_map(|position| Word::narrow(image.words[position as usize]));
        std::hint::black_box(narrow.fold(0, |sum, word| sum ^ self.store.touch(self.store.hash(word))));
        let page = self.store.new_page(image.wide, image.counted, ground);
        let (mut fresh, mut elsewhere) = (0, Vec::new());
        for position in bits(image.held) {
            let hash = image.words[position as usize];
            let known = self.shared.word(hash).and_then(|word| self.store.find(word, self.store.hash(word)));
            if let Some(known) = known {
                elsewhere.push((position, known));
                continue;
            }
            let word = Word::narrow(hash).unwrap_or_else(|| self.new_wide(hash));
            let hash = self.store.hash(word);
            if page.is_some_and(|page| self.store.put(page, position, word, hash, ground)) {
                fresh |= 1 << position;
            } else {
                self.forget_wide(word);
                restored.no_room += 1;
            }
        }
        if fresh == 0
            && let Some(page) = page
        {
            self.store.give_page(page);
        }
        (page.filter(|_| fresh != 0), fresh, elsewhere)
    }

    fn restore_records(&mut self, page: u32, fresh: u64, image: &PageImage<'_>, restored: &mut Restored) {
        restored.times.clear();
        self.counting |= image.counted;
        let mut held = 0;
        for record in &image.records {
            let mask = record.mask & fresh;
            let Some(owner) = restored.owners.get_mut(record.replica as usize).filter(|_| mask != 0) else { continue };
            if owner.page != page {
                owner.counters = if image.counted { self.store.new_counters() } else { NIL };
            }
            self.store.want_counters(owner.counters, mask);
            let (seen, slot, tier, tokens) = (record.seen, owner.slot, record.tier, record.tokens);
            let fields = Fields { mask, seen, slot, tier, tokens, uses: 0, counters: owner.counters };
            if !self.store.push(page, &fields) {
                restored.no_room += mask.count_ones();
                if owner.page != page {
                    self.store.drop_counters(owner.counters);
                }
                continue;
            }
            for (position, uses) in record.uses().filter(|&(position, _)| mask >> position & 1 == 1) {
                self.store.set_uses(owner.counters, position, uses);
            }
            held |= mask;
            restored.times.push(seen);
            owner.holds += u64::from(mask.count_ones());
            if owner.page != page {
                owner.page = page;
                self.post(page, slot);
            }
            if let Some(slot) = self.slot_at(slot) {
                slot.newest = if slot.holds == 0 { Some(seen) } else { slot.newest.map(|newest| newest.max(seen)) };
                slot.holds += u64::from(mask.count_ones());
            }
        }
        restored.times.sort_unstable();
        restored.times.dedup();
        for &seen in &restored.times {
            self.order.insert((0, seen), page);
        }
        restored.keys += u64::from(held.count_ones());
        for position in bits(fresh & !held) {
            let word = self.store.word(page, position);
            self.store.take_out(page, position);
            if let Some(word) = word {
                self.forget_wide(word);
            }
        }
    }

    /// Books what has come back.
    pub(in crate::index) fn end_restore(&mut self, restored: &Restored, change: &mut Change) {
        self.keys += restored.keys;
        change.no_room += restored.no_room;
        let mut keys = i64::try_from(restored.keys).unwrap_or(i64::MAX);
        for owner in &restored.owners {
            let Some(slot) = self.slots.get(owner.slot as usize).and_then(Option::as_ref) else { continue };
            let holds = i64::try_from(owner.holds).unwrap_or(i64::MAX);
            self.books.book(&slot.replica, &slot.served, holds, std::mem::take(&mut keys), change);
            if slot.holds == 0 {
                change.turned.push((slot.replica.clone(), slot.served.clone()));
                self.free_slot(owner.slot);
            }
        }
    }
}
