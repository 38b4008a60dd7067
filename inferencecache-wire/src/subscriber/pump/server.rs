//! Calls to the server: their start, their end, and what the figures say of it.

use std::collections::BTreeMap;
use std::time::Instant;

use tokio::task::{Id, JoinError};

use super::{Pump, Started};
use crate::subscriber::blockmap::Tier;
use crate::subscriber::dispatch::{Call, Ended};
use crate::subscriber::forward::CallError;
use crate::subscriber::metrics::Metrics;

impl Pump {
    pub(super) fn start_calls(&mut self) {
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

    pub(super) fn call_ended(&mut self, ended: Result<(Id, Result<(), CallError>), JoinError>) {
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

    pub(super) fn count_accepted(&self, started: &Started, now: Instant) {
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

    pub(super) fn link_changed(&mut self) {
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
    pub(super) fn settle(&mut self) {
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
}
