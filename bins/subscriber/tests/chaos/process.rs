//! Real processes: started, frozen, thawed and killed.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// More than anything takes that works.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);
/// Lines of output that are kept for a report.
const TAIL: usize = 200;

/// One process and what it printed last.
pub(crate) struct Process {
    name: &'static str,
    child: Child,
    lines: Arc<Mutex<VecDeque<String>>>,
}

impl Process {
    /// Starts one of the binaries that were built beside this test.
    pub(crate) fn start(name: &'static str, arguments: &[String]) -> Result<Self, String> {
        let path = binary(name)?;
        let mut child = Command::new(&path)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|why| format!("{}: {why}", path.display()))?;
        let lines = Arc::new(Mutex::new(VecDeque::new()));
        let streams: [Option<Box<dyn Read + Send>>; 2] =
            [child.stdout.take().map(|out| Box::new(out) as _), child.stderr.take().map(|out| Box::new(out) as _)];
        for stream in streams.into_iter().flatten() {
            let lines = Arc::clone(&lines);
            std::thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    let mut lines = lines.lock().unwrap_or_else(PoisonError::into_inner);
                    lines.push_back(line);
                    if lines.len() > TAIL {
                        lines.pop_front();
                    }
                }
            });
        }
        Ok(Self { name, child, lines })
    }

    /// What `wanted` finds in the lines so far; waits for it.
    pub(crate) fn said<T>(&mut self, what: &str, wanted: impl Fn(&VecDeque<String>) -> Option<T>) -> Result<T, String> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = wanted(&self.lines.lock().unwrap_or_else(PoisonError::into_inner));
            match (found, self.child.try_wait()) {
                (Some(found), _) => return Ok(found),
                (None, Ok(None)) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(3)),
                (None, ended) => {
                    return Err(format!("{} said no {what} ({ended:?}); it said:\n{}", self.name, self.tail(20)));
                }
            }
        }
    }

    /// The last lines.
    pub(crate) fn tail(&self, lines: usize) -> String {
        let kept = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().skip(kept.len().saturating_sub(lines)).map(|line| format!("    {line}\n")).collect()
    }

    /// Sends a signal, such as `STOP`.
    pub(crate) fn signal(&self, signal: &str) {
        let _ = Command::new("kill").args([&format!("-{signal}"), &self.child.id().to_string()]).status();
    }

    /// Whether it is still there.
    pub(crate) fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Of the process, from `/proc`: CPU seconds so far, resident bytes now.
    pub(crate) fn usage(&self) -> Option<(f64, u64)> {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{}/{file}", self.child.id())).ok();
        let stat = read("stat")?;
        // Fields behind the name in parentheses; user and system time are the 12th and 13th of them, in 1/100 s.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let ticks: f64 = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
        let pages: u64 = read("statm")?.split(' ').nth(1)?.parse().ok()?;
        Some((ticks / 100.0, pages * 4096))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SIGKILL, which also ends a process that is stopped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// This package's binary, or one that a build of the workspace put beside it.
fn binary(name: &str) -> Result<PathBuf, String> {
    let own = PathBuf::from(env!("CARGO_BIN_EXE_kvevent-subscriber"));
    let path = own.with_file_name(name);
    if path.exists() {
        return Ok(path);
    }
    Err(format!("{} is not built; `cargo test --workspace`, or `make test`, builds it", path.display()))
}

/// The first of `count` successive free ports. Below the range that systems take for outgoing connections, so that a port
/// stays free while its process is dead.
pub(crate) fn free_ports(count: u16) -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Tests that run at the same time begin far apart.
    let spread = u16::try_from(std::process::id().wrapping_mul(641) % 20_000).unwrap_or(0);
    loop {
        let first = 10_000 + spread.wrapping_add(NEXT.fetch_add(count, Ordering::Relaxed)) % 20_000;
        if (first..first + count).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok()) {
            return first;
        }
    }
}

/// A number that whoever starts the test may set.
#[expect(clippy::disallowed_methods, reason = "tests take no flags")]
pub(crate) fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// One HTTP exchange on the loopback; the body of an answer 2xx.
pub(crate) fn http(method: &str, port: u16, path: &str, body: &str) -> Result<String, String> {
    exchange(method, port, path, body, Duration::from_secs(10))
}

/// The same with somebody who may be frozen.
pub(crate) fn exchange(method: &str, port: u16, path: &str, body: &str, limit: Duration) -> Result<String, String> {
    let talk = || {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_read_timeout(Some(limit))?;
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
        )?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        std::io::Result::Ok(answer)
    };
    let answer = talk().map_err(|why| format!("{method} {path}: {why}"))?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or_else(|| format!("{method} {path}: {answer}"))?;
    if head.split(' ').nth(1).is_some_and(|code| code.starts_with('2')) {
        Ok(body.to_owned())
    } else {
        Err(format!("{method} {path}: {head}"))
    }
}

/// The value of a sample, labels included in the name.
pub(crate) fn sample(page: &str, name: &str) -> Option<f64> {
    page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}
