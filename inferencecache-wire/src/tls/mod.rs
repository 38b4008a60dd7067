//! TLS for whoever serves or dials: PEM files that may be replaced at any time, without a restart and without a lost call.
//!
//! ```text
//!  certificate, key, CA ──read──> digest ──new?──> read until it stays the same ──> build ──ok──> swapped whole
//!                                                                                       └─refused──> last good one stays
//! ```
//!
//! 1. What the files hold decides, never their times.
//! 2. All files of a side are taken together: a certificate without its key is refused, and what was in use stays in use.
//!    So is a certificate of the serving side that has expired, is not valid yet, or shares no name with the one in use, for
//!    as long as that one is valid.
//! 3. The files are looked at before each handshake, so the next one after a replacement shows it. A disk that does not answer
//!    within [`READ_TIMEOUT`] holds up nobody for longer than that.
//! 4. TLS 1.2 and 1.3. The serving side resumes no session: each handshake checks the peer anew.
//! 5. A connection keeps what it began with.
//!
//! No key is kept outside of the TLS library; what was read is remembered by its digest.

mod client;
mod pem;
mod reload;
mod server;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::CryptoProvider;

use crate::chain::chain;

pub use self::client::{ClientFiles, ClientTls, Connector, DialError, TlsIo};
pub use self::pem::Leaf;
pub use self::reload::Reload;
pub use self::server::{HandshakeError, ServerFiles, ServerTls};

/// Longest wait for the files to be read, after which the last good ones are used.
pub const READ_TIMEOUT: Duration = Duration::from_secs(1);

/// Largest PEM file that is read, in bytes. A bundle of all public authorities is about a quarter of that.
pub const MAX_FILE: u64 = 1024 * 1024;

/// The protocol of gRPC, as offered in a handshake.
pub const ALPN_H2: &[u8] = b"h2";

/// Why files cannot be used for TLS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// Missing, not readable, or not a regular file.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Larger than [`MAX_FILE`].
    #[error("{} is larger than {MAX_FILE} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// Did not stay the same for long enough to be read.
    #[error("the files keep changing")]
    Unsettled,
    /// Not PEM, or PEM without what is needed.
    #[error("{} holds no {wanted}", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// What it should hold.
        wanted: &'static str,
    },
    /// The certificate is for another key.
    #[error("the certificate in {} and the key in {} do not belong together", cert.display(), key.display())]
    Mismatch {
        /// Certificate file.
        cert: PathBuf,
        /// Key file.
        key: PathBuf,
    },
    /// Well-formed as a file, refused by the TLS library.
    #[error("{} cannot be used: {why}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What the library said.
        why: String,
    },
    /// Good in itself, but clients that take the one in use would refuse it.
    #[error("the certificate in {} does not replace the one in use: {why}", path.display())]
    Unfit {
        /// Certificate file.
        path: PathBuf,
        /// What they would find wrong.
        why: String,
    },
    /// Not a DNS name and not an IP address.
    #[error("{name:?} is neither a DNS name nor an IP address")]
    ServerName {
        /// As it was given.
        name: String,
    },
}

impl TlsError {
    fn unusable(path: &std::path::Path, why: impl ToString) -> Self {
        Self::Unusable { path: path.to_owned(), why: why.to_string() }
    }

    /// The whole story in one line, causes included.
    #[must_use]
    pub fn full(&self) -> String {
        chain(self)
    }
}

/// The cryptography in use, chosen here and not by what else the process links.
fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Versions on offer, best first.
const VERSIONS: [&rustls::SupportedProtocolVersion; 2] = [&rustls::version::TLS13, &rustls::version::TLS12];
