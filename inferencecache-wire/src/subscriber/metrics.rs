//! What a subscriber counts. The only place that spells the names of its metrics.

use std::time::Duration;

use prometheus::{
    Encoder as _, Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};

use super::blockmap::Tally;
use super::ingest::EventTally;
use super::sequence::SequenceTally;

const PREFIX: &str = "inferencecache_subscriber";

/// All metrics, on a registry of their own.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Registry,
    batches: IntCounter,
    events: IntCounterVec,
    decode_errors: IntCounterVec,
    dropped_blocks: IntCounterVec,
    unknown_removals: IntCounter,
    map_evictions: IntCounter,
    gaps: IntCounter,
    lost_batches: IntCounter,
    replayed_batches: IntCounter,
    duplicate_batches: IntCounter,
    engine_restarts: IntCounter,
    unproven_publishers: IntCounter,
    held_drops: IntCounter,
    pub(super) processes_gone: IntCounter,
    pub(super) reconnects: IntCounter,
    pub(super) dropped_messages: IntCounter,
    pub(super) entries_reported: IntCounterVec,
    pub(super) evictions: IntCounter,
    pub(super) clears: IntCounter,
    pub(super) rpc_failures: IntCounterVec,
    full_reports: IntCounter,
    reannounced_entries: IntCounter,
    doubted_blocks: IntCounterVec,
    scrapes: IntCounterVec,
    pub(super) skipped_lines: IntCounter,
    pub(super) stale: IntGauge,
    acknowledged_sequence: IntGaugeVec,
    tracked_blocks: IntGaugeVec,
    pub(super) connected: IntGaugeVec,
    pub(super) last_batch_timestamp: Gauge,
    pub(super) pending_evictions: IntGauge,
    pub(super) pending_reports: IntGauge,
    pub(super) flush: Histogram,
    pub(super) event_lag: Histogram,
}

impl Metrics {
    /// Registers everything, at zero.
    ///
    /// # Errors
    ///
    /// Never in practice: names are fixed and the registry is new.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let r = &registry;
        let counter = |name: &str, help: &str| register(r, IntCounter::with_opts(opts(name, help)));
        let counters =
            |name: &str, help: &str, label: &str| register(r, IntCounterVec::new(opts(name, help), &[label]));
        let gauges = |name: &str, help: &str, label: &str| register(r, IntGaugeVec::new(opts(name, help), &[label]));
        let histogram = |name: &str, help: &str| {
            let buckets = vec![0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0];
            let opts = HistogramOpts::new(format!("{PREFIX}_{name}"), help).buckets(buckets);
            register(r, Histogram::with_opts(opts))
        };
        let metrics = Self {
            batches: counter("batches_total", "Batches received, undecodable ones included.")?,
            events: counters("events_total", "Events received.", "type")?,
            decode_errors: counters("decode_errors_total", "Batches or events that could not be decoded.", "kind")?,
            dropped_blocks: counters("dropped_blocks_total", "Announced blocks that were not indexed.", "reason")?,
            unknown_removals: counter("unknown_removals_total", "Removals of blocks that were not known.")?,
            map_evictions: counter("map_evictions_total", "Blocks forgotten because of the bound on tracked blocks.")?,
            gaps: counter("gaps_total", "Times that batches were missing between two live ones.")?,
            lost_batches: counter("lost_batches_total", "Batches that were missed for good.")?,
            replayed_batches: counter("replayed_batches_total", "Batches that the engine sent again when asked.")?,
            duplicate_batches: counter("duplicate_batches_total", "Live batches that were seen before.")?,
            engine_restarts: counter("engine_restarts_total", "Publishers that turned out to be new processes.")?,
            unproven_publishers: counter(
                "unproven_publishers_total",
                "Publishers not shown to be the same process after their connection was lost; their blocks age out.",
            )?,
            held_drops: counter("held_drops_total", "Live batches dropped because too many waited for a replay.")?,
            processes_gone: counter(
                "engine_processes_gone_total",
                "Publishers that refused a connection after one that stood.",
            )?,
            reconnects: counter("reconnects_total", "Connections to a publisher after the first.")?,
            dropped_messages: counter("dropped_messages_total", "Messages dropped because too many were waiting.")?,
            entries_reported: counters("entries_reported_total", "Entries the server has acknowledged.", "tier")?,
            evictions: counter("evictions_total", "Evictions the server has acknowledged.")?,
            clears: counter("clears_total", "Clears the server has acknowledged.")?,
            rpc_failures: counters("rpc_failures_total", "Calls that failed or were not accepted.", "rpc")?,
            full_reports: counter("full_reports_total", "Reports of everything held that were begun.")?,
            reannounced_entries: counter(
                "reannounced_entries_total",
                "Entries reported again because they are still held.",
            )?,
            doubted_blocks: counters(
                "doubted_blocks_total",
                "Blocks no longer reported again until they are stored again.",
                "reason",
            )?,
            scrapes: counters("scrapes_total", "Reads of the engine's metrics.", "result")?,
            skipped_lines: counter("skipped_metric_lines_total", "Lines of the engine's metrics that make no sense.")?,
            stale: register(
                r,
                IntGauge::with_opts(opts(
                    "stale",
                    "Whether the last three samples of the engine's load or more were missed.",
                )),
            )?,
            acknowledged_sequence: gauges(
                "acknowledged_sequence",
                "Last engine sequence all of whose reports and evictions the server has acknowledged.",
                "rank",
            )?,
            tracked_blocks: gauges("tracked_blocks", "Engine blocks in the map.", "kind")?,
            connected: gauges("connected", "Whether a publisher is connected.", "rank")?,
            last_batch_timestamp: register(
                r,
                Gauge::with_opts(opts("last_batch_timestamp_seconds", "Time of the last batch that had one.")),
            )?,
            pending_evictions: register(
                r,
                IntGauge::with_opts(opts("pending_evictions", "Evictions the server has not acknowledged.")),
            )?,
            pending_reports: register(
                r,
                IntGauge::with_opts(opts(
                    "pending_reports",
                    "Pairs that wait to be reported: gathered, queued, in flight, for a retry or for a full report.",
                )),
            )?,
            flush: histogram("flush_seconds", "Duration of a report, from its start to its acknowledgement.")?,
            event_lag: histogram("event_lag_seconds", "Time between a batch and its receipt.")?,
            registry: registry.clone(),
        };
        for kind in ["stored", "removed", "cleared", "unknown"] {
            metrics.events.with_label_values(&[kind]);
        }
        for kind in ["batch", "event"] {
            metrics.decode_errors.with_label_values(&[kind]);
        }
        for tier in ["t1", "t2"] {
            metrics.entries_reported.with_label_values(&[tier]);
        }
        for rpc in ["ReportCacheState", "PublishEvent"] {
            metrics.rpc_failures.with_label_values(&[rpc]);
        }
        for result in ["ok", "unreachable", "timeout", "status", "too_large", "no_family", "no_load"] {
            metrics.scrapes.with_label_values(&[result]);
        }
        metrics.set_tally(&Tally::default());
        metrics.set_tracked(0, 0);
        Ok(metrics)
    }

    /// Everything in the Prometheus text format.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = Vec::new();
        // Encoding fails only for broken families, and writing to memory does not fail.
        let _ = TextEncoder::new().encode(&self.registry.gather(), &mut text);
        String::from_utf8(text).unwrap_or_default()
    }

    /// The media type of [`text`](Self::text).
    #[must_use]
    pub fn content_type() -> &'static str {
        prometheus::TEXT_FORMAT
    }

    /// The sequence up to which everything is acknowledged; `None` before the first batch of that rank.
    #[must_use]
    pub fn acknowledged_sequence(&self, rank: i64) -> Option<i64> {
        let rank = rank.to_string();
        self.registry
            .gather()
            .iter()
            .filter(|family| family.name().ends_with("acknowledged_sequence"))
            .flat_map(prometheus::proto::MetricFamily::get_metric)
            .find(|metric| metric.get_label().iter().any(|label| label.value() == rank))
            .map(|metric| {
                #[expect(clippy::cast_possible_truncation, reason = "the gauge holds an integer")]
                let value = metric.get_gauge().get_value() as i64;
                value
            })
    }

    pub(super) fn set_acknowledged(&self, rank: i64, sequence: u64) {
        let sequence = i64::try_from(sequence).unwrap_or(i64::MAX);
        self.acknowledged_sequence.with_label_values(&[&rank.to_string()]).set(sequence);
    }

    pub(super) fn set_tracked(&self, indexed: usize, opaque: usize) {
        for (kind, count) in [("indexed", indexed), ("opaque", opaque)] {
            self.tracked_blocks.with_label_values(&[kind]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    pub(super) fn set_tally(&self, tally: &Tally) {
        for (reason, count) in [
            ("lora", tally.lora),
            ("salt", tally.salt),
            ("parent", tally.parent),
            ("mismatch", tally.mismatch),
            ("no_tokens", tally.no_tokens),
            ("group", tally.group),
            ("unresolved", tally.unresolved),
        ] {
            raise(&self.dropped_blocks.with_label_values(&[reason]), count);
        }
        for (reason, count) in [("age", tally.aged), ("capacity", tally.over_capacity)] {
            raise(&self.doubted_blocks.with_label_values(&[reason]), count);
        }
        raise(&self.unknown_removals, tally.unknown_removals);
        raise(&self.map_evictions, tally.map_evictions);
    }

    pub(super) fn set_events(&self, tally: &EventTally) {
        raise(&self.batches, tally.batches);
        for (kind, count) in [
            ("stored", tally.stored),
            ("removed", tally.removed),
            ("cleared", tally.cleared),
            ("unknown", tally.unknown),
        ] {
            raise(&self.events.with_label_values(&[kind]), count);
        }
        raise(&self.decode_errors.with_label_values(&["batch"]), tally.bad_batches);
        raise(&self.decode_errors.with_label_values(&["event"]), tally.bad_events);
    }

    pub(super) fn set_sequences(&self, tally: &SequenceTally) {
        raise(&self.gaps, tally.gaps);
        raise(&self.lost_batches, tally.lost);
        raise(&self.replayed_batches, tally.replayed);
        raise(&self.duplicate_batches, tally.duplicates);
        raise(&self.engine_restarts, tally.restarts);
        raise(&self.unproven_publishers, tally.unproven);
        raise(&self.held_drops, tally.dropped);
    }

    pub(super) fn set_reports(&self, full: u64, reannounced: u64) {
        raise(&self.full_reports, full);
        raise(&self.reannounced_entries, reannounced);
    }

    pub(super) fn count_scrape(&self, result: &str) {
        self.scrapes.with_label_values(&[result]).inc();
    }

    pub(super) fn observe(histogram: &Histogram, duration: Duration) {
        histogram.observe(duration.as_secs_f64());
    }
}

/// Brings a counter up to a total that is kept elsewhere.
fn raise(counter: &IntCounter, total: u64) {
    counter.inc_by(total.saturating_sub(counter.get()));
}

fn opts(name: &str, help: &str) -> Opts {
    Opts::new(format!("{PREFIX}_{name}"), help)
}

fn register<C: prometheus::core::Collector + Clone + 'static>(
    registry: &Registry,
    collector: prometheus::Result<C>,
) -> prometheus::Result<C> {
    let collector = collector?;
    registry.register(Box::new(collector.clone()))?;
    Ok(collector)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_follow_totals_and_the_barrier_has_no_value_before_the_first() {
        let metrics = Metrics::new().unwrap();
        assert_eq!(metrics.acknowledged_sequence(0), None);
        metrics.set_tally(&Tally { parent: 3, ..Tally::default() });
        metrics.set_tally(&Tally { parent: 5, ..Tally::default() });
        metrics.set_acknowledged(0, 7);
        let text = metrics.text();
        assert!(text.contains("inferencecache_subscriber_dropped_blocks_total{reason=\"parent\"} 5\n"), "{text}");
        assert!(text.contains("inferencecache_subscriber_acknowledged_sequence{rank=\"0\"} 7\n"), "{text}");
        assert_eq!(metrics.acknowledged_sequence(0), Some(7));
    }
}
