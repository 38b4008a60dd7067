//! The real binaries, started on free loopback ports and ended when they are dropped.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How long anything may take before the demonstration gives up.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// One process and the lines it prints.
#[derive(Debug)]
pub struct Process {
    name: &'static str,
    child: Arc<Mutex<Child>>,
    stdin: ChildStdin,
    lines: Receiver<String>,
    /// The last lines, for when something goes wrong.
    tail: VecDeque<String>,
}

impl Process {
    /// Starts a binary that was built beside this one.
    ///
    /// # Errors
    ///
    /// When it is not there or does not start.
    pub fn start(name: &'static str, arguments: &[String]) -> Result<Self> {
        let path = sibling(name)?;
        let mut child = Command::new(&path)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {} (build it with `cargo build --bins`)", path.display()))?;
        let (send, lines) = channel();
        let streams: [Box<dyn std::io::Read + Send>; 2] =
            [Box::new(child.stdout.take().context("stdout")?), Box::new(child.stderr.take().context("stderr")?)];
        for stream in streams {
            let send = send.clone();
            thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    if send.send(line).is_err() {
                        // Nobody listens any more; go on reading so that the process never blocks on a full pipe.
                    }
                }
            });
        }
        let stdin = child.stdin.take().context("stdin")?;
        let child = Arc::new(Mutex::new(child));
        if let Ok(mut started) = STARTED.lock() {
            started.push(Arc::downgrade(&child));
        }
        Ok(Self { name, child, stdin, lines, tail: VecDeque::new() })
    }

    /// The next line for which `wanted` finds something.
    ///
    /// # Errors
    ///
    /// After [`PATIENCE`], or when the process ends first.
    pub fn wait_for<T>(&mut self, what: &str, mut wanted: impl FnMut(&str) -> Option<T>) -> Result<T> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    let found = wanted(&line);
                    self.tail.push_back(line);
                    if self.tail.len() > 20 {
                        self.tail.pop_front();
                    }
                    if let Some(found) = found {
                        return Ok(found);
                    }
                }
                Err(why) => {
                    let why = if why == RecvTimeoutError::Timeout { "said nothing of" } else { "ended before" };
                    let tail = self.tail.iter().cloned().collect::<Vec<_>>().join("\n  ");
                    bail!("{} {why} {what}; its last lines:\n  {tail}", self.name);
                }
            }
        }
    }

    /// Attributes of the next JSON log line with this message.
    ///
    /// # Errors
    ///
    /// As [`Process::wait_for`].
    pub fn wait_for_event<const N: usize>(&mut self, message: &str, names: [&str; N]) -> Result<[String; N]> {
        self.wait_for(message, |line| {
            let line: serde_json::Value = serde_json::from_str(line).ok()?;
            let found =
                names.map(|name| line.get(name).and_then(|value| value.as_str()).unwrap_or_default().to_owned());
            (line.get("msg")? == message).then_some(found)
        })
    }

    /// Writes one line to the process.
    ///
    /// # Errors
    ///
    /// When it does not read any more.
    pub fn say(&mut self, line: &str) -> Result<()> {
        let stdin = &mut self.stdin;
        writeln!(stdin, "{line}").and_then(|()| stdin.flush()).with_context(|| format!("talking to {}", self.name))
    }

    /// Whether it is still there.
    ///
    /// # Errors
    ///
    /// When it has ended.
    pub fn check(&mut self) -> Result<()> {
        let ended = self.child.lock().map_err(|_| anyhow::anyhow!("{} is being ended", self.name))?.try_wait()?;
        match ended {
            None => Ok(()),
            Some(status) => bail!("{} ended: {status}", self.name),
        }
    }

    /// Its process id; 0 when it is being ended.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.lock().map_or(0, |child| child.id())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        end(&self.child);
    }
}

/// Every process started, so that a signal that ends the demonstration ends them too.
static STARTED: Mutex<Vec<Weak<Mutex<Child>>>> = Mutex::new(Vec::new());

fn end(child: &Mutex<Child>) {
    if let Ok(mut child) = child.lock() {
        // Ours alone; the demonstration is over for it.
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Ends everything that was started, and then this program, when it is asked to end.
///
/// # Errors
///
/// When signals cannot be waited for.
pub fn end_with_signals(runtime: &tokio::runtime::Runtime) -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let _inside = runtime.enter();
    let mut signals = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal).into_iter();
    let (mut interrupt, mut terminate, mut hangup) = match (signals.next(), signals.next(), signals.next()) {
        (Some(a), Some(b), Some(c)) => (a?, b?, c?),
        _ => return Ok(()),
    };
    runtime.spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
        let started = STARTED.lock().map(|mut started| std::mem::take(&mut *started)).unwrap_or_default();
        for child in started.iter().filter_map(Weak::upgrade) {
            end(&child);
        }
        std::process::exit(130);
    });
    Ok(())
}

fn sibling(name: &str) -> Result<PathBuf> {
    let mut path = std::env::current_exe().context("where am I")?;
    path.set_file_name(name);
    Ok(path)
}
