//! A subscriber that runs, with a configuration for tests.

use std::time::Duration;

use inferencecache_wire::subscriber::config::{Config, Identity};
use inferencecache_wire::subscriber::metrics::Metrics;
use inferencecache_wire::subscriber::{Drained, Subscriber};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::recorder::eventually;

pub(crate) struct Running {
    pub(crate) metrics: Metrics,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Drained>,
}

impl Running {
    pub(crate) fn start(config: Config) -> Self {
        Self::run(Subscriber::builder(config).build().expect("a usable configuration"))
    }

    pub(crate) fn run(subscriber: Subscriber) -> Self {
        let metrics = subscriber.metrics();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(subscriber.run(async {
            let _ = stopped.await;
        }));
        Self { metrics, stop: Some(stop), task }
    }

    /// Waits until everything up to a sequence is acknowledged.
    pub(crate) async fn reach(&self, sequence: u64) {
        self.reach_on(0, sequence).await;
    }

    pub(crate) async fn reach_on(&self, rank: i64, sequence: u64) {
        let sequence = i64::try_from(sequence).expect("small");
        let what = format!("acknowledged sequence {sequence} of rank {rank}");
        eventually(&what, || self.metrics.acknowledged_sequence(rank).is_some_and(|reached| reached >= sequence)).await;
    }

    pub(crate) fn metric(&self, name: &str) -> f64 {
        let name = format!("inferencecache_subscriber_{name} ");
        let text = self.metrics.text();
        let value = text.lines().find_map(|line| line.strip_prefix(&name));
        value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no {name} in\n{text}"))
    }

    pub(crate) async fn counts(&self, name: &str, value: f64) {
        eventually(&format!("{name} {value}"), || self.metric(name) >= value).await;
    }

    pub(crate) async fn stop(mut self) -> Drained {
        drop(self.stop.take());
        self.task.await.expect("no panic")
    }
}

pub(crate) fn config(engine: &str, server: impl ToString) -> Config {
    let id = |name: &str| name.to_owned();
    Config {
        identity: Identity { replica_id: id("r0"), model_id: id("m"), tenant_id: id("t"), hash_scheme: id("vllm") },
        engine_endpoint: id(engine),
        server: server.to_string(),
        window: Duration::from_millis(10),
        reconnect_backoff: Duration::from_millis(50),
        // What is repeated with time is none of these tests' concern.
        reannounce_interval: Duration::ZERO,
        ..Config::default()
    }
}
