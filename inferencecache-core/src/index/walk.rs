//! One attempt at reading a partition: the exact read and the chain walk.
//!
//! The walk goes page by page: the table is asked where a hash is, the hashes behind it are compared with the words behind
//! that, and all replicas are moved along that stretch at once. Only where it ends is the table asked again. The pages of
//! a long chain are asked for several at a time, so that they do not wait for each other.
//!
//! Whatever an attempt yields counts only if nothing it met has changed at its end.

use std::sync::Arc;

use arc_swap::Guard;

use crate::index::arena::lines_alike;
use crate::index::lookup::Scratch;
use crate::index::page::{Found, Layout, POSITIONS, Record};
use crate::index::partition::Partition;
use crate::index::replicas::NameTable;
use crate::index::store::{bits, generation_of};
use crate::index::table::{Conflict, Miss, Spot, Word};
use crate::query::{Capture, HashList, Query};
use crate::time::Micros;

/// Records of one page before a reader makes sure that they are real.
const PATIENCE: u32 = 256;
/// Pages of a long chain that are looked up together.
const GUESSES: usize = 8;
/// Lifetimes up to this are exact in the arithmetic of freshness, which then comes down to comparing.
const EXACT_TTL: Micros = 1 << 52;

/// One replica's run along the chain.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) slot: u32,
    pub(super) matched: i32,
    pub(super) oldest: Micros,
    pub(super) tier: i32,
    /// How many blocks it is long.
    pub(super) depth: u32,
    /// Where its captures say it is.
    pub(super) capture: u32,
    stretch: Stretch,
}

/// What a replica holds of the stretch of a page that is being walked.
#[derive(Debug, Clone, Copy, Default)]
struct Stretch {
    /// Its blocks, the first one lowest.
    covered: u64,
    seen: Micros,
    tier: i32,
    /// Records they are in; if it is one, then with these figures.
    records: u32,
    /// How many of them continue the run.
    taken: u32,
}

impl Run {
    fn begin(slot: u32, capture: u32) -> Self {
        Self { slot, matched: 0, oldest: Micros::MAX, tier: i32::MIN, depth: 0, capture, stretch: Stretch::default() }
    }

    /// Goes on by so many blocks with so many tokens.
    #[inline]
    fn take(&mut self, taken: u32, tokens: i64) {
        self.stretch.taken = taken;
        self.matched = i32::try_from(i64::from(self.matched) + tokens).unwrap_or(i32::MAX);
        self.depth += taken;
    }

    #[inline]
    fn fold(&mut self, seen: Micros, tier: i32) {
        self.oldest = self.oldest.min(seen);
        self.tier = if self.tier == 0 || tier == 0 { 0 } else { self.tier.max(tier) };
    }
}

/// What stays the same over the attempts of one lookup.
#[derive(Debug)]
pub(super) struct Ask<'q> {
    pub(super) query: &'q Query<'q>,
    pub(super) now: Micros,
    pub(super) ttl: Micros,
    pub(super) capture: bool,
    /// All token counts are so small that those of a page can be added up in 32 bits.
    pub(super) small: bool,
}

/// Token counts below this are small.
pub(super) const SMALL: i32 = 1 << 24;

/// What is looked through.
struct View<'a> {
    partition: &'a Partition,
    layout: &'a Layout,
}

/// Where the next pages of a long chain probably begin.
struct Guesses<'v> {
    from: Option<usize>,
    found: [Option<Found<'v>>; GUESSES],
    /// Guesses that did not come true.
    wrong: u32,
}

impl<'v> Guesses<'v> {
    const PAGE: usize = POSITIONS as usize;

    fn none() -> Self {
        Self { from: None, found: [None; GUESSES], wrong: 0 }
    }

    /// What was found for `block`, if it was guessed or can be now.
    #[inline]
    fn at(&mut self, view: &View<'v>, hashes: &HashList<'_>, block: usize) -> Option<Found<'v>> {
        if hashes.len() <= Self::PAGE {
            return None;
        }
        if let Some(ahead) = self.ahead(block) {
            if ahead.is_multiple_of(Self::PAGE) {
                return self.found[ahead / Self::PAGE];
            }
            self.wrong += 1;
        }
        if hashes.len() - block <= Self::PAGE || self.wrong > 1 {
            return None;
        }
        self.guess(view, hashes, block);
        self.found[0]
    }

    /// How far a block lies behind the first that was guessed, if it is among those.
    fn ahead(&self, block: usize) -> Option<usize> {
        self.from.map(|from| block - from).filter(|&ahead| ahead < GUESSES * Self::PAGE)
    }

    /// Looks several pages up, each step for all of them before the next step.
    fn guess(&mut self, view: &View<'v>, hashes: &HashList<'_>, block: usize) {
        self.from = Some(block);
        let mut spots: [Option<(Word, Spot<'v>)>; GUESSES] = [None; GUESSES];
        let mut near = 0;
        for (spot, hash) in spots.iter_mut().zip((block..hashes.len()).step_by(Self::PAGE)) {
            *spot = view.spot(hashes.get(hash));
            near ^= spot.map_or(0, |(_, spot)| spot.touch());
        }
        for (_, spot) in spots.iter().flatten() {
            near ^= view.layout.touch_head(spot);
        }
        for (found, spot) in self.found.iter_mut().zip(&spots) {
            *found = spot.and_then(|(word, spot)| view.layout.find(word, &spot).ok()?.ok());
            near ^= found.map_or(0, |found| found.touch());
        }
        std::hint::black_box(near);
    }
}

impl Ask<'_> {
    /// Reads once. Yields the names that belong to what was read, unless nothing was.
    pub(super) fn attempt(
        &self,
        partition: &Partition,
        scratch: &mut Scratch,
        captures: &mut Vec<Capture>,
    ) -> Result<Option<Guard<Arc<NameTable>>>, Conflict> {
        captures.clear();
        scratch.reads.clear();
        scratch.runs.clear();
        scratch.uncounted = false;
        let layout = partition.layout.load();
        let view = View { partition, layout: &layout };
        let walked = if self.query.is_chain() {
            let walked = self.walk(&view, scratch, captures);
            for run in &scratch.runs {
                scratch.run_of[run.slot as usize] = 0;
            }
            walked
        } else {
            self.exact(&view, scratch, captures)
        };
        let miss = walked?;
        let names = (!scratch.runs.is_empty()).then(|| partition.names.load());
        let holds = layout.unchanged(&scratch.reads) && miss.is_none_or(|miss| miss.stands());
        if holds { Ok(names) } else { Err(Conflict) }
    }

    fn is_fresh(&self, seen: Micros) -> bool {
        if self.ttl > EXACT_TTL {
            return crate::rank::is_fresh(self.now, seen, self.ttl);
        }
        self.ttl > 0 && self.now.saturating_sub(seen) < self.ttl
    }

    fn exact<'v>(
        &self,
        view: &View<'v>,
        scratch: &mut Scratch,
        captures: &mut Vec<Capture>,
    ) -> Result<Option<Miss<'v>>, Conflict> {
        let found = match view.find(self.query.prefix_hash)? {
            Some(Ok(found)) => found,
            Some(Err(miss)) => return Ok(Some(miss)),
            None => return Ok(None),
        };
        scratch.reads.push((found.page, found.version));
        let bit = 1 << found.position;
        let mut records = found.head.records(&view.layout.lines);
        while let Some(record) = records.next()? {
            view.be_patient(records.left(), &scratch.reads)?;
            let (seen, tokens) = (record.seen(), record.tokens().at(found.position));
            if record.mask() & bit == 0 || !self.is_fresh(seen) {
                continue;
            }
            let number = index_of(scratch.runs.len());
            if self.capture && tokens > 0 {
                scratch.uncounted |= !view.capture(&found, record, bit, number, captures);
            }
            let begun = Run::begin(record.slot(), number);
            scratch.runs.push(Run { matched: tokens, oldest: seen, tier: record.tier(), depth: 1, ..begun });
        }
        Ok(None)
    }

    fn walk<'v>(
        &self,
        view: &View<'v>,
        scratch: &mut Scratch,
        captures: &mut Vec<Capture>,
    ) -> Result<Option<Miss<'v>>, Conflict> {
        let hashes = &self.query.block_hashes;
        let mut block = 0;
        let mut guesses = Guesses::none();
        scratch.active.clear();
        while block < hashes.len() {
            let found = match guesses.at(view, hashes, block) {
                Some(found) => found,
                None => match view.find(hashes.get(block))? {
                    Some(Ok(found)) => found,
                    Some(Err(miss)) => return Ok(Some(miss)),
                    None => return Ok(None),
                },
            };
            if scratch.reads.last() != Some(&(found.page, found.version)) {
                scratch.reads.push((found.page, found.version));
            }
            if hashes.len() - block > 8 && guesses.ahead(block).is_none() {
                std::hint::black_box(found.touch());
            }
            let length = view.matching(&found, hashes, block)?;
            let several = self.cover(view, &found, block, length, scratch)?;
            self.advance(block, scratch);
            if several || self.capture {
                self.revisit(view, &found, length, scratch, captures)?;
            } else {
                for &number in &scratch.active {
                    let run = &mut scratch.runs[number as usize];
                    if run.stretch.taken > 0 {
                        run.fold(run.stretch.seen, run.stretch.tier);
                    }
                }
            }
            scratch.end_stretch(length);
            if scratch.active.is_empty() {
                return Ok(None);
            }
            block += length as usize;
        }
        Ok(None)
    }

    /// Notes which blocks of a stretch each run covers; at the first block, runs begin. Says whether any run has several
    /// records here.
    fn cover(
        &self,
        view: &View<'_>,
        found: &Found<'_>,
        block: usize,
        length: u32,
        scratch: &mut Scratch,
    ) -> Result<bool, Conflict> {
        let Scratch { reads, runs, run_of, active, .. } = scratch;
        let whole = ones(length);
        let mut several = false;
        let mut records = found.head.records(&view.layout.lines);
        while let Some(record) = records.next()? {
            view.be_patient(records.left(), reads)?;
            let (covered, slot, seen) = (record.mask() >> found.position & whole, record.slot(), record.seen());
            let mut run = run_of.get(slot as usize).copied().unwrap_or(0);
            if covered == 0 || block > 0 && run == 0 || !self.is_fresh(seen) {
                continue;
            }
            if run == 0 {
                if run_of.len() <= slot as usize {
                    // Is the slot real, or torn?
                    if !view.layout.unchanged(reads) {
                        return Err(Conflict);
                    }
                    run_of.resize(slot as usize + 1, 0);
                }
                let number = index_of(runs.len());
                runs.push(Run::begin(slot, number));
                active.push(number);
                run = number + 1;
                run_of[slot as usize] = run;
            }
            // Of runs that are over, too: nobody looks at their stretch any more.
            let stretch = &mut runs[run as usize - 1].stretch;
            stretch.covered |= covered;
            several |= stretch.records > 0;
            stretch.records += 1;
            (stretch.seen, stretch.tier) = (seen, record.tier());
        }
        Ok(several)
    }

    /// Moves all runs along a stretch.
    fn advance(&self, block: usize, scratch: &mut Scratch) {
        let Scratch { runs, active, .. } = scratch;
        let counts = self.query.block_token_counts.get(block..).unwrap_or_default();
        if let &[number] = active.as_slice() {
            let run = &mut runs[number as usize];
            let taken = run.stretch.covered.trailing_ones();
            run.take(taken, self.sum(counts, taken));
            return;
        }
        let mut sums = [0i64; POSITIONS as usize + 1];
        let mut sum = 0;
        for (to, &count) in sums[1..].iter_mut().zip(counts) {
            sum += i64::from(count);
            *to = sum;
        }
        for &number in active.iter() {
            let run = &mut runs[number as usize];
            let taken = run.stretch.covered.trailing_ones();
            run.take(taken, sums[taken as usize]);
        }
    }

    /// The sum of the first counts.
    fn sum(&self, counts: &[i32], taken: u32) -> i64 {
        let counts = counts.get(..taken as usize).unwrap_or(counts);
        if self.small {
            i64::from(counts.iter().fold(0i32, |sum, &count| sum.wrapping_add(count)))
        } else {
            counts.iter().map(|&count| i64::from(count)).sum()
        }
    }

    /// Looks at the records once more, now that it is known how far each run gets: for replicas that have several, and
    /// for captures.
    fn revisit(
        &self,
        view: &View<'_>,
        found: &Found<'_>,
        length: u32,
        scratch: &mut Scratch,
        captures: &mut Vec<Capture>,
    ) -> Result<(), Conflict> {
        let Scratch { reads, runs, run_of, uncounted, .. } = scratch;
        let mut records = found.head.records(&view.layout.lines);
        while let Some(record) = records.next()? {
            view.be_patient(records.left(), reads)?;
            let run = run_of.get(record.slot() as usize).and_then(|run| runs.get_mut((*run as usize).wrapping_sub(1)));
            let Some(run) = run.filter(|run| run.stretch.taken > 0) else { continue };
            let taken = record.mask() >> found.position & ones(length) & ones(run.stretch.taken);
            if taken == 0 || !self.is_fresh(record.seen()) {
                continue;
            }
            run.fold(record.seen(), record.tier());
            if self.capture {
                *uncounted |= !view.capture(found, record, taken << found.position, run.capture, captures);
            }
        }
        Ok(())
    }
}

impl Scratch {
    /// Ends the runs that did not reach the end of the stretch.
    fn end_stretch(&mut self, length: u32) {
        let Self { runs, active, .. } = self;
        let mut goes_on = |number: u32| {
            let run = &mut runs[number as usize];
            let goes_on = run.stretch.taken == length;
            run.stretch = Stretch::default();
            goes_on
        };
        match active.as_slice() {
            &[number] => {
                if !goes_on(number) {
                    active.clear();
                }
            }
            _ => active.retain(|&number| goes_on(number)),
        }
    }
}

impl<'a> View<'a> {
    /// Where a hash is; nothing if it cannot be anywhere.
    #[inline]
    fn find(&self, hash: &[u8]) -> Result<Option<Result<Found<'a>, Miss<'a>>>, Conflict> {
        let Some(word) = self.partition.word(hash) else { return Ok(None) };
        let spot = self.layout.spot(word.hash(self.partition.seed))?;
        self.layout.find(word, &spot).map(Some)
    }

    /// Where a hash of 8 bytes belongs, if anywhere.
    #[inline]
    fn spot(&self, hash: &[u8]) -> Option<(Word, Spot<'a>)> {
        let word = Word::narrow(hash)?;
        let spot = self.layout.spot(word.hash(self.partition.seed)).ok()?;
        Some((word, spot))
    }

    /// How many blocks of the request, from `block` on, lie one after the other in the page. At least the one found.
    fn matching(&self, found: &Found<'_>, hashes: &HashList<'_>, block: usize) -> Result<u32, Conflict> {
        let alive = (found.head.live() >> found.position).trailing_ones();
        let most = index_of(hashes.len() - block).min(alive).max(1);
        if found.head.wide() {
            let word = |i: usize| self.partition.word(hashes.get(i)).filter(|word| word.wide).map(|word| word.bits);
            return self.compare(found, most, |i| word(block + i));
        }
        let narrow = |bytes: &[u8]| <[u8; 8]>::try_from(bytes).ok().map(u64::from_ne_bytes);
        match *hashes {
            HashList::Words(list) => self.compare_words(found, list.get(block..block + most as usize).ok_or(Conflict)?),
            HashList::Slices(list) => {
                let rest = list.get(block..).unwrap_or_default();
                self.compare(found, most, |i| rest.get(i).and_then(|bytes| narrow(bytes)))
            }
            HashList::Vecs(list) => {
                let rest = list.get(block..).unwrap_or_default();
                self.compare(found, most, |i| rest.get(i).and_then(|bytes| narrow(bytes)))
            }
            HashList::Spans(..) => self.compare(found, most, |i| narrow(hashes.get(block + i))),
        }
    }

    /// How many of these words lie in the page, from the one found on.
    fn compare_words(&self, found: &Found<'_>, words: &[[u8; 8]]) -> Result<u32, Conflict> {
        let (mut rest, mut position, mut lines) = (words, found.position, found.words);
        while !rest.is_empty() {
            if lines.is_empty() {
                lines = found.head.words_from(position / 8, &self.layout.lines).ok_or(Conflict)?;
            }
            let from = position as usize % 8;
            if from == 0 {
                let alike = lines_alike(lines, rest.as_chunks().0);
                (rest, lines, position) = (&rest[alike * 8..], &lines[alike..], position + index_of(alike * 8));
                if rest.is_empty() || lines.is_empty() {
                    continue;
                }
            }
            // The first line, the last one, or the one that differs.
            let here = (8 - from).min(rest.len());
            let same = (0..here).take_while(|&i| u64::from_ne_bytes(rest[i]) == lines[0].get(from + i)).count();
            (rest, lines, position) = (&rest[same..], &lines[1..], position + index_of(same));
            if same < here {
                break;
            }
        }
        // The first word was there when it was found.
        if position == found.position { Err(Conflict) } else { Ok(position - found.position) }
    }

    #[inline(always)]
    fn compare(&self, found: &Found<'_>, most: u32, word: impl Fn(usize) -> Option<u64>) -> Result<u32, Conflict> {
        let mut length = 1;
        while length < most {
            let position = found.position + length;
            let line = self.layout.lines.line(found.head.eighth(position / 8)).ok_or(Conflict)?;
            let from = position as usize % 8;
            let here = (8 - from).min((most - length) as usize);
            for i in 0..here {
                if word(length as usize + i) != Some(line.get(from + i)) {
                    return Ok(length + index_of(i));
                }
            }
            length += index_of(here);
        }
        Ok(length)
    }

    /// Captures the entries of a record at these positions. False when they have no counters yet.
    fn capture(&self, found: &Found<'_>, record: Record<'_>, mask: u64, row: u32, captures: &mut Vec<Capture>) -> bool {
        if !found.head.counted() {
            return false;
        }
        let Some(counters) = self.layout.lines.line(record.counters()) else { return true };
        for position in bits(mask) {
            let counts = counters.half(position as usize / 8);
            if let Some(line) = self.layout.counts.line(counts) {
                let generation = generation_of(line.get(position as usize % 8));
                captures.push(Capture { row, slot: counts * 8 + position % 8, generation });
            }
        }
        true
    }

    /// Now and then makes sure that a long walk is not one through a page that is being rearranged.
    fn be_patient(&self, left: u32, reads: &[(u32, u64)]) -> Result<(), Conflict> {
        let torn = left % PATIENCE == PATIENCE - 1 && !self.layout.unchanged(reads);
        if torn { Err(Conflict) } else { Ok(()) }
    }
}

/// So many low bits.
fn ones(number: u32) -> u64 {
    1u64.checked_shl(number).map_or(u64::MAX, |bit| bit - 1)
}

pub(super) fn index_of(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX - 1)
}
