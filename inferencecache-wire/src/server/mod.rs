//! The whole server: three listeners around one index.
//!
//! ```text
//!            ┌── :9090 gRPC     service, health, reflection      grpc.rs
//! Server ────┼── :8080 public   healthz, readyz, metrics         crate::http::public
//!            └── :8081 bridge   snapshot, policy, probe          crate::http::bridge
//!   bind ──> ready ──> serve ··· asked to end ──> not ready ──> lame duck ──> listeners closed ──> drained
//! ```
//!
//! 1. All listeners are bound before any is served; a failure closes those that were.
//! 2. Readiness, `server_up` and health change together, before anything else does.
//! 3. Everything that could be kept waiting for ever has a limit in [`ServerOptions`].
//!
//! ```no_run
//! # async fn serve(index: std::sync::Arc<dyn inferencecache_core::IndexApi>) -> Result<(), Box<dyn std::error::Error>> {
//! use inferencecache_core::{PolicyStore, Router};
//! use inferencecache_wire::http::access::Access;
//! use inferencecache_wire::server::{Addresses, Server};
//!
//! let policies = std::sync::Arc::new(PolicyStore::default());
//! let server = Server::new(Router::new(index, policies.clone()), policies, Access::Open);
//! server.bind(&Addresses::default()).await?.run(std::future::pending()).await?;
//! # Ok(())
//! # }
//! ```

mod accept;
mod calls;
mod grpc;
mod handshake;
mod http;
mod lifecycle;
mod linger;
mod listen;
mod paced;
mod places;
#[cfg(feature = "tls")]
mod tls;
mod transport;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use inferencecache_core::{IndexApi, PolicyStore, Router, T2Client};
use tokio::net::TcpListener;

use crate::grpc::service::{DEFAULT_BUDGET, DEFAULT_MAX_MESSAGE_BYTES, DEFAULT_REQUEST_TIMEOUT};
use crate::http::access::Access;
use crate::metrics::Metrics;
use crate::readiness::Readiness;

pub use self::listen::{BindError, check_address};
#[cfg(feature = "tls")]
pub use self::tls::{GrpcTls, TlsLimits};
use self::transport::Transport;

/// Where the three listeners are bound: `host:port`, an empty host being all interfaces, IPv4 and IPv6.
#[derive(Debug, Clone)]
pub struct Addresses {
    /// gRPC. Default `:9090`.
    pub grpc: String,
    /// Public HTTP. Default `:8080`.
    pub http: String,
    /// Bridge HTTP. Default `:8081`.
    pub bridge: String,
}

/// Limits and times. Start from [`ServerOptions::default`].
#[derive(Debug, Clone)]
pub struct ServerOptions {
    /// Largest gRPC request message, in bytes. Default 4 MiB.
    pub max_message_bytes: usize,
    /// Most bytes that incomplete gRPC messages may hold together; a call beyond it is refused. As many again may be held by
    /// large answers that their callers do not take. Default 256 MiB.
    pub max_unfinished_bytes: usize,
    /// Most calls at a time on one gRPC connection; more wait at the client. Default 1024.
    pub max_streams: u32,
    /// Most calls at a time on all gRPC connections; one more is refused with `RESOURCE_EXHAUSTED`. Default 32 768.
    pub max_calls: usize,
    /// Most connections at a time to gRPC. One more takes the place of the one that has been idle longest; while all have calls
    /// under way it is closed at once and counted. Default 4096.
    pub max_grpc_connections: usize,
    /// The same for each HTTP listener. Default 256.
    pub max_http_connections: usize,
    /// Between pings to gRPC clients. Default 30 s.
    pub keepalive_interval: Duration,
    /// For the answer to a ping. Default 10 s.
    pub keepalive_timeout: Duration,
    /// For the head of an HTTP request, and for the first bytes of a gRPC connection. Default 5 s.
    pub header_timeout: Duration,
    /// For the request of a gRPC call to arrive whole, streams of requests excepted. Default 30 s.
    pub request_timeout: Duration,
    /// For a peer to take something of what it is sent over HTTP, or one of its answers over gRPC. Default 15 s.
    pub reader_timeout: Duration,
    /// Between sweeps of what has outlived its TTL. Default 1 min.
    pub sweep_interval: Duration,
    /// Between readiness off and the end of the listeners. Default 3 s; 0 is none.
    pub lame_duck: Duration,
    /// For calls under way once the listeners have ended; what is left then is cut off. Default 4 s.
    pub drain_timeout: Duration,
    /// Whether the index may block and is asked on the blocking pool. Default false.
    pub isolate_lookups: bool,
}

/// A server that is not yet bound.
#[derive(Debug)]
pub struct Server<I: ?Sized> {
    router: Router<I>,
    policies: Arc<PolicyStore>,
    access: Access,
    metrics: Arc<Metrics>,
    readiness: Readiness,
    options: ServerOptions,
    second_tier: Option<Arc<dyn T2Client>>,
    transport: Transport,
}

/// A server that is bound and not yet serving.
#[derive(Debug)]
pub struct BoundServer<I: ?Sized> {
    server: Server<I>,
    listeners: Listeners,
}

/// The bound listeners. Tests bind port 0 and ask for what they got.
#[derive(Debug)]
pub struct Listeners {
    /// gRPC.
    pub grpc: TcpListener,
    /// Public HTTP.
    pub http: TcpListener,
    /// Bridge HTTP.
    pub bridge: TcpListener,
}

/// Serving ended without having been asked to.
#[derive(Debug, thiserror::Error)]
#[error("the {listener} listener failed")]
pub struct ServeError {
    /// `grpc`, `http` or `bridge`.
    pub listener: &'static str,
    #[source]
    source: std::io::Error,
}

impl Default for Addresses {
    fn default() -> Self {
        Self { grpc: ":9090".to_owned(), http: ":8080".to_owned(), bridge: ":8081".to_owned() }
    }
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            max_message_bytes: DEFAULT_MAX_MESSAGE_BYTES,
            max_unfinished_bytes: DEFAULT_BUDGET,
            max_streams: 1024,
            max_calls: 32_768,
            max_grpc_connections: 4096,
            max_http_connections: 256,
            keepalive_interval: Duration::from_secs(30),
            keepalive_timeout: Duration::from_secs(10),
            header_timeout: Duration::from_secs(5),
            request_timeout: DEFAULT_REQUEST_TIMEOUT,
            reader_timeout: Duration::from_secs(15),
            sweep_interval: Duration::from_secs(60),
            lame_duck: Duration::from_secs(3),
            drain_timeout: Duration::from_secs(4),
            isolate_lookups: false,
        }
    }
}

impl<I: IndexApi + ?Sized> Server<I> {
    /// A server that answers from the router's index. `policies` is where pushes go; it should be the router's own.
    #[must_use]
    pub fn new(router: Router<I>, policies: Arc<PolicyStore>, access: Access) -> Self {
        Self {
            router,
            policies,
            access,
            metrics: Arc::default(),
            readiness: Readiness::default(),
            options: ServerOptions::default(),
            second_tier: None,
            transport: Transport::default(),
        }
    }

    /// Counts into `metrics`, which should also be the index's sink.
    #[must_use]
    pub fn metrics(mut self, metrics: Arc<Metrics>) -> Self {
        self.metrics = metrics;
        self
    }

    /// Replaces the limits and times.
    #[must_use]
    pub fn options(mut self, options: ServerOptions) -> Self {
        self.options = options;
        self
    }

    /// Serves gRPC over TLS. Default plaintext.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: Option<GrpcTls>) -> Self {
        self.transport.tls = tls;
        self
    }

    /// What `/probe` tests besides the index. Default nothing.
    #[must_use]
    pub fn second_tier(mut self, client: Option<Arc<dyn T2Client>>) -> Self {
        self.second_tier = client;
        self
    }

    /// The switch that `/readyz` follows. Serving turns it on, ending turns it off.
    #[must_use]
    pub fn readiness(&self) -> Readiness {
        self.readiness.clone()
    }

    /// Binds gRPC, then public HTTP, then the bridge.
    ///
    /// # Errors
    /// [`BindError`] for the first that cannot be bound; the others are closed again.
    pub async fn bind(self, addresses: &Addresses) -> Result<BoundServer<I>, BindError> {
        let listeners = Listeners {
            grpc: listen::bind(&addresses.grpc).await?,
            http: listen::bind(&addresses.http).await?,
            bridge: listen::bind(&addresses.bridge).await?,
        };
        Ok(self.over(listeners))
    }

    /// Takes listeners that somebody else has bound.
    #[must_use]
    pub fn over(self, listeners: Listeners) -> BoundServer<I> {
        BoundServer { server: self, listeners }
    }
}

impl<I: IndexApi + ?Sized> BoundServer<I> {
    /// Where gRPC, public HTTP and the bridge are served.
    ///
    /// # Errors
    /// When the operating system does not say.
    pub fn addresses(&self) -> std::io::Result<[SocketAddr; 3]> {
        let Listeners { grpc, http, bridge } = &self.listeners;
        Ok([grpc.local_addr()?, http.local_addr()?, bridge.local_addr()?])
    }

    /// Serves until `shutdown` resolves, then ends gracefully: at most lame duck plus drain timeout later.
    ///
    /// # Errors
    /// [`ServeError`] when a listener fails; the others are ended first.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> Result<(), ServeError> {
        lifecycle::run(self.server, self.listeners, shutdown).await
    }
}
