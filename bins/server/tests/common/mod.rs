//! The binary under test, as a process.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// More than anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn command(flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_inferencecache-server"));
    command.args(flags).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs to the end; for command lines that do not serve.
pub(crate) fn refused(flags: &[&str]) -> (i32, String) {
    let Output { status, stderr, .. } = command(flags).output().expect("the binary starts");
    (status.code().expect("an exit code"), String::from_utf8(stderr).expect("UTF-8"))
}

pub(crate) fn assert_refused(flags: &[&str], code: i32, words: &str) {
    let (have, text) = refused(flags);
    assert!(have == code && text.contains(words), "{flags:?} gave {have}: {text}");
}

/// A server that runs.
pub(crate) struct Running {
    child: Child,
    pub(crate) grpc: String,
    pub(crate) http: String,
    pub(crate) bridge: String,
    pub(crate) lines: Arc<Mutex<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
}

impl Running {
    /// On free ports, the bridge open and no lame duck, unless `flags` say otherwise; returns once it is ready.
    pub(crate) fn start(flags: &[&str]) -> Self {
        let mut all = vec![
            "--grpc-bind-address=127.0.0.1:0",
            "-http-bind-address=127.0.0.1:0",
            "--snapshot-bind-address",
            "127.0.0.1:0",
            "--lame-duck=0",
            "-insecure-disable-auth",
        ];
        all.extend(flags);
        let mut child = command(&all).spawn().expect("the binary starts");
        let lines = Arc::new(Mutex::new(Vec::new()));
        let stderr = BufReader::new(child.stderr.take().expect("piped"));
        let sink = lines.clone();
        let reader = std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                sink.lock().expect("unpoisoned").push(line);
            }
        });
        let [grpc, http, bridge] = [(); 3].map(|()| String::new());
        let mut running = Self { child, grpc, http, bridge, lines, reader: Some(reader) };
        let listening = running.said("listening");
        let address = |listener: &str| listening[listener].as_str().expect("an address").to_owned();
        (running.grpc, running.http) = (address("grpc_addr"), address("http_addr"));
        running.bridge = address("snapshot_addr");
        running.until("ready", || running.get("/readyz").is_some_and(|answer| answer.contains(" 200 ")));
        running
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < PATIENCE, "not {what} in time; it said {:?}", self.lines.lock());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Head and body of the answer, `None` while nobody listens.
    pub(crate) fn get(&self, path: &str) -> Option<String> {
        ask(&self.http, "GET", path, "")
    }

    /// The first line of the log with this message; waits for it.
    pub(crate) fn said(&self, what: &str) -> serde_json::Value {
        let find = || {
            let lines = self.lines.lock().expect("unpoisoned");
            lines.iter().find(|line| message(line) == what).cloned()
        };
        self.until(what, || find().is_some());
        serde_json::from_str(&find().expect("found")).expect("JSON")
    }

    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.child.id().to_string()]).status().expect("kill runs");
        assert!(status.success());
    }

    /// Waits for the end; gives the exit status and the messages of the log, in order.
    pub(crate) fn ended(mut self) -> (ExitStatus, Vec<String>) {
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child of ours") {
                break status;
            }
            assert!(start.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(2));
        };
        if let Some(reader) = self.reader.take() {
            reader.join().expect("the log is read");
        }
        let lines = self.lines.lock().expect("unpoisoned");
        // How many files a process may open is the machine's affair.
        let said = lines.iter().map(|line| message(line)).filter(|message| message != "open_files_limited");
        (status, said.collect())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One HTTP exchange on a connection of its own: head and body of the answer, `None` while nobody listens.
pub(crate) fn ask(address: &str, method: &str, path: &str, body: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let length = body.len();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: {length}");
    write!(stream, "{head}\r\n\r\n{body}").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

pub(crate) fn message(line: &str) -> String {
    let line: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|why| panic!("{why}: {line}"));
    line["msg"].as_str().expect("a message").to_owned()
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime")
}
