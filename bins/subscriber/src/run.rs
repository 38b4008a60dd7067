//! Builds the subscriber and runs it until it is told to end.

use bins_common::Exit;
use bins_common::signals::{self, Signals};
use inferencecache_wire::subscriber::{BuildError, Drained, Subscriber};
use inferencecache_wire::tls::{ALPN_H2, ClientFiles, ClientTls, Reload};

use crate::args::Args;

/// Threads for calls and probes; the engine's socket has its own.
const THREADS: usize = 2;

/// Runs until a signal ends it. No outage of engine or server does.
///
/// # Errors
/// What kept it from starting, with exit code 1.
pub(crate) fn run(args: Args) -> Result<(), Exit> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build();
    let runtime = runtime.map_err(|why| Exit::failure(format!("cannot start the runtime: {why}")))?;
    let outcome = runtime.block_on(subscribe(args));
    // Calls that did not end in time shall not keep the process.
    runtime.shutdown_background();
    outcome
}

async fn subscribe(args: Args) -> Result<(), Exit> {
    let signals = Signals::install().map_err(|why| Exit::failure(format!("cannot catch signals: {why}")))?;
    let Args { config, tls } = args;
    let tls = match tls {
        Some(files) => Some(load(files).await?),
        None => None,
    };
    let stats = config.stats.as_ref();
    tracing::info!(
        engine_endpoint = config.engine_endpoint,
        server = config.server,
        replica_id = config.identity.replica_id,
        model_id = config.identity.model_id,
        engine_metrics_url = stats.map_or("", |stats| &stats.url),
        stats_interval = ?stats.map(|stats| stats.interval).unwrap_or_default(),
        cache_tier = stats.map_or("", |stats| stats.tier.name()),
        engine_model_name = stats.map_or("", |stats| &stats.model),
        ignore_block_removed = config.rules.ignore_block_removed,
        "kvevent-subscriber starting"
    );
    let subscriber = Subscriber::builder(config).tls(tls).build().map_err(|why| failed(&why))?;
    match signals::run(signals, |shutdown| subscriber.run(shutdown.wait())).await {
        Ok(drained) => {
            if drained == Drained::Partly {
                tracing::warn!("not everything could be delivered before the end");
            }
            tracing::info!("kvevent-subscriber stopped");
            Ok(())
        }
        Err(signals::Interrupted) => {
            tracing::warn!("graceful_shutdown_interrupted");
            Err(Exit::logged())
        }
    }
}

/// Reads what TLS needs. Later changes of the files are followed, and told.
async fn load(files: ClientFiles) -> Result<ClientTls, Exit> {
    let ca_file = files.ca.display().to_string();
    let loaded = ClientTls::load(files, &[ALPN_H2], move |reload| match reload {
        Reload::Refused(why) => {
            tracing::error!(err = why.full(), ca_file, "TLS files cannot be used; the last good ones stay in use");
        }
        _ => tracing::info!(ca_file, "TLS files were replaced"),
    });
    loaded.await.map_err(|why| Exit::failure(format!("cannot use TLS as asked for by --tls-ca-file: {}", why.full())))
}

fn failed(why: &BuildError) -> Exit {
    use std::error::Error as _;
    if let BuildError::Server(why) = why {
        return Exit::failure(format!("invalid --server: {why}"));
    }
    match why.source() {
        Some(source) => Exit::failure(format!("{why}: {source}")),
        None => Exit::failure(why.to_string()),
    }
}
