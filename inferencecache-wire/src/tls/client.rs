//! The side that dials, verifies, and may show a certificate of its own.

use std::fmt;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use rustls::sign::SingleCertAndKey;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tower::Service;

use super::pem;
use super::reload::{Recipe, Reload, Reloading};
use super::{TlsError, VERSIONS, provider};

/// Whom a dialling side believes, and who it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFiles {
    /// PEM bundle of the authorities that the server's certificate must come from.
    pub ca: PathBuf,
    /// Certificate and key for servers that ask for them.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name that the server's certificate must be for. `None` is the host that is dialled.
    pub server_name: Option<String>,
}

/// Dials TLS with what the files hold at the time. Clones share what was read.
#[derive(Clone)]
pub struct ClientTls {
    reloading: Arc<Reloading<ClientFilesFor>>,
    server_name: Option<ServerName<'static>>,
}

struct ClientFilesFor {
    files: ClientFiles,
    protocols: Vec<Vec<u8>>,
}

impl ClientTls {
    /// Reads the files and asks for one of `protocols` (ALPN). `observer` hears of every later change of the files, on a thread
    /// that may block.
    ///
    /// # Errors
    /// [`TlsError`] when the files cannot be used, or the server name is none.
    pub async fn load(
        files: ClientFiles,
        protocols: &[&[u8]],
        observer: impl Fn(Reload<'_, ()>) + Send + Sync + 'static,
    ) -> Result<Self, TlsError> {
        let server_name = files.server_name.as_deref().map(server_name).transpose()?;
        let recipe = ClientFilesFor { files, protocols: protocols.iter().map(|name| name.to_vec()).collect() };
        let reloading = Reloading::load(recipe, move |reload| {
            observer(match reload {
                Reload::Replaced(_) => Reload::Replaced(&()),
                Reload::Refused(why) => Reload::Refused(why),
                Reload::Restored => Reload::Restored,
            });
        });
        Ok(Self { reloading: Arc::new(reloading.await?), server_name })
    }

    /// Shakes hands with `host`, which is a DNS name or an IP address. Waits for the peer without limit: callers set one.
    ///
    /// # Errors
    /// [`DialError`] when the peer is not who it should be, or does not speak TLS.
    pub async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        host: &str,
        stream: S,
    ) -> Result<TlsStream<S>, DialError> {
        let name = match &self.server_name {
            Some(name) => name.clone(),
            None => server_name(host).map_err(|_| DialError::NoName(host.to_owned()))?,
        };
        let config = self.reloading.fresh().await;
        let shown = name.to_str().into_owned();
        let connected = TlsConnector::from(config).connect(name, stream).await;
        connected.map_err(|source| DialError::Handshake { name: shown, source })
    }

    /// Dials addresses for tonic's and hyper's clients.
    #[must_use]
    pub fn connector(&self) -> Connector {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        Connector { tls: self.clone(), tcp }
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientTls").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

/// A name to verify; an IPv6 address may come in brackets, as in URLs.
fn server_name(name: &str) -> Result<ServerName<'static>, TlsError> {
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    ServerName::try_from(bare.to_owned()).map_err(|_| TlsError::ServerName { name: name.to_owned() })
}

impl Recipe for ClientFilesFor {
    type Product = ClientConfig;

    fn paths(&self) -> Vec<PathBuf> {
        let identity = self.files.identity.iter().flat_map(|(cert, key)| [cert, key]);
        std::iter::once(&self.files.ca).chain(identity).cloned().collect()
    }

    fn build(&self, contents: &[Vec<u8>]) -> Result<ClientConfig, TlsError> {
        let ca = &self.files.ca;
        let [bundle, identity @ ..] = contents else { return Err(TlsError::Unsettled) };
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&VERSIONS)
            .map_err(|why| TlsError::unusable(ca, why))?
            .with_root_certificates(pem::authorities(ca, bundle)?);
        let mut config = match (&self.files.identity, identity) {
            (Some((cert, key)), [cert_text, key_text]) => {
                let (pair, _) = pem::pair((cert, cert_text), (key, key_text))?;
                config.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair)))
            }
            _ => config.with_no_client_auth(),
        };
        config.alpn_protocols.clone_from(&self.protocols);
        Ok(config)
    }
}

/// Dials a URL's host and port, whatever its scheme, and gives a TLS connection.
#[derive(Debug, Clone)]
pub struct Connector {
    tls: ClientTls,
    tcp: HttpConnector,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DialError {
    /// Nobody accepts there.
    #[error("cannot connect")]
    Tcp(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// Somebody does, but is not who they should be, does not take us for who we are, or does not speak TLS.
    #[error("the TLS handshake with {name} failed")]
    Handshake {
        /// The name that was to be verified.
        name: String,
        /// What the library or the peer said.
        source: io::Error,
    },
    /// The host cannot be verified.
    #[error("{0:?} is neither a DNS name nor an IP address")]
    NoName(String),
}

impl Service<Uri> for Connector {
    type Response = TlsIo;
    type Error = DialError;
    type Future = Pin<Box<dyn Future<Output = Result<TlsIo, DialError>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), DialError>> {
        self.tcp.poll_ready(cx).map_err(|why| DialError::Tcp(why.into()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let host = uri.host().unwrap_or_default().to_owned();
        let connecting = self.tcp.call(uri);
        let tls = self.tls.clone();
        Box::pin(async move {
            let tcp = connecting.await.map_err(|why| DialError::Tcp(why.into()))?.into_inner();
            Ok(TlsIo(TokioIo::new(tls.connect(&host, tcp).await?)))
        })
    }
}

/// A dialled TLS connection, in the form that hyper and tonic take.
#[derive(Debug)]
pub struct TlsIo(TokioIo<TlsStream<TcpStream>>);

impl Connection for TlsIo {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl Read for TlsIo {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl Write for TlsIo {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }
}
