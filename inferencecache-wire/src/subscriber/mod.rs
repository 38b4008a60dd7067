//! The subscriber: turns one engine's KV-cache events into reports to the policy server.
//!
//! ```text
//! engine ══ZMQ══> source ──> ingest { sequence ──> kvevents ──> blockmap ──> window } ──> dispatch ──> forward ══gRPC══> server
//!                 threads    └──────────────────────── receive task ────────────────────────────┘      tasks
//!                                      statistics and probes: a task each
//! ```
//!
//! 1. Only digests, counts, tiers, adapter names and identity leave the process. Tokens never do, nor are they logged.
//! 2. The receive task never waits for a call: a slow or absent server does not slow down the engine.
//! 3. For any one hash the server sees operations in state order; a clear is a barrier in both directions.
//! 4. What the server may have lost is reported again from the map: after a failure, and on every new connection.
//! 5. Everything that grows is bounded: tracked blocks, adapter names, waiting messages, queued calls, withdrawals.
//!
//! | Bound | Value | Seen in |
//! |---|---|---|
//! | tracked blocks | `max_tracked_blocks` | `map_evictions_total` |
//! | adapter names | [`blockmap::MAX_ADAPTERS`], [`blockmap::MAX_ADAPTER_NAME`] | `dropped_blocks_total{reason="lora"}` |
//! | waiting messages | [`source::MAX_WAITING_BYTES`] | `dropped_messages_total` |
//! | frames that wait for a replay | [`sequence::MAX_HELD_BYTES`] | `held_drops_total` |
//! | queued calls | [`dispatch::MAX_QUEUED`], then [`withdrawals::MAX_WITHDRAWALS`] | `pending_reports`, `pending_evictions` |
//!
//! 6. Belief is bounded: what the engine may have dropped without our knowing is not reported again.
//!
//! ```no_run
//! use inferencecache_wire::subscriber::Subscriber;
//! use inferencecache_wire::subscriber::config::{Config, Identity};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let identity = Identity {
//!     replica_id: "vllm-0".to_owned(),
//!     model_id: "m".to_owned(),
//!     hash_scheme: "vllm".to_owned(),
//!     ..Identity::default()
//! };
//! let subscriber = Subscriber::builder(Config { identity, ..Config::default() }).build()?;
//! subscriber.run(std::future::pending()).await;
//! # Ok(())
//! # }
//! ```

pub mod blockmap;
pub mod config;
pub mod content;
pub mod dispatch;
pub mod endpoint;
pub mod forward;
pub mod health;
pub mod ingest;
mod limit;
pub mod link;
pub mod metrics;
mod pump;
mod reannounce;
mod recovery;
pub mod sequence;
pub mod silence;
pub mod source;
pub mod stats;
pub mod window;
pub mod withdrawals;

use std::fmt;

use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use self::config::Config;
use self::forward::{BadAddress, Client};
use self::link::{Connector, LinkState, Resolver};
use self::metrics::Metrics;
use self::pump::Pump;
use self::source::{EventSource, ZmqOptions, ZmqSource};
use self::stats::fetch::BadUrl;
use self::stats::{Ears, StatsPath};
use crate::kvevents::{EngineDecoder, MsgpackDecoder};

/// Why a subscriber cannot be built. No outage of engine or server is among the reasons.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The server's address cannot be used.
    #[error(transparent)]
    Server(#[from] BadAddress),
    /// No data-parallel rank, too many of them, or one whose port would be above 65535.
    #[error("the engine's ranks do not fit")]
    Ranks,
    /// The address of the engine's metrics cannot be used.
    #[error("engine metrics: {0}")]
    MetricsUrl(#[from] BadUrl),
    /// No thread for the engine's socket.
    #[error("no thread for the engine socket")]
    Thread(#[source] std::io::Error),
    /// The metrics could not be registered.
    #[error("metrics cannot be registered")]
    Metrics(#[from] prometheus::Error),
}

/// How a subscriber has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Drained {
    /// Everything was delivered.
    Completely,
    /// Time ran out first.
    Partly,
}

/// Puts a [`Subscriber`] together.
#[must_use]
pub struct Builder {
    config: Config,
    source: Option<Box<dyn EventSource>>,
    decoder: Box<dyn EngineDecoder>,
    listener: Option<TcpListener>,
    connector: (Connector, watch::Receiver<LinkState>),
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Builder {
    /// Takes engine messages from elsewhere than the ZMQ endpoint of the configuration.
    pub fn source(mut self, source: impl EventSource) -> Self {
        self.source = Some(Box::new(source));
        self
    }

    /// Decodes batches of an engine that is neither vLLM nor SGLang.
    pub fn decoder(mut self, decoder: impl EngineDecoder) -> Self {
        self.decoder = Box::new(decoder);
        self
    }

    /// Serves probes and metrics on a listener that is already bound, instead of the address of the configuration.
    pub fn health_listener(mut self, listener: TcpListener) -> Self {
        self.listener = Some(listener);
        self
    }

    /// Finds the server's addresses in another way than the system does.
    pub fn resolver(mut self, resolver: Resolver) -> Self {
        self.connector.0 = self.connector.0.resolver(resolver);
        self
    }

    /// Reports over TLS, with the protocol [`ALPN_H2`](crate::tls::ALPN_H2).
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: Option<crate::tls::ClientTls>) -> Self {
        self.connector.0 = self.connector.0.tls(tls);
        self
    }

    /// Opens the engine socket and prepares the channel to the server. Waits for neither. Must be called within a Tokio
    /// runtime.
    ///
    /// # Errors
    ///
    /// [`BuildError`].
    pub fn build(self) -> Result<Subscriber, BuildError> {
        let Self { config, source, decoder, listener, connector } = self;
        let client = Client::over(&config.server, config.identity.clone(), config.rpc_timeout, connector)?;
        let metrics = Metrics::new()?;
        let (mouth, ears) = stats::between();
        let stats = match &config.stats {
            Some(stats) => {
                let (client, scheme) = (client.clone(), &config.identity.hash_scheme);
                Some(StatsPath::new(stats.clone(), scheme, client, metrics.clone(), mouth)?)
            }
            None => None,
        };
        let source = match source {
            Some(source) => source,
            None => {
                let ranks = config.ranks().ok_or(BuildError::Ranks)?;
                let publishers = ranks.into_iter().map(|rank| ZmqOptions {
                    connection: rank.rank,
                    endpoint: rank.publisher,
                    replay: rank.replay,
                    topic: config.topic.clone(),
                    rcvhwm: config.zmq_rcvhwm,
                    backoff: config.reconnect_backoff,
                    heartbeat: config.engine_heartbeat,
                });
                Box::new(ZmqSource::start_all(publishers.collect()).map_err(BuildError::Thread)?)
            }
        };
        Ok(Subscriber { config, source, decoder, listener, client, metrics, stats, ears })
    }
}

/// A subscriber that is ready to run.
pub struct Subscriber {
    config: Config,
    source: Box<dyn EventSource>,
    decoder: Box<dyn EngineDecoder>,
    listener: Option<TcpListener>,
    client: Client,
    metrics: Metrics,
    stats: Option<StatsPath>,
    ears: Ears,
}

impl fmt::Debug for Subscriber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscriber").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Subscriber {
    /// Starts to put one together.
    pub fn builder(config: Config) -> Builder {
        let (decoder, connector) = (Box::new(MsgpackDecoder::default()), Connector::new());
        Builder { config, source: None, decoder, listener: None, connector }
    }

    /// What it counts. The handle stays valid while it runs.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }

    /// Runs until `shutdown` resolves, then delivers what is queued, for at most 5 s. No outage ends it earlier.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Drained {
        let Self { config, source, decoder, listener, client, metrics, stats, ears } = self;
        let ended = CancellationToken::new();
        // Ended with this call, however it ends.
        let mut tasks = JoinSet::new();
        if let Some(stats) = stats {
            tasks.spawn(stats.run(ended.clone()));
        }
        // A task of its own: probes are answered however much the engine says.
        tasks.spawn(serve_health(listener, config.health_bind_address.clone(), metrics.clone(), ended.clone()));
        let drained = Pump::new(config, source, decoder, client, metrics, ears).run(shutdown).await;
        ended.cancel();
        while tasks.join_next().await.is_some() {}
        if drained { Drained::Completely } else { Drained::Partly }
    }
}

/// Serves probes and metrics until `ended`. A port that is taken is a warning.
async fn serve_health(
    listener: Option<TcpListener>,
    address: Option<String>,
    metrics: Metrics,
    ended: CancellationToken,
) {
    let listener = match (listener, address) {
        (Some(listener), _) => listener,
        (None, None) => return,
        (None, Some(address)) => match health::bind(&address).await {
            Ok(listener) => listener,
            Err(error) => {
                tracing::warn!(address, err = %error, "health listener cannot bind; probes and metrics are off");
                return;
            }
        },
    };
    if let Ok(addr) = listener.local_addr() {
        tracing::info!(%addr, "health listening");
    }
    tokio::select! {
        () = health::serve(listener, metrics) => {}
        () = ended.cancelled() => {}
    }
}
