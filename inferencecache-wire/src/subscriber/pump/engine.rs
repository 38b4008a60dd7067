//! What comes from the engine: messages, replies, and what happens to the connections.

use std::time::{Duration, Instant, UNIX_EPOCH};

use super::Pump;
use crate::subscriber::blockmap::Notice;
use crate::subscriber::dispatch::Now;
use crate::subscriber::ingest::Message;
use crate::subscriber::metrics::Metrics;
use crate::subscriber::sequence::ReplayEnd;
use crate::subscriber::source::{EngineMessage, SourceEvent};

/// Messages that are applied in a row before anything else is looked at, and how long that may take.
const BURST: (usize, Duration) = (256, Duration::from_millis(5));

impl Pump {
    pub(super) fn events(&mut self, first: SourceEvent) {
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

    pub(super) fn event(&mut self, event: SourceEvent) {
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

    pub(super) fn message(&mut self, message: EngineMessage) {
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
    pub(super) fn applied(&mut self, now: Now) {
        for notice in std::mem::take(&mut self.notices) {
            self.notice(&notice);
        }
        self.offer(now);
        self.gather(now);
        self.tend_replays(now);
    }

    /// Opens the window if something waits in it.
    pub(super) fn gather(&mut self, now: Now) {
        if self.flush_at.is_none() && self.ingest.is_gathering() {
            self.flush_at = Some(now.instant + self.window);
        }
    }

    /// Ends replays that nobody waits for and asks for those that are wanted.
    pub(super) fn tend_replays(&mut self, now: Now) {
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

    pub(super) fn replay_until(&self) -> Option<Instant> {
        self.ingest.wake_at().map(|ticks| self.start + Duration::from_millis(100) * ticks)
    }

    pub(super) fn replays_expire(&mut self) {
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

    pub(super) fn notice(&mut self, notice: &Notice) {
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

    pub(super) fn flush_if_due(&mut self) {
        if self.flush_at.is_some_and(|at| Instant::now() >= at) {
            self.flush();
        }
    }

    pub(super) fn flush(&mut self) {
        self.flush_at = None;
        self.ingest.flush(&mut self.out);
        self.offer(self.now());
    }

    pub(super) fn offer(&mut self, now: Now) {
        for outgoing in std::mem::take(&mut self.out) {
            self.dispatcher.offer(outgoing, self.ingest.map(), now);
        }
    }
}

fn input(message: &EngineMessage) -> Message<'_> {
    Message { connection: message.connection, sequence: message.sequence, payload: &message.payload }
}
