//! All controllers in one process.
//!
//! ```text
//!  every replica   webhooks, metrics, health (not here)
//!  the leader      reconciler, poller, pusher, Events of engine Pods
//!
//!  stop ─▶ loops end, what is under way finishes ─▶ Events written ─▶ lease released ─▶ Ok
//!  lost ─▶ everything ends where it is ───────────────────────────────────────────────▶ Err
//! ```

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use inferencecache_core::time::SystemClock;
use inferencecache_wire::tls::TlsError;
use kube::Client;
use prometheus::Registry;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::backend::metrics::Metrics as BackendMetrics;
use super::backend::probing::ProbeBackend;
use super::backend::run::{BackendController, Settings};
use super::bridge::{self, Bridge, Endpoint, Probe, Tokens};
use super::engines::Engines;
use super::fence::Fence;
use super::index::{Poller, T2};
use super::lease::{self, Elector, Ended};
use super::policy::Pusher;
use super::recorder::{Recorder, Writer};
use crate::adapters::Registries;

/// How long what is under way may take at the end. A Pod has 10 s in a default installation.
const GRACE: Duration = Duration::from_secs(4);
/// Longest silence in the middle of an answer of the API server; watches are quiet for up to three minutes.
const SILENCE: Duration = Duration::from_secs(300);

/// What the controllers are told.
#[derive(Clone, Debug)]
pub struct Options {
    /// What renders caches and wires engines.
    pub registries: Arc<Registries>,
    /// Where the server's index is read.
    pub snapshot: Endpoint,
    /// Where policies are sent.
    pub policy: Endpoint,
    /// Where functional probes are asked for; without one there are none.
    pub probe: Option<Endpoint>,
    /// Authorities of the server's certificate, for `https` addresses.
    pub server_ca: Option<PathBuf>,
    /// Tokens for the server.
    pub tokens: Tokens,
    /// Time between two readings of the index.
    pub refresh: Duration,
    /// Time between two unconditional pushes.
    pub push: Duration,
    /// Leader election; without it this process leads at once.
    pub election: Option<lease::Options>,
    /// Name of this process in Events.
    pub instance: String,
}

/// Why the controllers ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManagerError {
    /// Two metrics have one name.
    #[error("cannot register metrics: {0}")]
    Metrics(#[from] prometheus::Error),
    /// The configuration makes no client.
    #[error("no client for the API server: {0}")]
    Client(#[source] Box<kube::Error>),
    /// The authorities of the server's certificate cannot be used.
    #[error("no client for the cache server: {}", .0.full())]
    Server(#[from] TlsError),
    /// Somebody else leads, or may by now.
    #[error("the lease is lost")]
    Deposed,
    /// One of the controllers ended by itself, which none should.
    #[error("a controller ended")]
    Ended,
}

/// Runs all controllers until `stop`. Nothing is asked of any server before this process leads.
///
/// # Errors
/// What keeps it from starting, or ends it early.
pub async fn run(
    mut config: kube::Config,
    options: Options,
    registry: &Registry,
    stop: CancellationToken,
) -> Result<(), ManagerError> {
    config.read_timeout = Some(SILENCE);
    let fence = match &options.election {
        None => Fence::open(),
        Some(election) => Fence::closed(Arc::new(SystemClock::default()), election.renew_deadline),
    };
    let failed = |why| ManagerError::Client(Box::new(why));
    let plain = Client::try_from(config.clone()).map_err(failed)?;
    let client = fence.client(config).map_err(failed)?;
    let team = Team::assemble(client, &options, fence.clone(), registry).await?;
    let Some(election) = options.election else { return team.work(&stop, None).await };
    let mut elector = Elector::new(plain, election, fence.clone());
    if !elector.acquire(&stop).await {
        return Ok(());
    }
    match team.work(&stop, Some(&mut elector)).await {
        Ok(()) => {
            elector.release().await;
            Ok(())
        }
        Err(why) => {
            fence.shut();
            Err(why)
        }
    }
}

/// What the leader runs.
struct Team {
    backends: BackendController,
    poller: Poller,
    pusher: Pusher,
    engines: Engines,
    writer: Writer,
}

impl Team {
    async fn assemble(
        client: Client,
        options: &Options,
        fence: Fence,
        registry: &Registry,
    ) -> Result<Self, ManagerError> {
        let secure = [Some(&options.snapshot), Some(&options.policy), options.probe.as_ref()];
        let ca = options.server_ca.clone().filter(|_| secure.into_iter().flatten().any(Endpoint::is_secure));
        let bridge = Bridge::new(ca, options.tokens.clone(), fence, bridge::Metrics::new(registry)?).await?;
        let (recorder, writer) = Recorder::new(client.clone(), &options.instance)?;
        registry.register(Box::new(recorder.counts().clone()))?;
        let probe = options.probe.clone().map(|at| Arc::new(Probe::new(bridge.clone(), at)) as Arc<dyn ProbeBackend>);
        let metrics = BackendMetrics::new()?;
        for collector in metrics.collectors() {
            registry.register(collector)?;
        }
        let registries = Arc::clone(&options.registries);
        let settings = Settings::default();
        let backends = BackendController::new(client.clone(), registries, probe, recorder.clone(), metrics, settings);
        let poller =
            Poller::new(client.clone(), bridge.clone(), options.snapshot.clone(), options.refresh, T2::new(registry)?);
        let pusher = Pusher::new(client.clone(), bridge, options.policy.clone(), options.push, registry)?;
        Ok(Self { backends, poller, pusher, engines: Engines::new(client, recorder), writer })
    }

    async fn work(self, stop: &CancellationToken, elector: Option<&mut Elector>) -> Result<(), ManagerError> {
        let (term, farewell) = (CancellationToken::new(), CancellationToken::new());
        let mut tasks = JoinSet::new();
        tasks.spawn(self.backends.run(term.clone()));
        tasks.spawn(self.poller.run(term.clone()));
        tasks.spawn(self.pusher.run(term.clone()));
        tasks.spawn(self.engines.run(term.clone()));
        let mut writer = JoinSet::new();
        writer.spawn(self.writer.run(farewell.clone()));
        let held = async {
            match elector {
                Some(elector) => elector.hold(stop).await,
                None => {
                    stop.cancelled().await;
                    Ended::Stopped
                }
            }
        };
        tokio::select! {
            ended = held => {
                // Dropping the tasks ends them where they are.
                if ended == Ended::Lost {
                    return Err(ManagerError::Deposed);
                }
            }
            _ = tasks.join_next() => return Err(ManagerError::Ended),
        }
        term.cancel();
        let _ = timeout(GRACE, async { while tasks.join_next().await.is_some() {} }).await;
        farewell.cancel();
        let _ = timeout(GRACE, writer.join_next()).await;
        Ok(())
    }
}
