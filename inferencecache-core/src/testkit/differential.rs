//! Two indexes, the same operations, every answer compared.
//!
//! ```text
//! seed ─> episodes of random operations ─> side A ─┐
//!                                      └─> side B ─┴─ answers, sink totals, dumps equal?
//!                                                        no ─> leave out operations while it still differs ─> panic
//! ```
//!
//! Scores are compared bit by bit. An index that cannot be looked into is compared by its answers alone.

use std::cell::Cell;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::subject::{Answer, Factory, Side};
use crate::query::Strategy;
use crate::resolve::Eviction;
use crate::testkit::check;
use crate::testkit::doubles::PolicyTable;
use crate::testkit::generate::{EPOCH, Names, Op, Setup, Shape};
use crate::time::{Clock, ManualClock};

/// Operations on one pair of indexes before a new pair begins.
const EPISODE: usize = 2_000;

/// What a run has met, so that a test can tell whether it tested anything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Operations played.
    pub operations: u64,
    /// Lookups by strategy, in the order of declaration.
    pub strategies: [u64; 6],
    /// Rows in all answers.
    pub rows: u64,
    /// Entries captured for credit.
    pub captures: u64,
    /// Prefixes evicted for quota.
    pub over_quota: u64,
    /// Entries evicted: LRU and LFU.
    pub evicted: [u64; 2],
    /// Dumps compared.
    pub dumps: u64,
    /// Entries in the largest one.
    pub largest: usize,
}

/// A difference: at which step, and what.
#[derive(Debug, Clone)]
pub struct Difference {
    /// Position of the operation.
    pub step: usize,
    /// Both answers.
    pub what: String,
}

/// One pair of indexes and what is done to it.
#[derive(Debug, Clone)]
pub struct Episode {
    /// How both are built.
    pub setup: Setup,
    /// What is done to both.
    pub ops: Vec<Op>,
}

/// Plays `ops` random operations. Panics at the first difference, with the seed and the fewest operations that show it.
pub fn run(seed: u64, ops: usize, a: &Factory<'_>, b: &Factory<'_>) -> Coverage {
    let mut coverage = Coverage::default();
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut left = ops;
    while left > 0 {
        let episode = Episode::random(rng.random(), left.min(EPISODE));
        left -= episode.ops.len();
        if let Err(first) = episode.play(a, b, 8, &mut coverage) {
            panic!("seed {seed}: {}", episode.report(&first, a, b));
        }
    }
    coverage
}

// === impl Episode ===

impl Episode {
    /// A random one of at most so many operations.
    #[must_use]
    pub fn random(seed: u64, length: usize) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let setup = Setup::random(&mut rng);
        // The large alphabets are slow in the naive index.
        let length = if setup.shape == Shape::Small { length } else { length.min(600) };
        let names = Names::new(setup.shape);
        let ops = (0..length).map(|_| Op::random(&mut rng, &names)).collect();
        Self { setup, ops }
    }

    /// Plays it. Compares dumps every `dump_every` operations and at the end.
    pub fn play(
        &self,
        a: &Factory<'_>,
        b: &Factory<'_>,
        dump_every: usize,
        coverage: &mut Coverage,
    ) -> Result<(), Difference> {
        let clock = ManualClock::at(EPOCH);
        let policy = Arc::new(if self.setup.secretive { PolicyTable::secretive() } else { PolicyTable::default() });
        let mut a = Side::new(a, &self.setup, &clock, &policy);
        let mut b = Side::new(b, &self.setup, &clock, &policy);
        for (step, op) in self.ops.iter().enumerate() {
            match op {
                Op::Clock(by) => clock.set(clock.now().saturating_add(*by)),
                Op::Policy(tenant, knobs) => policy.set(tenant, *knobs),
                _ => {}
            }
            let last = step + 1 == self.ops.len();
            let dump = (step + 1).is_multiple_of(dump_every) || last;
            let check = last || (step + 1).is_multiple_of(dump_every * 32);
            let mut both = || {
                let (from_a, from_b) = (a.apply(op), b.apply(op));
                coverage.count(&from_a);
                same(&from_a, &from_b)?;
                a.sink.with_totals(|a| b.sink.with_totals(|b| same(a, b)))?;
                if dump && let (Some(a), Some(b)) = (a.dump(), b.dump()) {
                    coverage.dumps += 1;
                    coverage.largest = coverage.largest.max(a.entries.len());
                    if a != b {
                        return Err(format!("state after it (- A, + B):\n{}", a.diff(&b)));
                    }
                }
                if check {
                    b.check(|index| check::structure(index, &self.setup.reserved))?;
                }
                Ok(())
            };
            let outcome = catch_unwind(AssertUnwindSafe(&mut both)).unwrap_or_else(|panic| {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                Err(format!("panic: {}", text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("?")))
            });
            if let Err(what) = outcome {
                return Err(Difference { step, what });
            }
            coverage.operations += 1;
        }
        coverage.finish(&a);
        Ok(())
    }

    /// The same with as few operations as can be found within a few seconds.
    #[must_use]
    pub fn shrink(&self, first: &Difference, a: &Factory<'_>, b: &Factory<'_>) -> (Self, Difference) {
        let started = Instant::now();
        let mut best = self.clone();
        best.ops.truncate(first.step + 1);
        let mut difference = first.clone();
        let mut chunk = best.ops.len();
        while chunk > 0 && started.elapsed() < Duration::from_secs(20) {
            let mut start = 0;
            let mut progress = false;
            while start < best.ops.len() {
                let mut fewer = best.clone();
                fewer.ops.drain(start..(start + chunk).min(best.ops.len()));
                match fewer.play(a, b, 1, &mut Coverage::default()) {
                    Err(found) => {
                        fewer.ops.truncate(found.step + 1);
                        (best, difference, progress) = (fewer, found, true);
                    }
                    Ok(()) => start += chunk,
                }
            }
            if !progress || chunk > 1 {
                chunk /= 2;
            }
        }
        (best, difference)
    }

    /// Shrinks it and says what is left.
    #[must_use]
    pub fn report(&self, first: &Difference, a: &Factory<'_>, b: &Factory<'_>) -> String {
        let (few, difference) = quietly(|| self.shrink(first, a, b));
        let mut text = format!("first seen at step {}, {}\n", first.step, first.what);
        text += &format!("{:#?}\n", few.setup);
        for (step, op) in few.ops.iter().enumerate() {
            text += &format!("{step:4}  {op:?}\n");
        }
        text + &format!("step {} differs: {}\n", difference.step, difference.what)
    }
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` without printing its panics: leaving out operations may panic thousands of times, one report is enough.
fn quietly<T>(work: impl FnOnce() -> T) -> T {
    static INSTALL: Once = Once::new();
    INSTALL.call_once(|| {
        let hook = take_hook();
        set_hook(Box::new(move |panic| {
            if !QUIET.get() {
                hook(panic);
            }
        }));
    });
    QUIET.set(true);
    let result = work();
    QUIET.set(false);
    result
}

fn same<T: PartialEq + Debug>(a: &T, b: &T) -> Result<(), String> {
    if a == b { Ok(()) } else { Err(format!("\n  A {a:?}\n  B {b:?}")) }
}

// === impl Coverage ===

impl Coverage {
    fn count(&mut self, answer: &Answer) {
        if let Answer::Found { strategy, rows } = answer {
            let position = match strategy {
                Strategy::None => 0,
                Strategy::PrefixMatch => 1,
                Strategy::TenantHot => 2,
                Strategy::UnknownTenant => 3,
                Strategy::UnknownModel => 4,
                Strategy::UnknownHashScheme => 5,
            };
            self.strategies[position] += 1;
            self.rows += rows.len() as u64;
            self.captures += rows.iter().map(|(_, _, captured)| u64::from(*captured)).sum::<u64>();
        }
    }

    fn finish(&mut self, side: &Side) {
        side.sink.with_totals(|totals| {
            self.over_quota += totals.over_quota.values().sum::<u64>();
            for ((algorithm, _), count) in &totals.evicted {
                self.evicted[usize::from(*algorithm == Eviction::Lfu.label())] += count;
            }
        });
    }
}
