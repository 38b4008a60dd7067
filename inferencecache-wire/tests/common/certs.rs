//! Authorities and certificates made on the spot, and the files that hold them.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose};

/// Something that signs.
pub(crate) struct Authority {
    pub(crate) pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate and its key, in PEM.
pub(crate) struct Pair {
    pub(crate) cert: String,
    pub(crate) key: String,
    /// As the code under test shows it.
    pub(crate) serial: String,
}

/// A directory with `tls.crt`, `tls.key` and `ca.crt`, as a mounted secret has them.
pub(crate) struct Mount {
    dir: tempfile::TempDir,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// A certificate for `name`, valid now.
    pub(crate) fn issue(&self, name: &str) -> Pair {
        self.issue_until(name, 2099)
    }

    /// A certificate for `name`, valid until the beginning of a year.
    pub(crate) fn issue_until(&self, name: &str, year: i32) -> Pair {
        self.issue_between(name, 2000, year)
    }

    /// A certificate for `name`, valid from the beginning of a year until that of another.
    pub(crate) fn issue_between(&self, name: &str, from: i32, year: i32) -> Pair {
        static SERIAL: AtomicU64 = AtomicU64::new(0x1000);
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.not_before = rcgen::date_time_ymd(from, 1, 1);
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        params.serial_number = Some(serial.into());
        let key = KeyPair::generate().expect("a key");
        let cert = params.signed_by(&key, &self.issuer).expect("a certificate").pem();
        Pair { cert, key: key.serialize_pem(), serial: format!("{serial:04x}") }
    }
}

impl Mount {
    pub(crate) fn new(authority: &Authority, pair: &Pair) -> Self {
        let mount = Self { dir: tempfile::tempdir().expect("a directory") };
        mount.put("ca.crt", &authority.pem);
        mount.replace(pair);
        mount
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    pub(crate) fn cert(&self) -> PathBuf {
        self.path("tls.crt")
    }

    pub(crate) fn key(&self) -> PathBuf {
        self.path("tls.key")
    }

    pub(crate) fn ca(&self) -> PathBuf {
        self.path("ca.crt")
    }

    /// Replaces one file by renaming another over it.
    pub(crate) fn put(&self, file: &str, content: &str) {
        let fresh = self.path(".fresh");
        std::fs::write(&fresh, content).expect("written");
        std::fs::rename(fresh, self.path(file)).expect("renamed");
    }

    pub(crate) fn replace(&self, pair: &Pair) {
        self.put("tls.crt", &pair.cert);
        self.put("tls.key", &pair.key);
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }
}
