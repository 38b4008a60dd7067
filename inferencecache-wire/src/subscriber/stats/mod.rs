//! The statistics path: an engine's own metrics become the load that the server knows of a replica.
//!
//! ```text
//! /metrics ──fetch──> text ──> reading ──derive──> load ──gRPC──> server
//!                                  └─────edges──> facts about the cache ──> receive task
//! ```
//!
//! 1. It is a task of its own: neither a slow engine nor a slow server holds up the events, and no event holds up a tick.
//! 2. A page is read line by line; whatever is on it, a tick is at worst missed.
//! 3. A tick succeeds only when the server has accepted its sample; misses are told, and louder when they go on.
//! 4. A clear deletes the load at the server as well. Each one that was forwarded is followed by the last sample.

pub mod derive;
pub mod edges;
pub mod fetch;
mod profile;
pub mod reading;
pub mod staleness;
pub mod text;

use std::time::Duration;

use inferencecache_core::time::{Clock as _, SystemClock};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

pub use self::profile::Profile;

use self::derive::{Deriver, Limits, Load};
use self::edges::{Edges, Facts};
use self::fetch::{BadUrl, FetchError, Target};
use self::reading::{CacheTier, Useless, Wanted, reading};
use self::staleness::{Say, Staleness};
use super::forward::Client;
use super::metrics::Metrics;
use super::recovery::spread;

/// How long a tick waits for the clear that its own page has led to.
const CLEARING: Duration = Duration::from_secs(1);
/// By how much ticks are spread, per mille of the interval.
const JITTER: u32 = 100;

/// Where statistics come from, and what they are measured against.
#[derive(Debug, Clone, PartialEq)]
pub struct StatsConfig {
    /// The engine's Prometheus page. Default `http://127.0.0.1:8000/metrics`.
    pub url: String,
    /// How often it is read. Default 10 s; 0 means the default.
    pub interval: Duration,
    /// Capacity of the KV cache, in bytes; 0 when not known. Default 0.
    pub capacity_bytes: i64,
    /// Requests at which the engine counts as fully loaded. Default 256.
    pub ceiling: f64,
    /// Which usage figure counts. Default [`CacheTier::Auto`].
    pub tier: CacheTier,
    /// Only series of this `model_name`; empty takes all. Default empty.
    pub model: String,
}

/// Default of [`StatsConfig::interval`].
pub const DEFAULT_INTERVAL: Duration = Duration::from_secs(10);

impl Default for StatsConfig {
    fn default() -> Self {
        Self {
            url: "http://127.0.0.1:8000/metrics".to_owned(),
            interval: DEFAULT_INTERVAL,
            capacity_bytes: 0,
            ceiling: 256.0,
            tier: CacheTier::Auto,
            model: String::new(),
        }
    }
}

/// Facts for the receive task, and where to answer whether they led to a clear.
#[derive(Debug)]
pub(super) struct Observed {
    pub(super) facts: Facts,
    pub(super) clearing: oneshot::Sender<bool>,
}

/// The receive task's end: facts come in, and clears that the server has acknowledged are counted.
#[derive(Debug)]
pub(super) struct Ears {
    pub(super) facts: mpsc::Receiver<Observed>,
    pub(super) clears: watch::Sender<u64>,
}

/// The other end.
#[derive(Debug)]
pub(super) struct Mouth {
    facts: mpsc::Sender<Observed>,
    clears: watch::Receiver<u64>,
}

/// Both ends. A page's facts that are not taken within a second are left out.
pub(super) fn between() -> (Mouth, Ears) {
    let (send, facts) = mpsc::channel(1);
    let (clears, watch) = watch::channel(0);
    (Mouth { facts: send, clears: watch }, Ears { facts, clears })
}

/// Why a tick was missed.
#[derive(Debug, thiserror::Error)]
enum Miss {
    #[error("{0}")]
    Fetch(#[from] FetchError),
    #[error("{0}")]
    Useless(#[from] Useless),
    #[error("the server: {0}")]
    Server(String),
}

/// The task.
#[derive(Debug)]
pub(super) struct StatsPath {
    config: StatsConfig,
    target: Target,
    profile: Profile,
    client: Client,
    metrics: Metrics,
    mouth: Mouth,
    clock: SystemClock,
    deriver: Deriver,
    edges: Edges,
    staleness: Staleness,
    latest: Option<Load>,
    draws: u64,
}

impl StatsPath {
    pub(super) fn new(
        config: StatsConfig,
        hash_scheme: &str,
        client: Client,
        metrics: Metrics,
        mouth: Mouth,
    ) -> Result<Self, BadUrl> {
        let target = Target::new(&config.url)?;
        let (profile, known) = Profile::of(hash_scheme);
        if !known {
            tracing::warn!(hash_scheme, "no profile of metrics for this hash scheme; vLLM's names are used");
        }
        Ok(Self {
            config,
            target,
            profile,
            client,
            metrics,
            mouth,
            clock: SystemClock::default(),
            deriver: Deriver::new(profile),
            edges: Edges::default(),
            staleness: Staleness::default(),
            latest: None,
            draws: 0,
        })
    }

    /// Ticks until `ended`; what is under way then is dropped.
    pub(super) async fn run(mut self, ended: CancellationToken) {
        tokio::select! {
            () = ended.cancelled() => {}
            () = self.ticks() => {}
        }
    }

    async fn ticks(&mut self) {
        let interval = if self.config.interval.is_zero() { DEFAULT_INTERVAL } else { self.config.interval };
        loop {
            let due = Instant::now() + spread(interval, JITTER, &mut self.draws);
            let result = self.tick().await;
            self.tell(result);
            loop {
                tokio::select! {
                    () = sleep_until(due) => break,
                    Ok(()) = self.mouth.clears.changed() => self.repeat().await,
                }
            }
        }
    }

    async fn tick(&mut self) -> Result<(), Miss> {
        let page = self.page().await;
        let result = match &page {
            Ok(page) => {
                let wanted = Wanted { profile: self.profile, model: &self.config.model, tier: self.config.tier };
                let (reading, skipped) = reading(page, wanted);
                self.metrics.skipped_lines.inc_by(skipped);
                reading.map_err(Miss::from)
            }
            Err(_) => Ok(reading::Reading::default()),
        };
        self.metrics.count_scrape(match (&page, &result) {
            (Err(FetchError::Timeout), _) => "timeout",
            (Err(FetchError::Status(_)), _) => "status",
            (Err(FetchError::TooLarge), _) => "too_large",
            (Err(FetchError::Unreachable(_)), _) => "unreachable",
            (Ok(_), Err(Miss::Useless(Useless::NoLoad))) => "no_load",
            (Ok(_), Err(_)) => "no_family",
            (Ok(_), Ok(_)) => "ok",
        });
        // What is repeated after a clear must be of now.
        self.latest = None;
        page?;
        let reading = result?;
        let limits = Limits { capacity_bytes: self.config.capacity_bytes, ceiling: self.config.ceiling };
        let load = self.deriver.load(&reading, limits);
        let facts = self.edges.facts(&reading);
        self.inform(facts).await;
        self.latest = Some(load);
        self.send(load).await.map_err(Miss::Server)
    }

    /// Fetches the page, and meanwhile repeats the last sample after clears.
    async fn page(&mut self) -> Result<bytes::Bytes, FetchError> {
        let target = self.target.clone();
        let mut fetch = std::pin::pin!(target.fetch());
        loop {
            tokio::select! {
                page = &mut fetch => return page,
                Ok(()) = self.mouth.clears.changed() => self.repeat().await,
            }
        }
    }

    /// Tells the receive task, and waits for the clear if there is to be one: the sample must come after it.
    async fn inform(&mut self, facts: Facts) {
        self.mouth.clears.mark_unchanged();
        let (clearing, answer) = oneshot::channel();
        let waits = !facts.asleep.is_empty() || facts.restarted;
        let cleared = async {
            let sent = self.mouth.facts.send(Observed { facts, clearing }).await;
            if sent.is_ok() && waits && answer.await == Ok(true) {
                let _ = self.mouth.clears.changed().await;
            }
        };
        let _ = timeout(CLEARING, cleared).await;
    }

    async fn repeat(&mut self) {
        if let Some(load) = self.latest
            && let Err(error) = self.send(load).await
        {
            tracing::debug!(err = error, "engine load could not be repeated after a clear");
        }
    }

    async fn send(&self, load: Load) -> Result<(), String> {
        let sent = self.client.load(load, self.clock.now()).await;
        sent.map_err(|error| {
            self.metrics.rpc_failures.with_label_values(&["ReportCacheState"]).inc();
            error.to_string()
        })
    }

    fn tell(&mut self, result: Result<(), Miss>) {
        let url = &self.config.url;
        let (say, err) = match result {
            Ok(()) => (self.staleness.delivered(), String::new()),
            Err(miss) => (self.staleness.missed(), miss.to_string()),
        };
        self.metrics.stale.set(i64::from(self.staleness.is_stale()));
        let consecutive_failures = self.staleness.misses();
        match say {
            Say::Nothing => {}
            Say::Missed => tracing::warn!(url, consecutive_failures, err, "engine load was not delivered"),
            Say::Stale { delivered_before: true } => tracing::error!(
                event = "load_signal_stale",
                url,
                consecutive_failures,
                err,
                "engine load is no longer delivered; routing may go by old figures"
            ),
            Say::Stale { delivered_before: false } => tracing::error!(
                event = "load_signal_stale",
                url,
                consecutive_failures,
                err,
                "engine load has not been delivered since the start; routing goes without it"
            ),
            Say::StillStale => tracing::debug!(url, consecutive_failures, err, "engine load was not delivered"),
            Say::Recovered { after } => tracing::info!(
                event = "load_signal_recovered",
                url,
                after_failures = after,
                "engine load is delivered again"
            ),
        }
    }
}

#[cfg(test)]
mod tests;
