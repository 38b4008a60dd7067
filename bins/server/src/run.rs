//! Builds the server and runs it until it is told to end.

use std::sync::Arc;

use bins_common::signals::{self, Signals};
use bins_common::{Exit, build};
use inferencecache_core::resolve::Resolvers;
use inferencecache_core::{Index, IndexOptions, PolicyStore, Router, T2Client};
use inferencecache_wire::http::access::Access;
use inferencecache_wire::metrics::Metrics;
use inferencecache_wire::second_tier::RedisStore;
use inferencecache_wire::server::Server;
use tokio::runtime::Handle;

use crate::args::{Auth, Config, SecondTier};
use crate::prompts;

/// Runs until a signal ends it.
///
/// # Errors
/// What kept it from starting or from going on, with exit code 1.
pub(crate) fn run(config: Config) -> Result<(), Exit> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.map_err(|why| Exit::failure(format!("cannot start the runtime: {why}")))?;
    let outcome = runtime.block_on(serve(config));
    // Work that did not end in time shall not keep the process.
    runtime.shutdown_background();
    outcome
}

async fn serve(config: Config) -> Result<(), Exit> {
    let signals = Signals::install().map_err(|why| Exit::failure(format!("cannot catch signals: {why}")))?;
    let access = access(&config.auth)?;
    if config.tls.is_some() {
        return Err(Exit::failure(
            "TLS is not in this build yet, and serving in plaintext instead would be worse; leave out --tls-cert-file and \
             --tls-key-file",
        ));
    }

    let metrics = Arc::new(Metrics::default());
    metrics.set_build(build::VERSION, build::COMMIT);
    let policies = Arc::new(PolicyStore::default());
    let index = IndexOptions { resolvers: Resolvers::all(&policies), sink: metrics.clone(), ..config.index };
    let mut router = Router::new(Arc::new(Index::new(index)), policies.clone());
    router.block_size = config.block_size;
    if !config.tokenizer_models_dir.is_empty() {
        router.tokenizer = prompts::tokenizer(config.tokenizer_models_dir, &metrics).await;
    }
    let probe_t2_endpoint = config.second_tier.as_ref().map(|store| store.endpoint.to_string());
    let server = Server::new(router, policies, access)
        .metrics(metrics)
        .options(config.server)
        .second_tier(config.second_tier.map(second_tier));

    tracing::info!(
        version = build::VERSION,
        commit = build::COMMIT,
        grpc_addr = config.addresses.grpc,
        grpc_tls = false,
        http_addr = config.addresses.http,
        snapshot_addr = config.addresses.bridge,
        probe_t2_endpoint,
        "startup"
    );
    let server = server.bind(&config.addresses).await.map_err(|why| failed(&why))?;
    // With port 0 or a name, only now is it known where it listens.
    if let Ok([grpc, http, bridge]) = server.addresses() {
        tracing::info!(
            grpc_addr = %grpc,
            http_addr = %http,
            snapshot_addr = %bridge,
            "listening"
        );
    }
    match signals::run(signals, |shutdown| server.run(shutdown.wait())).await {
        Ok(outcome) => outcome.map_err(|why| failed(&why)),
        Err(signals::Interrupted) => {
            tracing::warn!("graceful_shutdown_interrupted");
            Err(Exit::logged())
        }
    }
}

fn access(auth: &Auth) -> Result<Access, Exit> {
    match auth {
        Auth::Disabled => {
            tracing::warn!(reason = "--insecure-disable-auth", "controller_auth_disabled");
            Ok(Access::Open)
        }
        Auth::ServiceAccount(account) => Err(Exit::failure(format!(
            "cannot check that a caller is {account}: TokenReview authentication is not in this build yet; until it is, the \
             bridge can only be served with --insecure-disable-auth, on an address that nobody else reaches"
        ))),
    }
}

/// The client of the store, on this runtime.
fn second_tier(store: SecondTier) -> Arc<dyn T2Client> {
    let SecondTier { endpoint, password_file } = store;
    let client = RedisStore::new(endpoint, Handle::current());
    Arc::new(if password_file.is_empty() { client } else { client.password_file(password_file) })
}

/// Serving could not begin or could not go on.
fn failed(why: &dyn std::error::Error) -> Exit {
    let err = match why.source() {
        Some(source) => format!("{why}: {source}"),
        None => why.to_string(),
    };
    tracing::error!(err, "serve_error");
    Exit::logged()
}
