//! What one page says about the engine.
//!
//! Pure: bytes in, figures out. Series are filtered by model, summed or maximised per figure as each asks for, and nothing is
//! compared with an earlier page.

use std::collections::{BTreeMap, HashMap, HashSet};

use thiserror::Error;

use super::profile::{Figure, Kind, Known, Profile};
use super::text::{Line, Sample, read};

/// Series of the profile that are kept of one page. An engine has a few for each of its ranks and processes.
pub const MAX_SERIES: usize = 4096;

/// Which usage figure counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CacheTier {
    /// `kv` when there is one, otherwise the larger of the other two.
    #[default]
    Auto,
    /// Today's name.
    Kv,
    /// The older name for device memory.
    Gpu,
    /// The older name for host memory.
    Cpu,
}

impl CacheTier {
    /// As flags spell it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Kv => "kv",
            Self::Gpu => "gpu",
            Self::Cpu => "cpu",
        }
    }
}

/// Why a page is of no use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Useless {
    /// Nothing on it belongs to the profile.
    #[error("no family of this engine is on the page: wrong engine, port or --hash-scheme")]
    NoFamily,
    /// There is no load.
    #[error("running or waiting requests are missing, or --engine-model-name leaves none")]
    NoLoad,
}

/// What one page says. Absent figures are `None`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Reading {
    /// Requests in progress.
    pub running: f64,
    /// Requests that wait.
    pub waiting: f64,
    /// Share of the cache in use.
    pub usage: Option<f64>,
    /// Cumulative tokens found and looked for.
    pub hits: Option<f64>,
    /// See [`hits`](Self::hits).
    pub queries: Option<f64>,
    /// A ready-made hit rate.
    pub rate: Option<f64>,
    /// Cumulative tokens found in the second tier, and looked for there.
    pub second_tier: (f64, f64),
    /// Cumulative prompt tokens.
    pub prompt_tokens: Option<f64>,
    /// For each engine that says so: whether it is awake.
    pub awake: BTreeMap<i64, bool>,
    /// When the process that serves the page started, in seconds since the Unix epoch.
    pub process_start: Option<f64>,
    /// How much device memory holds.
    pub capacity: Capacity,
    /// Whether prefix caching is on, if the engine says so.
    pub prefix_caching: Option<bool>,
}

/// How much the device memory of all engines holds. What is not known is `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capacity {
    /// Blocks, or pages.
    pub blocks: Option<u64>,
    /// Tokens.
    pub tokens: Option<u64>,
}

impl Capacity {
    /// In blocks of `block_size` tokens. Events may speak of smaller blocks than the memory is divided into, so the larger
    /// of two figures counts.
    #[must_use]
    pub fn in_blocks(self, block_size: Option<u32>) -> Option<u64> {
        let fitting = block_size.and_then(|size| self.tokens?.checked_div(u64::from(size)));
        self.blocks.max(fitting)
    }
}

/// What to look for.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// Whose names.
    pub profile: Profile,
    /// Only series of this model; empty takes all.
    pub model: &'a str,
    /// Which usage.
    pub tier: CacheTier,
}

/// Series of one page, by figure.
#[derive(Default)]
struct Page<'a> {
    series: Vec<(Known, Sample<'a>)>,
    kinds: HashMap<(Figure, bool), Vec<&'a str>>,
    process_start: Option<f64>,
}

/// Reads a page; with the number of lines that were skipped, in either case.
///
/// # Errors
///
/// [`Useless`].
pub fn reading(page: &[u8], wanted: Wanted<'_>) -> (Result<Reading, Useless>, u64) {
    let mut found = Page::default();
    let mut seen = HashSet::new();
    let mut surplus = 0;
    let skipped = read(page, |line| match line {
        Line::Kind { name, kind } => {
            if let Some(known) = wanted.profile.known(name) {
                let kinds = found.kinds.entry((known.figure, known.total)).or_default();
                if !kinds.contains(&kind) && kinds.len() < 8 {
                    kinds.push(kind);
                }
            }
        }
        Line::Sample(sample) => match wanted.profile.known(sample.name) {
            Some(_) if found.series.len() >= MAX_SERIES => surplus += 1,
            Some(known) => {
                let mut labels = sample.labels.clone();
                labels.sort_unstable();
                // Two spellings of one series count once.
                if seen.insert((known.figure, known.total, labels)) {
                    found.series.push((known, sample));
                }
            }
            None if sample.name == "process_start_time_seconds" => {
                found.process_start = Some(sample.value).filter(|at| at.is_finite());
            }
            None => {}
        },
    });
    (found.reading(wanted), skipped + surplus)
}

impl<'a> Page<'a> {
    fn reading(&self, wanted: Wanted<'_>) -> Result<Reading, Useless> {
        if !self.series.iter().any(|(known, _)| known.telling && self.typed(known)) {
            return Err(Useless::NoFamily);
        }
        let model = wanted.model;
        let load = |figure| {
            let each = self.values(figure, model).filter(|s| s.label("priority").unwrap_or_default().is_empty());
            sum(each)
        };
        let (Some(running), Some(waiting)) = (load(Figure::Running), load(Figure::Waiting)) else {
            return Err(Useless::NoLoad);
        };
        let counter = |figure| self.counter(figure, model);
        let queries = match wanted.profile {
            Profile::Vllm => Figure::Queries,
            Profile::Sglang => Figure::PromptTokens,
        };
        Ok(Reading {
            running,
            waiting,
            usage: self.usage(wanted),
            hits: counter(Figure::Hits),
            queries: counter(queries),
            rate: max(self.values(Figure::Rate, model)),
            second_tier: (
                counter(Figure::SecondTierHits).unwrap_or_default(),
                counter(Figure::SecondTierQueries).unwrap_or_default(),
            ),
            prompt_tokens: counter(Figure::PromptTokens),
            awake: self.awake(model),
            process_start: self.process_start,
            capacity: self.capacity(wanted),
            prefix_caching: self.prefix_caching(model),
        })
    }

    /// Whether the family of a series is of the kind that the figure is read from, or of none.
    fn typed(&self, known: &Known) -> bool {
        let kinds = match self.kinds.get(&(known.figure, known.total)) {
            None if known.total => self.kinds.get(&(known.figure, false)),
            kinds => kinds,
        };
        kinds.is_none_or(|kinds| {
            kinds.iter().any(|kind| match *kind {
                "gauge" | "info" | "stateset" => known.kind == Kind::Gauge,
                "counter" => known.kind == Kind::Counter,
                other => matches!(other, "untyped" | "unknown"),
            })
        })
    }

    /// Series of a figure with a value, of the right kind. Of a counter: those with the suffix `_total` if there are any.
    fn series(&self, figure: Figure) -> impl Iterator<Item = &Sample<'a>> {
        let usable = move |known: &Known, sample: &Sample<'_>| {
            known.figure == figure && self.typed(known) && sample.value.is_finite()
        };
        let total = self.series.iter().any(|(known, sample)| known.total && usable(known, sample));
        self.series
            .iter()
            .filter(move |(known, sample)| known.total == total && usable(known, sample))
            .map(|(_, sample)| sample)
    }

    /// The same, of the wanted model alone.
    fn values(&self, figure: Figure, model: &str) -> impl Iterator<Item = &Sample<'a>> {
        self.series(figure).filter(move |sample| model.is_empty() || sample.label("model_name") == Some(model))
    }

    /// The same, but what does not name a model belongs to all: configuration and states of the engine.
    fn of_engine(&self, figure: Figure, model: &str) -> impl Iterator<Item = &Sample<'a>> {
        self.series(figure)
            .filter(move |sample| model.is_empty() || sample.label("model_name").is_none_or(|name| name == model))
    }

    fn counter(&self, figure: Figure, model: &str) -> Option<f64> {
        sum(self.values(figure, model))
    }

    fn usage(&self, wanted: Wanted<'_>) -> Option<f64> {
        let most = |figure| max(self.values(figure, wanted.model));
        match wanted.tier {
            CacheTier::Kv => most(Figure::UsageKv),
            CacheTier::Gpu => most(Figure::UsageGpu),
            CacheTier::Cpu => most(Figure::UsageCpu),
            CacheTier::Auto => most(Figure::UsageKv)
                .or_else(|| [Figure::UsageGpu, Figure::UsageCpu].into_iter().filter_map(most).reduce(f64::max)),
        }
    }

    fn awake(&self, model: &str) -> BTreeMap<i64, bool> {
        let mut awake = BTreeMap::new();
        for sample in self.of_engine(Figure::SleepState, model) {
            if sample.label("sleep_state") == Some("awake") {
                // Of several processes that speak for one engine, the one that knows it awake is right.
                *awake.entry(engine(sample)).or_insert(false) |= sample.value != 0.0;
            }
        }
        awake
    }

    fn capacity(&self, wanted: Wanted<'_>) -> Capacity {
        let names = match wanted.profile {
            Profile::Vllm => ("num_gpu_blocks", "block_size"),
            Profile::Sglang => ("num_pages", "page_size"),
        };
        let mut engines: BTreeMap<i64, (u64, u64)> = BTreeMap::new();
        for sample in self.of_engine(Figure::CacheConfig, wanted.model) {
            let number = |label| sample.label(label).and_then(|text| text.parse().ok());
            let blocks: u64 = number(names.0).unwrap_or_default();
            let tokens = blocks.saturating_mul(number(names.1).unwrap_or_default());
            let known = engines.entry(engine(sample)).or_default();
            *known = (*known).max((blocks, tokens));
        }
        let all = engines
            .values()
            .fold((0, 0), |(a, b): (u64, u64), &(blocks, tokens)| (a.saturating_add(blocks), b.saturating_add(tokens)));
        let mut ranks: BTreeMap<i64, f64> = BTreeMap::new();
        for sample in self.of_engine(Figure::CapacityTokens, wanted.model) {
            let known = ranks.entry(engine(sample)).or_default();
            *known = known.max(sample.value);
        }
        let tokens = ranks.values().copied().reduce(|a, b| a + b).map_or(all.1, count);
        let page = max(self.of_engine(Figure::PageSize, wanted.model)).map(count).or_else(|| {
            self.of_engine(Figure::CacheConfig, wanted.model)
                .find_map(|sample| sample.label("page_size").and_then(|text| text.parse().ok()))
        });
        let pages = page.and_then(|page| tokens.checked_div(page)).unwrap_or_default();
        let known = |number: u64| Some(number).filter(|&number| number > 0);
        Capacity { blocks: known(all.0).or(known(pages)), tokens: known(tokens) }
    }

    fn prefix_caching(&self, model: &str) -> Option<bool> {
        let mut said = self.of_engine(Figure::CacheConfig, model).filter_map(|s| s.label("enable_prefix_caching"));
        said.find_map(|value| match value {
            "True" | "true" | "1" => Some(true),
            "False" | "false" | "0" => Some(false),
            _ => None,
        })
    }
}

/// The engine, or the rank, that a series is about.
fn engine(sample: &Sample<'_>) -> i64 {
    ["engine", "dp_rank"].iter().find_map(|label| sample.label(label)?.parse().ok()).unwrap_or_default()
}

/// A count that came as a float.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates; negative counts are none")]
pub(super) fn count(value: f64) -> u64 {
    value as u64
}

fn sum<'s, 'a: 's>(samples: impl Iterator<Item = &'s Sample<'a>>) -> Option<f64> {
    samples.map(|sample| sample.value).reduce(|a, b| a + b)
}

fn max<'s, 'a: 's>(samples: impl Iterator<Item = &'s Sample<'a>>) -> Option<f64> {
    samples.map(|sample| sample.value).reduce(f64::max)
}
