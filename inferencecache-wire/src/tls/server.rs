//! The side that shows a certificate, and may ask for one.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::ServerConfig;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;

use super::pem::{self, Leaf};
use super::reload::{Recipe, Reload, Reloading};
use super::{TlsError, VERSIONS, provider};
use crate::chain::chain;

/// Where the serving side's PEM files are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerFiles {
    /// The certificate, followed by its intermediates.
    pub cert: PathBuf,
    /// Its private key: PKCS#8, PKCS#1 or SEC1, not encrypted.
    pub key: PathBuf,
    /// The authorities that clients' certificates must come from. `None` asks clients for none.
    pub client_ca: Option<PathBuf>,
}

/// Accepts TLS with what the files hold at the time. Clones share what was read.
///
/// ```no_run
/// # async fn serve(listener: tokio::net::TcpListener) -> Result<(), Box<dyn std::error::Error>> {
/// use inferencecache_wire::tls::{ALPN_H2, ServerFiles, ServerTls};
///
/// let files = ServerFiles { cert: "tls.crt".into(), key: "tls.key".into(), client_ca: None };
/// let tls = ServerTls::load(files, &[ALPN_H2], |reload| println!("{reload:?}")).await?;
/// let (stream, _) = listener.accept().await?;
/// let stream = tls.accept(stream).await?; // in a task of its own, with a time limit
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ServerTls {
    reloading: Arc<Reloading<ServerFilesFor>>,
}

/// What the serving side uses at one time.
struct Serving {
    config: Arc<ServerConfig>,
    leaf: Option<Leaf>,
}

struct ServerFilesFor {
    files: ServerFiles,
    protocols: Vec<Vec<u8>>,
}

/// A connection did not become a TLS connection.
#[derive(Debug, thiserror::Error)]
#[error("the TLS handshake failed")]
pub struct HandshakeError(#[from] std::io::Error);

impl HandshakeError {
    /// Whether the peer went away, spoke no TLS, and so on.
    #[must_use]
    pub fn kind(&self) -> std::io::ErrorKind {
        self.0.kind()
    }

    /// The whole story in one line, causes included.
    #[must_use]
    pub fn full(&self) -> String {
        chain(self)
    }
}

impl ServerTls {
    /// Reads the files and offers `protocols` (ALPN). `observer` hears of every later change of the files, with the certificate
    /// then in use if it could be read; it is called on a thread that may block.
    ///
    /// # Errors
    /// [`TlsError`] when the files cannot be used; later that is only told to the observer.
    pub async fn load(
        files: ServerFiles,
        protocols: &[&[u8]],
        observer: impl Fn(Reload<'_, Option<Leaf>>) + Send + Sync + 'static,
    ) -> Result<Self, TlsError> {
        let recipe = ServerFilesFor { files, protocols: protocols.iter().map(|name| name.to_vec()).collect() };
        let reloading = Reloading::load(recipe, move |reload| {
            observer(match reload {
                Reload::Replaced(serving) => Reload::Replaced(&serving.leaf),
                Reload::Refused(why) => Reload::Refused(why),
                Reload::Restored => Reload::Restored,
            });
        });
        Ok(Self { reloading: Arc::new(reloading.await?) })
    }

    /// The certificate in use, if it could be read.
    #[must_use]
    pub fn leaf(&self) -> Option<Leaf> {
        self.reloading.current().leaf.clone()
    }

    /// Looks at the files without waiting for a connection, so that a bad replacement is noticed before somebody needs it.
    pub async fn check(&self) {
        self.reloading.fresh().await;
    }

    /// Shakes hands. Waits for the peer without limit: callers set one.
    ///
    /// # Errors
    /// [`HandshakeError`], after the peer was told what is wrong, if it speaks TLS at all.
    pub async fn accept<S: AsyncRead + AsyncWrite + Unpin>(&self, stream: S) -> Result<TlsStream<S>, HandshakeError> {
        // The peer speaks first; only then is it worth to look at the files, and what they hold is as fresh as can be.
        let begun = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), stream).await?;
        let serving = self.reloading.fresh().await;
        Ok(begun.into_stream(serving.config.clone()).await?)
    }
}

impl fmt::Debug for ServerTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerTls").field("leaf", &self.leaf()).finish_non_exhaustive()
    }
}

impl Recipe for ServerFilesFor {
    type Product = Serving;

    fn paths(&self) -> Vec<PathBuf> {
        let ServerFiles { cert, key, client_ca } = &self.files;
        [cert, key].into_iter().chain(client_ca).cloned().collect()
    }

    fn build(&self, contents: &[Vec<u8>]) -> Result<Serving, TlsError> {
        let ServerFiles { cert, key, client_ca } = &self.files;
        let [cert_text, key_text, rest @ ..] = contents else { return Err(TlsError::Unsettled) };
        let (pair, leaf) = pem::pair((cert, cert_text), (key, key_text))?;
        let config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&VERSIONS)
            .map_err(|why| TlsError::unusable(cert, why))?;
        let config = match (client_ca, rest) {
            (Some(path), [bundle]) => {
                let roots = pem::authorities(path, bundle)?;
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider());
                config.with_client_cert_verifier(verifier.build().map_err(|why| TlsError::unusable(path, why))?)
            }
            _ => config.with_no_client_auth(),
        };
        let mut config = config.with_cert_resolver(Arc::new(SingleCertAndKey::from(pair)));
        config.alpn_protocols.clone_from(&self.protocols);
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Serving { config: Arc::new(config), leaf })
    }

    fn succeeds(&self, current: &Serving, next: &Serving) -> Result<(), TlsError> {
        let (Some(current), Some(next)) = (&current.leaf, &next.leaf) else { return Ok(()) };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        match current.unfit(next, now) {
            Some(why) => Err(TlsError::Unfit { path: self.files.cert.clone(), why }),
            None => Ok(()),
        }
    }
}
