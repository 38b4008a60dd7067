//! Pages as readers meet them: up to 64 blocks that arrived one after the other, and who holds which of them.
//!
//! ```text
//!  head (one line)                         hash lines            records
//!  ┌─────────┬──────┬─────────┬─────────┐  ┌───────────────┐     ┌──────┬───────────┬─────────────┬────────┐
//!  │ version │ live │ records │ 8 lines │─>│ 8 words each  │     │ mask │ last seen │ slot · tier │ tokens │ …
//!  └─────────┴──────┴─────────┴─────────┘  └───────────────┘     └──────┴───────────┴─────────────┴────────┘
//! ```
//!
//! * A page is a matter of locality: which blocks share one depends on the order of arrival, no answer depends on it.
//! * A *record* is a set of positions that one replica holds with the same last-seen time, tier and use count, and with
//!   tokens that grow by the same step. A replica has as many records as it takes; no two of them share a position.
//! * `live` marks the positions that anybody holds. A cell whose bit is clear holds nothing, whatever its word.
//! * In namespaces that count uses, records are twice as large and name the lines of their counters.
//! * The head's version guards all of this: odd while an operation changes the page. Heads are never anything else.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use crate::index::arena::{Chunks, Line, MAX_CLASS, NIL};
use crate::index::table::{Conflict, Directories, Miss, Spot, Word};
use crate::time::Micros;

/// Positions of a page.
pub(super) const POSITIONS: u32 = 64;
/// Pages of a partition: what a cell number has bits for. Few in this crate's own tests, so that they can use them up.
pub(super) const MAX_PAGES: u32 = if cfg!(test) { 1 << 10 } else { 1 << 26 };

/// What readers look through: one generation of everything that grows.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) heads: Arc<Chunks>,
    pub(super) lines: Arc<Chunks>,
    pub(super) counts: Arc<Chunks>,
    pub(super) buckets: Arc<Chunks>,
    pub(super) directories: Arc<Directories>,
}

/// Where a block is, as the table keeps it: a page, and one of its positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) page: u32,
    pub(super) position: u32,
}

impl Cell {
    pub(super) fn pack(self) -> u32 {
        self.page << 6 | self.position
    }

    pub(super) fn unpack(cell: u32) -> Self {
        Self { page: cell >> 6, position: cell & 63 }
    }
}

/// The words of one generation, by cell.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cells<'a> {
    pub(super) heads: &'a Chunks,
    pub(super) lines: &'a Chunks,
}

impl<'a> Cells<'a> {
    /// The head of a page.
    #[inline]
    pub(super) fn head(self, page: u32) -> Option<Head<'a>> {
        self.heads.pair(page * 2).map(Head)
    }

    /// The line in which the word of a cell is.
    #[inline]
    pub(super) fn line(self, cell: Cell) -> Option<&'a Line> {
        self.lines.line(self.head(cell.page)?.eighth(cell.position / 8))
    }
}

/// How the tokens of a record follow from the position: `base + step · position`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tokens {
    pub(super) base: i32,
    pub(super) step: i32,
}

impl Tokens {
    pub(super) fn flat(tokens: i32) -> Self {
        Self { base: tokens, step: 0 }
    }

    #[expect(clippy::cast_possible_truncation, reason = "a record is made only if all its tokens fit")]
    pub(super) fn at(self, position: u32) -> i32 {
        (i64::from(self.base) + i64::from(self.step) * i64::from(position)) as i32
    }

    /// One rule for both sets of positions, if there is one.
    pub(super) fn with(self, mask: u64, other: Self, others: u64) -> Option<Self> {
        let single = |mask: u64| mask.count_ones() == 1;
        let agrees = |rule: Self, tokens: Self, mask: u64| {
            let position = mask.trailing_zeros();
            rule.at(position) == tokens.at(position)
        };
        if self == other || single(others) && agrees(self, other, others) {
            return Some(self);
        }
        if single(mask) && agrees(other, self, mask) {
            return Some(other);
        }
        if single(mask) && single(others) {
            let (here, there) = (mask.trailing_zeros(), others.trailing_zeros());
            let rise = i64::from(other.at(there)) - i64::from(self.at(here));
            let run = i64::from(there) - i64::from(here);
            if run != 0 && rise % run == 0 {
                let step = i32::try_from(rise / run).ok()?;
                let base = i32::try_from(i64::from(self.at(here)) - i64::from(step) * i64::from(here)).ok()?;
                return Some(Self { base, step });
            }
        }
        None
    }
}

/// The head of a page. Words of the first line: version, live, records (first line | number), shape, lines of the
/// eighths. The second line is the extent of class 0: the first records, at hand for whoever looks at the page.
#[derive(Debug, Clone, Copy)]
pub(super) struct Head<'a>(pub(super) &'a [Line; 2]);

impl<'a> Head<'a> {
    pub(super) fn version(self) -> u64 {
        self.0[0].word(0).load(Ordering::Acquire)
    }
    pub(super) fn live(self) -> u64 {
        self.0[0].get(1)
    }
    /// First line of the records, unless their extent is of class 0.
    pub(super) fn extent(self) -> u32 {
        self.0[0].half(4)
    }
    /// Number of records.
    pub(super) fn count(self) -> u32 {
        self.0[0].half(5)
    }
    /// Size class of the records' first extent.
    pub(super) fn class(self) -> u32 {
        (self.0[0].half(6) & 0xff).min(MAX_CLASS)
    }
    /// Whether its records name counters.
    pub(super) fn counted(self) -> bool {
        self.0[0].half(6) & 0x100 != 0
    }
    pub(super) fn wide(self) -> bool {
        self.0[0].half(6) & 0x200 != 0
    }
    /// The hash line of an eighth; [`NIL`] when it has none.
    pub(super) fn eighth(self, eighth: u32) -> u32 {
        self.0[0].half(8 + eighth as usize)
    }

    /// The hash lines from an eighth on, as far as they lie side by side.
    #[inline]
    pub(super) fn words_from(self, eighth: u32, lines: &'a Chunks) -> Option<&'a [Line]> {
        let first = self.eighth(eighth);
        let most = (1..8 - eighth).find(|&next| self.eighth(eighth + next) != first.wrapping_add(next));
        lines.side_by_side(first, most.unwrap_or(8 - eighth) as usize)
    }

    pub(super) fn set_live(self, live: u64) {
        self.0[0].set(1, live);
    }
    pub(super) fn set_extent(self, line: u32) {
        self.0[0].set_half(4, line);
    }
    pub(super) fn set_count(self, count: u32) {
        self.0[0].set_half(5, count);
    }
    pub(super) fn set_shape(self, class: u32, counted: bool, wide: bool) {
        self.0[0].set_half(6, class | u32::from(counted) << 8 | u32::from(wide) << 9);
    }
    pub(super) fn set_eighth(self, eighth: u32, line: u32) {
        self.0[0].set_half(8 + eighth as usize, line);
    }

    /// Its records, through the lines of one generation.
    pub(super) fn records(self, lines: &'a Chunks) -> Records<'a> {
        let class = self.class();
        Records {
            lines,
            next: self.extent(),
            extent: if class == 0 { &self.0[1..] } else { &[] },
            class,
            counted: self.counted(),
            at: 0,
            room: room(class, self.counted()),
            left: self.count(),
        }
    }
}

/// Records that fit into an extent. The largest ones form a chain: their last word leads on.
pub(super) fn room(class: u32, counted: bool) -> u32 {
    let lines = (1 << class) - u32::from(class == MAX_CLASS);
    if counted { lines } else { lines * 2 }
}

/// One record. Words: mask, last seen, slot | tier, base | step; with counters also uses and the line of the counters.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record<'a> {
    pub(super) line: &'a Line,
    pub(super) at: usize,
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    reason = "halves of words, and signs kept as bits"
)]
impl Record<'_> {
    pub(super) fn mask(self) -> u64 {
        self.line.get(self.at)
    }
    pub(super) fn seen(self) -> Micros {
        self.line.get(self.at + 1) as i64
    }
    pub(super) fn slot(self) -> u32 {
        (self.line.get(self.at + 2) >> 32) as u32
    }
    pub(super) fn tier(self) -> i32 {
        self.line.get(self.at + 2) as i32
    }
    pub(super) fn tokens(self) -> Tokens {
        let word = self.line.get(self.at + 3);
        Tokens { base: (word >> 32) as i32, step: word as i32 }
    }
    /// The use count it is filed under: what each of its entries had at least. Only of a page with counters.
    pub(super) fn uses(self) -> u64 {
        self.line.get(self.at + 4)
    }
    /// The line that names its counters. Only of a page with counters.
    pub(super) fn counters(self) -> u32 {
        self.line.half((self.at + 5) * 2)
    }

    pub(super) fn set_mask(self, mask: u64) {
        self.line.set(self.at, mask);
    }
    pub(super) fn set_tokens(self, tokens: Tokens) {
        self.line.set(self.at + 3, (tokens.base as u32 as u64) << 32 | tokens.step as u32 as u64);
    }
    /// Files it under no uses. Only of a page with counters.
    pub(super) fn forget_uses(self) {
        self.line.set(self.at + 4, 0);
    }
    pub(super) fn set(self, fields: &Fields, counted: bool) {
        self.set_mask(fields.mask);
        self.line.set(self.at + 1, fields.seen as u64);
        self.line.set(self.at + 2, u64::from(fields.slot) << 32 | fields.tier as u32 as u64);
        self.set_tokens(fields.tokens);
        if counted {
            self.line.set(self.at + 4, fields.uses);
            self.line.set(self.at + 5, u64::from(fields.counters));
        }
    }
    pub(super) fn get(self, counted: bool) -> Fields {
        Fields {
            mask: self.mask(),
            seen: self.seen(),
            slot: self.slot(),
            tier: self.tier(),
            tokens: self.tokens(),
            uses: if counted { self.uses() } else { 0 },
            counters: if counted { self.counters() } else { NIL },
        }
    }
}

/// A record, taken out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields {
    pub(super) mask: u64,
    pub(super) seen: Micros,
    pub(super) slot: u32,
    pub(super) tier: i32,
    pub(super) tokens: Tokens,
    pub(super) uses: u64,
    pub(super) counters: u32,
}

/// Walks the records of a page. However torn the head was, it ends.
#[derive(Debug)]
pub(super) struct Records<'a> {
    lines: &'a Chunks,
    next: u32,
    extent: &'a [Line],
    class: u32,
    counted: bool,
    at: u32,
    room: u32,
    left: u32,
}

impl<'a> Records<'a> {
    /// How many are left.
    pub(super) fn left(&self) -> u32 {
        self.left
    }

    /// The next record; a conflict when its line is younger than what this reader looks through.
    pub(super) fn next(&mut self) -> Result<Option<Record<'a>>, Conflict> {
        if self.left == 0 {
            return Ok(None);
        }
        if self.extent.is_empty() || self.at == self.room {
            self.extent = self.lines.extent(self.next, self.class).ok_or(Conflict)?;
            self.next = self.extent.last().map_or(NIL, |line| line.half(15));
            self.at = 0;
        }
        let (line, at) = if self.counted { (self.at, 0) } else { (self.at / 2, 4 * (self.at & 1)) };
        let line = self.extent.get(line as usize).ok_or(Conflict)?;
        self.at += 1;
        self.left -= 1;
        Ok(Some(Record { line, at: at as usize }))
    }
}

/// Where a word is, and the version of its page at the time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found<'a> {
    pub(super) page: u32,
    pub(super) position: u32,
    pub(super) version: u64,
    pub(super) head: Head<'a>,
    /// The hash lines from the position's on, as far as they lie side by side.
    pub(super) words: &'a [Line],
}

impl Found<'_> {
    /// Asks memory for the words from here on, and for the page's first records.
    #[inline]
    pub(super) fn touch(&self) -> u64 {
        self.words.iter().fold(self.head.0[1].get(0), |sum, line| sum ^ line.get(0))
    }
}

impl Layout {
    pub(super) fn cells(&self) -> Cells<'_> {
        Cells { heads: &self.heads, lines: &self.lines }
    }

    /// Where a hash belongs.
    #[inline]
    pub(super) fn spot(&self, hash: u64) -> Result<Spot<'_>, Conflict> {
        Spot::of(&self.directories, &self.buckets, hash)
    }

    /// Where a word is stored, of all the words that belong to this spot.
    #[inline]
    pub(super) fn find<'a>(&'a self, word: Word, spot: &Spot<'a>) -> Result<Result<Found<'a>, Miss<'a>>, Conflict> {
        spot.probe(|cell| {
            let Cell { page, position } = Cell::unpack(cell);
            let head = self.cells().head(page).ok_or(Conflict)?;
            let number = head.eighth(position / 8);
            if number == NIL {
                return Ok(None);
            }
            let Some(line) = self.lines.line(number) else { return Err(Conflict) };
            let at = position as usize % 8;
            if line.get(at) != word.bits {
                return Ok(None);
            }
            let version = head.version();
            if version & 1 == 1 {
                return Err(Conflict);
            }
            // Now that the page's version is known: is the word really there?
            let there = head.eighth(position / 8) == number
                && head.live() >> position & 1 == 1
                && head.wide() == word.wide
                && line.get(at) == word.bits;
            if !there {
                return Ok(None);
            }
            let words = head.words_from(position / 8, &self.lines).ok_or(Conflict)?;
            Ok(Some(Found { page, position, version, head, words }))
        })
    }

    /// Asks memory for the page that is probably at a spot.
    #[inline]
    pub(super) fn touch_head(&self, spot: &Spot<'_>) -> u64 {
        let head = spot.first_cell().and_then(|cell| self.cells().head(cell >> 6));
        head.map_or(0, |Head([first, second])| first.get(1) ^ second.get(0))
    }

    /// Whether the pages that were read are still what they were.
    pub(super) fn unchanged(&self, reads: &[(u32, u64)]) -> bool {
        fence(Ordering::Acquire);
        let same = |&(page, version): &(u32, u64)| {
            self.heads.line(page * 2).is_some_and(|head| head.word(0).load(Ordering::Relaxed) == version)
        };
        reads.iter().all(same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_join_only_if_one_rule_gives_both() {
        let flat = Tokens::flat;
        let joined = flat(16).with(1, flat(32), 2).expect("a step of 16");
        assert_eq!((joined.at(0), joined.at(1), joined.at(2)), (16, 32, 48));
        assert_eq!(joined.with(3, flat(48), 4), Some(joined));
        assert_eq!(joined.with(3, flat(49), 4), None);
        assert_eq!(flat(1).with(1, flat(4), 4), None, "no whole step");
        assert_eq!(flat(7).with(3, flat(7), 4), Some(flat(7)));
        assert_eq!(flat(0).with(1 << 62, flat(i32::MAX), 1 << 63), None, "the base would not fit");
    }
}
