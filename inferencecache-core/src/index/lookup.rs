//! Questions out: the exact read, the chain walk, tenant-hot and the miss class, without waiting for the writer.
//!
//! ```text
//!  attempt:  layout ──> walk (note versions) ──> names ──> validate ──ok──> score, sort, rows
//!               ^                                             │
//!               └──────────── conflict: start over ───────────┘   (after 200 tries: once under the writer's lock)
//! ```
//!
//! The walk goes page by page: the table is asked where a hash is, the hashes behind it are compared with the cells behind
//! that, and all replicas are moved along that stretch at once. Only where it ends is the table asked again.
//!
//! Names are read after the entries and before the validation: an entry that is still there at the end was there when
//! its slot's name was read, so the name is its own.

use std::sync::Arc;

use arc_swap::Guard;
use parking_lot::MutexGuard;

use crate::index::Index;
use crate::index::arena::NIL;
use crate::index::page::{Found, Layout, POSITIONS, Record};
use crate::index::partition::Partition;
use crate::index::replicas::NameTable;
use crate::index::store::{bits, generation_of};
use crate::index::table::{Conflict, Miss, Word};
use crate::index::writer::Writer;
use crate::query::{Capture, HashList, Lookup, Query, Row, Strategy};
use crate::rank::{freshness, is_fresh, row_order};
use crate::resolve::Eviction;
use crate::time::Micros;

/// Optimistic attempts before a reader takes the writer's lock for one undisturbed reading.
const ATTEMPTS: u32 = 200;
/// Records of one page before a reader makes sure that they are real.
const PATIENCE: u32 = 256;

/// One replica's run along the chain.
#[derive(Debug)]
struct Run {
    slot: u32,
    matched: i32,
    oldest: Micros,
    tier: i32,
    /// It has not reached the end of a stretch.
    over: bool,
    /// Where its captures say it is.
    capture: u32,
    stretch: Stretch,
}

/// What a replica holds of the stretch of a page that is being walked.
#[derive(Debug, Clone, Copy, Default)]
struct Stretch {
    /// Its blocks, the first one lowest.
    covered: u64,
    /// Records they are in; if it is one, then with these figures.
    records: u32,
    seen: Micros,
    tier: i32,
    /// How many of them continue the run.
    taken: u32,
}

/// Working memory of lookups, private to the index.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(crate) moved: Vec<u32>,
    /// Pages met, and their versions.
    reads: Vec<(u32, u64)>,
    runs: Vec<Run>,
    /// The runs that have not ended.
    active: Vec<u32>,
    /// Whether the records of the stretch must be looked at once more.
    again: bool,
    /// A page was met that has no counters yet.
    uncounted: bool,
    /// Slot → index into `runs` plus 1, during a chain walk.
    run_of: Vec<u32>,
    /// Matched tokens of all rows, descending.
    matched: Vec<i32>,
    line: Vec<Standing>,
    /// Slot → the id that the last answer had for it, and the slots of that answer's rows.
    ids: Vec<Option<Arc<str>>>,
    id_slots: Vec<u32>,
}

/// A run's place in the ranking.
#[derive(Debug)]
struct Standing {
    /// Sorts as (score descending, replica id ascending).
    key: u64,
    run: u32,
    score: f32,
    fresh: f32,
}

/// A number that sorts against the total order of floats.
fn descending(score: f32) -> u32 {
    let bits = score.to_bits();
    // Ascending: negative ones turned over, positive ones above them.
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    !ascending
}

impl Scratch {
    /// Takes the rows of the last answer back, for their ids.
    pub(crate) fn take_back(&mut self, rows: &mut Vec<Row>) {
        let Self { ids, id_slots, .. } = self;
        if rows.len() == id_slots.len() {
            for (row, slot) in rows.drain(..).zip(id_slots.drain(..)) {
                if ids.len() <= slot as usize {
                    ids.resize(slot as usize + 1, None);
                }
                ids[slot as usize] = Some(row.replica);
            }
        }
        rows.clear();
        id_slots.clear();
    }
}

/// What stays the same over the attempts of one lookup.
struct Ask<'q> {
    query: &'q Query<'q>,
    now: Micros,
    ttl: Micros,
    capture: bool,
}

impl Index {
    /// The exact or chain match, ranked.
    pub(super) fn find_match(&self, query: &Query<'_>, out: &mut Lookup) {
        out.clear();
        if query.scheme.is_empty() || query.is_malformed() {
            return;
        }
        let ask = Ask {
            query,
            now: self.options.clock.now(),
            ttl: self.ground.resolvers.ttl(query.tenant, self.options.ttl),
            capture: self.ground.resolvers.eviction(query.tenant) == Eviction::Lfu,
        };
        self.ground.catalog.with_partition((query.tenant, query.model, query.scheme, query.adapter), |partition| {
            if let Some(names) = self.read(&ask, partition, out) {
                self.rank(&ask, partition, &names, out);
            }
        });
        if !out.rows.is_empty() {
            out.strategy = Strategy::PrefixMatch;
        }
    }

    /// Fills the scratch with the runs of one consistent reading; the names are those of that reading.
    fn read(&self, ask: &Ask<'_>, partition: &Arc<Partition>, out: &mut Lookup) -> Option<Guard<Arc<NameTable>>> {
        for attempt in 0..ATTEMPTS {
            if let Ok(names) = ask.attempt(partition, out) {
                if !out.scratch.uncounted {
                    return Some(names);
                }
                Self::count(&mut self.writer.lock(), ask, partition, &out.scratch.reads);
                continue;
            }
            if attempt % 16 == 15 { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        let mut undisturbed = self.writer.lock();
        let mut names = ask.attempt(partition, out).ok()?;
        if out.scratch.uncounted {
            Self::count(&mut undisturbed, ask, partition, &out.scratch.reads);
            names = ask.attempt(partition, out).ok()?;
        }
        Some(names)
    }

    /// Gives pages the counters they lack, because they are older than the wish to count.
    fn count(writer: &mut MutexGuard<'_, Writer>, ask: &Ask<'_>, partition: &Arc<Partition>, pages: &[(u32, u64)]) {
        let Query { tenant, model, scheme, adapter, .. } = *ask.query;
        if let Some(ledger) = writer.ledger_of((tenant, model, scheme, adapter), partition) {
            pages.iter().for_each(|&(page, _)| ledger.count_page(page));
            ledger.commit();
        }
    }

    /// Turns the runs into rows.
    fn rank(&self, ask: &Ask<'_>, partition: &Arc<Partition>, names: &NameTable, out: &mut Lookup) {
        let Scratch { runs, matched, moved, line, ids, id_slots, .. } = &mut out.scratch;
        let chain = ask.query.is_chain();
        let total = runs.len();
        runs.retain(|run| names.get(run.slot).is_some() && !(chain && run.matched <= 0));
        matched.clear();
        if chain {
            matched.extend(runs.iter().map(|run| run.matched));
            matched.sort_unstable_by(|a, b| b.cmp(a));
        }
        let serving = partition.scope.serving.load().len();
        let (mut deepest, mut holding) = (i32::MIN, runs.len());
        line.clear();
        for (number, run) in (0u32..).zip(runs.iter()) {
            if chain && run.matched != deepest {
                deepest = run.matched;
                holding = matched.partition_point(|&other| other >= deepest);
            }
            let fresh = freshness(ask.now, run.oldest, ask.ttl);
            let pressure = names
                .get(run.slot)
                .and_then(|name| name.replica.stats())
                .filter(|row| is_fresh(ask.now, row.reported, ask.ttl))
                .map_or(0.0, |row| row.stats.pressure);
            let score = self.ranker.prefix_score(run.matched, fresh, pressure, ask.query.ttft_ms, holding, serving);
            let key = u64::from(descending(score)) << 32 | u64::from(names.rank(run.slot));
            line.push(Standing { key, run: number, score, fresh });
        }
        line.sort_unstable_by_key(|standing| standing.key);
        moved.clear();
        moved.resize(if ask.capture { total } else { 0 }, NIL);
        id_slots.clear();
        for (row, standing) in (0u32..).zip(line.iter()) {
            let run = &runs[standing.run as usize];
            let Some(name) = names.get(run.slot) else { continue };
            if let Some(slot) = moved.get_mut(run.capture as usize) {
                *slot = row;
            }
            // The id that an earlier answer has given back is as good as a new reference to it, and free.
            let kept = ids.get_mut(run.slot as usize).and_then(Option::take).filter(|id| Arc::ptr_eq(id, &name.id));
            out.rows.push(Row {
                replica: kept.unwrap_or_else(|| name.id.clone()),
                score: standing.score,
                matched_tokens: run.matched,
                hit_prob: standing.fresh,
                tier: run.tier,
            });
            id_slots.push(run.slot);
        }
        runs.clear();
        if ask.capture {
            out.captures.retain_mut(|capture| {
                capture.row = moved.get(capture.row as usize).copied().unwrap_or(NIL);
                capture.row != NIL
            });
            if !out.captures.is_empty() {
                out.target = Some(partition.clone());
            }
        }
    }

    /// The orchestrated lookup: match, tenant-hot, miss class.
    pub(super) fn find_route(&self, query: &Query<'_>, out: &mut Lookup) {
        out.clear();
        if query.tenant.is_empty() || query.model.is_empty() || query.scheme.is_empty() || query.is_malformed() {
            return;
        }
        self.find_match(query, out);
        if !out.rows.is_empty() {
            return;
        }
        if !query.is_chain() {
            self.find_hot(query, out);
        }
        if out.rows.is_empty() {
            out.strategy = self.classify(query);
        }
    }

    fn find_hot(&self, query: &Query<'_>, out: &mut Lookup) {
        let now = self.options.clock.now();
        self.ground.catalog.with_scope(query.tenant, query.model, query.scheme, |scope| {
            for replica in scope.serving.load().iter() {
                let Some(row) = replica.stats() else { continue };
                let age = now.saturating_sub(row.reported);
                if self.ranker.is_warm(age, row.stats.hit_rate) {
                    let (rate, pressure) = (row.stats.hit_rate, row.stats.pressure);
                    out.rows.push(Row {
                        replica: replica.id.clone(),
                        score: self.ranker.hot_score(age, rate, pressure, query.ttft_ms),
                        matched_tokens: 0,
                        hit_prob: rate,
                        tier: 0,
                    });
                }
            }
        });
        if !out.rows.is_empty() {
            out.rows.sort_unstable_by(row_order);
            out.strategy = Strategy::TenantHot;
        }
    }

    fn classify(&self, query: &Query<'_>) -> Strategy {
        let catalog = &self.ground.catalog;
        if !catalog.has_real_keys() {
            Strategy::None
        } else if !catalog.has_tenant(query.tenant) {
            Strategy::UnknownTenant
        } else if !catalog.has_model(query.tenant, query.model) {
            Strategy::UnknownModel
        } else if !catalog.has_scope(query.tenant, query.model, query.scheme) {
            Strategy::UnknownHashScheme
        } else {
            Strategy::None
        }
    }
}

/// Pages of a long chain that are looked up together.
const GUESSES: usize = 8;

/// Where the next pages of a long chain probably begin, looked up together so that they need not wait for each other.
#[derive(Default)]
struct Guesses<'v> {
    from: usize,
    found: [Option<Found<'v>>; GUESSES],
    /// Guesses that did not come true.
    wrong: u32,
}

impl<'v> Guesses<'v> {
    const PAGE: usize = POSITIONS as usize;

    /// What was found for `block`, if it was guessed or can be now.
    fn at(&mut self, view: &View<'v>, hashes: &HashList<'_>, block: usize) -> Option<Found<'v>> {
        if block == 0 || self.wrong > 1 {
            return None;
        }
        let ahead = block.wrapping_sub(self.from);
        if self.from > 0 && ahead < GUESSES * Self::PAGE {
            if ahead.is_multiple_of(Self::PAGE) {
                return self.found[ahead / Self::PAGE];
            }
            self.wrong += 1;
        }
        if hashes.len() - block <= Self::PAGE || self.wrong > 1 {
            return None;
        }
        self.from = block;
        let word = |i: usize| Word::narrow(hashes.get(block + i * Self::PAGE));
        let near = (0..GUESSES).filter_map(word);
        std::hint::black_box(near.fold(0, |sum, word| sum ^ view.layout.touch(word, view.partition.seed)));
        self.found = std::array::from_fn(|i| view.layout.find(word(i)?, view.partition.seed).ok()?.ok());
        self.found[0]
    }
}

/// One attempt at reading: whatever it yields counts only if nothing it met has changed at its end.
struct View<'a> {
    partition: &'a Partition,
    layout: &'a Layout,
}

impl Ask<'_> {
    fn attempt(&self, partition: &Partition, out: &mut Lookup) -> Result<Guard<Arc<NameTable>>, Conflict> {
        out.captures.clear();
        let scratch = &mut out.scratch;
        scratch.reads.clear();
        scratch.runs.clear();
        scratch.uncounted = false;
        let layout = partition.layout.load();
        let view = View { partition, layout: &layout };
        let walked = if self.query.is_chain() {
            let walked = self.walk(&view, scratch, &mut out.captures);
            for run in &scratch.runs {
                scratch.run_of[run.slot as usize] = 0;
            }
            walked
        } else {
            self.exact(&view, scratch, &mut out.captures)
        };
        let miss = walked?;
        let names = partition.names.load();
        let holds = layout.unchanged(&scratch.reads) && miss.is_none_or(|miss| miss.stands());
        if holds { Ok(names) } else { Err(Conflict) }
    }

    fn exact<'v>(
        &self,
        view: &View<'v>,
        scratch: &mut Scratch,
        captures: &mut Vec<Capture>,
    ) -> Result<Option<Miss<'v>>, Conflict> {
        let Some(word) = view.partition.word(self.query.prefix_hash) else { return Ok(None) };
        let found = match view.layout.find(word, view.partition.seed)? {
            Ok(found) => found,
            Err(miss) => return Ok(Some(miss)),
        };
        scratch.reads.push((found.page, found.version));
        let bit = 1 << found.position;
        let mut records = found.head.records(&view.layout.lines);
        while let Some(record) = records.next()? {
            view.be_patient(records.left(), &scratch.reads)?;
            let (seen, tokens) = (record.seen(), record.tokens().at(found.position));
            if record.mask() & bit == 0 || !is_fresh(self.now, seen, self.ttl) {
                continue;
            }
            let number = index_of(scratch.runs.len());
            if self.capture && tokens > 0 {
                scratch.uncounted |= !view.capture(&found, record, bit, number, captures);
            }
            let begun = Run::begin(record.slot(), number);
            scratch.runs.push(Run { matched: tokens, oldest: seen, tier: record.tier(), ..begun });
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
        let mut guesses = Guesses::default();
        while block < hashes.len() {
            let found = match guesses.at(view, hashes, block) {
                Some(found) => found,
                None => {
                    let Some(word) = view.partition.word(hashes.get(block)) else { return Ok(None) };
                    match view.layout.find(word, view.partition.seed)? {
                        Ok(found) => found,
                        Err(miss) => return Ok(Some(miss)),
                    }
                }
            };
            if scratch.reads.last() != Some(&(found.page, found.version)) {
                scratch.reads.push((found.page, found.version));
            }
            let length = view.matching(&found, hashes, block)?;
            self.advance(view, &found, block, length, scratch)?;
            if scratch.again {
                self.revisit(view, &found, length, scratch, captures)?;
            }
            scratch.end_stretch(length);
            if scratch.active.is_empty() {
                return Ok(None);
            }
            block += length as usize;
        }
        Ok(None)
    }

    /// Moves all runs along a stretch of one page.
    fn advance(
        &self,
        view: &View<'_>,
        found: &Found<'_>,
        block: usize,
        length: u32,
        scratch: &mut Scratch,
    ) -> Result<(), Conflict> {
        let Scratch { reads, runs, run_of, active, again, .. } = scratch;
        if block == 0 {
            active.clear();
        }
        let whole = ones(length);
        let mut records = found.head.records(&view.layout.lines);
        while let Some(record) = records.next()? {
            view.be_patient(records.left(), reads)?;
            let (covered, slot, seen) = (record.mask() >> found.position & whole, record.slot(), record.seen());
            let mut run = run_of.get(slot as usize).copied().unwrap_or(0);
            if covered == 0 || block > 0 && run == 0 || !is_fresh(self.now, seen, self.ttl) {
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
            let run = &mut runs[run as usize - 1];
            if !run.over {
                run.stretch.covered |= covered;
                run.stretch.records += 1;
                (run.stretch.seen, run.stretch.tier) = (seen, record.tier());
            }
        }
        *again = self.capture;
        let counts = self.query.block_token_counts.get(block..).unwrap_or_default();
        let (mut summed, mut sum) = (0, 0);
        for &number in active.iter() {
            let run = &mut runs[number as usize];
            let taken = run.stretch.covered.trailing_ones();
            run.stretch.taken = taken;
            if taken == 0 {
                continue;
            }
            if summed != taken {
                summed = taken;
                sum = counts.iter().take(taken as usize).map(|&count| i64::from(count)).sum();
            }
            run.matched = i32::try_from(i64::from(run.matched) + sum).unwrap_or(i32::MAX);
            if run.stretch.records == 1 {
                run.fold(run.stretch.seen, run.stretch.tier);
            } else {
                *again = true;
            }
        }
        Ok(())
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
            let Some(run) = run.filter(|run| !run.over) else { continue };
            let taken = record.mask() >> found.position & ones(length) & ones(run.stretch.taken);
            if taken == 0 || !is_fresh(self.now, record.seen(), self.ttl) {
                continue;
            }
            if run.stretch.records > 1 {
                run.fold(record.seen(), record.tier());
            }
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
        active.retain(|&number| {
            let run = &mut runs[number as usize];
            run.over = run.stretch.taken != length;
            run.stretch = Stretch::default();
            !run.over
        });
    }
}

impl View<'_> {
    /// How many blocks of the request, from `block` on, lie one after the other in the page. At least the one found.
    fn matching(&self, found: &Found<'_>, hashes: &HashList<'_>, block: usize) -> Result<u32, Conflict> {
        let alive = (found.head.live() >> found.position).trailing_ones();
        let most = index_of(hashes.len() - block).min(alive).max(1);
        if found.head.wide() {
            let word = |i: usize| self.partition.word(hashes.get(i)).filter(|word| word.wide).map(|word| word.bits);
            return self.compare(found, most, |i| word(block + i));
        }
        let narrow = |bytes: &[u8]| <[u8; 8]>::try_from(bytes).ok().map(u64::from_be_bytes);
        match *hashes {
            HashList::Words(list) => {
                let rest = list.get(block..).unwrap_or_default();
                self.compare(found, most, |i| rest.get(i).map(|bytes| u64::from_be_bytes(*bytes)))
            }
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

impl Run {
    fn begin(slot: u32, capture: u32) -> Self {
        Self {
            slot,
            matched: 0,
            oldest: Micros::MAX,
            tier: i32::MIN,
            over: false,
            capture,
            stretch: Stretch::default(),
        }
    }

    fn fold(&mut self, seen: Micros, tier: i32) {
        self.oldest = self.oldest.min(seen);
        self.tier = if self.tier == 0 || tier == 0 { 0 } else { self.tier.max(tier) };
    }
}

/// So many low bits.
fn ones(number: u32) -> u64 {
    1u64.checked_shl(number).map_or(u64::MAX, |bit| bit - 1)
}

fn index_of(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(NIL - 1)
}
