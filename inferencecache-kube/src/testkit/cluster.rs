//! A real API server on loopback, for one test process.
//!
//! ```text
//!  binaries   KUBEBUILDER_ASSETS, else cluster.sh builds and caches them (needs Go, once)
//!  tier A     etcd + kube-apiserver                       started once a process: ControlPlane::shared()
//!  tier B     + controller-manager, scheduler, kwok       ControlPlane::shared_with_nodes(), in nodes.rs
//! ```
//!
//! Every process runs under a shell that ends it when its standard input closes, which the system does when the test process
//! is gone, however it went. Ports are free ones, all on loopback; data live in a temporary folder.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use kube::config::{KubeConfigOptions, Kubeconfig};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

use super::binaries::{self, Binaries};

/// Runs a command until its input closes or it ends by itself. Nothing is worth an orderly end: an API server without its etcd
/// would wait for it for ever.
const LEASH: &str = r#""$@" </dev/null & child=$!; cat >/dev/null; kill -KILL "$child" 2>/dev/null; wait "$child""#;
/// How long the control plane may take to be ready. It takes about five seconds on a machine with nothing else to do.
const START: Duration = Duration::from_secs(180);
const ADMIN: &str = "admin";
/// What the API server writes into `audit.log`: what ServiceAccounts ask for, and how that ends.
const AUDIT: &str = r#"{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": [
    {"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}]}"#;

/// Why there is no API server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// Neither Go nor ready-made binaries are there. The only reason to skip a test.
    #[error("no Go, and no KUBEBUILDER_ASSETS with all that is needed: tests on a real API server are skipped")]
    NoTools,
    /// Something did not work.
    #[error("{0}")]
    Broken(String),
    /// Something did not work with the system.
    #[error(transparent)]
    Io(#[from] io::Error),
}

pub(super) fn broken(what: &str, why: impl std::fmt::Display) -> ClusterError {
    ClusterError::Broken(format!("{what}: {why}"))
}

/// etcd and an API server, and how to reach them.
#[derive(Debug)]
pub struct ControlPlane {
    folder: TempDir,
    binaries: Binaries,
    url: String,
    /// The authority of the API server's certificate, PEM.
    ca: String,
    children: Mutex<Vec<(String, Child)>>,
}

impl ControlPlane {
    /// The one of this process, started on first use. `None`, with one line on stderr, where there are no tools for it.
    ///
    /// # Panics
    /// When the tools are there and it cannot be started: that is a fault, not a reason to skip.
    #[must_use]
    pub fn shared() -> Option<&'static Self> {
        static SHARED: OnceLock<Option<ControlPlane>> = OnceLock::new();
        SHARED.get_or_init(|| Self::unless_impossible(Self::start())).as_ref()
    }

    pub(super) fn unless_impossible(started: Result<Self, ClusterError>) -> Option<Self> {
        match started {
            Ok(plane) => Some(plane),
            Err(why @ ClusterError::NoTools) => {
                eprintln!("{why}");
                None
            }
            Err(why) => panic!("the control plane cannot be started: {why}"),
        }
    }

    /// Starts one, and waits until it is ready.
    ///
    /// # Errors
    /// [`ClusterError`].
    pub fn start() -> Result<Self, ClusterError> {
        // Without a controller manager there are no accounts for Pods to run as.
        Self::boot(&binaries::API_SERVER, &["--disable-admission-plugins=ServiceAccount"])
    }

    /// Starts etcd and an API server with further flags, beside which those parts may be launched.
    pub(super) fn boot(parts: &[&str], flags: &[&str]) -> Result<Self, ClusterError> {
        let binaries = Binaries::find(parts)?;
        let folder = tempfile::Builder::new().prefix("inferencecache-cluster-").tempdir()?;
        let [client, peer, secure] = free_ports()?;
        let at = |name: &str| folder.path().join(name);
        let authority = Authority::new("inferencecache test").map_err(|why| broken("certificates", why))?;
        let (cert, key) = authority.issue("127.0.0.1", &["127.0.0.1".to_owned(), "localhost".to_owned()])?;
        let accounts = KeyPair::generate().map_err(|why| broken("key", why))?;
        fs::write(at("tls.crt"), cert)?;
        fs::write(at("tls.key"), key)?;
        fs::write(at("sa.key"), accounts.serialize_pem())?;
        fs::write(at("sa.pub"), accounts.public_key_pem())?;
        // token, user, uid, groups
        fs::write(at("tokens.csv"), "admin-token,admin,admin,system:masters\nreader-token,reader,reader,readers\n")?;
        fs::write(at("audit.json"), AUDIT)?;
        let plane = Self {
            url: format!("https://127.0.0.1:{secure}"),
            ca: authority.pem(),
            binaries,
            folder,
            children: Mutex::new(Vec::new()),
        };
        for user in [ADMIN, "reader"] {
            fs::write(plane.kubeconfig_of(user), plane.kubeconfig_text(user))?;
        }
        let etcd = format!("http://127.0.0.1:{client}");
        let peer = format!("http://127.0.0.1:{peer}");
        plane.launch(
            "etcd",
            &[
                format!("--data-dir={}", plane.folder.path().join("etcd").display()),
                format!("--listen-client-urls={etcd}"),
                format!("--advertise-client-urls={etcd}"),
                format!("--listen-peer-urls={peer}"),
                format!("--initial-advertise-peer-urls={peer}"),
                format!("--initial-cluster=default={peer}"),
                "--unsafe-no-fsync".to_owned(),
            ],
        )?;
        let file = |name: &str| plane.folder.path().join(name).display().to_string();
        let mut arguments: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        arguments.extend([
            format!("--etcd-servers={etcd}"),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={secure}"),
            format!("--cert-dir={}", file("certs")),
            format!("--tls-cert-file={}", file("tls.crt")),
            format!("--tls-private-key-file={}", file("tls.key")),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", file("sa.pub")),
            format!("--service-account-signing-key-file={}", file("sa.key")),
            "--authorization-mode=RBAC".to_owned(),
            format!("--token-auth-file={}", file("tokens.csv")),
            format!("--audit-policy-file={}", file("audit.json")),
            format!("--audit-log-path={}", file("audit.log")),
            "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
        ]);
        plane.launch("kube-apiserver", &arguments)?;
        plane.wait_until(&["get", "--raw=/readyz"])?;
        Ok(plane)
    }

    /// Base address of the API server.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// A kubeconfig file of an administrator.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.kubeconfig_of(ADMIN)
    }

    /// A kubeconfig file of user `reader`, who may do nothing until a test allows it.
    #[must_use]
    pub fn reader_kubeconfig(&self) -> PathBuf {
        self.kubeconfig_of("reader")
    }

    /// Folder that lives as long as the control plane does.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// A client of an administrator, for the runtime that it is made in.
    ///
    /// # Errors
    /// [`ClusterError`].
    pub async fn client(&self) -> Result<kube::Client, ClusterError> {
        self.client_of(ADMIN).await
    }

    /// A client of user `reader`.
    ///
    /// # Errors
    /// [`ClusterError`].
    pub async fn reader(&self) -> Result<kube::Client, ClusterError> {
        self.client_of("reader").await
    }

    /// `kubectl`, as an administrator.
    #[must_use]
    pub fn kubectl(&self) -> Command {
        let mut command = Command::new(self.binaries.path("kubectl"));
        command.arg(format!("--kubeconfig={}", self.kubeconfig().display()));
        command
    }

    /// Starts a binary of the control plane, which ends with this process. Its output goes to `NAME.log` in [`Self::folder`].
    ///
    /// # Errors
    /// It cannot be started.
    pub fn launch(&self, name: &str, arguments: &[String]) -> Result<(), ClusterError> {
        let binary = self.binaries.path(name);
        let log = fs::File::create(self.folder.path().join(format!("{name}.log")))?;
        let child = leashed(&binary)
            .args(arguments)
            .current_dir(self.folder.path())
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .map_err(|why| broken(&binary.display().to_string(), why))?;
        self.children.lock().unwrap_or_else(PoisonError::into_inner).push((name.to_owned(), child));
        Ok(())
    }

    fn kubeconfig_of(&self, user: &str) -> PathBuf {
        self.folder.path().join(format!("{user}.kubeconfig"))
    }

    fn kubeconfig_text(&self, user: &str) -> String {
        let ca = self.folder.path().join("ca.crt");
        let _ = fs::write(&ca, &self.ca);
        serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": self.url, "certificate-authority": ca}}],
            "users": [{"name": user, "user": {"token": format!("{user}-token")}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
            "current-context": "test",
        })
        .to_string()
    }

    async fn client_of(&self, user: &str) -> Result<kube::Client, ClusterError> {
        let file = Kubeconfig::read_from(self.kubeconfig_of(user)).map_err(|why| broken("kubeconfig", why))?;
        let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
        let config = config.map_err(|why| broken("kubeconfig", why))?;
        kube::Client::try_from(config).map_err(|why| broken("client", why))
    }

    /// Repeats a question of kubectl until it is answered well.
    pub(super) fn wait_until(&self, question: &[&str]) -> Result<(), ClusterError> {
        let deadline = Instant::now() + START;
        loop {
            let asked = self.kubectl().args(question).arg("--request-timeout=5s").output()?;
            if asked.status.success() {
                return Ok(());
            }
            let mut children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
            let ended = children.iter_mut().any(|(_, child)| matches!(child.try_wait(), Ok(Some(_))));
            drop(children);
            if ended || Instant::now() > deadline {
                let last = String::from_utf8_lossy(&asked.stderr).into_owned();
                return Err(broken("not ready", format!("{last}\n{}", self.last_words())));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn last_words(&self) -> String {
        let tail = |name: &str| {
            let text = fs::read_to_string(self.folder.path().join(format!("{name}.log"))).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            format!("{name}: {}", lines.get(lines.len().saturating_sub(10)..).unwrap_or_default().join("\n"))
        };
        let children = self.children.lock().unwrap_or_else(PoisonError::into_inner);
        children.iter().map(|(name, _)| tail(name)).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        let mut children = std::mem::take(&mut *self.children.lock().unwrap_or_else(PoisonError::into_inner));
        children.reverse();
        for (_, mut child) in children {
            drop(child.stdin.take());
            let _ = child.wait();
        }
    }
}

/// A command that ends when its standard input closes: give it a pipe, and keep the other end.
#[must_use]
pub fn leashed(binary: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", LEASH, "leash"]).arg(binary);
    command
}

/// Ports of loopback that nobody listens on now.
///
/// # Errors
/// The system has none.
pub fn free_ports<const N: usize>() -> io::Result<[u16; N]> {
    let mut held = Vec::new();
    let mut ports = [0; N];
    for port in &mut ports {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}

/// An authority of a test, and certificates of it.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    /// One with that name.
    ///
    /// # Errors
    /// No key can be made.
    pub fn new(name: &str) -> Result<Self, ClusterError> {
        let key = KeyPair::generate().map_err(|why| broken("key", why))?;
        let mut params = CertificateParams::new(Vec::new()).map_err(|why| broken("certificate", why))?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.self_signed(&key).map_err(|why| broken("certificate", why))?;
        Ok(Self { pem: certificate.pem(), issuer: Issuer::new(params, key) })
    }

    /// Its certificate.
    #[must_use]
    pub fn pem(&self) -> String {
        self.pem.clone()
    }

    /// A certificate for those names and addresses, with its key; both PEM.
    ///
    /// # Errors
    /// A name is none.
    pub fn issue(&self, name: &str, names: &[String]) -> Result<(String, String), ClusterError> {
        let key = KeyPair::generate().map_err(|why| broken("key", why))?;
        let mut params = CertificateParams::new(names.to_vec()).map_err(|why| broken("certificate", why))?;
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.signed_by(&key, &self.issuer).map_err(|why| broken("certificate", why))?;
        Ok((certificate.pem(), key.serialize_pem()))
    }
}
