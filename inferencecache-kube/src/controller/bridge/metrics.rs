//! What the bridge counts. The only place that spells the names of these metrics.

use std::time::{SystemTime, UNIX_EPOCH};

use prometheus::{GaugeVec, IntCounterVec, Opts, Registry};

use super::error::BridgeError;

/// One of the three calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// `GET /snapshot`.
    Snapshot,
    /// `POST /policy`.
    Policy,
    /// `POST /probe`.
    Probe,
}

impl Channel {
    fn as_str(self) -> &'static str {
        match self {
            Self::Snapshot => "snapshot",
            Self::Policy => "policy",
            Self::Probe => "probe",
        }
    }
}

/// Stages of a probe, as labels have them.
const STAGES: [&str; 3] = ["ingest", "routing", "t2"];
/// Results of a stage; what is none of them counts as the last.
const RESULTS: [&str; 3] = ["ok", "skipped", "failed"];

/// Counters of the bridge.
#[derive(Clone, Debug)]
pub struct Metrics {
    requests: IntCounterVec,
    success: GaugeVec,
    probes: IntCounterVec,
}

impl Metrics {
    /// Registered with `registry`.
    ///
    /// # Errors
    /// A name is taken.
    pub fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let requests = IntCounterVec::new(
            Opts::new("inferencecache_controller_bridge_requests_total", "Calls of the cache server, by result."),
            &["channel", "result"],
        )?;
        let success = GaugeVec::new(
            Opts::new(
                "inferencecache_controller_bridge_last_success_timestamp_seconds",
                "When a call last succeeded, seconds since 1970.",
            ),
            &["channel"],
        )?;
        let probes = IntCounterVec::new(
            Opts::new("inferencecache_backend_probe_result_total", "Stages of functional probes, by result."),
            &["backend", "stage", "result"],
        )?;
        registry.register(Box::new(requests.clone()))?;
        registry.register(Box::new(success.clone()))?;
        registry.register(Box::new(probes.clone()))?;
        Ok(Self { requests, success, probes })
    }

    /// Counts a call by what it brings.
    pub(super) async fn counted<T>(
        &self,
        channel: Channel,
        call: impl Future<Output = Result<T, BridgeError>>,
    ) -> Result<T, BridgeError> {
        let answer = call.await;
        let channel = channel.as_str();
        let result = match &answer {
            Ok(_) => "ok",
            Err(why) => why.result(),
        };
        self.requests.with_label_values(&[channel, result]).inc();
        if answer.is_ok() {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            self.success.with_label_values(&[channel]).set(now.as_secs_f64());
        }
        answer
    }

    /// Counts the stages of an answered probe.
    pub(super) fn probed(&self, backend: &str, stages: [&str; 3]) {
        for (stage, said) in STAGES.iter().zip(stages) {
            let result = RESULTS.into_iter().find(|result| *result == said).unwrap_or("failed");
            self.probes.with_label_values(&[backend, *stage, result]).inc();
        }
    }

    /// Removes what is counted for a backend that is gone.
    pub(super) fn forget(&self, backend: &str) {
        for stage in STAGES {
            for result in RESULTS {
                let _ = self.probes.remove_label_values(&[backend, stage, result]);
            }
        }
    }
}
