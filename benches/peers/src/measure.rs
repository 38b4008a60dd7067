//! Clocks and medians.

use std::hint::black_box;
use std::time::Instant;

use crate::subjects::{Best, Reader, Subject};
use crate::workload::{Draw, Workload};

/// How much is run. [`Effort::quick`] only shows that everything works.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Distinct blocks of a full structure.
    pub blocks: usize,
    /// Times that a figure is taken; the median is reported.
    pub rounds: usize,
    /// Lookups of one round.
    pub lookups: usize,
    /// Blocks of the largest structure in the row about growth.
    pub largest: usize,
}

impl Effort {
    /// What the published tables are made with.
    #[must_use]
    pub fn full() -> Self {
        Self { blocks: 1_000_000, rounds: 3, lookups: 20_000, largest: 10_000_000 }
    }

    /// A tenth.
    #[must_use]
    pub fn quick() -> Self {
        Self { blocks: 100_000, rounds: 1, lookups: 4_000, largest: 1_000_000 }
    }
}

/// Lowest, middle and highest of several figures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The median; what counts.
    pub median: f64,
    /// The least.
    pub low: f64,
    /// The most.
    pub high: f64,
}

impl Spread {
    /// Of these figures.
    ///
    /// # Panics
    /// Without any.
    #[must_use]
    pub fn of(mut figures: Vec<f64>) -> Self {
        figures.sort_by(f64::total_cmp);
        Self { median: figures[figures.len() / 2], low: figures[0], high: figures[figures.len() - 1] }
    }
}

/// What reading the clock twice costs, in nanoseconds; it is taken off every single lookup.
#[must_use]
pub fn clock_cost() -> u64 {
    let mut costs: Vec<u64> = (0..10_000)
        .map(|_| {
            let start = Instant::now();
            black_box(start).elapsed().as_nanos() as u64
        })
        .collect();
    percentile(&mut costs, 50.0)
}

/// The figure below which `percent` of all lie.
pub fn percentile(figures: &mut [u64], percent: f64) -> u64 {
    figures.sort_unstable();
    let last = figures.len().saturating_sub(1);
    figures.get((last as f64 * percent / 100.0).round() as usize).copied().unwrap_or(0)
}

/// Applies prepared operations and returns nanoseconds a block.
pub fn store(subject: &mut dyn Subject, workload: &Workload, ops: &[crate::workload::Op]) -> f64 {
    subject.prepare(workload, ops);
    subject.run() as f64 / Workload::blocks(ops) as f64
}

/// Questions about chains of a workload, in an order by lot.
#[must_use]
pub fn queries(workload: &Workload, most: usize) -> Vec<&[u64]> {
    let mut draw = Draw(11);
    let n = workload.chains.len();
    (0..most.min(n)).map(|_| workload.chains[draw.below(n as u64) as usize].as_slice()).collect()
}

/// Asks `lookups` prepared questions in turn, `batch` of them between two looks at the clock; nanoseconds of one, and the
/// answers' sum to compare by. Short questions need a batch: the clock itself ticks in tens of nanoseconds.
pub fn ask(reader: &mut dyn Reader, prepared: usize, lookups: usize, batch: usize) -> (Vec<u64>, u64) {
    let mut depths = 0;
    let cost = clock_cost();
    let (warm, batches) = (lookups / batch / 10, lookups / batch);
    let mut times = Vec::with_capacity(batches);
    for i in 0..warm + batches {
        let asked = |j: usize| (i * batch + j) % prepared;
        for j in 0..batch {
            black_box(reader.touch(asked(j)));
        }
        let start = Instant::now();
        for j in 0..batch {
            let best: Best = black_box(reader.ask(asked(j)));
            depths += u64::from(best.depth);
        }
        let took = start.elapsed().as_nanos() as u64;
        if i >= warm {
            times.push(took.saturating_sub(cost) / batch as u64);
        }
    }
    (times, depths)
}

/// Fails unless every question finds its whole chain with as many replicas as expected.
///
/// # Panics
/// When an answer is wrong: then no figure means anything.
pub fn check(name: &str, reader: &mut dyn Reader, queries: &[&[u64]], scored: u32) {
    reader.prepare(queries);
    for (i, query) in queries.iter().enumerate() {
        let best = reader.ask(i);
        assert_eq!(best, Best { depth: query.len() as u32, scored }, "{name}: a wrong answer, question {i}");
    }
}
