//! Where the blocks of a report are put.
//!
//! A block that is stored already stays where it is, and one that follows it in the report is looked for right behind it
//! before the table is asked. A new block goes behind the one before it, or behind the last block of the replica's last
//! report, if that place is free; otherwise it begins a page. So chains that arrive in order lie in order, however they
//! are cut into reports.

use crate::index::arena::NIL;
use crate::index::ledger::{Ledger, Made, Tail};
use crate::index::page::{POSITIONS, Tokens};
use crate::index::table::Word;
use crate::time::Micros;

/// How many blocks ahead the table is touched while new blocks arrive.
const AHEAD: usize = 8;
/// A page with fewer blocks than this is continued by a chain that has nothing to do with it.
const SHORT: u32 = 16;

/// One block of a report.
#[derive(Debug, Clone, Copy)]
pub(in crate::index) struct Block<'a> {
    pub(in crate::index) hash: &'a [u8],
    pub(in crate::index) tokens: i32,
    pub(in crate::index) tier: i32,
}

/// Positions of one page that will become one record.
struct Run {
    page: u32,
    mask: u64,
    tokens: Tokens,
    tier: i32,
}

impl Ledger {
    /// Creates or refreshes the holds of `slot` on these blocks, in order.
    pub(in crate::index) fn store(&mut self, slot: u32, seen: Micros, blocks: &[Block<'_>]) -> Made {
        let mut made = Made::default();
        let mut run: Option<Run> = None;
        let mut at: Option<(u32, u32)> = None;
        let mut touched = 0;
        for (number, block) in blocks.iter().enumerate() {
            let narrow = Word::narrow(block.hash);
            let known = match narrow {
                Some(word) => self.behind(at, word).or_else(|| {
                    let ahead = blocks.len().min(number + AHEAD);
                    let from = touched.max(number + 1);
                    if from < ahead {
                        let near = blocks[from..ahead].iter().filter_map(|block| Word::narrow(block.hash));
                        std::hint::black_box(near.fold(0, |sum, word| sum ^ self.store.touch(self.store.hash(word))));
                        touched = ahead;
                    }
                    self.store.find(word, self.store.hash(word))
                }),
                None => self.shared.word(block.hash).and_then(|word| self.store.find(word, self.store.hash(word))),
            };
            let place = known.or_else(|| {
                let word = narrow.unwrap_or_else(|| self.new_wide(block.hash));
                let place = self.put(slot, at, word, block.tokens);
                match place {
                    Some(_) => made.keys += 1,
                    None => self.forget_wide(word),
                }
                place
            });
            let Some((page, position)) = place else { continue };
            at = place;
            let (bit, tokens) = (1 << position, Tokens::flat(block.tokens));
            let joined = run.as_ref().filter(|run| run.page == page && run.tier == block.tier && run.mask & bit == 0);
            match joined.and_then(|run| run.tokens.with(run.mask, tokens, bit)) {
                Some(tokens) => {
                    if let Some(run) = &mut run {
                        run.mask |= bit;
                        run.tokens = tokens;
                    }
                }
                None => {
                    let next = Run { page, mask: bit, tokens, tier: block.tier };
                    if let Some(run) = run.replace(next) {
                        made.holds += self.hold(run.page, slot, run.mask, run.tokens, run.tier, seen);
                    }
                }
            }
        }
        if let Some(run) = run {
            made.holds += self.hold(run.page, slot, run.mask, run.tokens, run.tier, seen);
        }
        if let (Some((page, position)), Some(block)) = (at, blocks.last())
            && let Some(slot) = self.slot_at(slot)
        {
            slot.tail = Tail { page, position, tokens: block.tokens };
        }
        self.keys += u64::from(made.keys);
        made
    }

    /// The place right behind `at`, if this word is there.
    fn behind(&self, at: Option<(u32, u32)>, word: Word) -> Option<(u32, u32)> {
        let (page, position) = at.map(|(page, position)| (page, position + 1)).filter(|at| at.1 < POSITIONS)?;
        let live = self.store.head(page).live() >> position & 1 == 1;
        (live && self.store.word(page, position) == Some(word)).then_some((page, position))
    }

    /// Stores a new word.
    fn put(&mut self, slot: u32, at: Option<(u32, u32)>, word: Word, tokens: i32) -> Option<(u32, u32)> {
        let place = match at {
            Some((page, position)) => self.free(page, position + 1, word.wide),
            None => self.behind_tail(slot, word.wide, tokens),
        };
        let (page, position) = match place {
            Some(place) => place,
            None => (self.store.new_page(word.wide, self.counting)?, 0),
        };
        self.store.put(page, position, word, self.store.hash(word)).then_some((page, position))
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
