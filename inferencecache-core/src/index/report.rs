//! What one operation has to tell the metrics sink, told after the writer's lock is released.
//!
//! Order within an operation: tenant evictions, index evictions, gauges. Gauges are told under a lock of their own, so
//! that the last value published is the live count; a drained model is told once and forgotten.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::metrics::{EvictionCause, MetricsSink};
use crate::resolve::Eviction;

/// Distinct keys of one model over all tenants but the reserved ones.
#[derive(Debug)]
pub(super) struct Gauge {
    pub(super) model: Arc<str>,
    /// The writer's count.
    pub(super) keys: AtomicU64,
    /// What the sink was told last; guarded by the reporter's lock.
    published: AtomicU64,
}

impl Gauge {
    pub(super) fn new(model: &Arc<str>) -> Self {
        Self { model: model.clone(), keys: AtomicU64::new(0), published: AtomicU64::new(0) }
    }
}

/// What has to be told.
#[derive(Debug, Default)]
pub(super) struct Report {
    gauges: Vec<Arc<Gauge>>,
    over_quota: u64,
    evicted: Vec<(Eviction, EvictionCause, u64)>,
}

impl Report {
    pub(super) fn touched(&mut self, gauge: &Arc<Gauge>) {
        if !self.gauges.iter().any(|known| Arc::ptr_eq(known, gauge)) {
            self.gauges.push(gauge.clone());
        }
    }

    pub(super) fn over_quota(&mut self, prefixes: u64) {
        self.over_quota += prefixes;
    }

    pub(super) fn evicted(&mut self, algorithm: Eviction, cause: EvictionCause, number: u32) {
        let number = u64::from(number);
        if number == 0 {
            return;
        }
        match self.evicted.iter_mut().find(|(a, c, _)| (*a, *c) == (algorithm, cause)) {
            Some((.., entries)) => *entries += number,
            None => self.evicted.push((algorithm, cause, number)),
        }
    }

    /// Tells the sink. Says which models have drained and been told so.
    pub(super) fn tell(self, tenant: &str, sink: &dyn MetricsSink, lock: &Mutex<()>) -> Vec<Arc<Gauge>> {
        if self.over_quota > 0 {
            sink.add_tenant_evictions(tenant, self.over_quota);
        }
        let mut evicted = self.evicted;
        evicted.sort_unstable_by_key(|(algorithm, cause, _)| (algorithm.label(), *cause));
        for (algorithm, cause, entries) in evicted {
            sink.add_index_evictions(algorithm, cause, entries);
        }
        let mut drained = Vec::new();
        if !self.gauges.is_empty() {
            let _one_at_a_time = lock.lock();
            for gauge in self.gauges {
                let keys = gauge.keys.load(Ordering::Acquire);
                if gauge.published.swap(keys, Ordering::Relaxed) != keys {
                    sink.set_index_entries(&gauge.model, keys);
                }
                if keys == 0 {
                    drained.push(gauge);
                }
            }
        }
        drained
    }
}
