//! The orders of a partition: by use count and age for TTL and cap, and of whole prefixes by age for quotas.

use std::collections::HashMap;

use crate::index::books::Change;
use crate::index::ledger::Ledger;
use crate::index::order::{Order, Rank, Seat, Ties};
use crate::index::page::Record;
use crate::index::store::bits;
use crate::resolve::Eviction;
use crate::time::Micros;

/// Prefixes by the newest `last_seen` of their holders: tickets of pages, and for each page which positions have which
/// age.
#[derive(Debug, Default)]
pub(super) struct Ages {
    order: Order,
    of: HashMap<u32, Vec<(Micros, u64)>, foldhash::fast::RandomState>,
    ties: Ties,
}

impl Ledger {
    // === the cap ===

    /// A lower bound of (uses, last_seen) over the entries; exact but for credits.
    pub(in crate::index) fn victim_bound(&self) -> Option<Rank> {
        self.order.first().map(|(rank, _)| rank)
    }

    /// Removes up to `limit` entries of this rank, which is the bound, in the order of their names. Entries that have
    /// been credited since are filed anew instead.
    pub(in crate::index) fn remove_victims(&mut self, rank: Rank, limit: u32, change: &mut Change) {
        let mut left = limit;
        while left > 0 && self.victim_bound() == Some(rank) {
            let Some((page, position)) = self.first_tie(rank) else { return };
            let counted = self.store.head(page).counted();
            let holders = (0u32..).zip(self.store.records(page));
            let of_rank = holders.filter(|(_, record)| has(*record, counted, rank, position));
            let first = of_rank.min_by(|(_, a), (_, b)| self.id_of(a.slot()).cmp(self.id_of(b.slot())));
            let Some((index, record)) = first else { return };
            let slot = record.slot();
            if counted && self.eviction == Eviction::Lfu {
                let uses = self.store.uses(record.counters(), position);
                if uses > rank.0 {
                    self.refile(page, index, position, uses);
                    continue;
                }
            }
            self.remove(page, slot, 1 << position, change);
            left -= 1;
        }
    }

    /// The block with the smallest hash among those that have an entry of this rank, which is the first one.
    fn first_tie(&mut self, rank: Rank) -> Option<(u32, u32)> {
        for filled in [false, true] {
            if filled {
                let mut seats = Vec::new();
                for page in self.order.pages(rank) {
                    let counted = self.store.head(page).counted();
                    let of_rank = self.store.records(page).filter(|record| ranks(*record, counted, rank));
                    self.seat(page, of_rank.fold(0, |mask, record| mask | record.mask()), &mut seats);
                }
                self.ties.fill(rank, seats);
            }
            while self.ties.are_of(rank)
                && let Some(seat) = self.ties.first()
            {
                let (page, position) = (seat.page, seat.position);
                let counted = self.store.head(page).counted();
                let there = self.store.head(page).live() >> position & 1 == 1
                    && self.store.word(page, position).is_some_and(|word| self.key_of(word) == seat.hash)
                    && self.store.records(page).any(|record| has(record, counted, rank, position));
                if there {
                    return Some((page, position));
                }
                self.ties.pop();
            }
        }
        None
    }

    fn seat(&self, page: u32, mask: u64, seats: &mut Vec<Seat>) {
        for position in bits(mask) {
            if let Some(word) = self.store.word(page, position) {
                seats.push(Seat { hash: self.key_of(word), page, position });
            }
        }
    }

    /// Adopts a victim order. Without counts, everything counts 0; with them, 0 is where everything begins.
    pub(in crate::index) fn set_eviction(&mut self, eviction: Eviction) {
        if eviction == self.eviction {
            return;
        }
        self.eviction = eviction;
        if eviction == Eviction::Lru && self.counting {
            let mut tickets = Vec::new();
            for page in self.store.pages() {
                let counted = self.store.head(page).counted();
                tickets.push((page, self.store.records(page).map(|record| record.seen()).collect::<Vec<_>>()));
                if counted {
                    self.store.records(page).for_each(|record| record.forget_uses());
                }
            }
            self.order = Order::of(tickets.iter().flat_map(|(page, seen)| seen.iter().map(|&seen| ((0, seen), *page))));
            self.ties.forget();
        }
    }

    // === TTL ===

    /// Removes about `limit` entries that have outlived `ttl`. Says whether there may be more.
    pub(in crate::index) fn expire(&mut self, now: Micros, ttl: Micros, limit: u32, change: &mut Change) -> bool {
        let mut next = self.order.first();
        while let Some((rank, page)) = next {
            if change.gone >= limit {
                return true;
            }
            if now.saturating_sub(rank.1) >= ttl {
                let counted = self.store.head(page).counted();
                let first = self.store.records(page).find(|record| ranks(*record, counted, rank));
                match first.map(|record| (record.slot(), record.mask())) {
                    Some((slot, mask)) => self.remove(page, slot, mask, change),
                    None => self.order.remove(rank, page),
                }
                next = self.order.from(rank, page);
            } else {
                // The others with as many uses are younger.
                next = rank.0.checked_add(1).and_then(|uses| self.order.from((uses, Micros::MIN), 0));
            }
        }
        false
    }

    // === quotas ===

    /// Starts or stops keeping prefixes in order of age.
    pub(in crate::index) fn keep_ages(&mut self, keep: bool) {
        if keep == self.ages.is_some() {
            return;
        }
        self.ages = None;
        if keep {
            let of: HashMap<_, _, _> = self.store.pages().map(|page| (page, self.ages_in(page))).collect();
            let tickets = of.iter().flat_map(|(&page, ages)| ages.iter().map(move |&(age, _)| ((0, age), page)));
            let order = Order::of(tickets);
            self.ages = Some(Ages { order, of, ties: Ties::default() });
        }
    }

    /// The ages in a page and the positions that have them, youngest first.
    fn ages_in(&self, page: u32) -> Vec<(Micros, u64)> {
        let mut ages: Vec<(Micros, u64)> =
            self.store.records(page).map(|record| (record.seen(), record.mask())).collect();
        ages.sort_unstable_by_key(|&(seen, _)| std::cmp::Reverse(seen));
        let mut left = self.store.head(page).live();
        for (_, mask) in &mut ages {
            *mask &= left;
            left &= !*mask;
        }
        ages.retain(|&(_, mask)| mask != 0);
        ages.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            kept.1 |= if same { next.1 } else { 0 };
            same
        });
        ages
    }

    /// Keeps the ages of the pages that the operation has changed.
    pub(super) fn settle_ages(&mut self) {
        let Some(mut ages) = self.ages.take() else { return };
        for &page in self.store.changed() {
            let new = self.ages_in(page);
            let old = ages.of.remove(&page).unwrap_or_default();
            let before = |age: Micros| old.iter().find(|(other, _)| *other == age).map_or(0, |(_, mask)| *mask);
            for &(age, _) in old.iter().filter(|(age, _)| !new.iter().any(|(other, _)| other == age)) {
                ages.order.remove((0, age), page);
            }
            for &(age, mask) in &new {
                ages.order.insert((0, age), page);
                if ages.ties.want((0, age)) {
                    let mut seats = Vec::new();
                    self.seat(page, mask & !before(age), &mut seats);
                    seats.into_iter().for_each(|seat| ages.ties.offer(seat));
                }
            }
            if !new.is_empty() {
                ages.of.insert(page, new);
            }
        }
        self.ages = Some(ages);
    }

    pub(in crate::index) fn oldest_age(&self) -> Option<Micros> {
        self.ages.as_ref()?.order.first().map(|((_, age), _)| age)
    }

    /// Removes the prefix whose newest holder is the oldest, with all holds on it. False when there is none.
    pub(in crate::index) fn remove_oldest(&mut self, change: &mut Change) -> bool {
        let Some(mut ages) = self.ages.take() else { return false };
        let oldest = self.first_age(&mut ages);
        self.ages = Some(ages);
        let Some((page, position)) = oldest else { return false };
        let holders: Vec<u32> = self
            .store
            .records(page)
            .filter(|record| record.mask() >> position & 1 == 1)
            .map(|record| record.slot())
            .collect();
        for slot in holders {
            self.remove(page, slot, 1 << position, change);
        }
        true
    }

    fn first_age(&self, ages: &mut Ages) -> Option<(u32, u32)> {
        let (rank, _) = ages.order.first()?;
        let Ages { order, of, ties } = ages;
        let mask_of = |page: u32| {
            let of_page = of.get(&page).into_iter().flatten();
            of_page.filter(|(age, _)| *age == rank.1).fold(0, |mask, (_, positions)| mask | positions)
        };
        for filled in [false, true] {
            if filled {
                let mut seats = Vec::new();
                order.pages(rank).for_each(|page| self.seat(page, mask_of(page), &mut seats));
                ties.fill(rank, seats);
            }
            while ties.are_of(rank)
                && let Some(seat) = ties.first()
            {
                let (page, position) = (seat.page, seat.position);
                let there = mask_of(page) >> position & 1 == 1
                    && self.store.word(page, position).is_some_and(|word| self.key_of(word) == seat.hash);
                if there {
                    return Some((page, position));
                }
                ties.pop();
            }
        }
        None
    }
}

fn ranks(record: Record<'_>, counted: bool, rank: Rank) -> bool {
    record.seen() == rank.1 && (if counted { record.uses() } else { 0 }) == rank.0
}

fn has(record: Record<'_>, counted: bool, rank: Rank, position: u32) -> bool {
    ranks(record, counted, rank) && record.mask() >> position & 1 == 1
}
