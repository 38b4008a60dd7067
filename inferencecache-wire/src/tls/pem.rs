//! From PEM to what the TLS library takes, and what a certificate says about itself.

use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use x509_cert::der::Decode as _;

use super::{TlsError, provider};

/// What is worth showing of a certificate in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    /// Serial number, in hexadecimal.
    pub serial: String,
    /// End of validity, in seconds since the Unix epoch.
    pub not_after: u64,
}

impl Leaf {
    /// Reads a DER certificate; `None` if it is too strange for that, which does not keep it from being used.
    #[must_use]
    pub fn of(der: &[u8]) -> Option<Self> {
        let certificate = x509_cert::Certificate::from_der(der).ok()?;
        let body = certificate.tbs_certificate();
        let serial = body.serial_number().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        Some(Self { serial, not_after: body.validity().not_after.to_unix_duration().as_secs() })
    }
}

/// A certificate chain and its key, of which is known that they belong together.
pub(super) fn pair(cert: (&Path, &[u8]), key: (&Path, &[u8])) -> Result<(Arc<CertifiedKey>, Option<Leaf>), TlsError> {
    let chain = certificates(cert.0, cert.1)?;
    let secret = PrivateKeyDer::from_pem_slice(key.1).map_err(|why| match why {
        pem::Error::NoItemsFound => {
            TlsError::Missing { path: key.0.to_owned(), wanted: "unencrypted private key in PEM" }
        }
        why => TlsError::unusable(key.0, why),
    })?;
    let leaf = chain.first().and_then(|leaf| Leaf::of(leaf));
    // Parsed by itself first, so that the right file is blamed.
    let secret = provider().key_provider.load_private_key(secret).map_err(|why| TlsError::unusable(key.0, why))?;
    let pair = CertifiedKey::new(chain, secret);
    match pair.keys_match() {
        Ok(()) => Ok((Arc::new(pair), leaf)),
        Err(rustls::Error::InconsistentKeys(_)) => {
            Err(TlsError::Mismatch { cert: cert.0.to_owned(), key: key.0.to_owned() })
        }
        Err(why) => Err(TlsError::unusable(cert.0, why)),
    }
}

/// The authorities of a bundle. One that cannot be used makes the bundle unusable: which one was meant is not for us to guess.
pub(super) fn authorities(path: &Path, bundle: &[u8]) -> Result<Arc<RootCertStore>, TlsError> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(path, bundle)? {
        roots.add(authority).map_err(|why| TlsError::unusable(path, why))?;
    }
    Ok(Arc::new(roots))
}

/// At least one certificate.
fn certificates(path: &Path, text: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    let all = all.map_err(|why| TlsError::unusable(path, why))?;
    if all.is_empty() {
        return Err(TlsError::Missing { path: path.to_owned(), wanted: "PEM certificate" });
    }
    Ok(all)
}
