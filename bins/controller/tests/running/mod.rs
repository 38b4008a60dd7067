//! A folder with a certificate, an API server that never answers, and the process between them.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use inferencecache_kube::testkit::cluster::Authority;
use k8s_openapi::serde_json::{self, Value, json};
use kube::config::{KubeConfigOptions, Kubeconfig};

/// More than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a process is started with.
pub(crate) struct Scene {
    folder: PathBuf,
    /// Accepts connections, in the system's queue, and never looks at them.
    api_server: TcpListener,
}

impl Scene {
    pub(crate) fn new(name: &str) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let own = format!("{name}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(own);
        std::fs::create_dir_all(&folder).expect("a folder");
        let scene = Self { folder, api_server: TcpListener::bind("127.0.0.1:0").expect("a port") };
        let silent = format!("http://{}", scene.api_server.local_addr().expect("an address"));
        std::fs::write(scene.at("kubeconfig"), kubeconfig(&json!({"server": silent}))).expect("a kubeconfig");
        scene
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Puts a certificate of a new authority in the place of what was there.
    pub(crate) fn certify(&self) -> Authority {
        let authority = Authority::new("a test").expect("an authority");
        let (certificate, key) = authority.issue("webhook", &["127.0.0.1".to_owned()]).expect("a certificate");
        std::fs::write(self.at("tls.crt"), certificate).expect("the certificate");
        std::fs::write(self.at("tls.key"), key).expect("the key");
        authority
    }

    pub(crate) fn flags(&self) -> Vec<String> {
        self.flags_with(&[])
    }

    /// Free ports and files of the scene, unless `more` says otherwise.
    pub(crate) fn flags_with(&self, more: &[&str]) -> Vec<String> {
        let mut flags: Vec<String> = [
            "webhook-bind-address=127.0.0.1:0",
            "metrics-bind-address=127.0.0.1:0",
            "health-probe-bind-address=127.0.0.1:0",
        ]
        .iter()
        .map(|flag| format!("--{flag}"))
        .collect();
        // Each form of a flag is taken.
        flags.extend(["-webhook-cert-dir".to_owned(), self.folder.display().to_string()]);
        flags.push(format!("--kubeconfig={}", self.at("kubeconfig").display()));
        flags.extend(more.iter().map(|flag| (*flag).to_owned()));
        flags
    }

    /// Sends a review to the validation of tenants over a connection that believes in that authority alone.
    pub(crate) fn review(&self, running: &Running, authority: &Authority, operation: &str) -> Result<Value, String> {
        let ca = self.at("ca.crt");
        std::fs::write(&ca, authority.pem()).expect("the authority");
        let text = kubeconfig(&json!({"server": format!("https://{}", running.webhook), "certificate-authority": ca}));
        let tenant = json!({"apiVersion": "inferencecache.io/v1alpha1", "kind": "CacheTenant",
            "metadata": {"name": "t", "namespace": "n"}, "spec": {"tenantID": "t"}});
        let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
            "uid": "u1", "operation": operation, "name": "t", "namespace": "n", "object": tenant}});
        let request = axum::http::Request::post("/validate-inferencecache-io-v1alpha1-cachetenant")
            .header("content-type", "application/json")
            .body(review.to_string().into_bytes())
            .expect("a request");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let file = Kubeconfig::from_yaml(&text).expect("a kubeconfig");
            let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await;
            let client = kube::Client::try_from(config.expect("a configuration")).expect("a client");
            client.request(request).await.map_err(|why| why.to_string())
        })
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn kubeconfig(cluster: &Value) -> String {
    json!({"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {}}], "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x"})
    .to_string()
}

fn command<F: AsRef<std::ffi::OsStr>>(flags: &[F]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_inferencecache-controller"));
    command.args(flags).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Runs to the end; for what does not start to serve. Exit code and stderr.
pub(crate) fn refused<F: AsRef<std::ffi::OsStr>>(flags: &[F]) -> (i32, String) {
    let Output { status, stderr, .. } = command(flags).output().expect("the binary starts");
    (status.code().expect("an exit code"), String::from_utf8(stderr).expect("UTF-8"))
}

/// Head and body of a plain GET.
pub(crate) fn ask(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

/// A controller that serves. Addresses are empty where there is no listener.
pub(crate) struct Running {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
    pub(crate) webhook: String,
    pub(crate) metrics: String,
    pub(crate) health: String,
}

impl Running {
    pub(crate) fn start(scene: &Scene, more: &[&str]) -> Self {
        let mut child = command(&scene.flags_with(more)).spawn().expect("the binary starts");
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        let lines = Arc::new(Mutex::new(Vec::new()));
        let sink = lines.clone();
        let reader = std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                sink.lock().expect("unpoisoned").push(line);
            }
        });
        let [webhook, metrics, health] = [(); 3].map(|()| String::new());
        let mut running = Self { child, lines, reader: Some(reader), webhook, metrics, health };
        let listening = running.said("listening");
        let address = |name: &str| listening[name].as_str().unwrap_or_default().to_owned();
        (running.webhook, running.metrics) = (address("webhook_addr"), address("metrics_addr"));
        running.health = address("health_addr");
        running
    }

    pub(crate) fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !done() {
            assert!(begun.elapsed() < PATIENCE, "not in time: {what}; it said {:?}", self.lines.lock());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// The first line of the log with this message; waits for it.
    pub(crate) fn said(&self, message: &str) -> Value {
        let mut found = None;
        self.until(message, || {
            let lines = self.lines.lock().expect("unpoisoned");
            found = lines
                .iter()
                .filter_map(|line| serde_json::from_str::<Value>(line).ok())
                .find(|line| line["msg"] == message);
            found.is_some()
        });
        found.unwrap_or_default()
    }

    pub(crate) fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([name, &self.child.id().to_string()]).status().expect("kill runs");
        assert!(sent.success());
    }

    /// Waits for the end; exit status and log.
    pub(crate) fn ended(mut self) -> (ExitStatus, Vec<String>) {
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child of ours") {
                break status;
            }
            assert!(begun.elapsed() < PATIENCE / 2, "it does not end; it said {:?}", self.lines.lock());
            std::thread::sleep(Duration::from_millis(2));
        };
        if let Some(reader) = self.reader.take() {
            reader.join().expect("the log is read");
        }
        let lines = self.lines.lock().expect("unpoisoned").clone();
        (status, lines)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
