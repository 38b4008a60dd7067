//! Questions out: the exact read, the chain walk, tenant-hot and the miss class, without waiting for the writer.
//!
//! ```text
//!  attempt:  view ──> walk (note versions) ──> names ──> validate ──ok──> score, sort, rows
//!              ^                                            │
//!              └──────────── conflict: start over ──────────┘   (after 200 tries: once under the writer's lock)
//! ```
//!
//! Names are read after the entries and before the validation: an entry that is still there at the end was there when
//! its slot's name was read, so the name is its own.

use std::sync::Arc;

use crate::index::Index;
use crate::index::entries::NIL;
use crate::index::partition::{Partition, Reads, View};
use crate::index::replicas::Replica;
use crate::index::table::Conflict;
use crate::query::{Capture, Lookup, Query, Row, Strategy};
use crate::rank::{freshness, is_fresh, row_order};
use crate::resolve::Eviction;
use crate::time::Micros;

/// Optimistic attempts before a reader takes the writer's lock for one undisturbed reading.
const ATTEMPTS: u32 = 200;
/// Steps along one holder list before a reader makes sure that the list is real.
const PATIENCE: u32 = 256;

/// One replica's run along the chain.
#[derive(Debug)]
struct Run {
    slot: u32,
    matched: i32,
    oldest: Micros,
    tier: i32,
    /// Blocks matched.
    depth: u32,
    /// Where its captures say it is.
    capture: u32,
    score: f32,
    replica: Option<Arc<Replica>>,
}

/// Working memory of lookups, private to the index.
#[derive(Debug, Default)]
pub struct Scratch {
    pub(crate) moved: Vec<u32>,
    reads: Reads,
    runs: Vec<Run>,
    /// Slot → index into `runs` plus 1, during a chain walk.
    run_of: Vec<u32>,
    /// Matched tokens of all rows, descending.
    matched: Vec<i32>,
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
            self.read(&ask, partition, out);
            self.rank(&ask, partition, out);
        });
        if !out.rows.is_empty() {
            out.strategy = Strategy::PrefixMatch;
        }
    }

    fn read(&self, ask: &Ask<'_>, partition: &Partition, out: &mut Lookup) {
        for attempt in 0..ATTEMPTS {
            if ask.attempt(partition, out).is_ok() {
                return;
            }
            if attempt % 16 == 15 { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        let _undisturbed = self.writer.lock();
        if ask.attempt(partition, out).is_err() {
            out.scratch.runs.clear();
            out.captures.clear();
        }
    }

    /// Turns the runs into rows.
    fn rank(&self, ask: &Ask<'_>, partition: &Arc<Partition>, out: &mut Lookup) {
        let Scratch { runs, matched, moved, .. } = &mut out.scratch;
        let chain = ask.query.is_chain();
        let total = runs.len();
        runs.retain(|run| run.replica.is_some() && !(chain && run.matched <= 0));
        matched.clear();
        if chain {
            matched.extend(runs.iter().map(|run| run.matched));
            matched.sort_unstable_by(|a, b| b.cmp(a));
        }
        let serving = partition.scope.serving.load().len();
        let count = runs.len();
        for run in runs.iter_mut() {
            let holding = if chain { matched.partition_point(|&other| other >= run.matched) } else { count };
            let fresh = freshness(ask.now, run.oldest, ask.ttl);
            let pressure = run
                .replica
                .as_ref()
                .and_then(|replica| replica.stats())
                .filter(|row| is_fresh(ask.now, row.reported, ask.ttl))
                .map_or(0.0, |row| row.stats.pressure);
            run.score = self.ranker.prefix_score(run.matched, fresh, pressure, ask.query.ttft_ms, holding, serving);
        }
        runs.sort_unstable_by(|a, b| {
            let id = |run: &Run| run.replica.as_ref().map(|replica| replica.id.clone());
            b.score.total_cmp(&a.score).then_with(|| match (&a.replica, &b.replica) {
                (Some(a), Some(b)) => a.id.as_bytes().cmp(b.id.as_bytes()),
                _ => id(a).cmp(&id(b)),
            })
        });
        moved.clear();
        moved.resize(total, NIL);
        for (row, run) in (0u32..).zip(runs.drain(..)) {
            if let Some(slot) = moved.get_mut(run.capture as usize) {
                *slot = row;
            }
            if let Some(replica) = run.replica {
                out.rows.push(Row {
                    replica: replica.id.clone(),
                    score: run.score,
                    matched_tokens: run.matched,
                    hit_prob: freshness(ask.now, run.oldest, ask.ttl),
                    tier: run.tier,
                });
            }
        }
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

impl Ask<'_> {
    fn attempt(&self, partition: &Partition, out: &mut Lookup) -> Result<(), Conflict> {
        out.captures.clear();
        let scratch = &mut out.scratch;
        scratch.reads.clear();
        scratch.runs.clear();
        let view = partition.view();
        let walked = if self.query.is_chain() {
            let walked = self.walk(&view, scratch, &mut out.captures);
            for run in &scratch.runs {
                scratch.run_of[run.slot as usize] = 0;
            }
            walked
        } else {
            self.exact(&view, scratch, &mut out.captures)
        };
        walked?;
        for run in &mut scratch.runs {
            run.replica = partition.names.get(run.slot);
        }
        if view.validate(&scratch.reads) { Ok(()) } else { Err(Conflict) }
    }

    fn exact(&self, view: &View<'_>, scratch: &mut Scratch, captures: &mut Vec<Capture>) -> Result<(), Conflict> {
        let Scratch { reads, runs, .. } = scratch;
        let Some(first) = view.holders(self.query.prefix_hash, reads)? else { return Ok(()) };
        let mut holders = Holders::new(first);
        while let Some(index) = holders.next(view, reads)? {
            let entry = view.entry(index)?;
            let (seen, tokens) = (entry.last_seen(), entry.tokens());
            if !is_fresh(self.now, seen, self.ttl) {
                continue;
            }
            let capture = index_of(runs.len());
            if self.capture && tokens > 0 {
                captures.push(Capture { row: capture, slot: index, generation: entry.generation() });
            }
            runs.push(Run::begin(entry.replica(), tokens, seen, entry.tier(), capture));
        }
        Ok(())
    }

    fn walk(&self, view: &View<'_>, scratch: &mut Scratch, captures: &mut Vec<Capture>) -> Result<(), Conflict> {
        let Scratch { reads, runs, run_of, .. } = scratch;
        for (block, hash) in self.query.block_hashes.iter().enumerate() {
            let depth = index_of(block);
            let count = self.query.block_token_counts.get(block).copied().unwrap_or(0);
            let Some(first) = view.holders(hash, reads)? else { return Ok(()) };
            let mut running = false;
            let mut holders = Holders::new(first);
            while let Some(index) = holders.next(view, reads)? {
                let entry = view.entry(index)?;
                let (slot, seen) = (entry.replica(), entry.last_seen());
                if slot == NIL {
                    return Err(Conflict);
                }
                if !is_fresh(self.now, seen, self.ttl) {
                    continue;
                }
                let run = run_of.get(slot as usize).copied().unwrap_or(0);
                let run = if block == 0 {
                    if run != 0 {
                        continue;
                    }
                    let capture = index_of(runs.len());
                    runs.push(Run::begin(slot, count, seen, entry.tier(), capture));
                    if run_of.len() <= slot as usize {
                        run_of.resize(slot as usize + 1, 0);
                    }
                    run_of[slot as usize] = capture + 1;
                    capture
                } else {
                    let Some(run) = run.checked_sub(1).filter(|&run| runs[run as usize].depth == depth) else {
                        continue;
                    };
                    runs[run as usize].extend(count, seen, entry.tier());
                    run
                };
                running = true;
                if self.capture {
                    captures.push(Capture { row: run, slot: index, generation: entry.generation() });
                }
            }
            if !running {
                return Ok(());
            }
        }
        Ok(())
    }
}

impl Run {
    fn begin(slot: u32, matched: i32, seen: Micros, tier: i32, capture: u32) -> Self {
        Self { slot, matched, oldest: seen, tier, depth: 1, capture, score: 0.0, replica: None }
    }

    fn extend(&mut self, count: i32, seen: Micros, tier: i32) {
        self.matched = self.matched.saturating_add(count);
        self.oldest = self.oldest.min(seen);
        self.tier = if self.tier == 0 || tier == 0 { 0 } else { self.tier.max(tier) };
        self.depth += 1;
    }
}

/// Walks one holder list; a list that a writer is rearranging cannot lead it in circles.
struct Holders {
    next: u32,
    steps: u32,
}

impl Holders {
    fn new(first: u32) -> Self {
        Self { next: first, steps: 0 }
    }

    fn next(&mut self, view: &View<'_>, reads: &Reads) -> Result<Option<u32>, Conflict> {
        let index = self.next;
        if index == NIL {
            return Ok(None);
        }
        self.next = view.entry(index)?.next();
        self.steps += 1;
        if self.steps.is_multiple_of(PATIENCE) && !view.validate(reads) {
            return Err(Conflict);
        }
        Ok(Some(index))
    }
}

fn index_of(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(NIL - 1)
}
