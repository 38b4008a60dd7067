//! Builds the subscriber and runs it until it is told to end.

use bins_common::Exit;
use bins_common::signals::{self, Signals};
use inferencecache_wire::subscriber::{BuildError, Drained, Subscriber};

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
    if args.wants_tls {
        return Err(Exit::failure(
            "TLS is not in this build yet, and reporting in plaintext instead would be worse; leave out --tls-ca-file and \
             --tls-server-name",
        ));
    }
    let Args { config, stats, without_effect, .. } = args;
    tracing::info!(
        engine_endpoint = config.engine_endpoint,
        server = config.server,
        replica_id = config.identity.replica_id,
        model_id = config.identity.model_id,
        engine_metrics_url = stats.engine_metrics_url,
        stats_interval = ?stats.interval,
        cache_tier = stats.cache_tier,
        engine_model_name = stats.engine_model_name,
        ignore_block_removed = config.rules.ignore_block_removed,
        "kvevent-subscriber starting"
    );
    for flag in without_effect {
        tracing::warn!(
            flag = format!("--{flag}"),
            "flag_without_effect: this build does not do what the flag asks for"
        );
    }
    let subscriber = Subscriber::builder(config).build().map_err(|why| failed(&why))?;
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

fn failed(why: &BuildError) -> Exit {
    use std::error::Error as _;
    match why.source() {
        Some(source) => Exit::failure(format!("{why}: {source}")),
        None => Exit::failure(why.to_string()),
    }
}
