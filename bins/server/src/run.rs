//! Builds the server and runs it until it is told to end.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;

use bins_common::signals::{self, Shutdown, Signals};
use bins_common::{Exit, build, open_files};
use inferencecache_core::resolve::Resolvers;
use inferencecache_core::{Index, IndexOptions, PolicyStore, Router, T2Client};
use inferencecache_wire::http::access::Access;
use inferencecache_wire::http::auth::{Audiences, BearerGuard};
use inferencecache_wire::http::review::{ApiServer, HttpTokenReviewer, NoReviewer, SERVICE_ACCOUNT_DIR};
use inferencecache_wire::metrics::Metrics;
use inferencecache_wire::second_tier::RedisStore;
use inferencecache_wire::server::{BoundServer, GrpcTls, Server, ServerOptions, TlsLimits};
use inferencecache_wire::tls::ServerFiles;
use tokio::runtime::Handle;

use crate::args::{Auth, Config, SecondTier};
use crate::prompts;
use crate::warm::{self, Keeper, SnapshotFile};

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
    let work = |shutdown: Shutdown| async move {
        // Large models take their time to load.
        let Some(server) = shutdown.unless_asked(start(config)).await else {
            tracing::info!("graceful_shutdown_started");
            tracing::info!("graceful_shutdown_done");
            return Ok(());
        };
        let (server, keeper) = server?;
        let keeping = keeper.clone().map(|keeper| tokio::spawn(keeper.run()));
        let outcome = server.run(shutdown.wait()).await.map_err(|why| failed(&why));
        if let (Some(keeping), Some(keeper)) = (keeping, keeper) {
            keeping.abort();
            keeper.write().await;
        }
        outcome
    };
    signals::run(signals, work).await.unwrap_or_else(|signals::Interrupted| {
        tracing::warn!("graceful_shutdown_interrupted");
        Err(Exit::logged())
    })
}

/// Everything up to the first connection.
async fn start(config: Config) -> Result<(BoundServer<Index>, Option<Arc<Keeper>>), Exit> {
    let access = access(config.auth).await?;
    let metrics = Arc::new(Metrics::default());
    metrics.set_build(build::VERSION, build::COMMIT);
    let tls = match config.tls {
        Some(files) => Some(tls(files, &metrics).await?),
        None => None,
    };
    let policies = Arc::new(PolicyStore::default());
    let options = IndexOptions { resolvers: Resolvers::all(&policies), sink: metrics.clone(), ..config.index };
    let (index, keeper) = index(options, config.snapshot_file, &metrics).await?;
    let mut router = Router::new(index, policies.clone());
    router.block_size = config.block_size;
    if !config.tokenizer_models_dir.is_empty() {
        router.tokenizer = prompts::tokenizer(config.tokenizer_models_dir, &metrics).await;
    }
    let probe_t2_endpoint = config.second_tier.as_ref().map(|store| store.endpoint.to_string());
    tracing::info!(
        version = build::VERSION,
        commit = build::COMMIT,
        grpc_addr = config.addresses.grpc,
        grpc_tls = tls.is_some(),
        http_addr = config.addresses.http,
        snapshot_addr = config.addresses.bridge,
        probe_t2_endpoint,
        "startup"
    );
    open_files(&config.server);
    let server = Server::new(router, policies, access)
        .metrics(metrics)
        .options(config.server)
        .second_tier(config.second_tier.map(second_tier))
        .tls(tls);
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
    Ok((server, keeper))
}

/// The index, restored if there is a file for it, and who keeps the file up to date.
async fn index(
    options: IndexOptions,
    file: Option<SnapshotFile>,
    metrics: &Arc<Metrics>,
) -> Result<(Arc<Index>, Option<Arc<Keeper>>), Exit> {
    let Some(file) = file else { return Ok((Arc::new(Index::new(options)), None)) };
    let (path, known) = (file.path.clone(), metrics.clone());
    let restoring = tokio::task::spawn_blocking(move || warm::restore(&path, options, &known));
    let index = Arc::new(restoring.await.map_err(|why| fatal(&why, "index_snapshot_panicked"))?);
    let keeper = Keeper::new(file, index.clone(), metrics.clone());
    Ok((index, Some(keeper)))
}

/// Makes room for the connections that are allowed, or says that there is none.
fn open_files(options: &ServerOptions) {
    const BESIDES: usize = 64;
    let wanted = options.max_grpc_connections.saturating_add(options.max_http_connections.saturating_mul(2));
    let wanted = u64::try_from(wanted.saturating_add(BESIDES)).unwrap_or(u64::MAX);
    if let Some(limit) = open_files::raise().filter(|&limit| limit < wanted) {
        let effect = "idle connections are closed early, and new ones may have to wait";
        tracing::warn!(limit, wanted, effect, "open_files_limited");
    }
}

async fn access(auth: Auth) -> Result<Access, Exit> {
    let Auth::ServiceAccount(account, audiences) = auth else {
        tracing::warn!(reason = "--insecure-disable-auth", "controller_auth_disabled");
        return Ok(Access::Open);
    };
    let reviewer = match api_server() {
        Ok(server) => HttpTokenReviewer::new(server).await.map_err(|why| fatal(&why, "kube_client"))?,
        Err(why) => return Err(fatal(&why, "in_cluster_config")),
    };
    let Audiences { controller, policy } = &audiences;
    tracing::info!(
        expected_sa = account,
        controller_audience = controller,
        policy_audience = policy,
        "controller_auth_enabled"
    );
    if controller == policy {
        let effect = "a token for reading is also one for writing";
        tracing::warn!(audience = controller, effect, "controller_audiences_equal");
    }
    Ok(Access::Guarded(Arc::new(BearerGuard::new(Arc::new(reviewer), account, audiences))))
}

/// The API server of the cluster around this process.
#[expect(clippy::disallowed_methods, reason = "this is how a cluster tells a pod where its API server is")]
fn api_server() -> Result<ApiServer, NoReviewer> {
    let [host, port] = ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"].map(|name| std::env::var(name).ok());
    ApiServer::in_cluster(host.as_deref(), port.as_deref(), Path::new(SERVICE_ACCOUNT_DIR))
}

async fn tls(files: ServerFiles, metrics: &Arc<Metrics>) -> Result<GrpcTls, Exit> {
    let loaded = GrpcTls::load(files, metrics.clone(), TlsLimits::default()).await;
    loaded.map_err(|why| fatal(&why, "grpc_tls_load"))
}

/// The client of the store, on this runtime.
fn second_tier(store: SecondTier) -> Arc<dyn T2Client> {
    let SecondTier { endpoint, password_file } = store;
    let client = RedisStore::new(endpoint, Handle::current());
    Arc::new(if password_file.is_empty() { client } else { client.password_file(password_file) })
}

/// Serving could not begin or could not go on.
fn failed(why: &dyn Error) -> Exit {
    fatal(why, "serve_error")
}

/// Logs what ends the process.
fn fatal(why: &dyn Error, event: &'static str) -> Exit {
    let mut err = why.to_string();
    let mut next = why.source();
    while let Some(cause) = next {
        err = format!("{err}: {cause}");
        next = cause.source();
    }
    // The message is the event's name, which tracing only takes as a literal in its own place.
    tracing::error!(err, "{event}");
    Exit::logged()
}
