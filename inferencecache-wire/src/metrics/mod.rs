//! The server's metrics: one registry of its own, and the only spelling of its names.
//!
//! ```text
//! index ──MetricsSink──┐
//! gRPC handlers ───────┼──> Metrics ──render──> GET /metrics   (text format 0.0.4)
//! bridge, listeners ───┘
//! ```
//!
//! 1. Labels that a caller chooses are bounded ([`LabelLimits`]); what goes beyond is counted under [`OVERFLOW`], so sums
//!    stay exact.
//! 2. A labelled series appears when it is first used.
//! 3. Nothing here fails or blocks for long; a hot call takes one shared lock and a few atomics.

mod labels;
mod process;

use std::collections::HashMap;
use std::fmt;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use inferencecache_core::metrics::EvictionCause;
use inferencecache_core::route::ReasonCode;
use inferencecache_core::{Eviction, MetricsSink};
use parking_lot::Mutex;
use prometheus::core::Collector;
use prometheus::{
    Gauge, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
    TextEncoder,
};

pub use self::labels::{LabelLimits, OVERFLOW};
use self::labels::{Labels, Origin};
use self::process::Process;

/// Content type of [`Metrics::render`].
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

const LATENCY_BUCKETS: [f64; 10] = [0.0001, 0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1];
/// From a short prompt to the longest one, and what no caller waits for any more.
const TOKENISE_BUCKETS: [f64; 12] = [0.000_25, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0];

/// Paths of the bridge that authenticate, each with a counter of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthPath {
    /// `/snapshot`.
    Snapshot,
    /// `/policy`.
    Policy,
    /// `/probe`.
    Probe,
}

/// How an authenticated request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthResult {
    /// The handler ran.
    Ok,
    /// Who it is could not be told.
    Unauth,
    /// Somebody else.
    Forbidden,
    /// Nobody could be asked.
    Error,
}

/// How a TLS handshake on the gRPC port ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Handshake {
    /// Well.
    Ok,
    /// Either side refused the other.
    Failed,
    /// The peer went away.
    Gone,
    /// It took too long.
    Timeout,
    /// There were too many at the time.
    Refused,
}

/// Why the server closed a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// Its listener was full, and it had been idle longest.
    MadeRoom,
    /// Its peer did not take what it was sent.
    SlowReader,
}

/// What became of the file that the index is kept in, at start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restored {
    /// It was restored.
    Ok,
    /// There was none.
    Absent,
    /// There was one that could not be used.
    Ignored,
}

/// Counts something when asked; `None` once there is nothing left to count.
type Count = Box<dyn Fn() -> Option<u64> + Send + Sync>;

/// Everything the server counts. Share it by [`Arc`](std::sync::Arc).
pub struct Metrics {
    registry: Registry,
    process: Mutex<Process>,
    models: Labels<ModelSeries>,
    tenants: Labels<OnceLock<IntCounter>>,
    /// Keys of the models that have no label of their own.
    unlabelled: Mutex<Unlabelled>,
    /// Counts the entries of the index.
    storage: Mutex<Option<Count>>,
    families: Families,
}

/// The families with labels, and the plain metrics.
struct Families {
    server_up: IntGauge,
    grpc_tls: IntGauge,
    tls_reloads: IntCounterVec,
    /// Without labels; a vector so that there is no series as long as there is no certificate.
    tls_not_after: IntGaugeVec,
    tls_handshakes: IntCounterVec,
    build: IntGaugeVec,
    index_entries: IntGaugeVec,
    calls: IntCounterVec,
    latency: HistogramVec,
    tenant_evictions: IntCounterVec,
    index_evictions: IntCounterVec,
    block_size_mismatch: IntCounterVec,
    auth: [IntCounterVec; 3],
    fail_open: IntCounterVec,
    tokenizer_models: IntGauge,
    tokenise_slots: IntGauge,
    tokenise_seconds: Histogram,
    panics: IntCounterVec,
    updates: IntCounter,
    entries: IntCounter,
    dropped: IntCounterVec,
    events: IntCounterVec,
    clamped: IntCounter,
    pushes: IntCounterVec,
    last_push: Gauge,
    refused_connections: IntCounterVec,
    closed_connections: IntCounterVec,
    refused_calls: IntCounter,
    refused_unfinished: IntCounter,
    refused_answers: IntCounter,
    storage_entries: IntGauge,
    sweep_seconds: Gauge,
    restores: IntCounterVec,
    restored_entries: IntGauge,
    saves: IntCounterVec,
    last_save: Gauge,
    saved_bytes: IntGauge,
}

/// Counts that share one gauge, which shows their total.
#[derive(Default)]
struct Unlabelled {
    by_model: HashMap<Box<str>, u64>,
    total: u64,
}

/// The series of one `model` label, made when first used.
#[derive(Default)]
struct ModelSeries {
    latency: OnceLock<Histogram>,
    calls: [[OnceLock<IntCounter>; 2]; ReasonCode::ALL.len()],
    entries: OnceLock<IntGauge>,
    block_size_mismatch: OnceLock<IntCounter>,
}

// === impl Metrics ===

impl Default for Metrics {
    fn default() -> Self {
        Self::new(LabelLimits::default())
    }
}

impl Metrics {
    /// A registry with all families in it.
    #[must_use]
    pub fn new(limits: LabelLimits) -> Self {
        let registry = Registry::new();
        let families = Families::registered_in(&registry);
        Self {
            process: Mutex::new(Process::registered_in(&registry)),
            registry,
            models: Labels::new(limits),
            tenants: Labels::new(limits),
            unlabelled: Mutex::default(),
            storage: Mutex::default(),
            families,
        }
    }

    /// The registry, for metrics of an embedder's own and for scraping by other means.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Everything, in text format 0.0.4.
    #[must_use]
    pub fn render(&self) -> String {
        self.process.lock().refresh();
        if let Some(entries) = self.storage.lock().as_ref().and_then(|count| count()) {
            self.families.storage_entries.set(i64::try_from(entries).unwrap_or(i64::MAX));
        }
        let mut text = String::new();
        // Fails only on a family without a name, and all have one.
        let _ = TextEncoder::new().encode_utf8(&self.registry.gather(), &mut text);
        text
    }

    /// Whether the server is serving.
    pub fn set_up(&self, up: bool) {
        self.families.server_up.set(up.into());
    }

    /// Whether gRPC is served over TLS.
    pub fn set_grpc_tls(&self, tls: bool) {
        self.families.grpc_tls.set(tls.into());
    }

    /// One replacement of the TLS files, taken into use or refused.
    pub fn tls_reload(&self, ok: bool) {
        self.families.tls_reloads.with_label_values(&[if ok { "ok" } else { "error" }]).inc();
    }

    /// Until when the certificate in use is valid, in Unix seconds, if that is known.
    pub fn set_tls_not_after(&self, seconds: Option<u64>) {
        match seconds {
            Some(seconds) => {
                let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
                self.families.tls_not_after.with_label_values::<&str>(&[]).set(seconds);
            }
            None => self.families.tls_not_after.reset(),
        }
    }

    /// One TLS handshake.
    pub fn tls_handshake(&self, outcome: Handshake) {
        let result = match outcome {
            Handshake::Ok => "ok",
            Handshake::Failed => "failed",
            Handshake::Gone => "gone",
            Handshake::Timeout => "timeout",
            Handshake::Refused => "refused",
        };
        self.families.tls_handshakes.with_label_values(&[result]).inc();
    }

    /// Names the build.
    pub fn set_build(&self, version: &str, commit: &str) {
        self.families.build.with_label_values(&[version, commit]).set(1);
    }

    /// One answered lookup.
    pub fn lookup(&self, model: &str, reason: ReasonCode, hint_used: bool, latency: Duration) {
        self.models.with(model, Origin::Caller, |label, series| {
            let used = usize::from(hint_used);
            series.calls[reason as usize][used]
                .get_or_init(|| {
                    let used = if hint_used { "true" } else { "false" };
                    self.families.calls.with_label_values(&[label, reason.as_str(), used])
                })
                .inc();
            series
                .latency
                .get_or_init(|| self.families.latency.with_label_values(&[label]))
                .observe(latency.as_secs_f64());
        });
    }

    /// One lookup whose input kept the index from being asked.
    pub fn fail_open(&self, cause: &str) {
        self.families.fail_open.with_label_values(&[cause]).inc();
    }

    /// How many models text can be tokenised for.
    pub fn set_tokenizer_models(&self, models: usize) {
        self.families.tokenizer_models.set(i64::try_from(models).unwrap_or(i64::MAX));
    }

    /// One of the places for tokenising was taken; [`Self::tokenise_ended`] follows.
    pub fn tokenise_began(&self) {
        self.families.tokenise_slots.inc();
    }

    /// The place was given back after `took`, whether or not anybody still waited.
    pub fn tokenise_ended(&self, took: Duration) {
        self.families.tokenise_slots.dec();
        self.families.tokenise_seconds.observe(took.as_secs_f64());
    }

    /// One handler that panicked and was answered for.
    pub fn handler_panic(&self, rpc: &str) {
        self.families.panics.with_label_values(&[rpc]).inc();
    }

    /// One update with so many entries was handed to the index.
    pub fn update_ingested(&self, entries: usize) {
        self.families.updates.inc();
        self.families.entries.inc_by(entries as u64);
    }

    /// So many entries, updates or events were refused.
    pub fn dropped(&self, cause: &str, number: u32) {
        if number > 0 {
            self.families.dropped.with_label_values(&[cause]).inc_by(number.into());
        }
    }

    /// One event was handed to the index.
    pub fn event(&self, kind: &str) {
        self.families.events.with_label_values(&[kind]).inc();
    }

    /// One time stamp too far ahead was replaced by now.
    pub fn timestamp_clamped(&self) {
        self.families.clamped.inc();
    }

    /// One report whose token counts do not fit the configured block size.
    pub fn block_size_mismatch(&self, model: &str) {
        self.models.with(model, Origin::Caller, |label, series| {
            series
                .block_size_mismatch
                .get_or_init(|| self.families.block_size_mismatch.with_label_values(&[label]))
                .inc();
        });
    }

    /// One authenticated request to the bridge.
    pub fn auth(&self, path: AuthPath, result: AuthResult) {
        let result = match result {
            AuthResult::Ok => "ok",
            AuthResult::Unauth => "unauth",
            AuthResult::Forbidden => "forbidden",
            AuthResult::Error => "error",
        };
        self.families.auth[path as usize].with_label_values(&[result]).inc();
    }

    /// One policy push; an accepted one moves the time of the last push.
    pub fn policy_push(&self, accepted: bool) {
        let result = if accepted { "accepted" } else { "rejected" };
        self.families.pushes.with_label_values(&[result]).inc();
        if accepted && let Ok(now) = SystemTime::now().duration_since(UNIX_EPOCH) {
            self.families.last_push.set(now.as_secs_f64());
        }
    }

    /// One connection beyond the listener's limit was closed.
    pub fn connection_refused(&self, listener: &str) {
        self.families.refused_connections.with_label_values(&[listener]).inc();
    }

    /// One connection was closed although its peer had done nothing against the protocol.
    pub fn connection_closed(&self, listener: &str, why: Closed) {
        let reason = match why {
            Closed::MadeRoom => "made_room",
            Closed::SlowReader => "slow_reader",
        };
        self.families.closed_connections.with_label_values(&[listener, reason]).inc();
    }

    /// One call beyond the limit of calls at a time was refused.
    pub(crate) fn call_refused(&self) {
        self.families.refused_calls.inc();
    }

    /// Counts a call that was refused because incomplete messages held too many bytes.
    pub(crate) fn buffer_refused(&self) {
        self.families.refused_unfinished.inc();
    }

    /// Counts an answer that was refused because those not taken held too many bytes.
    pub(crate) fn answer_refused(&self) {
        self.families.refused_answers.inc();
    }

    /// How long the last sweep took.
    pub fn swept(&self, took: Duration) {
        self.families.sweep_seconds.set(took.as_secs_f64());
    }

    /// One attempt to restore the index, which brought back so many entries.
    pub fn index_restored(&self, outcome: Restored, entries: u64) {
        let result = match outcome {
            Restored::Ok => "ok",
            Restored::Absent => "absent",
            Restored::Ignored => "ignored",
        };
        self.families.restores.with_label_values(&[result]).inc();
        self.families.restored_entries.set(i64::try_from(entries).unwrap_or(i64::MAX));
    }

    /// One attempt to write the index to its file: how many bytes, if it went well.
    pub fn index_saved(&self, bytes: Option<u64>) {
        self.families.saves.with_label_values(&[if bytes.is_some() { "ok" } else { "error" }]).inc();
        if let Some(bytes) = bytes {
            self.families.saved_bytes.set(i64::try_from(bytes).unwrap_or(i64::MAX));
            if let Ok(now) = SystemTime::now().duration_since(UNIX_EPOCH) {
                self.families.last_save.set(now.as_secs_f64());
            }
        }
    }

    /// Asks `entries` with each scrape how many entries count towards the cap; `None` once the index is gone.
    pub fn count_storage(&self, entries: impl Fn() -> Option<u64> + Send + Sync + 'static) {
        *self.storage.lock() = Some(Box::new(entries));
    }
}

impl MetricsSink for Metrics {
    fn set_index_entries(&self, model: &str, entries: u64) {
        let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        self.models.with(model, Origin::Index, |label, series| {
            let value = if label == OVERFLOW { self.unlabelled.lock().set(model, entries) } else { entries };
            series.entries.get_or_init(|| self.families.index_entries.with_label_values(&[label])).set(gauge(value));
        });
    }

    fn add_tenant_evictions(&self, tenant: &str, prefixes: u64) {
        self.tenants.with(tenant, Origin::Index, |label, counter| {
            counter
                .get_or_init(|| self.families.tenant_evictions.with_label_values(&[label, "over_entries"]))
                .inc_by(prefixes);
        });
    }

    fn add_index_evictions(&self, algorithm: Eviction, cause: EvictionCause, entries: u64) {
        self.families.index_evictions.with_label_values(&[algorithm.label(), cause.label()]).inc_by(entries);
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

// === impl Unlabelled ===

impl Unlabelled {
    /// Replaces the count of `model` and gives the total.
    fn set(&mut self, model: &str, entries: u64) -> u64 {
        let before =
            if entries == 0 { self.by_model.remove(model) } else { self.by_model.insert(model.into(), entries) };
        self.total = self.total + entries - before.unwrap_or(0);
        self.total
    }
}

// === impl Families ===

impl Families {
    fn registered_in(registry: &Registry) -> Self {
        let gauge = |name, help| registered(registry, IntGauge::new(name, help));
        let gauges = |name: &str, help: &str, labels: &[&str]| {
            registered(registry, IntGaugeVec::new(Opts::new(name, help), labels))
        };
        let float = |name, help| registered(registry, Gauge::new(name, help));
        let counter = |name, help| registered(registry, IntCounter::new(name, help));
        let counters = |name: &str, help: &str, labels: &[&str]| {
            registered(registry, IntCounterVec::new(Opts::new(name, help), labels))
        };
        let latency = HistogramOpts::new(
            "inferencecache_lookup_route_latency_seconds",
            "Time from entering the LookupRoute handler to its answer.",
        );
        let auth = |path: &str| {
            counters(
                &format!("inferencecache_{path}_auth_total"),
                &format!("Requests to /{path} by outcome of authentication."),
                &["result"],
            )
        };
        Self {
            server_up: gauge("inferencecache_server_up", "1 while the server is serving."),
            grpc_tls: gauge(
                "inferencecache_server_grpc_tls_enabled",
                "1 if gRPC is served over TLS, 0 if in plaintext.",
            ),
            tls_reloads: counters(
                "inferencecache_server_grpc_tls_reloads_total",
                "Replacements of the gRPC TLS files by result; after an error the last good ones are in use.",
                &["result"],
            ),
            tls_not_after: gauges(
                "inferencecache_server_grpc_tls_not_after_timestamp_seconds",
                "End of validity of the gRPC certificate in use, in Unix seconds.",
                &[],
            ),
            tls_handshakes: counters(
                "inferencecache_server_grpc_tls_handshakes_total",
                "TLS handshakes on the gRPC port by result.",
                &["result"],
            ),
            build: gauges("inferencecache_build_info", "Always 1; the labels name the build.", &["version", "commit"]),
            index_entries: gauges(
                "inferencecache_index_entries",
                "Distinct prefixes in the index, the reserved tenant excluded.",
                &["model"],
            ),
            calls: counters(
                "inferencecache_lookup_route_calls_total",
                "LookupRoute calls by reason code and whether replicas were returned.",
                &["model", "reason_code", "hint_used"],
            ),
            latency: registered(registry, HistogramVec::new(latency.buckets(LATENCY_BUCKETS.to_vec()), &["model"])),
            tenant_evictions: counters(
                "inferencecache_tenant_evictions_total",
                "Distinct prefixes evicted for their tenant's quota.",
                &["tenant_id", "reason"],
            ),
            index_evictions: counters(
                "inferencecache_index_evictions_total",
                "Replica-prefix pairs evicted.",
                &["algorithm", "reason"],
            ),
            block_size_mismatch: counters(
                "inferencecache_block_size_mismatch_total",
                "Reports whose token counts do not fit the configured block size.",
                &["model"],
            ),
            auth: [auth("snapshot"), auth("policy"), auth("probe")],
            fail_open: counters(
                "inferencecache_lookup_input_refused_total",
                "Lookups answered NO_HINT because of their input, by cause.",
                &["cause"],
            ),
            tokenizer_models: gauge(
                "inferencecache_tokenizer_models",
                "Models for which prompt text can be tokenised.",
            ),
            tokenise_slots: gauge(
                "inferencecache_tokenize_slots_in_use",
                "Prompts being tokenised, abandoned ones included; at most 64, and 4 MiB of text together.",
            ),
            tokenise_seconds: registered(
                registry,
                Histogram::with_opts(
                    HistogramOpts::new(
                        "inferencecache_tokenize_seconds",
                        "Time from taking a slot to the tokenizer's return, also of calls that nobody waits for any more.",
                    )
                    .buckets(TOKENISE_BUCKETS.to_vec()),
                ),
            ),
            panics: counters("inferencecache_handler_panics_total", "Handlers that panicked, by RPC.", &["rpc"]),
            updates: counter("inferencecache_ingest_updates_total", "Updates handed to the index."),
            entries: counter("inferencecache_ingest_entries_total", "Entries of those updates."),
            dropped: counters(
                "inferencecache_ingest_dropped_total",
                "Updates, entries and events that were refused, by cause.",
                &["cause"],
            ),
            events: counters("inferencecache_events_total", "Events handed to the index, by type.", &["type"]),
            clamped: counter(
                "inferencecache_timestamps_clamped_total",
                "Time stamps of reports and events too far in the future, replaced by now.",
            ),
            pushes: counters("inferencecache_policy_pushes_total", "Policy pushes by result.", &["result"]),
            last_push: float(
                "inferencecache_policy_last_push_timestamp_seconds",
                "When a policy push was last accepted, in Unix seconds; 0 before the first.",
            ),
            refused_connections: counters(
                "inferencecache_connections_refused_total",
                "Connections closed because their listener was full.",
                &["listener"],
            ),
            closed_connections: counters(
                "inferencecache_connections_closed_total",
                "Connections closed to make room for another, or because their peer did not read.",
                &["listener", "reason"],
            ),
            refused_calls: counter(
                "inferencecache_grpc_calls_refused_total",
                "Calls refused because too many were under way.",
            ),
            refused_unfinished: counter(
                "inferencecache_grpc_unfinished_refused_total",
                "Calls refused because incomplete messages held too many bytes.",
            ),
            refused_answers: counter(
                "inferencecache_grpc_answers_refused_total",
                "Answers refused, or NO_HINT instead, because large ones that nobody took held too many bytes.",
            ),
            storage_entries: gauge(
                "inferencecache_index_storage_entries",
                "Replica-prefix pairs that count towards the cap.",
            ),
            sweep_seconds: float("inferencecache_index_sweep_seconds", "Time that the last sweep took."),
            restores: counters(
                "inferencecache_index_snapshot_restores_total",
                "Attempts to restore the index from its file, by result.",
                &["result"],
            ),
            restored_entries: gauge(
                "inferencecache_index_snapshot_restored_entries",
                "Replica-prefix pairs that were restored at start.",
            ),
            saves: counters(
                "inferencecache_index_snapshot_saves_total",
                "Attempts to write the index to its file, by result.",
                &["result"],
            ),
            last_save: float(
                "inferencecache_index_snapshot_last_save_timestamp_seconds",
                "When the index was last written to its file, in Unix seconds.",
            ),
            saved_bytes: gauge("inferencecache_index_snapshot_bytes", "Size of the file that was last written."),
        }
    }
}

/// Registers a metric under one of the fixed names above.
fn registered<C: Collector + Clone + 'static>(registry: &Registry, metric: prometheus::Result<C>) -> C {
    // Both can only fail on a name that is malformed or taken, and every name is a literal that every test registers.
    let metric = metric.expect("metric names are literals");
    registry.register(Box::new(metric.clone())).expect("metric names are distinct");
    metric
}

#[cfg(test)]
mod tests;
