//! Questions out: ranked matches, tenant-hot and the miss class, without waiting for the writer.
//!
//! ```text
//!  attempt:  layout ──> walk (note versions) ──> names ──> validate ──ok──> score, sort, rows
//!               ^                                             │
//!               └──────────── conflict: start over ───────────┘   (after 200 tries: once under the writer's lock)
//! ```
//!
//! Names are read after the entries and before the validation: an entry that is still there at the end was there when
//! its slot's name was read, so the name is its own.
//!
//! The scratch remembers where the last answers came from and in which order they were: a question like the one before
//! need not look up names of tenants again, nor references to names of replicas, nor sort.

use std::sync::Arc;

use arc_swap::Guard;
use parking_lot::MutexGuard;

use crate::index::Index;
use crate::index::arena::NIL;
use crate::index::catalog::Visited;
use crate::index::partition::Partition;
use crate::index::replicas::NameTable;
use crate::index::walk::{Ask, Run, SMALL, index_of};
use crate::index::writer::Writer;
use crate::query::{Lookup, Query, Row, Strategy};
use crate::rank::{freshness, is_fresh, row_order};
use crate::resolve::Eviction;

/// Optimistic attempts before a reader takes the writer's lock for one undisturbed reading.
const ATTEMPTS: u32 = 200;
/// Answers with fewer rows are sorted without a look at the order of the answer before.
const FEW: usize = 16;

/// Working memory of lookups, private to the index.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(crate) moved: Vec<u32>,
    /// Pages met, and their versions.
    pub(super) reads: Vec<(u32, u64)>,
    pub(super) runs: Vec<Run>,
    /// The runs that have not ended.
    pub(super) active: Vec<u32>,
    /// A page was met that has no counters yet.
    pub(super) uncounted: bool,
    /// Slot → index into `runs` plus 1; all 0 between two uses.
    pub(super) run_of: Vec<u32>,
    /// By depth of runs: how many there are, and how many hold as much.
    depths: Vec<Depth>,
    line: Vec<Standing>,
    /// Slots of the rows of the current answer.
    slots: Vec<u32>,
    /// The rows of the answer before, and their slots.
    before: Vec<Row>,
    slots_before: Vec<u32>,
    /// Slot → the id that an earlier answer had for it.
    ids: Vec<Option<Arc<str>>>,
    /// Partitions that were asked lately.
    visited: Visited,
}

/// Runs of one depth.
#[derive(Debug, Clone, Copy, Default)]
struct Depth {
    runs: u32,
    matched: i32,
    /// Runs with at least as many tokens.
    holding: u32,
}

/// A run's place in the ranking.
#[derive(Debug, Clone, Copy)]
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
    /// Takes the rows of the last answer back, for their ids and their order.
    pub(crate) fn take_back(&mut self, rows: &mut Vec<Row>) {
        if !rows.is_empty() && rows.len() == self.slots.len() {
            std::mem::swap(&mut self.before, rows);
            std::mem::swap(&mut self.slots_before, &mut self.slots);
        }
        rows.clear();
        self.slots.clear();
    }

    /// Fills `depths` for the runs there are.
    fn count_depths(&mut self) {
        let Self { runs, depths, .. } = self;
        let deepest = runs.iter().map(|run| run.depth).max().unwrap_or(0);
        depths.clear();
        depths.resize(deepest as usize + 1, Depth::default());
        for run in runs.iter() {
            let depth = &mut depths[run.depth as usize];
            depth.runs += 1;
            depth.matched = run.matched;
        }
        // From the deepest on. Blocks without tokens make a run longer, but no better: such depths count as one.
        let (mut holding, mut alike) = (0, deepest as usize);
        for at in (0..depths.len()).rev() {
            if depths[at].runs == 0 {
                continue;
            }
            if depths[at].matched != depths[alike].matched {
                alike = at;
            }
            holding += depths[at].runs;
            depths[at..=alike].iter_mut().for_each(|depth| depth.holding = holding);
        }
    }

    /// The order in which the runs are probably ranked: as they were in the answer before, then the others.
    fn expect_order(&mut self, order: &mut Vec<u32>) {
        let Self { runs, run_of, slots_before, .. } = self;
        order.clear();
        let highest = runs.iter().map(|run| run.slot as usize + 1).max().unwrap_or(0);
        if run_of.len() < highest {
            run_of.resize(highest, 0);
        }
        for (number, run) in (1u32..).zip(runs.iter()) {
            run_of[run.slot as usize] = number;
        }
        for &slot in slots_before.iter() {
            if let Some(number) = run_of.get_mut(slot as usize)
                && *number > 0
            {
                order.push(*number - 1);
                *number = 0;
            }
        }
        if order.len() < runs.len() {
            for run in runs.iter() {
                let number = std::mem::take(&mut run_of[run.slot as usize]);
                if number > 0 {
                    order.push(number - 1);
                }
            }
        }
    }
}

impl Index {
    /// The exact or chain match, ranked.
    pub(super) fn find_match(&self, query: &Query<'_>, out: &mut Lookup) {
        out.clear();
        if !query.scheme.is_empty() {
            self.matched(query, out);
        }
    }

    /// The same, into an answer that is clear. Says how many replicas serve the scope, if there is such a partition;
    /// nothing for a question that is malformed.
    fn matched(&self, query: &Query<'_>, out: &mut Lookup) -> Option<usize> {
        // One pass that does not stop early is faster than one that does.
        let counts = query.block_token_counts.iter().fold(0, |all, &count| all | count);
        if query.is_chain() && (query.block_hashes.len() != query.block_token_counts.len() || counts < 0) {
            return None;
        }
        let names = (query.tenant, query.model, query.scheme, query.adapter);
        let Some(partition) = self.ground.catalog.visit(names, &mut out.scratch.visited) else { return Some(0) };
        let ask = Ask {
            query,
            now: self.options.clock.now(),
            ttl: self.ground.resolvers.ttl(query.tenant, self.options.ttl),
            capture: self.ground.resolvers.eviction(query.tenant) == Eviction::Lfu,
            small: counts < SMALL,
        };
        if let Some(names) = self.read(&ask, &partition, out) {
            self.rank(&ask, &partition, &names, out);
        }
        if !out.rows.is_empty() {
            out.strategy = Strategy::PrefixMatch;
        }
        let serving = partition.scope.number();
        out.scratch.visited.put_back(partition);
        Some(serving)
    }

    /// Fills the scratch with the runs of one consistent reading; the names are those of that reading. Nothing if there
    /// are no runs.
    fn read(&self, ask: &Ask<'_>, partition: &Arc<Partition>, out: &mut Lookup) -> Option<Guard<Arc<NameTable>>> {
        for attempt in 0..ATTEMPTS {
            if let Ok(names) = ask.attempt(partition, &mut out.scratch, &mut out.captures) {
                if !out.scratch.uncounted {
                    return names;
                }
                Self::count(&mut self.writer.lock(), ask, partition, &out.scratch.reads);
                continue;
            }
            if attempt % 16 == 15 { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        let mut undisturbed = self.writer.lock();
        let mut names = ask.attempt(partition, &mut out.scratch, &mut out.captures).ok()?;
        if out.scratch.uncounted {
            Self::count(&mut undisturbed, ask, partition, &out.scratch.reads);
            names = ask.attempt(partition, &mut out.scratch, &mut out.captures).ok()?;
        }
        names
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
        let chain = ask.query.is_chain();
        let scratch = &mut out.scratch;
        let total = scratch.runs.len();
        scratch.runs.retain(|run| !(chain && run.matched <= 0) && names.is_known(run.slot));
        let few = scratch.runs.len() < FEW;
        if chain && !few {
            scratch.count_depths();
        }
        let mut order = std::mem::take(&mut scratch.moved);
        if few {
            order.clear();
            order.extend(0..index_of(scratch.runs.len()));
        } else {
            scratch.expect_order(&mut order);
        }
        let Scratch { runs, moved, depths, line, .. } = scratch;
        let serving = partition.scope.number();
        line.clear();
        // Loads first, so that they do not wait for each other behind the arithmetic.
        line.extend(order.iter().map(|&number| {
            let stats = names.get(runs[number as usize].slot).and_then(|name| name.replica.stats());
            let pressure =
                stats.filter(|row| is_fresh(ask.now, row.reported, ask.ttl)).map_or(0.0, |row| row.stats.pressure);
            Standing { key: 0, run: number, score: pressure, fresh: 0.0 }
        }));
        for standing in line.iter_mut() {
            let run = &runs[standing.run as usize];
            let holding = match (chain, few) {
                (false, _) => runs.len(),
                (true, true) => runs.iter().filter(|other| other.matched >= run.matched).count(),
                (true, false) => depths[run.depth as usize].holding as usize,
            };
            let fresh = freshness(ask.now, run.oldest, ask.ttl);
            let pressure = standing.score;
            let score = self.ranker.prefix_score(run.matched, fresh, pressure, ask.query.ttft_ms, holding, serving);
            let key = u64::from(descending(score)) << 32 | u64::from(names.rank(run.slot));
            *standing = Standing { key, score, fresh, ..*standing };
        }
        *moved = order;
        if !line.is_sorted_by_key(|standing| standing.key) {
            line.sort_unstable_by_key(|standing| standing.key);
        }
        scratch.fill(names, &mut out.rows);
        let Scratch { runs, moved, line, .. } = scratch;
        if ask.capture {
            moved.clear();
            moved.resize(total, NIL);
            for (row, standing) in (0u32..).zip(line.iter()) {
                moved[runs[standing.run as usize].capture as usize] = row;
            }
            out.captures.retain_mut(|capture| {
                capture.row = moved.get(capture.row as usize).copied().unwrap_or(NIL);
                capture.row != NIL
            });
            if !out.captures.is_empty() {
                out.target = Some(partition.clone());
            }
        }
        runs.clear();
    }

    /// The orchestrated lookup: match, tenant-hot, miss class.
    pub(super) fn find_route(&self, query: &Query<'_>, out: &mut Lookup) {
        out.clear();
        if query.tenant.is_empty() || query.model.is_empty() || query.scheme.is_empty() {
            return;
        }
        let Some(serving) = self.matched(query, out) else { return };
        if !out.rows.is_empty() {
            return;
        }
        if !query.is_chain() {
            self.find_hot(query, out);
        }
        // Somebody serves the scope: then it is known, and so is everything above it.
        if out.rows.is_empty() && serving == 0 {
            out.strategy = self.classify(query);
        }
    }

    /// Warm replicas of the scope.
    fn find_hot(&self, query: &Query<'_>, out: &mut Lookup) {
        let Query { tenant, model, scheme, .. } = *query;
        let now = self.options.clock.now();
        self.ground.catalog.with_scope(tenant, model, scheme, |scope| {
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

impl Scratch {
    /// Writes the rows of the line over those of the answer before. An id that is still in its place, or that an earlier
    /// answer has given back, is as good as a new reference to it, and free.
    fn fill(&mut self, names: &NameTable, rows: &mut Vec<Row>) {
        let Self { runs, line, slots, before, slots_before, ids, .. } = self;
        std::mem::swap(rows, before);
        let mut written = 0;
        slots.clear();
        for standing in line.iter() {
            let run = &runs[standing.run as usize];
            let Some(name) = names.get(run.slot) else { continue };
            let new = |replica| Row {
                replica,
                score: standing.score,
                matched_tokens: run.matched,
                hit_prob: standing.fresh,
                tier: run.tier,
            };
            slots.push(run.slot);
            match rows.get_mut(written).filter(|row| Arc::ptr_eq(&row.replica, &name.id)) {
                Some(row) => {
                    row.score = standing.score;
                    row.matched_tokens = run.matched;
                    row.hit_prob = standing.fresh;
                    row.tier = run.tier;
                }
                None => {
                    for (row, slot) in rows.drain(written..).zip(slots_before.iter().skip(written)) {
                        if ids.len() <= *slot as usize {
                            ids.resize(*slot as usize + 1, None);
                        }
                        ids[*slot as usize] = Some(row.replica);
                    }
                    let kept = ids.get_mut(run.slot as usize).and_then(Option::take);
                    let kept = kept.filter(|id| Arc::ptr_eq(id, &name.id));
                    rows.push(new(kept.unwrap_or_else(|| name.id.clone())));
                }
            }
            written += 1;
        }
        rows.truncate(written);
    }
}
