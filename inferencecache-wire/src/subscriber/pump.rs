//! The receive task: it applies what the engine says and lets calls start. It never waits for a call.

mod facts;

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant, UNIX_EPOCH};

use inferencecache_core::time::{Clock, Micros, SystemClock};
use tokio::sync::watch;
use tokio::task::{Id, JoinError, JoinSet};
use tokio::time::sleep_until;

use super::blockmap::{Notice, Ticks, Tier};
use super::config::{Config, DEFAULT_WINDOW};
use super::dispatch::{Call, CallId, Dispatcher, Ended, Now};
use super::forward::{CallError, Client};
use super::ingest::{Ingest, Message};
use super::limit::Limiter;
use super::link::LinkState;
use super::metrics::Metrics;
use super::sequence::{ReplayEnd, ReplayId};
use super::silence::{SILENCE, Silence};
use super::source::{EngineMessage, EventSource, SourceEvent};
use super::stats::Ears;
use super::window::Outgoing;
use crate::kvevents::EngineDecoder;

/// Messages that are applied in a row before anything else is looked at, and how long that may take.
const BURST: (usize, Duration) = (256, Duration::from_millis(5));
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

    // === the engine ===

    fn events(&mut self, first: SourceEvent) {
        self.event(first);
        let until = Instant::now() + BURST.1;
        for _ in 1..BURST.0 {
            if Instant::now() >= until {
                break;
            }
            let Some(event) = self.source.try_next() else { break };
            self.event(event);
        }
    }

    fn event(&mut self, event: SourceEvent) {
        match event {
            SourceEvent::Message(message) => self.message(message),
            SourceEvent::Subscribed { connection, endpoint } => {
                self.silence.endpoint(connection, &endpoint);
                tracing::info!(endpoint, topic = self.config.topic, "subscribed to engine KV events");
            }
            SourceEvent::Connected { connection } => {
                if self.silence.connected(connection, Instant::now()) {
                    self.metrics.reconnects.inc();
                }
                self.metrics.connected.with_label_values(&[&connection.to_string()]).set(1);
                let now = self.now();
                self.ingest.rejoined(connection, now.ticks);
                self.tend_replays(now);
            }
            SourceEvent::Lost { connection } => {
                self.silence.lost(connection);
                self.ingest.parted(connection, self.now().ticks);
                self.metrics.connected.with_label_values(&[&connection.to_string()]).set(0);
                self.warn("engine connection lost", |message, suppressed| {
                    tracing::warn!(connection, suppressed, "{message}");
                });
            }
            SourceEvent::Gone { connection } => {
                let now = self.now();
                self.metrics.processes_gone.inc();
                self.ingest.gone(connection, now.ticks, &mut self.out, &mut self.notices);
                self.applied(now);
                self.warn("engine process gone; the next one starts anew", |message, suppressed| {
                    tracing::warn!(connection, suppressed, "{message}");
                });
            }
            SourceEvent::Failed { connection, receiving, error } => {
                if receiving {
                    self.ingest.parted(connection, self.now().ticks);
                }
                let (message, now) = (
                    if receiving { "zmq recv failed; reconnecting" } else { "zmq dial failed; retrying" },
                    Instant::now(),
                );
                if let Some(suppressed) = self.limiter.pass(message, now) {
                    let endpoint = self.silence.endpoint_of(connection);
                    tracing::warn!(endpoint, err = error, suppressed, "{message}");
                }
            }
            SourceEvent::Dropped { connection, messages } => {
                self.metrics.dropped_messages.inc_by(messages);
                self.ingest.dropped(connection);
                self.warn("engine messages dropped: too many were waiting", |message, suppressed| {
                    tracing::warn!(messages, suppressed, "{message}");
                });
            }
            SourceEvent::Reply { id, message } => {
                let now = self.now();
                let input = input(&message);
                self.ingest.reply(id, input, now.ticks, &mut self.out, &mut self.notices);
                self.applied(now);
            }
            SourceEvent::ReplayEnded { id, error } => {
                let (now, end) = (self.now(), error.as_ref().map_or(ReplayEnd::Complete, |_| ReplayEnd::Failed));
                if let Some(error) = error.filter(|_| self.ingest.is_wanted(id)) {
                    self.warn("engine did not replay what was missed", |message, suppressed| {
                        tracing::warn!(err = error, suppressed, "{message}");
                    });
                }
                self.ingest.replay_ended(id, end, now.ticks, &mut self.out, &mut self.notices);
                self.applied(now);
            }
        }
    }

    fn message(&mut self, message: EngineMessage) {
        self.silence.heard();
        let now = self.now();
        match self.ingest.apply(input(&message), now.ticks, &mut self.out, &mut self.notices) {
            Ok(at) if at > 0 => {
                let received = message.received.duration_since(UNIX_EPOCH).unwrap_or_default();
                let sent = Duration::from_micros(at.unsigned_abs());
                self.metrics.last_batch_timestamp.set(sent.as_secs_f64());
                Metrics::observe(&self.metrics.event_lag, received.saturating_sub(sent));
            }
            Ok(_) => {}
            Err(error) => {
                let bytes = message.payload.len();
                self.warn("dropping undecodable event batch", |message, suppressed| {
                    tracing::warn!(err = %error, bytes, suppressed, "{message}");
                });
            }
        }
        self.applied(now);
    }

    /// Hands on what the engine has said.
    fn applied(&mut self, now: Now) {
        for notice in std::mem::take(&mut self.notices) {
            self.notice(&notice);
        }
        self.offer(now);
        self.gather(now);
        self.tend_replays(now);
    }

    /// Opens the window if something waits in it.
    fn gather(&mut self, now: Now) {
        if self.flush_at.is_none() && self.ingest.is_gathering() {
            self.flush_at = Some(now.instant + self.window);
        }
    }

    /// Ends replays that nobody waits for and asks for those that are wanted.
    fn tend_replays(&mut self, now: Now) {
        let (ingest, source) = (&self.ingest, &mut self.source);
        self.replays.retain(|&id| {
            let wanted = ingest.is_wanted(id);
            if !wanted {
                source.end_replay(id);
            }
            wanted
        });
        while let Some(request) = self.ingest.next_request() {
            tracing::info!(
                connection = request.connection,
                from = request.start,
                "asking the engine for what was missed"
            );
            if self.source.replay(request) {
                self.replays.push(request.id);
            } else {
                self.ingest.replay_ended(request.id, ReplayEnd::Failed, now.ticks, &mut self.out, &mut self.notices);
                self.offer(now);
            }
        }
    }

    fn replay_until(&self) -> Option<Instant> {
        self.ingest.wake_at().map(|ticks| self.start + Duration::from_millis(100) * ticks)
    }

    fn replays_expire(&mut self) {
        let now = self.now();
        if self.ingest.wake_at().is_some_and(|at| at <= now.ticks) {
            if self.ingest.tick(now.ticks, &mut self.out, &mut self.notices) > 0 {
                self.warn("engine did not replay what was missed", |message, suppressed| {
                    tracing::warn!(err = "no answer", suppressed, "{message}");
                });
            }
            self.applied(now);
        }
    }

    fn notice(&mut self, notice: &Notice) {
        match notice {
            Notice::NothingIndexed { hashes, tokens, block_size } => {
                let message = "BlockStored produced no index entries (missing or mismatched token_ids)";
                self.warn(message, |message, suppressed| {
                    tracing::warn!(hashes, tokens, block_size, suppressed, "{message}");
                });
            }
            Notice::UnnamedAdapter { lora_id } => {
                tracing::warn!(lora_id, "adapter without a usable name; its blocks are not indexed");
            }
            Notice::UnknownMedium { medium } => tracing::warn!(medium, "unknown medium; treated as T2"),
        }
    }

    fn flush_if_due(&mut self) {
        if self.flush_at.is_some_and(|at| Instant::now() >= at) {
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.flush_at = None;
        self.ingest.flush(&mut self.out);
        self.offer(self.now());
    }

    fn offer(&mut self, now: Now) {
        for outgoing in std::mem::take(&mut self.out) {
            self.dispatcher.offer(outgoing, self.ingest.map(), now);
        }
    }

    // === the server ===

    fn start_calls(&mut self) {
        let now = self.now();
        while let Some((id, call)) = self.dispatcher.next_call(self.ingest.map(), now) {
            let (rpc, entries) = match &call {
                Call::Report { entries, .. } => {
                    let mut counts = [0; 2];
                    entries.iter().for_each(|entry| counts[usize::from(entry.tier != Tier::T1)] += 1);
                    ("ReportCacheState", counts)
                }
                Call::Evict { .. } => ("evict", [0; 2]),
                Call::Clear { .. } => ("clear", [0; 2]),
            };
            let work = self.client.call(&call, self.ingest.map().adapters());
            let task = self.calls.spawn(work).id();
            let link = *self.link.borrow();
            self.started.insert(task, Started { id, rpc, at: now.instant, link, entries });
        }
        self.settle();
    }

    fn call_ended(&mut self, ended: Result<(Id, Result<(), CallError>), JoinError>) {
        let (task, result) = match ended {
            Ok((task, result)) => (task, result.map_err(|error| error.to_string())),
            Err(error) => (error.id(), Err(error.to_string())),
        };
        let Some(started) = self.started.remove(&task) else { return };
        let now = self.now();
        let ended = match result {
            Ok(()) => {
                self.count_accepted(&started, now.instant);
                Ended::Accepted
            }
            Err(error) => {
                let rpc = if started.rpc == "ReportCacheState" { started.rpc } else { "PublishEvent" };
                self.metrics.rpc_failures.with_label_values(&[rpc]).inc();
                let server = self.config.server.clone();
                self.warn("call to the server failed; retrying", |message, suppressed| {
                    tracing::warn!(server, rpc, err = error, suppressed, "{message}");
                });
                let link = *self.link.borrow();
                if started.link.open == 0 && started.link.made == link.made { Ended::NeverSent } else { Ended::Failed }
            }
        };
        self.dispatcher.ended(started.id, ended, self.ingest.map(), now);
    }

    fn count_accepted(&self, started: &Started, now: Instant) {
        match started.rpc {
            "evict" => self.metrics.evictions.inc(),
            "clear" => {
                self.metrics.clears.inc();
                self.ears.clears.send_modify(|clears| *clears += 1);
            }
            _ => {
                Metrics::observe(&self.metrics.flush, now.duration_since(started.at));
                for (tier, count) in ["t1", "t2"].iter().zip(started.entries) {
                    self.metrics.entries_reported.with_label_values(&[tier]).inc_by(count);
                }
            }
        }
    }

    fn link_changed(&mut self) {
        let state = *self.link.borrow_and_update();
        if state.made > self.seen.made {
            self.dispatcher.connected(self.seen.made == 0);
            if let Some(suppressed) = self.limiter.pass("connected to the server", Instant::now()) {
                let (server, connections) = (&self.config.server, state.made);
                tracing::info!(server, connections, suppressed, "connected to the server");
            }
        } else if state.open == 0 && self.seen.open > 0 {
            let server = self.config.server.clone();
            self.warn("connection to the server lost", |message, suppressed| {
                tracing::warn!(server, suppressed, "{message}");
            });
            let now = self.now();
            self.dispatcher.disconnected(self.ingest.map(), now);
        }
        self.seen = state;
    }

    /// Brings the figures up to date. Called whenever something may have changed.
    fn settle(&mut self) {
        let oldest = self.dispatcher.oldest();
        // An engine that names no rank, or names it now and then, is one stream to whoever reads the figure.
        let mut reached: BTreeMap<i64, (u64, u64)> = BTreeMap::new();
        for progress in self.ingest.progress(oldest) {
            if let Some(sequence) = progress.sequence {
                let rank = progress.rank.unwrap_or(i64::from(progress.connection));
                let known = reached.entry(rank).or_default();
                *known = (*known).max((progress.ordinal, sequence));
            }
        }
        for (rank, (_, sequence)) in reached {
            self.metrics.set_acknowledged(rank, sequence);
        }
        let gathered = self.ingest.gathered();
        let map = self.ingest.map();
        let waiting = map.dirty() + self.dispatcher.pending_reports(map) + gathered;
        let (indexed, opaque) = map.tracked();
        self.metrics.set_tracked(indexed, opaque);
        self.metrics.set_tally(map.tally());
        self.metrics.set_events(self.ingest.tally());
        self.metrics.set_sequences(&self.ingest.sequences());
        self.metrics.set_reports(self.dispatcher.sweeps, self.dispatcher.reannounced);
        self.metrics.pending_reports.set(i64::try_from(waiting).unwrap_or(i64::MAX));
        let evictions = self.dispatcher.pending_evictions();
        self.metrics.pending_evictions.set(i64::try_from(evictions).unwrap_or(i64::MAX));
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

fn input(message: &EngineMessage) -> Message<'_> {
    Message { connection: message.connection, sequence: message.sequence, payload: &message.payload }
}

/// Sleeps until an instant; for ever when there is none.
async fn sleep(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until.into()).await,
        None => std::future::pending().await,
    }
}
