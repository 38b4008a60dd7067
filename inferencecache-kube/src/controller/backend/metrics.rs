//! What the reconciler counts.

use prometheus::core::Collector;
use prometheus::{IntCounter, IntCounterVec, Opts};

/// Counters of the reconciler of CacheBackends.
#[derive(Clone, Debug)]
pub struct Metrics {
    passes: IntCounterVec,
    writes: IntCounter,
}

impl Metrics {
    /// New ones, to be registered by whoever serves them.
    ///
    /// # Errors
    /// A name is none; a test rules this out.
    pub fn new() -> Result<Self, prometheus::Error> {
        let passes = IntCounterVec::new(
            Opts::new("inferencecache_controller_reconcile_total", "Passes over CacheBackends, by result."),
            &["result"],
        )?;
        let writes = IntCounter::new(
            "inferencecache_controller_status_writes_total",
            "Statuses of CacheBackends written. It stands still while nothing happens.",
        )?;
        Ok(Self { passes, writes })
    }

    /// For a registry.
    #[must_use]
    pub fn collectors(&self) -> Vec<Box<dyn Collector>> {
        vec![Box::new(self.passes.clone()), Box::new(self.writes.clone())]
    }

    pub(super) fn pass(&self, good: bool) {
        self.passes.with_label_values(&[if good { "success" } else { "error" }]).inc();
    }

    pub(super) fn status_written(&self) {
        self.writes.inc();
    }
}
