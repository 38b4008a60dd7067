//! Builds the controller and runs it until it is told to end.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use bins_common::signals::{self, Signals};
use bins_common::{Exit, build};
use inferencecache_kube::adapters::builtin;
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
    let listener = Listener::bind(config.certificate, config.webhook, metrics.clone(), Limits::default()).await;
    let listener = listener.map_err(|why| failed("cannot serve admission", why))?;
    let client = client(config.kubeconfig).await?;
    let adapters = Arc::new(builtin(&config.adapters).runtime);
    let admission = Admission::new(Rules::new(adapters), Arc::new(Live::new(client)), metrics.clone());

    let stop = CancellationToken::new();
    let webhook_addr = listener.address().map_err(|why| failed("cannot serve admission", why))?;
    let admitting = tokio::spawn(listener.serve(router(admission), stop.clone()));
    let metrics_addr = beside(config.metrics, health::metrics(metrics), &stop).await?;
    let health_addr = beside(config.health, health::probes(), &stop).await?;
    // With port 0, only now is it known where it listens.
    tracing::info!(%webhook_addr, metrics_addr, health_addr, "listening");

    let outcome = signals::run(signals, |shutdown| async move {
        shutdown.wait().await;
        tracing::info!("shutdown");
        stop.cancel();
        admitting.await
    });
    match outcome.await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(why)) => Err(failed("admission ended", why)),
        Err(_) => Err(Exit::failure("interrupted")),
    }
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

async fn client(kubeconfig: Option<PathBuf>) -> Result<kube::Client, Exit> {
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
    let config = config.map_err(|why| failed("no configuration for the API server", why))?;
    kube::Client::try_from(config).map_err(|why| failed("no client for the API server", why))
}

fn failed(what: &str, why: impl std::fmt::Display) -> Exit {
    Exit::failure(format!("{what}: {why}"))
}
