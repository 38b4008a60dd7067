//! Builds the controller and runs it until it is told to end.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use bins_common::signals::{self, Signals};
use bins_common::{Exit, build};
use inferencecache_kube::adapters::{Registries, builtin};
use inferencecache_kube::controller::{lease, manager};
use inferencecache_kube::webhook::backend::Rules;
use inferencecache_kube::webhook::siblings::Live;
use inferencecache_kube::webhook::{Admission, Limits, Listener, Metrics, health, router};
use kube::config::{KubeConfigOptions, Kubeconfig};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::args::Config;

/// Runs until a signal ends it.
///
/// # Errors
/// What kept it from starting, with exit code 1.
pub(crate) fn run(config: Config) -> Result<(), Exit> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|why| failed("cannot start the runtime", why))?;
    let outcome = runtime.block_on(serve(config));
    // Work that did not end in time shall not keep the process.
    runtime.shutdown_background();
    outcome
}

async fn serve(config: Config) -> Result<(), Exit> {
    let signals = Signals::install().map_err(|why| failed("cannot catch signals", why))?;
    let metrics = Metrics::new().map_err(|why| failed("cannot register metrics", why))?;
    tracing::info!(version = build::VERSION, commit = build::COMMIT, webhook_addr = %config.webhook, "startup");
    let bound = Listener::bind(config.certificate.clone(), config.webhook, metrics.clone(), Limits::default()).await;
    let listener = bound.map_err(|why| failed("cannot serve admission", why))?;
    let cluster = cluster(config.kubeconfig.clone()).await?;
    let client = kube::Client::try_from(cluster.clone()).map_err(|why| failed("no client for the API server", why))?;
    let registries = Arc::new(builtin(&config.adapters));
    let runtime = Arc::new(builtin(&config.adapters).runtime);
    let admission = Admission::new(Rules::new(runtime), Arc::new(Live::new(client)), metrics.clone());

    let stop = CancellationToken::new();
    let webhook_addr = listener.address().map_err(|why| failed("cannot serve admission", why))?;
    let admitting = tokio::spawn(listener.serve(router(admission), stop.clone()));
    let metrics_addr = serve_metrics(&config, &metrics, &stop).await?;
    let health_addr = beside(config.health, health::probes(), &stop).await?;
    // With port 0, only now is it known where it listens.
    tracing::info!(%webhook_addr, metrics_addr, health_addr, "listening");

    let options = options(&config, &cluster, registries);
    let outcome = signals::run(signals, |shutdown| async move {
        let working = manager::run(cluster, options, metrics.registry(), stop.clone());
        tokio::pin!(working);
        let outcome = tokio::select! {
            outcome = &mut working => outcome,
            () = shutdown.wait() => {
                tracing::info!("shutdown");
                stop.cancel();
                working.await
            }
        };
        stop.cancel();
        // Whoever does not lead any more has nothing to wait for.
        outcome.map_err(|why| failed("the controllers ended", why))?;
        admitting.await.map_err(|why| failed("admission ended", why))
    });
    outcome.await.unwrap_or_else(|_| Err(Exit::failure("interrupted")))
}

fn options(config: &Config, cluster: &kube::Config, registries: Arc<Registries>) -> manager::Options {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim().to_owned();
    let namespace = Some(config.lease_namespace.clone()).filter(|namespace| !namespace.is_empty());
    let election = config.leader_elect.then(|| {
        let namespace = namespace.unwrap_or_else(|| cluster.default_namespace.clone());
        // A Pod that restarts in place keeps its host name, and is somebody else all the same.
        lease::Options::new(namespace, format!("{host}_{}", random()))
    });
    manager::Options {
        registries,
        snapshot: config.snapshot.clone(),
        policy: config.policy.clone(),
        probe: config.probe.clone(),
        server_ca: Some(config.server_ca.clone()),
        tokens: config.tokens.clone(),
        refresh: config.refresh,
        push: config.push,
        election,
        instance: host,
    }
}

/// A number that no other process has: the keys of the standard hasher are random.
fn random() -> String {
    use std::hash::{BuildHasher as _, RandomState};
    format!("{:016x}{:016x}", RandomState::new().hash_one(std::process::id()), RandomState::new().hash_one(0))
}

async fn serve_metrics(config: &Config, metrics: &Metrics, stop: &CancellationToken) -> Result<Option<String>, Exit> {
    let shown = health::metrics(metrics.clone());
    let Some(address) = config.metrics.filter(|_| config.metrics_secure) else {
        return beside(config.metrics, shown, stop).await;
    };
    let listener = Listener::bind(config.certificate.clone(), address, metrics.clone(), Limits::default()).await;
    let listener = listener.map_err(|why| failed("cannot serve metrics", why))?;
    let address = listener.address().map(|address| address.to_string()).ok();
    tokio::spawn(listener.serve(shown, stop.clone()));
    Ok(address)
}

/// Serves a plain listener beside admission, and tells where.
async fn beside(address: Option<SocketAddr>, router: Router, stop: &CancellationToken) -> Result<Option<String>, Exit> {
    let Some(address) = address else {
        return Ok(None);
    };
    let listener = TcpListener::bind(address).await;
    let listener = listener.map_err(|why| failed(&format!("cannot listen on {address}"), why))?;
    let address = listener.local_addr().map(|address| address.to_string()).ok();
    let stop = stop.clone().cancelled_owned();
    tokio::spawn(async move {
        let served = axum::serve(listener, router).with_graceful_shutdown(stop).await;
        if let Err(why) = served {
            tracing::error!(err = %why, "listener_ended");
        }
    });
    Ok(address)
}

/// The API server, and who we are to it.
async fn cluster(kubeconfig: Option<PathBuf>) -> Result<kube::Config, Exit> {
    let config = match kubeconfig {
        Some(path) => {
            let file =
                Kubeconfig::read_from(&path).map_err(|why| failed(&format!("kubeconfig {}", path.display()), why))?;
            kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
                .await
                .map_err(|why| why.to_string())
        }
        None => kube::Config::infer().await.map_err(|why| why.to_string()),
    };
    config.map_err(|why| failed("no configuration for the API server", why))
}

fn failed(what: &str, why: impl std::fmt::Display) -> Exit {
    Exit::failure(format!("{what}: {why}"))
}
