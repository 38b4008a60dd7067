//! The receive task: it applies what the engine says and lets calls start. It never waits for a call.

mod engine;
mod facts;
mod server;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use inferencecache_core::time::{Clock, Micros, SystemClock};
use tokio::sync::watch;
use tokio::task::{Id, JoinSet};
use tokio::time::sleep_until;

use super::blockmap::{Notice, Ticks};
use super::config::{Config, DEFAULT_WINDOW};
use super::dispatch::{CallId, Dispatcher, Now};
use super::forward::{CallError, Client};
use super::ingest::Ingest;
use super::limit::Limiter;
use super::link::LinkState;
use super::metrics::Metrics;
use super::sequence::ReplayId;
use super::silence::{SILENCE, Silence};
use super::source::EventSource;
use super::stats::Ears;
use super::window::Outgoing;
use crate::kvevents::EngineDecoder;

/// How often silence and the age of beliefs are looked at.
const CHECK: Duration = Duration::from_secs(5);
/// What is queued may take this long to leave when the process ends.
const DRAIN: Duration = Duration::from_secs(5);

/// A call in flight.
struct Started {
    id: CallId,
    rpc: &'static str,
    at: Instant,
    link: LinkState,
    /// Entries of each tier, for the counters.
    entries: [u64; 2],
}

/// Everything the receive task owns.
pub(super) struct Pump {
    config: Config,
    source: Box<dyn EventSource>,
    ingest: Ingest<Box<dyn EngineDecoder>>,
    dispatcher: Dispatcher,
    client: Client,
    link: watch::Receiver<LinkState>,
    seen: LinkState,
    calls: JoinSet<Result<(), CallError>>,
    started: HashMap<Id, Started>,
    metrics: Metrics,
    limiter: Limiter,
    clock: SystemClock,
    start: Instant,
    window: Duration,
    flush_at: Option<Instant>,
    replays: Vec<ReplayId>,
    silence: Silence,
    messages_at_page: u64,
    ears: Ears,
    out: Vec<Outgoing>,
    notices: Vec<Notice>,
    only_ignored_since: Option<Instant>,
}

impl Pump {
    pub(super) fn new(
        config: Config,
        source: Box<dyn EventSource>,
        decoder: Box<dyn EngineDecoder>,
        client: Client,
        metrics: Metrics,
        ears: Ears,
    ) -> Self {
        let refresh = Ticks::try_from(config.refresh_min_interval.as_millis() / 100).unwrap_or(Ticks::MAX);
        let mut ingest = Ingest::new(decoder, config.rules.clone(), config.startup_clear, refresh);
        for connection in source.replayable() {
            ingest.replayable(connection);
        }
        let link = client.link();
        let window = if config.window.is_zero() { DEFAULT_WINDOW } else { config.window };
        let mut silence = Silence::new(Instant::now());
        for rank in config.ranks().unwrap_or_default() {
            silence.endpoint(rank.rank, &rank.publisher);
        }
        let dispatcher = Dispatcher::reannouncing(config.reannounce_interval);
        Self {
            config,
            source,
            ingest,
            dispatcher,
            client,
            link,
            seen: LinkState::default(),
            calls: JoinSet::new(),
            started: HashMap::new(),
            metrics,
            limiter: Limiter::default(),
            clock: SystemClock::default(),
            start: Instant::now(),
            window,
            flush_at: None,
            replays: Vec::new(),
            silence,
            messages_at_page: 0,
            ears,
            out: Vec::new(),
            notices: Vec::new(),
            only_ignored_since: None,
        }
    }

    /// Runs until `shutdown`, then delivers what is queued. Returns whether all of it was.
    pub(super) async fn run(mut self, shutdown: impl Future<Output = ()>) -> bool {
        let mut shutdown = std::pin::pin!(shutdown);
        let mut check = tokio::time::interval(CHECK);
        loop {
            self.start_calls();
            let wake = [self.flush_at, self.dispatcher.wake_at(), self.replay_until()].into_iter().flatten().min();
            tokio::select! {
                () = &mut shutdown => break,
                event = self.source.next() => match event {
                    Some(event) => {
                        self.events(event);
                        // A flood never lets the source run dry, and whoever shares the thread must get on.
                        tokio::task::yield_now().await;
                    }
                    None => {
                        tracing::error!("the source of engine messages has ended");
                        shutdown.as_mut().await;
                        break;
                    }
                },
                Some(ended) = self.calls.join_next_with_id() => {
                    self.call_ended(ended);
                    while let Some(ended) = self.calls.try_join_next_with_id() {
                        self.call_ended(ended);
                    }
                }
                Ok(()) = self.link.changed() => self.link_changed(),
                () = sleep(wake), if wake.is_some() => {
                    self.flush_if_due();
                    self.replays_expire();
                }
                Some(observed) = self.ears.facts.recv() => self.observed(observed),
                _ = check.tick() => self.look(),
            }
        }
        self.drain().await
    }

    /// Applies what still waits and delivers it, within a limit.
    async fn drain(mut self) -> bool {
        let deadline = Instant::now() + DRAIN;
        self.source.stop();
        while let Ok(Some(event)) = tokio::time::timeout_at(deadline.into(), self.source.next()).await {
            self.event(event);
        }
        self.flush();
        self.dispatcher.hurry(self.now());
        loop {
            self.start_calls();
            if self.dispatcher.is_idle() {
                return true;
            }
            let wake = self.dispatcher.wake_at();
            tokio::select! {
                () = sleep(Some(deadline)) => return false,
                Some(ended) = self.calls.join_next_with_id() => self.call_ended(ended),
                () = sleep(wake), if wake.is_some() => {}
            }
        }
    }

    // === warnings ===

    fn look_for_ignored_groups(&mut self, now: Instant) {
        if !self.ingest.map().only_ignored_groups() {
            self.only_ignored_since = None;
        } else if now.duration_since(*self.only_ignored_since.get_or_insert(now)) >= SILENCE.0 {
            self.warn(
                "only KV-cache groups that are not indexed were seen; see --index-group",
                |message, suppressed| {
                    tracing::warn!(suppressed, "{message}");
                },
            );
        }
    }

    fn warn(&mut self, message: &'static str, write: impl FnOnce(&str, u64)) {
        if let Some(suppressed) = self.limiter.pass(message, Instant::now()) {
            write(message, suppressed);
        }
    }

    fn now(&self) -> Now {
        let instant = Instant::now();
        let wall: Micros = self.clock.now();
        let ticks = Ticks::try_from(instant.duration_since(self.start).as_millis() / 100).unwrap_or(Ticks::MAX);
        Now { instant, wall, ticks }
    }
}

/// Sleeps until an instant; for ever when there is none.
async fn sleep(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until.into()).await,
        None => std::future::pending().await,
    }
}
