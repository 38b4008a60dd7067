//! From PEM to what the TLS library takes, and what a certificate says about itself.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use x509_cert::der::Decode as _;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

use super::{TlsError, provider};

/// What is worth showing of a certificate in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    /// Serial number, in hexadecimal.
    pub serial: String,
    /// Beginning of validity, in seconds since the Unix epoch.
    pub not_before: u64,
    /// End of validity, in seconds since the Unix epoch.
    pub not_after: u64,
    /// DNS names and IP addresses that it is for.
    pub names: Vec<String>,
}

impl Leaf {
    /// Reads a DER certificate; `None` if it is too strange for that, which does not keep it from being used.
    #[must_use]
    pub fn of(der: &[u8]) -> Option<Self> {
        let certificate = x509_cert::Certificate::from_der(der).ok()?;
        let body = certificate.tbs_certificate();
        let serial = body.serial_number().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        let validity = body.validity();
        let [not_before, not_after] =
            [validity.not_before, validity.not_after].map(|time| time.to_unix_duration().as_secs());
        let names = match body.get_extension::<SubjectAltName>() {
            Ok(Some((_, names))) => names.0.iter().filter_map(name).collect(),
            _ => Vec::new(),
        };
        Some(Self { serial, not_before, not_after, names })
    }

    /// Why clients that take this certificate now would refuse `next`; `None` if they would not, or refuse this one as well.
    pub(super) fn unfit(&self, next: &Self, now: u64) -> Option<String> {
        if now > self.not_after {
            return None; // nothing can be worse
        }
        if now > next.not_after {
            return Some(format!("it expired at {} (Unix seconds)", next.not_after));
        }
        if now.saturating_add(CLOCK_SKEW) < next.not_before {
            return Some(format!("it is not valid before {} (Unix seconds)", next.not_before));
        }
        let kept = self.names.is_empty() || self.names.iter().any(|name| next.names.contains(name));
        (!kept).then(|| {
            let (names, before) = (next.names.join(", "), self.names.join(", "));
            format!("it is for {names:?} and none of {before:?}; if that is meant, restart the server")
        })
    }
}

/// How far the clock may be behind that of whoever issues certificates, in seconds.
const CLOCK_SKEW: u64 = 300;

fn name(name: &GeneralName) -> Option<String> {
    match name {
        GeneralName::DnsName(name) => Some(name.as_str().to_ascii_lowercase()),
        GeneralName::IpAddress(address) => {
            let bytes = address.as_bytes();
            let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
            v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok().map(|address| address.to_string())
        }
        _ => None,
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

#[cfg(test)]
mod tests {
    use super::Leaf;

    fn leaf(not_before: u64, not_after: u64, names: &[&str]) -> Leaf {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        Leaf { serial: String::new(), not_before, not_after, names }
    }

    #[test]
    fn what_clients_would_refuse_does_not_replace_what_they_take() {
        let current = leaf(1_000, 2_000, &["cache.test", "10.0.0.7"]);
        let why = |next: &Leaf| current.unfit(next, 1_500);
        for fine in [
            leaf(1_400, 3_000, &["cache.test"]),
            leaf(1_400, 3_000, &["other.test", "10.0.0.7"]),
            leaf(1_800, 3_000, &["cache.test"]),
        ] {
            assert_eq!(why(&fine), None, "{fine:?}");
        }
        for (unfit, word) in [
            (leaf(500, 1_499, &["cache.test"]), "expired at 1499"),
            (leaf(1_801, 3_000, &["cache.test"]), "not valid before 1801"),
            (leaf(1_400, 3_000, &["web.test"]), "none of \"cache.test, 10.0.0.7\""),
            (leaf(1_400, 3_000, &[]), "restart the server"),
        ] {
            assert!(why(&unfit).is_some_and(|why| why.contains(word)), "{unfit:?}");
            assert_eq!(current.unfit(&unfit, 2_001), None, "the one in use is over");
        }
        assert_eq!(leaf(0, 2_000, &[]).unfit(&leaf(0, 3_000, &["web.test"]), 1_500), None);
    }
}
