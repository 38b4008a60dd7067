//! What admission counts. The only place that spells the names of its metrics.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus::{HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry, TextEncoder};

/// Backends that are counted each under its own name; more are counted together.
const MOST_BACKENDS: usize = 1000;
/// The name that those have together.
const OTHER: &str = "other";

/// How a review ended, beyond its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With the code inside the answer.
    Answered(u16),
    /// The HTTP request was none that could be answered.
    Unreadable(u16),
}

/// Counters of the admission endpoints.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Registry,
    reviews: IntCounterVec,
    seconds: HistogramVec,
    in_flight: IntGauge,
    certificate_reads: IntCounterVec,
    certificate_not_after: IntGauge,
    connections_refused: IntCounter,
    connections_displaced: IntCounter,
    handshakes_failed: IntCounter,
    pods: IntCounterVec,
    backends: Arc<Mutex<HashSet<String>>>,
}

impl Metrics {
    /// Registered with a registry of their own.
    ///
    /// # Errors
    /// Two metrics have one name; a test rules this out.
    pub fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let reviews = IntCounterVec::new(
            Opts::new("inferencecache_webhook_reviews_total", "Admission reviews by path and code of the answer."),
            &["path", "code"],
        )?;
        let seconds = HistogramVec::new(
            HistogramOpts::new("inferencecache_webhook_review_seconds", "Time that an admission review took.")
                .buckets(vec![0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0]),
            &["path"],
        )?;
        let in_flight = IntGauge::new("inferencecache_webhook_reviews_in_flight", "Admission reviews under way.")?;
        let certificate_reads = IntCounterVec::new(
            Opts::new("inferencecache_webhook_certificate_reads_total", "Replacements of the certificate, by result."),
            &["result"],
        )?;
        let certificate_not_after = IntGauge::new(
            "inferencecache_webhook_certificate_not_after_seconds",
            "End of the certificate in use, seconds since 1970; 0 while unknown.",
        )?;
        let connections_refused = IntCounter::new(
            "inferencecache_webhook_connections_refused_total",
            "Connections closed at once because there were too many.",
        )?;
        let connections_displaced = IntCounter::new(
            "inferencecache_webhook_connections_displaced_total",
            "Idle connections closed because another needed the place.",
        )?;
        let handshakes_failed = IntCounter::new(
            "inferencecache_webhook_handshakes_failed_total",
            "TLS handshakes that failed or took too long.",
        )?;
        let pods = IntCounterVec::new(
            Opts::new("inferencecache_webhook_pods_total", "Pods that the linker saw, by outcome and backend."),
            &["outcome", "backend"],
        )?;
        for result in ["ok", "refused"] {
            certificate_reads.with_label_values(&[result]);
        }
        registry.register(Box::new(reviews.clone()))?;
        registry.register(Box::new(seconds.clone()))?;
        registry.register(Box::new(in_flight.clone()))?;
        registry.register(Box::new(certificate_reads.clone()))?;
        registry.register(Box::new(certificate_not_after.clone()))?;
        registry.register(Box::new(connections_refused.clone()))?;
        registry.register(Box::new(connections_displaced.clone()))?;
        registry.register(Box::new(handshakes_failed.clone()))?;
        registry.register(Box::new(pods.clone()))?;
        Ok(Self {
            pods,
            backends: Arc::default(),
            registry,
            reviews,
            seconds,
            in_flight,
            certificate_reads,
            certificate_not_after,
            connections_refused,
            connections_displaced,
            handshakes_failed,
        })
    }

    /// The registry, for more metrics of the same process.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Everything, in Prometheus' text form.
    #[must_use]
    pub fn render(&self) -> String {
        TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap_or_default()
    }

    pub(super) fn begin(&self) -> InFlight {
        self.in_flight.inc();
        InFlight(self.in_flight.clone())
    }

    pub(super) fn ended(&self, path: &'static str, outcome: Outcome, took: Duration) {
        let (Outcome::Answered(code) | Outcome::Unreadable(code)) = outcome;
        self.reviews.with_label_values(&[path, &code.to_string()]).inc();
        self.seconds.with_label_values(&[path]).observe(took.as_secs_f64());
    }

    /// A Pod that the linker answered for; `backend` as `NAMESPACE/NAME` where one selects it.
    pub(super) fn linked(&self, outcome: super::pod::Outcome, backend: Option<&str>) {
        let mut known = self.backends.lock().unwrap_or_else(PoisonError::into_inner);
        let backend = match backend {
            None => "",
            Some(name) if known.contains(name) => name,
            Some(name) if known.len() < MOST_BACKENDS => {
                known.insert(name.to_owned());
                name
            }
            Some(_) => OTHER,
        };
        self.pods.with_label_values(&[outcome.name(), backend]).inc();
    }

    pub(super) fn certificate(&self, good: bool) {
        self.certificate_reads.with_label_values(&[if good { "ok" } else { "refused" }]).inc();
    }

    pub(super) fn certificate_ends(&self, not_after: Option<u64>) {
        self.certificate_not_after.set(i64::try_from(not_after.unwrap_or(0)).unwrap_or(i64::MAX));
    }

    pub(super) fn connection_refused(&self) {
        self.connections_refused.inc();
    }

    pub(super) fn connection_displaced(&self) {
        self.connections_displaced.inc();
    }

    pub(super) fn handshake_failed(&self) {
        self.handshakes_failed.inc();
    }
}

/// A review under way, for as long as it lives.
#[derive(Debug)]
pub(super) struct InFlight(IntGauge);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.dec();
    }
}
