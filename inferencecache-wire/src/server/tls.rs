//! TLS on the gRPC port: handshakes that hold up nobody else, and certificates whose replacement is told.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use inferencecache_core::{Clock as _, SystemClock};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::metrics::{Handshake, Metrics};
use crate::tls::{ALPN_H2, HandshakeError, Leaf, Reload, ServerFiles, ServerTls, TlsError};

/// Between looks at the files while nobody connects.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Limits of handshakes. Start from [`TlsLimits::default`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct TlsLimits {
    /// For one handshake. Default 5 s.
    pub handshake_timeout: Duration,
    /// Handshakes at a time; a connection beyond that is closed at once and counted. Default 1024, so that peers who do not get
    /// on with theirs hold no more than a quarter of the connections.
    pub max_handshakes: usize,
}

impl Default for TlsLimits {
    fn default() -> Self {
        Self { handshake_timeout: Duration::from_secs(5), max_handshakes: 1024 }
    }
}

/// TLS for [`Server::tls`](super::Server::tls). Logs and counts what happens to its files and its handshakes.
#[derive(Debug, Clone)]
pub struct GrpcTls {
    tls: ServerTls,
    metrics: Arc<Metrics>,
    limit: Duration,
    places: Arc<Semaphore>,
}

impl GrpcTls {
    /// Reads the files. From then on the log says when they change, and whether for the better.
    ///
    /// # Errors
    /// [`TlsError`] when they cannot be used.
    pub async fn load(files: ServerFiles, metrics: Arc<Metrics>, limits: TlsLimits) -> Result<Self, TlsError> {
        let cert_file = files.cert.display().to_string();
        let (shown, counts) = (cert_file.clone(), metrics.clone());
        let tls = ServerTls::load(files, &[ALPN_H2], move |reload| observe(&shown, &counts, &reload)).await?;
        show(&cert_file, &metrics, tls.leaf().as_ref());
        let TlsLimits { handshake_timeout: limit, max_handshakes } = limits;
        Ok(Self { tls, metrics, limit, places: Arc::new(Semaphore::new(max_handshakes)) })
    }

    /// Looks at the files again and again.
    pub(super) async fn watch(&self) {
        loop {
            tokio::time::sleep(CHECK_INTERVAL).await;
            self.tls.check().await;
        }
    }

    /// Shakes hands, unless there is no place for that, the peer takes too long, or the server ends first.
    pub(super) async fn accept(&self, stream: TcpStream, stop: &CancellationToken) -> Option<TlsStream<TcpStream>> {
        let Ok(_place) = self.places.try_acquire() else {
            self.metrics.tls_handshake(Handshake::Refused);
            return None;
        };
        let (outcome, stream) = tokio::select! {
            biased;
            () = stop.cancelled() => return None,
            done = tokio::time::timeout(self.limit, self.tls.accept(stream)) => match done {
                Ok(Ok(stream)) => (Handshake::Ok, Some(stream)),
                Ok(Err(why)) => (failure(&why), None),
                Err(_) => (Handshake::Timeout, None),
            },
        };
        self.metrics.tls_handshake(outcome);
        stream
    }
}

/// What kind of failure it was. Why exactly is only worth a line when somebody looks for it: anybody can cause it.
fn failure(why: &HandshakeError) -> Handshake {
    match why.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Handshake::Gone,
        _ => {
            tracing::debug!(err = why.full(), "grpc_tls_handshake");
            Handshake::Failed
        }
    }
}

fn observe(cert_file: &str, metrics: &Metrics, reload: &Reload<'_, Option<Leaf>>) {
    match reload {
        Reload::Replaced(leaf) => {
            metrics.tls_reload(true);
            show(cert_file, metrics, leaf.as_ref());
            let (serial, not_after) = leaf.as_ref().map(|leaf| (leaf.serial.as_str(), leaf.not_after)).unzip();
            tracing::info!(cert_file, serial, not_after, "grpc_tls_reloaded");
        }
        Reload::Refused(why) => {
            metrics.tls_reload(false);
            tracing::error!(err = why.full(), cert_file, "grpc_tls_reload");
        }
        Reload::Restored => tracing::info!(cert_file, "grpc_tls_restored"),
    }
}

/// Shows until when the certificate is valid, and says so if that is over: clients will refuse it, and only they know why.
fn show(cert_file: &str, metrics: &Metrics, leaf: Option<&Leaf>) {
    let not_after = leaf.map(|leaf| leaf.not_after);
    metrics.set_tls_not_after(not_after);
    let now = u64::try_from(SystemClock::default().now() / 1_000_000).unwrap_or(0);
    if let Some(not_after) = not_after.filter(|end| *end < now) {
        tracing::warn!(cert_file, not_after, "grpc_tls_expired");
    }
}
