//! The programs that are run by other people's images: the gate, the settings writer, the check of native code.
//!
//! They are run here as there, by `python3` and `sh`. Without `python3` its tests say so and are skipped.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use inferencecache_kube::adapters::{kernel, lmcache};
use serde_json::{Value, json};

/// Nothing here takes that long.
const DEADLINE: Duration = Duration::from_secs(60);

fn python() -> bool {
    let there = Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success());
    if !there {
        eprintln!("skipped: there is no python3");
    }
    there
}

/// A stand-in for a node's LMCache server: what it says can be changed while it runs.
struct Stub {
    port: u16,
    says: Arc<Mutex<(Value, Value)>>,
}

impl Stub {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let says = Arc::new(Mutex::new((Value::Null, Value::Null)));
        let shared = says.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (config, health) = shared.lock().expect("a lock").clone();
                answer(stream, &config, &health);
            }
        });
        Self { port, says }
    }

    fn say(&self, config: Value, status: &str) {
        *self.says.lock().expect("a lock") = (config, json!({"status": status}));
    }
}

/// One request, one answer. A peer that hangs up is its own affair.
fn answer(mut stream: TcpStream, config: &Value, health: &Value) {
    let mut request = [0; 2048];
    let read = stream.read(&mut request).unwrap_or_default();
    let asks_config = request[..read].starts_with(b"GET /config");
    let body = if asks_config { config } else { health }.to_string();
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    stream.write_all((head + &body).as_bytes()).unwrap_or_default();
}

/// The gate as the kubelet starts it.
struct Gate {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Gate {
    fn start(port: u16, config: &str) -> Self {
        let mut child = Command::new("python3")
            .args(["-c", lmcache::gate::PROGRAM])
            .env("INFERENCECACHE_NODE_IP", "127.0.0.1")
            .env("EXPECTED_INSTANCE_ID", "ns/name@uid#4")
            .env("EXPECTED_SHM_NAME", "pool_uid")
            .env("EXPECTED_MP_PORT", "5556")
            .env("EXPECTED_HTTP_PORT", port.to_string())
            .env("EXPECTED_CHUNK_SIZE", "256")
            .env("EXPECTED_MAX_GPU_WORKERS", "4")
            .env("EXPECTED_MAX_CPU_WORKERS", "6")
            .env("CLIENT_CONFIG_PATH", config)
            .stdout(Stdio::piped())
            .spawn()
            .expect("a gate");
        let lines = BufReader::new(child.stdout.take().expect("an output")).lines();
        Self { child, lines }
    }

    /// Reads on until a line says that; the process either speaks every two seconds or has ended.
    fn wait_for(&mut self, text: &str) {
        let start = Instant::now();
        while start.elapsed() < DEADLINE {
            let line = self.lines.next().and_then(Result::ok).unwrap_or_else(|| panic!("ended without {text:?}"));
            if line.contains(text) {
                return;
            }
        }
        panic!("no {text:?} in time");
    }

    fn exit_code(mut self) -> Option<i32> {
        self.child.wait().expect("an end").code()
    }
}

fn config(port: u16) -> Value {
    json!({"mp": {"instance_id": "ns/name@uid#4", "shm_name": "pool_uid", "port": 5556, "chunk_size": 256,
            "max_gpu_workers": 4, "max_cpu_workers": "6"},
        "storage_manager": {"l1_manager_config": {"memory_config": {"shm_name": "pool_uid"}}},
        "http": {"http_port": port}})
}

fn with(mut config: Value, pointer: &str, value: Value) -> Value {
    *config.pointer_mut(pointer).expect(pointer) = value;
    config
}

/// adapters:D37,D38
#[test]
fn the_gate_opens_for_the_right_server_only() {
    if !python() {
        return;
    }
    let stub = Stub::start();
    let right = config(stub.port);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("client.yaml");
    stub.say(with(right.clone(), "/mp/instance_id", json!("ns/name@uid#3")), "healthy");
    let mut gate = Gate::start(stub.port, file.to_str().expect("a path"));
    gate.wait_for("mp.instance_id");
    let pool = "/storage_manager/l1_manager_config/memory_config/shm_name";
    stub.say(with(right.clone(), pool, json!("another")), "healthy");
    gate.wait_for("shm_name in use");
    stub.say(json!({}), "healthy");
    gate.wait_for("KeyError");
    stub.say(with(right.clone(), "/mp/chunk_size", json!(256.5)), "healthy");
    gate.wait_for("mp.chunk_size");
    stub.say(right.clone(), "starting");
    gate.wait_for("status is 'starting'");
    assert!(!file.exists());
    stub.say(right, "healthy");
    gate.wait_for("is ns/name@uid#4");
    assert_eq!(gate.exit_code(), Some(0));
    let text = std::fs::read_to_string(&file).expect("the settings");
    assert_eq!(text, "chunk_size: 256\nmp_host: \"127.0.0.1\"\nmp_port: 5556\n");
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
}

#[test]
fn the_gate_of_an_engine_without_a_file_writes_none() {
    if !python() {
        return;
    }
    let stub = Stub::start();
    stub.say(config(stub.port), "healthy");
    assert_eq!(Gate::start(stub.port, "").exit_code(), Some(0));
}

/// adapters:D39
#[test]
fn the_settings_writer_becomes_the_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("client.yaml");
    let output = Command::new("sh")
        .args(["-c", lmcache::pod_local::CONFIG_WRITER, "inference-cache-lmcache-config"])
        .arg(&file)
        .args(["256", "5555", "echo", "server", "--l2-adapter", r#"{"a": "$HOME `x`"}"#, ""])
        .output()
        .expect("a shell");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "server --l2-adapter {\"a\": \"$HOME `x`\"} \n");
    let text = std::fs::read_to_string(&file).expect("the settings");
    assert_eq!(text, "chunk_size: 256\nmp_host: \"127.0.0.1\"\nmp_port: 5555\n");
    let nowhere = folder.path().join("missing/client.yaml");
    let failed = Command::new("sh")
        .args(["-c", lmcache::pod_local::CONFIG_WRITER, "x"])
        .arg(nowhere)
        .args(["256", "5555", "echo", "started"])
        .output()
        .expect("a shell");
    assert!(!failed.status.success() && failed.stdout.is_empty(), "{failed:?}");
}

/// An engine image's site-packages.
struct Site {
    folder: tempfile::TempDir,
}

impl Site {
    fn new() -> Self {
        let site = Self { folder: tempfile::tempdir().expect("a folder") };
        site.file("torch.py", "");
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn file(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).expect("a folder");
        std::fs::write(path, text).expect("a file");
    }

    /// A library that the loader takes: any that is there.
    fn library(&self, name: &str) {
        let find = "import ctypes.util, ctypes\nctypes.CDLL(ctypes.util.find_library('m') or 'libm.so.6')\n\
            print(next(l.split()[-1] for l in open('/proc/self/maps') if 'libm' in l))";
        let output = Command::new("python3").args(["-c", find]).output().expect("a path");
        let path = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        std::fs::copy(&path, self.path(name)).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    }

    /// Exit code and verdict.
    fn check(&self, strict: &str) -> (Option<i32>, String) {
        let log = self.path("termination-log");
        let program = kernel::PROGRAM.replace("/dev/termination-log", log.to_str().expect("a path"));
        let output = Command::new("python3")
            .args(["-c", &program])
            .env("PYTHONPATH", self.folder.path())
            .env("KERNEL_CHECK_STRICT", strict)
            .current_dir(self.folder.path())
            .output()
            .expect("a check");
        (output.status.code(), std::fs::read_to_string(log).unwrap_or_default())
    }
}

/// adapters:D53
#[test]
fn the_kernel_check_loads_what_the_engine_will() {
    if !python() {
        return;
    }
    let site = Site::new();
    let refuses = |reason: &str| {
        let (code, verdict) = site.check("0");
        assert!(code == Some(0) && verdict.starts_with("FAIL: ") && verdict.contains(reason), "{reason}: {verdict}");
        assert_eq!(site.check("1").0, Some(1), "{reason}");
    };
    refuses("not installed");
    // Loading the package would end the check.
    site.file("lmcache/__init__.py", "raise SystemExit('imported')");
    refuses("no native library");
    site.file("lmcache/c_ops.abi3.so", "no library");
    refuses("OSError");
    site.library("lmcache/c_ops.abi3.so");
    refuses("no native core");
    site.file("vllm/__init__.py", "");
    refuses("no native core");
    site.file("vllm/_C.py", "");
    assert_eq!(site.check("1"), (Some(0), "OK".to_owned()));
    site.file("vllm/_C_stable_libtorch.py", "raise ImportError('x' * 9000)");
    refuses("ImportError");
    assert_eq!(site.check("0").1.chars().count(), 3500);
    site.file("vllm/_C_stable_libtorch.py", "");
    assert_eq!(site.check("0"), (Some(0), "OK".to_owned()));
    site.file("torch.py", "raise RuntimeError('built for another')");
    refuses("built for another");
}
