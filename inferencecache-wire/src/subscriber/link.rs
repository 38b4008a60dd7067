//! The transport connection to the server, watched.
//!
//! gRPC hides connections: a channel dials when a call needs it. But a new connection may lead to a server that has
//! started empty, and a lost one must be replaced even when there is nothing new to say. So we dial ourselves, count, and
//! notice when a connection is dropped.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::watch;
use tokio::time::timeout;
use tonic::codegen::Service;
use tonic::codegen::http::Uri;

/// Longest time to dial, a TLS handshake included.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Addresses of one name that are tried.
const MAX_ADDRESSES: usize = 8;

/// What has become of our connections.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LinkState {
    /// Connections made so far.
    pub made: u64,
    /// Connections open now.
    pub open: u64,
}

#[cfg(not(feature = "tls"))]
type Stream = TcpStream;
#[cfg(feature = "tls")]
type Stream = tokio_util::either::Either<TcpStream, tokio_rustls::client::TlsStream<TcpStream>>;

/// Finds the addresses of a host and a port.
pub type Resolver = Arc<dyn Fn(&str, u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> + Send + Sync>;

/// Dials the server for the channel.
#[derive(Clone)]
pub struct Connector {
    state: watch::Sender<LinkState>,
    resolver: Resolver,
    #[cfg(feature = "tls")]
    tls: Option<crate::tls::ClientTls>,
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").field("state", &*self.state.borrow()).finish_non_exhaustive()
    }
}

impl Connector {
    /// A connector, and where its connections can be watched.
    #[must_use]
    pub fn new() -> (Self, watch::Receiver<LinkState>) {
        let (state, watch) = watch::channel(LinkState::default());
        let connector = Self {
            state,
            resolver: Arc::new(|host, port| Box::pin(system(host.to_owned(), port))),
            #[cfg(feature = "tls")]
            tls: None,
        };
        (connector, watch)
    }

    /// Finds addresses in another way. Default the system's. Asked anew for each dial, so that a server may move.
    #[must_use]
    pub fn resolver(mut self, resolver: Resolver) -> Self {
        self.resolver = resolver;
        self
    }

    /// Shakes hands on each connection. Default plaintext.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: Option<crate::tls::ClientTls>) -> Self {
        self.tls = tls;
        self
    }

    /// The scheme of what is asked over its connections.
    pub(super) fn scheme(&self) -> &'static str {
        #[cfg(feature = "tls")]
        if self.tls.is_some() {
            return "https";
        }
        "http"
    }

    async fn dial(self, uri: Uri) -> io::Result<Stream> {
        let authority = uri.authority().ok_or(io::ErrorKind::InvalidInput)?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let stream = connect((self.resolver)(host, authority.port_u16().unwrap_or(80)).await?).await?;
        stream.set_nodelay(true)?;
        #[cfg(feature = "tls")]
        let stream = match self.tls {
            Some(tls) => Stream::Right(tls.connect(host, stream).await.map_err(io::Error::other)?),
            None => Stream::Left(stream),
        };
        Ok(stream)
    }
}

async fn system(host: String, port: u16) -> io::Result<Vec<SocketAddr>> {
    Ok(lookup_host((host, port)).await?.collect())
}

/// Tries addresses in turn. Each gets its part of the time: one that does not answer must not keep the others from being
/// tried.
async fn connect(mut addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    addresses.truncate(MAX_ADDRESSES);
    let part = CONNECT_TIMEOUT / u32::try_from(addresses.len().max(1)).unwrap_or(1);
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        match timeout(part, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => failure = error,
            Err(_) => failure = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(failure)
}

impl Service<Uri> for Connector {
    type Response = Watched;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Watched>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (state, dial) = (self.state.clone(), self.clone().dial(uri));
        Box::pin(async move {
            let stream =
                timeout(CONNECT_TIMEOUT, dial).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
            state.send_modify(|state| {
                state.made += 1;
                state.open += 1;
            });
            Ok(Watched { io: TokioIo::new(stream), _open: Open { state } })
        })
    }
}

/// A connection that says when it is dropped.
#[derive(Debug)]
pub struct Watched {
    io: TokioIo<Stream>,
    _open: Open,
}

#[derive(Debug)]
struct Open {
    state: watch::Sender<LinkState>,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.state.send_modify(|state| state.open = state.open.saturating_sub(1));
    }
}

impl Read for Watched {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl Write for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }
}
