//! Where the blocks of a report are put.
//!
//! A block that is stored already stays where it is, and one that follows it in the report is looked for right behind it
//! before the table is asked. A new block goes behind the one before it, or behind the last block of the replica's last
//! report, if that place is free; otherwise it begins a page. So chains that arrive in order lie in order, however they
//! are cut into reports.

use crate::index::arena::NIL;
use crate::index::books::Change;
use crate::index::ledger::{Ledger, Tail};
use crate::index::page::{POSITIONS, Tokens};
use crate::index::table::Word;
use crate::time::Micros;

/// How many blocks ahead the table is touched at once while new blocks arrive.
const AHEAD: usize = 16;
/// A page with fewer blocks than this is continued by a chain that has nothing to do with it.
const SHORT: u32 = 16;

/// One block of a report.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::index) struct Block<'a> {
    pub(in crate::index) hash: &'a [u8],
    pub(in crate::index) tokens: i32,
    pub(in crate::index) tier: i32,
}

/// Positions of one page that will become one record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub(super) page: u32,
    pub(super) mask: u64,
    /// Those of them whose blocks nobody has held.
    pub(super) new: u64,
    pub(super) tokens: Tokens,
    pub(super) tier: i32,
}

impl Ledger {
    /// Creates or refreshes the holds of `slot` on these blocks, in order.
    pub(in crate::index) fn store(&mut self, slot: u32, seen: Micros, blocks: &[Block<'_>], change: &mut Change) {
        let (mut holds, mut keys) = (0, 0);
        let mut run: Option<Run> = None;
        let mut at: Option<(u32, u32)> = None;
        let mut touched = 0;
        for (number, block) in blocks.iter().enumerate() {
            let narrow = Word::narrow(block.hash);
            let hash = narrow.map_or(0, |word| self.store.hash(word));
            let known = match narrow {
                Some(word) => self.behind(at, word).or_else(|| {
                    if number >= touched {
                        touched = blocks.len().min(number + AHEAD);
                        self.touch(&blocks[number..touched]);
                    }
                    self.store.find(word, hash)
                }),
                None => self.shared.word(block.hash).and_then(|word| self.store.find(word, self.store.hash(word))),
            };
            let is_new = known.is_none();
            let place = known.or_else(|| {
                let word = narrow.unwrap_or_else(|| self.new_wide(block.hash));
                let hash = if word.wide { self.store.hash(word) } else { hash };
                let place = self.put(slot, at, (word, hash), block.tokens);
                match place {
                    Some(_) => keys += 1,
                    None => self.forget_wide(word),
                }
                place
            });
            let Some((page, position)) = place else {
                change.no_room += 1;
                continue;
            };
            at = place;
            let (bit, tokens) = (1 << position, Tokens::flat(block.tokens));
            let new = if is_new { bit } else { 0 };
            if let Some(run) = run.as_mut().filter(|run| run.page == page && run.tier == block.tier)
                && run.mask & bit == 0
                && let Some(tokens) = run.tokens.with(run.mask, tokens, bit)
            {
                (run.mask, run.new, run.tokens) = (run.mask | bit, run.new | new, tokens);
            } else {
                let next = Run { page, mask: bit, new, tokens, tier: block.tier };
                if let Some(run) = run.replace(next) {
                    holds += self.hold(run.page, slot, &run, seen);
                }
            }
        }
        if let Some(run) = run {
            holds += self.hold(run.page, slot, &run, seen);
        }
        self.keys += keys;
        let Some(found) = self.slots.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        if let (Some((page, position)), Some(block)) = (at, blocks.last()) {
            found.tail = Tail { page, position, tokens: block.tokens };
        }
        let keys = i64::try_from(keys).unwrap_or(i64::MAX);
        self.books.book(&found.replica, &found.served, i64::from(holds), keys, change);
        if found.holds == 0 {
            // There was no room for anything: the replica's count must not stay behind.
            change.turned.push((found.replica.clone(), found.served.clone()));
            self.free_slot(slot);
        }
    }

    /// Asks memory for what these blocks will need of the table.
    fn touch(&self, blocks: &[Block<'_>]) {
        let near = blocks.iter().filter_map(|block| Word::narrow(block.hash));
        std::hint::black_box(near.fold(0, |sum, word| sum ^ self.store.touch(self.store.hash(word))));
    }

    /// The place right behind `at`, if this word is there.
    fn behind(&self, at: Option<(u32, u32)>, word: Word) -> Option<(u32, u32)> {
        let (page, position) = at.map(|(page, position)| (page, position + 1)).filter(|at| at.1 < POSITIONS)?;
        let live = self.store.head(page).live() >> position & 1 == 1;
        (live && self.store.word(page, position) == Some(word)).then_some((page, position))
    }

    /// Stores a new word.
    fn put(&mut self, slot: u32, at: Option<(u32, u32)>, (word, hash): (Word, u64), tokens: i32) -> Option<(u32, u32)> {
        let place = match at {
            Some((page, position)) => self.free(page, position + 1, word.wide),
            None => self.behind_tail(slot, word.wide, tokens),
        };
        let ground = &mut self.slots.get_mut(slot as usize)?.as_mut()?.ground;
        let (page, position) = match place {
            Some(place) => place,
            None => (self.store.new_page(word.wide, self.counting, ground)?, 0),
        };
        self.store.put(page, position, word, hash, ground).then_some((page, position))
    }

    fn free(&self, page: u32, position: u32, wide: bool) -> Option<(u32, u32)> {
        let head = self.store.head(page);
        let is = position < POSITIONS && head.live() != 0 && head.live() >> position & 1 == 0 && head.wide() == wide;
        is.then_some((page, position))
    }

    /// Where the replica's next report goes on: behind its last one, if these tokens follow, or if the page has barely
    /// begun.
    fn behind_tail(&mut self, slot: u32, wide: bool, tokens: i32) -> Option<(u32, u32)> {
        let tail = self.slot_at(slot)?.tail;
        if tail.page == NIL {
            return None;
        }
        let live = self.store.head(tail.page).live();
        let end = POSITIONS - live.leading_zeros();
        if tokens > tail.tokens {
            // Only behind the block itself, or behind where it was.
            self.free(tail.page, tail.position + 1, wide)
        } else if end < SHORT {
            self.free(tail.page, end, wide)
        } else {
            None
        }
    }
}
