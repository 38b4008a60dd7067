//! The HTTPS listener of the admission endpoints.
//!
//! HTTP/1.1 alone: API servers are content with it, and it keeps a connection's cost small. Certificates are reloaded
//! without a restart, before each handshake and every ten seconds.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use inferencecache_wire::tls::{Leaf, Reload, ServerFiles, ServerTls, TlsError};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::metrics::Metrics;
use super::places::{Place, Places};

const HTTP1: &[u8] = b"http/1.1";
/// Between looks at the certificate while nobody connects.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// How long to wait when the system has no room for one more connection.
const PAUSE: Duration = Duration::from_millis(100);
/// At the end, how long a connection may go on without a request: one may just be arriving.
const QUIET: Duration = Duration::from_secs(1);

/// Bounds of the listener. Start from [`Limits::default`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Limits {
    /// Connections at a time. One more takes the place of the one that has been idle longest, or is closed at once and counted
    /// while all of them have a review under way. Default 512.
    pub max_connections: usize,
    /// For one handshake. Default 5 s.
    pub handshake_timeout: Duration,
    /// For the headers of a request, and for an idle connection's next one. Default 90 s, longer than API servers keep theirs.
    pub header_timeout: Duration,
    /// For reviews under way when the process ends. Default 60 s.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 512,
            handshake_timeout: Duration::from_secs(5),
            header_timeout: Duration::from_secs(90),
            drain: Duration::from_secs(60),
        }
    }
}

/// Why there is no listener.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The certificate cannot be used.
    #[error("webhook certificate: {}", .0.full())]
    Certificate(TlsError),
    /// The address cannot be listened on.
    #[error("cannot listen on {0}: {1}")]
    Bind(SocketAddr, io::Error),
}

/// A listener with its certificate, not serving yet.
#[derive(Debug)]
pub struct Listener {
    tls: ServerTls,
    listener: TcpListener,
    metrics: Metrics,
    limits: Limits,
}

impl Listener {
    /// Reads the certificate, then listens.
    ///
    /// # Errors
    /// [`ServeError`]; nothing listens then.
    pub async fn bind(
        files: ServerFiles,
        address: SocketAddr,
        metrics: Metrics,
        limits: Limits,
    ) -> Result<Self, ServeError> {
        let counts = metrics.clone();
        let observer = move |reload: Reload<'_, Option<Leaf>>| observe(&counts, &reload);
        let tls = ServerTls::load(files, &[HTTP1], observer).await.map_err(ServeError::Certificate)?;
        metrics.certificate(true);
        metrics.certificate_ends(tls.leaf().map(|leaf| leaf.not_after));
        let listener = TcpListener::bind(address).await.map_err(|why| ServeError::Bind(address, why))?;
        Ok(Self { tls, listener, metrics, limits })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// The system does not say.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `stop`, then lets reviews under way end.
    pub async fn serve(self, router: Router, stop: CancellationToken) {
        let Self { tls, listener, metrics, limits } = self;
        let places = Places::new(limits.max_connections);
        let open = TaskTracker::new();
        let service = TowerToHyperService::new(router);
        let mut check = tokio::time::interval(CHECK_INTERVAL);
        check.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let accepted = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                _ = check.tick() => {
                    tls.check().await;
                    continue;
                }
                accepted = listener.accept() => accepted,
            };
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(why) => {
                    tracing::warn!(err = %why, "webhook_accept");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            };
            let Some(place) = places.take() else {
                metrics.connection_refused();
                continue;
            };
            let guest = Guest {
                places: places.clone(),
                leave: CancellationToken::new(),
                tls: tls.clone(),
                metrics: metrics.clone(),
                limits: limits.clone(),
                stop: stop.clone(),
            };
            let service = service.clone();
            open.spawn(async move {
                tokio::select! {
                    () = guest.serve(place, stream, service) => {}
                    () = guest.leave.cancelled() => guest.metrics.connection_displaced(),
                }
            });
        }
        drop(listener);
        open.close();
        if tokio::time::timeout(limits.drain, open.wait()).await.is_err() {
            tracing::warn!(limit = ?limits.drain, "webhook_drain_cut_off");
        }
    }
}

/// A connection, from accept to end.
struct Guest {
    places: Arc<Places>,
    /// It is idle, and somebody else needs its place.
    leave: CancellationToken,
    tls: ServerTls,
    metrics: Metrics,
    limits: Limits,
    stop: CancellationToken,
}

impl Guest {
    async fn serve(&self, place: Place, stream: TcpStream, service: TowerToHyperService<Router>) {
        let Self { places, leave, tls, metrics, limits, stop } = self;
        let Some(_place) = place.had().await else { return };
        let idling = places.idles(leave);
        let _ = stream.set_nodelay(true);
        let accepted = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            accepted = tokio::time::timeout(limits.handshake_timeout, tls.accept(stream)) => accepted,
        };
        let stream = match accepted {
            Ok(Ok(stream)) => stream,
            Ok(Err(why)) => {
                metrics.handshake_failed();
                tracing::debug!(err = why.full(), "webhook_handshake");
                return;
            }
            Err(_) => {
                metrics.handshake_failed();
                return;
            }
        };
        // HTTP/1.1 has one request under way or none: while there is one, this is empty.
        let idling = Mutex::new(Some(idling));
        let idle = |now| *idling.lock().unwrap_or_else(PoisonError::into_inner) = now;
        let idle = &idle;
        let service = service_fn(move |request| {
            idle(None);
            let answer = service.call(request);
            async move {
                let answer = answer.await;
                idle(Some(places.idles(leave)));
                answer
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(limits.header_timeout)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                let quiet = async {
                    loop {
                        tokio::time::sleep(QUIET).await;
                        if idling.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
                            return;
                        }
                    }
                };
                tokio::select! {
                    ended = connection => ended,
                    () = quiet => Ok(()),
                }
            }
        };
        if let Err(why) = ended {
            tracing::debug!(err = %why, "webhook_connection");
        }
    }
}

fn observe(metrics: &Metrics, reload: &Reload<'_, Option<Leaf>>) {
    match reload {
        Reload::Replaced(leaf) => {
            metrics.certificate(true);
            metrics.certificate_ends(leaf.as_ref().map(|leaf| leaf.not_after));
            tracing::info!("webhook_certificate_reloaded");
        }
        Reload::Refused(why) => {
            metrics.certificate(false);
            tracing::error!(err = why.full(), "webhook_certificate_refused");
        }
        _ => tracing::info!("webhook_certificate_restored"),
    }
}
