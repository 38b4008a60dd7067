//! One operation, drawn at random.

use std::sync::Arc;

use rand::Rng;
use rand::seq::{IndexedMutRandom, IndexedRandom};

use super::names::{Hash, Names, Shape};
use super::setup::MINUTE;
use crate::resolve::Eviction;
use crate::testkit::doubles::Knobs;
use crate::time::Micros;
use crate::update::{EventKind, Stats};

/// Anything that can be done to an index or around it.
#[derive(Debug, Clone)]
pub enum Op {
    /// An update.
    Ingest(Report),
    /// An event.
    Event(Notice),
    /// A lookup, with or without credit.
    Lookup(Ask),
    /// Credit for a lookup that was put aside, whatever happened since.
    CreditLate,
    /// The pick for a seed.
    Affinity {
        /// Tenant.
        tenant: Arc<str>,
        /// Model.
        model: Arc<str>,
        /// Scheme.
        scheme: Arc<str>,
        /// Seed.
        seed: Vec<u8>,
    },
    /// A sweep.
    Sweep,
    /// The clock moves by so much, maybe backwards.
    Clock(Micros),
    /// A tenant's knobs change.
    Policy(Arc<str>, Knobs),
    /// Every read that counts, about this tenant and model and in general.
    Read(Arc<str>, Arc<str>),
}

/// When something is said to have happened.
#[derive(Debug, Clone, Copy)]
pub enum Stamp {
    /// Left to the index.
    Now,
    /// So long before the clock.
    Ago(Micros),
    /// At this instant.
    At(Micros),
}

/// An update, owned.
#[derive(Debug, Clone)]
pub struct Report {
    /// Reporter.
    pub replica: Arc<str>,
    /// Tenant.
    pub tenant: Arc<str>,
    /// Model.
    pub model: Arc<str>,
    /// Scheme.
    pub scheme: Arc<str>,
    /// Partition of entries that name none.
    pub adapter: Arc<str>,
    /// When.
    pub stamp: Stamp,
    /// Prefixes.
    pub entries: Vec<Prefix>,
    /// Load figures.
    pub stats: Option<Stats>,
}

/// One entry of a report, owned.
#[derive(Debug, Clone)]
pub struct Prefix {
    /// Partition.
    pub adapter: Arc<str>,
    /// Tier on the wire.
    pub tier: i32,
    /// Single key.
    pub key: Hash,
    /// Its tokens.
    pub tokens: i32,
    /// Chain.
    pub blocks: Vec<Hash>,
    /// Tokens of each block.
    pub counts: Vec<i32>,
}

/// An event, owned.
#[derive(Debug, Clone)]
pub struct Notice {
    /// What happened.
    pub kind: EventKind,
    /// To whom.
    pub replica: Arc<str>,
    /// Tenant.
    pub tenant: Arc<str>,
    /// Model.
    pub model: Arc<str>,
    /// Key.
    pub hash: Hash,
    /// Partition.
    pub adapter: Arc<str>,
    /// When.
    pub stamp: Stamp,
}

/// A lookup, owned.
#[derive(Debug, Clone)]
pub struct Ask {
    /// Without fallback and classification.
    pub raw: bool,
    /// Tenant.
    pub tenant: Arc<str>,
    /// Model.
    pub model: Arc<str>,
    /// Scheme.
    pub scheme: Arc<str>,
    /// Partition.
    pub adapter: Arc<str>,
    /// Exact key.
    pub key: Hash,
    /// Chain.
    pub blocks: Vec<Hash>,
    /// Tokens of each block.
    pub counts: Vec<i32>,
    /// Target.
    pub ttft_ms: i32,
    /// What happens with its hits.
    pub credit: Credit,
}

/// What happens with the hits of a lookup.
#[derive(Debug, Clone, Copy)]
pub enum Credit {
    /// Nothing.
    Never,
    /// The rows whose bit is set are kept and credited.
    Now(u64),
    /// The same, but put aside until [`Op::CreditLate`].
    Late(u64),
}

// === impl Op ===

impl Op {
    /// The next operation.
    #[must_use]
    pub fn random(rng: &mut impl Rng, names: &Names) -> Self {
        match rng.random_range(0..100) {
            0..32 => Self::Ingest(Report::random(rng, names)),
            32..45 => Self::Event(Notice::random(rng, names)),
            45..77 => Self::Lookup(Ask::random(rng, names)),
            77..79 => Self::CreditLate,
            79..81 => Self::Affinity {
                tenant: names.tenant(rng),
                model: names.mostly_first(rng, &names.models),
                scheme: names.mostly_first(rng, &names.schemes),
                seed: (0..rng.random_range(0..4)).map(|_| rng.random()).collect(),
            },
            81..84 => Self::Sweep,
            84..93 => Self::Clock(clock_move(rng)),
            93..96 => Self::Policy(names.tenant(rng), knobs(rng, names.shape)),
            _ => Self::Read(names.tenant(rng), names.mostly_first(rng, &names.models)),
        }
    }
}

impl Stamp {
    fn random(rng: &mut impl Rng) -> Self {
        // Whole minutes, so that stamps tie and meet the TTL exactly.
        const AGES: [Micros; 12] = [0, 0, 1, 1, 2, 3, 5, 9, 10, 29, 30, 31];
        match rng.random_range(0..200) {
            0..90 => Self::Now,
            90..160 => Self::Ago(AGES[rng.random_range(0..AGES.len())] * MINUTE),
            160..180 => Self::Ago(-rng.random_range(0..40) * MINUTE),
            180..196 => Self::Ago(rng.random_range(-10 * MINUTE..40 * MINUTE)),
            _ => Self::At(EXTREME.choose(rng).copied().unwrap_or(i64::MAX)),
        }
    }

    /// The timestamp at `now`.
    #[must_use]
    pub fn at(self, now: Micros) -> Micros {
        match self {
            Self::Now => 0,
            Self::Ago(age) => now.saturating_sub(age),
            Self::At(instant) => instant,
        }
    }
}

const EXTREME: [Micros; 6] = [i64::MIN, i64::MIN + 1, -1, 1, i64::MAX - 1, i64::MAX];

impl Report {
    fn random(rng: &mut impl Rng, names: &Names) -> Self {
        let entries = match rng.random_range(0..12) {
            0 => 0,
            1..8 => 1,
            _ => rng.random_range(2..=4),
        };
        let mut report = Self {
            replica: names.pick(rng, &names.replicas),
            tenant: names.tenant(rng),
            model: names.mostly_first(rng, &names.models),
            scheme: names.mostly_first(rng, &names.schemes),
            adapter: names.mostly_first(rng, &names.adapters),
            stamp: Stamp::random(rng),
            entries: (0..entries).map(|_| Prefix::random(rng, names)).collect(),
            stats: rng.random_ratio(1, 4).then(|| random_stats(rng)),
        };
        if names.shape != Shape::Small && rng.random_ratio(1, 3) {
            report.entries = decode(rng, names);
        }
        report
    }
}

/// A chain as single entries with the tokens up to each, which is how sidecars report it.
fn decode(rng: &mut impl Rng, names: &Names) -> Vec<Prefix> {
    let tier = random_tier(rng);
    let run = names.run(rng);
    let single = |(position, key): (usize, Hash)| Prefix {
        adapter: names.empty.clone(),
        tier,
        key,
        tokens: 16 * (position as i32 + 1),
        blocks: Vec::new(),
        counts: Vec::new(),
    };
    run.into_iter().enumerate().map(single).collect()
}

impl Prefix {
    fn random(rng: &mut impl Rng, names: &Names) -> Self {
        let mut prefix = Self {
            adapter: if rng.random_ratio(1, 4) { names.pick(rng, &names.adapters) } else { names.empty.clone() },
            tier: random_tier(rng),
            key: Hash(Arc::from([])),
            tokens: tokens(rng),
            blocks: Vec::new(),
            counts: Vec::new(),
        };
        let single = if names.shape == Shape::Small { 55 } else { 15 };
        let kind = rng.random_range(0..100);
        if kind < single || kind >= 95 {
            prefix.key = names.hash(rng);
        }
        if kind >= single {
            prefix.blocks = names.run(rng);
            prefix.counts = counts(rng, prefix.blocks.len());
        }
        prefix
    }
}

impl Notice {
    fn random(rng: &mut impl Rng, names: &Names) -> Self {
        let kind = match rng.random_range(0..20) {
            0 => EventKind::Unspecified,
            1 => EventKind::PrefixAdded,
            2..14 => EventKind::PrefixEvicted,
            14..17 => EventKind::ReplicaUpdated,
            _ => EventKind::AllCleared,
        };
        Self {
            kind,
            replica: names.pick(rng, &names.replicas),
            tenant: names.tenant(rng),
            model: names.mostly_first(rng, &names.models),
            hash: names.hash(rng),
            adapter: if rng.random() { names.empty.clone() } else { names.pick(rng, &names.adapters) },
            stamp: Stamp::random(rng),
        }
    }
}

impl Ask {
    fn random(rng: &mut impl Rng, names: &Names) -> Self {
        let chain = if names.shape == Shape::Small { rng.random() } else { rng.random_ratio(4, 5) };
        let mut blocks = if chain { names.run(rng) } else { Vec::new() };
        let mut counts = counts(rng, blocks.len());
        if rng.random_ratio(1, 50) {
            counts = vec![16; rng.random_range(0..3)];
        }
        if rng.random_ratio(1, 200) {
            blocks.clear();
        }
        let keep = if rng.random() { u64::MAX } else { rng.random() };
        Self {
            raw: rng.random_ratio(1, 6),
            tenant: names.tenant(rng),
            model: names.mostly_first(rng, &names.models),
            scheme: names.mostly_first(rng, &names.schemes),
            adapter: names.mostly_first(rng, &names.adapters),
            key: if chain && rng.random_ratio(3, 4) { Hash(Arc::from([])) } else { names.hash(rng) },
            blocks,
            counts,
            ttft_ms: [0, 0, 50, 199, 200, -1, i32::MAX][rng.random_range(0..7)],
            credit: match rng.random_range(0..10) {
                0..5 => Credit::Now(keep),
                5..7 => Credit::Late(keep),
                _ => Credit::Never,
            },
        }
    }
}

// === numbers ===

fn random_tier(rng: &mut impl Rng) -> i32 {
    [0, 1, 1, 2, 2, 3, 4, 99, -1, i32::MIN, i32::MAX][rng.random_range(0..11)]
}

fn tokens(rng: &mut impl Rng) -> i32 {
    match rng.random_range(0..60) {
        0 => -1,
        1 => i32::MAX,
        2..5 => 0,
        _ => rng.random_range(1..200),
    }
}

/// Counts for `blocks` blocks, rarely one that is negative or huge, or one too many or too few.
fn counts(rng: &mut impl Rng, blocks: usize) -> Vec<i32> {
    let usual = if rng.random_ratio(1, 8) { 0 } else { 16 };
    let mut counts = vec![usual; blocks];
    for _ in 0..rng.random_range(0..3) {
        if let Some(count) = counts.choose_mut(rng) {
            *count = [0, 1, 64, 100_000][rng.random_range(0..4)];
        }
    }
    match rng.random_range(0..100) {
        0 => drop(counts.pop()),
        1 => counts.push(16),
        2 => counts.iter_mut().for_each(|count| *count = i32::MAX),
        3 => counts.iter_mut().take(1).for_each(|count| *count = -5),
        _ => {}
    }
    counts
}

fn random_stats(rng: &mut impl Rng) -> Stats {
    let mut rate = || match rng.random_range(0..30) {
        0 => [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30, -1e30, -0.5, 1.5][rng.random_range(0..7)],
        1..5 => 0.1,
        _ => rng.random_range(0..=20) as f32 / 20.0,
    };
    let (hit_rate, pressure) = (rate(), rate());
    Stats {
        cache_memory_bytes: rng.random_range(-1..1000),
        hit_rate,
        pressure,
        t2_hit_tokens: rng.random_range(0..100),
        t2_query_tokens: rng.random_range(0..100),
    }
}

fn clock_move(rng: &mut impl Rng) -> Micros {
    match rng.random_range(0..60) {
        0..4 => -MINUTE,
        4 => -40 * MINUTE,
        5 => 40 * MINUTE,
        6..10 => 10 * MINUTE,
        10..14 => 1,
        14..18 => rng.random_range(0..MINUTE),
        _ => rng.random_range(0..3) * MINUTE,
    }
}

fn knobs(rng: &mut impl Rng, shape: Shape) -> Knobs {
    let small = shape == Shape::Small;
    let quotas: &[i64] = if small { &[-1, 0, 1, 2, 5, 12, i64::MAX] } else { &[-1, 0, 20, 60, 200, 200, 200] };
    Knobs {
        ttl: match rng.random_range(0..8) {
            0 if small => Some(MINUTE),
            1 => Some(5 * MINUTE),
            2 => Some(60 * MINUTE),
            3 => Some(-1),
            4 => Some(i64::MAX),
            5 => Some(rng.random_range(1..40 * MINUTE)),
            _ => None,
        },
        eviction: [None, Some(Eviction::Lru), Some(Eviction::Lfu), Some(Eviction::Lfu)][rng.random_range(0..4)],
        quota: if rng.random_ratio(3, 4) { None } else { quotas.choose(rng).copied() },
    }
}
