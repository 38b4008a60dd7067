//! A real store in a process of its own, for as long as a test needs it.

use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A `redis-server` on a free port, without persistence; ended when dropped.
pub(crate) struct RedisServer {
    process: Child,
    pub(crate) address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl RedisServer {
    /// `None`, with a line that says so, when there is no `redis-server` on this machine.
    pub(crate) fn start(arguments: &[&str]) -> Option<Self> {
        // Somebody else may take the port before the store does.
        (0..5).find_map(|_| match Self::try_start(arguments) {
            Ok(started) => Some(started),
            Err(Start::Absent) => {
                println!("SKIPPED: no redis-server on PATH; install it to run this test");
                Some(None)
            }
            Err(Start::Failed) => None,
        })?
    }

    fn try_start(arguments: &[&str]) -> Result<Option<Self>, Start> {
        let address = TcpListener::bind("127.0.0.1:0").expect("a free port").local_addr().expect("bound");
        let folder = tempfile::tempdir().expect("a folder");
        let started = Command::new("redis-server")
            .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port", &address.port().to_string()])
            .arg("--dir")
            .arg(folder.path())
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let process = match started {
            Ok(process) => process,
            Err(why) if why.kind() == ErrorKind::NotFound => return Err(Start::Absent),
            Err(why) => panic!("redis-server cannot be started: {why}"),
        };
        let mut server = Self { process, address, _folder: folder };
        let end = Instant::now() + Duration::from_secs(20);
        while Instant::now() < end {
            if server.process.try_wait().expect("a child").is_some() {
                return Err(Start::Failed);
            }
            if TcpStream::connect(address).is_ok() {
                return Ok(Some(server));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("redis-server does not listen");
    }

    /// Sends one command, and gives the first line of the answer.
    pub(crate) fn ask(&self, command: &str) -> String {
        let mut stream = TcpStream::connect(self.address).expect("it accepts");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        stream.write_all(format!("{command}\r\n").as_bytes()).expect("written");
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).expect("an answer");
        line.trim_end().to_owned()
    }
}

enum Start {
    Absent,
    Failed,
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
