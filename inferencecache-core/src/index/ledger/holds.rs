//! Records made, changed and removed: the only place that does.
//!
//! To change what a replica holds of a page, its positions are first taken out of the records they are in
//! ([`Ledger::detach`]) and then, unless they go for good, put into the record where they belong now
//! ([`Ledger::attach`]).

use crate::index::arena::NIL;
use crate::index::books::Change;
use crate::index::ledger::Ledger;
use crate::index::ledger::place::Run;
use crate::index::order::{Rank, Seat};
use crate::index::page::Fields;
use crate::index::store::bits;
use crate::time::Micros;

/// What was detached.
struct Detached {
    /// The positions that the replica did hold.
    mask: u64,
    /// The least use count that any of them was filed under.
    uses: u64,
    counters: u32,
    /// Whether the replica has other records in the page.
    others: bool,
    /// What other replicas hold.
    elsewhere: u64,
}

impl Ledger {
    /// Creates or refreshes the holds of `slot` on live positions of a page. Nobody holds those of `new`, and nobody did.
    /// Returns how many holds are new.
    pub(super) fn hold(&mut self, page: u32, slot: u32, run: &Run, seen: Micros) -> u32 {
        let Run { mask, new, tokens, tier, .. } = *run;
        self.store.lock(page);
        if mask == new && !self.store.head(page).counted() {
            return self.hold_new(page, slot, run, seen);
        }
        let before = self.slot_at(slot).map(|slot| (slot.newest, slot.holds)).unwrap_or_default();
        let old = self.detach(page, slot, mask);
        let fresh = mask & !old.mask;
        let known = old.mask != 0 || old.others;
        let uses = if fresh == 0 { old.uses } else { 0 };
        let counters = if known || !self.store.head(page).counted() { old.counters } else { self.store.new_counters() };
        if counters != NIL {
            self.store.want_counters(counters, mask);
        }
        self.attach(page, &Fields { mask, seen, slot, tier, tokens, uses, counters });
        let count = fresh.count_ones();
        if !known {
            self.post(page, slot);
        }
        if let Some(slot) = self.slot_at(slot) {
            slot.holds += u64::from(count);
            slot.newest = match before {
                (_, 0) => Some(seen),
                (Some(newest), _) if seen >= newest => Some(seen),
                // Either unknown before, or unknown now because the newest one has aged.
                _ => slot.newest,
            };
        }
        count
    }

    /// The same for blocks that are all new: nothing has to be taken out of other records. They join the last record of
    /// the page or become one.
    fn hold_new(&mut self, page: u32, slot: u32, run: &Run, seen: Micros) -> u32 {
        let Run { mask, tokens, tier, .. } = *run;
        let count = self.store.head(page).count();
        let last = count.checked_sub(1).map(|last| self.store.record(page, last));
        let own = last.filter(|record| record.slot() == slot);
        let known = own.is_some() || count > 1 && self.store.records(page).any(|record| record.slot() == slot);
        let alike = own.filter(|record| record.seen() == seen && record.tier() == tier);
        match alike.and_then(|record| Some((record, record.tokens().with(record.mask(), tokens, mask)?))) {
            Some((record, tokens)) => {
                record.set_mask(record.mask() | mask);
                record.set_tokens(tokens);
            }
            None => {
                self.store.push(page, &Fields { mask, seen, slot, tier, tokens, uses: 0, counters: NIL });
                self.order.insert((0, seen), page);
            }
        }
        self.tell_ties((0, seen), page, mask);
        if !known {
            self.post(page, slot);
        }
        let count = mask.count_ones();
        if let Some(slot) = self.slot_at(slot) {
            if slot.holds == 0 || slot.newest.is_some_and(|newest| seen >= newest) {
                slot.newest = Some(seen);
            }
            slot.holds += u64::from(count);
        }
        count
    }

    /// Removes the holds of `slot` on some positions of a page, and the keys that nobody else holds.
    pub(super) fn remove(&mut self, page: u32, slot: u32, mask: u64, change: &mut Change) {
        self.store.lock(page);
        let old = self.detach(page, slot, mask);
        if old.mask == 0 {
            return;
        }
        if old.counters != NIL {
            self.store.retire(old.counters, old.mask);
        }
        if !old.others {
            self.store.drop_counters(old.counters);
        }
        let dead = old.mask & !old.elsewhere;
        for position in bits(dead) {
            let word = self.store.word(page, position);
            self.store.take_out(page, position);
            if let Some(word) = word {
                self.forget_wide(word);
            }
        }
        let (holds, keys) = (old.mask.count_ones(), dead.count_ones());
        self.keys -= u64::from(keys);
        let Some(found) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        found.holds -= u64::from(holds);
        found.live -= usize::from(!old.others);
        self.books.book(&found.replica, &found.served, -i64::from(holds), -i64::from(keys), change);
        if found.holds == 0 {
            self.free_slot(slot);
        }
    }

    /// Removes the hold of a slot's replica on a hash, if it has one.
    pub(in crate::index) fn evict(&mut self, hash: &[u8], slot: u32, change: &mut Change) {
        if let Some(word) = self.shared.word(hash)
            && let Some((page, position)) = self.store.find(word, self.store.hash(word))
        {
            self.remove(page, slot, 1 << position, change);
        }
    }

    /// Files one entry under another use count.
    pub(super) fn refile(&mut self, page: u32, index: u32, position: u32, uses: u64) {
        self.store.lock(page);
        let fields = self.store.record(page, index).get(true);
        let newest = self.slot_at(fields.slot).and_then(|slot| slot.newest);
        self.detach(page, fields.slot, 1 << position);
        self.attach(page, &Fields { mask: 1 << position, uses, ..fields });
        if let Some(slot) = self.slot_at(fields.slot) {
            slot.newest = newest;
        }
    }

    /// Takes positions out of the records of a replica.
    fn detach(&mut self, page: u32, slot: u32, mask: u64) -> Detached {
        let mut own = std::mem::take(&mut self.own);
        own.clear();
        let counted = self.store.head(page).counted();
        let mut old = Detached { mask: 0, uses: u64::MAX, counters: NIL, others: false, elsewhere: 0 };
        for (index, record) in (0u32..).zip(self.store.records(page)) {
            if record.slot() == slot {
                own.push((index, record.get(counted)));
            } else {
                old.elsewhere |= record.mask();
            }
        }
        // From the end, so that the record which takes the number of a removed one has been seen already.
        for (index, fields) in own.iter().rev() {
            old.counters = fields.counters;
            let taken = fields.mask & mask;
            old.others |= taken != fields.mask;
            if taken == 0 {
                continue;
            }
            old.mask |= taken;
            old.uses = old.uses.min(fields.uses);
            if let Some(slot) = self.slot_at(slot).filter(|slot| slot.newest == Some(fields.seen)) {
                slot.newest = None;
            }
            if taken == fields.mask {
                self.store.drop_record(page, *index);
                self.untick(page, (fields.uses, fields.seen));
            } else {
                self.store.record(page, *index).set_mask(fields.mask & !taken);
            }
        }
        self.own = own;
        old
    }

    /// Puts positions that no record of this replica covers into the one where they belong.
    fn attach(&mut self, page: u32, new: &Fields) {
        let counted = self.store.head(page).counted();
        let rank = (new.uses, new.seen);
        let mut ticketed = false;
        let mut joined = false;
        for record in self.store.records(page) {
            let filed = if counted { record.uses() } else { 0 };
            if record.seen() != new.seen || filed != new.uses {
                continue;
            }
            ticketed = true;
            if record.slot() == new.slot
                && record.tier() == new.tier
                && let Some(tokens) = record.tokens().with(record.mask(), new.tokens, new.mask)
            {
                record.set_mask(record.mask() | new.mask);
                record.set_tokens(tokens);
                joined = true;
                break;
            }
        }
        if !joined {
            self.store.push(page, new);
        }
        if !ticketed {
            self.order.insert(rank, page);
        }
        self.tell_ties(rank, page, new.mask);
    }

    /// These blocks have joined a rank.
    fn tell_ties(&mut self, rank: Rank, page: u32, mask: u64) {
        if self.ties.want(rank) {
            for position in bits(mask) {
                if let Some(word) = self.store.word(page, position) {
                    self.ties.offer(Seat { hash: self.key_of(word), page, position });
                }
            }
        }
    }

    /// A record of this rank has gone: the page's ticket goes with the last one.
    fn untick(&mut self, page: u32, rank: Rank) {
        let counted = self.store.head(page).counted();
        let same =
            |record: crate::index::page::Record<'_>| record.seen() == rank.1 && (!counted || record.uses() == rank.0);
        if !self.store.records(page).any(same) {
            self.order.remove(rank, page);
        }
    }

    /// Notes that a replica has a record in a page.
    pub(super) fn post(&mut self, page: u32, number: u32) {
        let Some(slot) = self.slots.get_mut(number as usize).and_then(Option::as_mut) else { return };
        slot.pages.push(page);
        slot.live += 1;
        if slot.pages.len() > 2 * slot.live + 16 {
            slot.pages.sort_unstable();
            slot.pages.dedup();
            slot.pages.retain(|&page| self.store.records(page).any(|record| record.slot() == number));
        }
    }

    /// Gives the records of a page their counters.
    pub(in crate::index) fn count_page(&mut self, page: u32) {
        self.counting = true;
        let head = self.store.head(page);
        if head.counted() || head.live() == 0 {
            return;
        }
        let wide = head.wide();
        self.store.lock(page);
        let mut records = self.store.drain(page);
        self.store.head(page).set_shape(0, true, wide);
        for i in 0..records.len() {
            let earlier = records[..i].iter().find(|other| other.slot == records[i].slot).map(|other| other.counters);
            records[i].counters = earlier.unwrap_or_else(|| self.store.new_counters());
            self.store.want_counters(records[i].counters, records[i].mask);
            self.store.push(page, &records[i]);
        }
    }
}
