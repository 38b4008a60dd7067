//! TLS on the gRPC port: handshakes that hold up nobody else, and certificates whose replacement is told.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

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
        let (cert, counts) = (files.cert.clone(), metrics.clone());
        let tls = ServerTls::load(files, &[ALPN_H2], move |reload| observe(&cert, &counts, &reload)).await?;
        show(&metrics, tls.leaf().as_ref());
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

fn observe(cert: &Path, metrics: &Metrics, reload: &Reload<'_, Option<Leaf>>) {
    let cert_file = cert.display().to_string();
    match reload {
        Reload::Replaced(leaf) => {
            metrics.tls_reload(true);
            show(metrics, leaf.as_ref());
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

fn show(metrics: &Metrics, leaf: Option<&Leaf>) {
    if let Some(leaf) = leaf {
        metrics.set_tls_not_after(leaf.not_after);
    }
}
