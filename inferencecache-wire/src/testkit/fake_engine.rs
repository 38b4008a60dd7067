//! The sockets of an engine: a publisher, and a replay endpoint that answers from what was published.
//!
//! The publisher is an XPUB socket, which on the wire is a PUB socket that also learns of subscriptions. So it can wait
//! until somebody listens, and nothing is lost to a slow joiner.
//!
//! ```
//! use inferencecache_wire::testkit::fake_engine::{EngineOptions, FakeEngine, Publish};
//!
//! let options = EngineOptions { publish: Publish::Bind("tcp://127.0.0.1:*".to_owned()), ..EngineOptions::default() };
//! let mut engine = FakeEngine::start(options).unwrap();
//! assert!(engine.endpoint().starts_with("tcp://127.0.0.1:"));
//! assert_eq!(engine.publish(b"kv-events", b"\x92\xc0\x90").unwrap(), 0);
//! assert_eq!(engine.next_sequence(), 1);
//! ```

use std::collections::VecDeque;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::capture::{Capture, Frame, Prompt, Row};

/// Batches that engines keep for replay unless told otherwise.
pub const BUFFER: usize = 10_000;
/// How often the sockets are looked at.
const POLL: Duration = Duration::from_millis(5);
/// How long the last messages may take to leave when the engine ends.
const LINGER_MS: i32 = 1000;
/// Number of the message that ends a replay.
const END: [u8; 8] = [0xff; 8];

/// How the publisher meets its subscriber.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Publish {
    /// It listens. `tcp://127.0.0.1:*` lets the system choose the port.
    Bind(String),
    /// It dials out.
    Connect(String),
}

/// Parts of a replay reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReplayLayout {
    /// `[empty, topic, sequence, payload]`, and an end of four parts.
    #[default]
    Current,
    /// `[empty, sequence, payload]`, and an end of three parts.
    Older,
    /// As [`Older`](Self::Older), with an end of two empty parts.
    First,
}

/// How a [`FakeEngine`] is reached.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// The publisher. Default: listens on any free port of the loopback.
    pub publish: Publish,
    /// Where the replay endpoint listens. Default nowhere.
    pub replay: Option<String>,
    /// Layout of its replies.
    pub layout: ReplayLayout,
    /// Batches kept for replay; the oldest go first. Default [`BUFFER`].
    pub buffer: usize,
}

impl Default for EngineOptions {
    fn default() -> Self {
        let publish = Publish::Bind("tcp://127.0.0.1:*".to_owned());
        Self { publish, replay: None, layout: ReplayLayout::default(), buffer: BUFFER }
    }
}

enum Command {
    Publish(Frame, SyncSender<zmq::Result<()>>),
    Lose(Frame, SyncSender<zmq::Result<()>>),
    Restart(SyncSender<zmq::Result<()>>),
}

/// Topics that somebody subscribes to.
type Topics = Arc<Mutex<Vec<Vec<u8>>>>;

/// An engine's sockets on their own thread.
#[derive(Debug)]
pub struct FakeEngine {
    commands: Option<Sender<Command>>,
    endpoint: String,
    replay_endpoint: Option<String>,
    topics: Topics,
    sequence: u64,
    thread: Option<JoinHandle<()>>,
}

impl FakeEngine {
    /// Opens the sockets.
    ///
    /// # Errors
    ///
    /// When an endpoint cannot be used.
    pub fn start(options: EngineOptions) -> io::Result<Self> {
        let topics = Topics::default();
        let sockets = Sockets::open(options, Arc::clone(&topics)).map_err(error)?;
        let endpoint = sockets.endpoint.clone();
        let replay_endpoint = sockets.replay_endpoint.clone();
        let (commands, receiver) = channel();
        let thread =
            std::thread::Builder::new().name("fake-engine".to_owned()).spawn(move || sockets.run(&receiver))?;
        Ok(Self { commands: Some(commands), endpoint, replay_endpoint, topics, sequence: 0, thread: Some(thread) })
    }

    /// Where the publisher listens, or whom it dials.
    #[must_use]
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Where the replay endpoint listens.
    #[must_use]
    pub fn replay_endpoint(&self) -> Option<&str> {
        self.replay_endpoint.as_deref()
    }

    /// The number that the next message gets.
    #[must_use]
    pub fn next_sequence(&self) -> u64 {
        self.sequence
    }

    /// Waits until somebody subscribes to a prefix of `topic`; `false` when nobody did in time.
    #[must_use]
    pub fn wait_for_subscriber(&self, topic: &[u8], limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        loop {
            let topics = self.topics.lock().unwrap_or_else(PoisonError::into_inner);
            if topics.iter().any(|prefix| topic.starts_with(prefix)) {
                return true;
            }
            drop(topics);
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(POLL);
        }
    }

    /// Publishes a batch under the next number, which is returned once the message has been handed to the socket.
    ///
    /// # Errors
    ///
    /// When the socket refuses.
    pub fn publish(&mut self, topic: &[u8], payload: &[u8]) -> io::Result<u64> {
        let frame = Frame { topic: topic.to_vec(), sequence: self.sequence, payload: payload.to_vec() };
        self.publish_frame(frame)
    }

    /// Publishes a message under its own number.
    ///
    /// # Errors
    ///
    /// When the socket refuses.
    pub fn publish_frame(&mut self, frame: Frame) -> io::Result<u64> {
        let sequence = frame.sequence;
        self.command(|done| Command::Publish(frame, done))?;
        self.sequence = sequence + 1;
        Ok(sequence)
    }

    /// Gives a batch the next number, which is returned, and keeps it for replay, but does not send it: it was lost on the
    /// way.
    ///
    /// # Errors
    ///
    /// When the engine has ended.
    pub fn lose(&mut self, topic: &[u8], payload: &[u8]) -> io::Result<u64> {
        let frame = Frame { topic: topic.to_vec(), sequence: self.sequence, payload: payload.to_vec() };
        self.command(|done| Command::Lose(frame, done))?;
        self.sequence += 1;
        Ok(self.sequence - 1)
    }

    /// Leaves out numbers, as if messages had been lost.
    pub fn skip(&mut self, numbers: u64) {
        self.sequence += numbers;
    }

    /// Closes the publisher and opens it again on the same endpoint: a new process with an empty replay buffer that counts
    /// from 0.
    ///
    /// # Errors
    ///
    /// When the endpoint cannot be used again.
    pub fn restart(&mut self) -> io::Result<()> {
        self.command(Command::Restart)?;
        self.sequence = 0;
        Ok(())
    }

    fn command(&self, command: impl FnOnce(SyncSender<zmq::Result<()>>) -> Command) -> io::Result<()> {
        let gone = || io::Error::from(io::ErrorKind::BrokenPipe);
        let (done, result) = sync_channel(1);
        self.commands.as_ref().ok_or_else(gone)?.send(command(done)).map_err(|_| gone())?;
        result.recv().map_err(|_| gone())?.map_err(error)
    }
}

impl Drop for FakeEngine {
    fn drop(&mut self) {
        // The thread ends when nobody can command it any more.
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn error(error: zmq::Error) -> io::Error {
    io::Error::other(error.message().to_owned())
}

struct Sockets {
    context: zmq::Context,
    publisher: zmq::Socket,
    router: Option<zmq::Socket>,
    options: EngineOptions,
    endpoint: String,
    replay_endpoint: Option<String>,
    topics: Topics,
    buffer: VecDeque<Frame>,
}

impl Sockets {
    fn open(options: EngineOptions, topics: Topics) -> zmq::Result<Self> {
        let context = zmq::Context::new();
        let (publisher, endpoint) = publisher(&context, &options.publish)?;
        let router = match &options.replay {
            Some(endpoint) => Some(listen(&context, zmq::ROUTER, endpoint)?),
            None => None,
        };
        let (router, replay_endpoint) = router.unzip();
        Ok(Self { context, publisher, router, options, endpoint, replay_endpoint, topics, buffer: VecDeque::new() })
    }

    fn run(mut self, commands: &Receiver<Command>) {
        loop {
            match commands.recv_timeout(POLL) {
                Ok(Command::Publish(frame, done)) => {
                    let _ = done.send(self.publish(frame));
                }
                Ok(Command::Lose(frame, done)) => {
                    self.keep(frame);
                    let _ = done.send(Ok(()));
                }
                Ok(Command::Restart(done)) => {
                    let _ = done.send(self.restart());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.note_subscriptions();
            self.serve_replay();
        }
    }

    fn publish(&mut self, frame: Frame) -> zmq::Result<()> {
        let parts = [frame.topic.clone(), frame.sequence.to_be_bytes().to_vec(), frame.payload.clone()];
        self.publisher.send_multipart(parts, 0)?;
        self.keep(frame);
        Ok(())
    }

    fn keep(&mut self, frame: Frame) {
        self.buffer.push_back(frame);
        while self.buffer.len() > self.options.buffer {
            self.buffer.pop_front();
        }
    }

    fn restart(&mut self) -> zmq::Result<()> {
        self.buffer.clear();
        self.lock_topics().clear();
        // The port that the system chose the first time stays the same.
        let publish = match &self.options.publish {
            Publish::Bind(_) => Publish::Bind(self.endpoint.clone()),
            connect => connect.clone(),
        };
        let former = std::mem::replace(&mut self.publisher, self.context.socket(zmq::XPUB)?);
        let _ = match &publish {
            Publish::Bind(endpoint) => former.unbind(endpoint),
            Publish::Connect(endpoint) => former.disconnect(endpoint),
        };
        drop(former);
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            // Closing happens in the background, so the port may be taken for a moment.
            match publisher(&self.context, &publish) {
                Ok((publisher, _)) => {
                    self.publisher = publisher;
                    return Ok(());
                }
                Err(zmq::Error::EADDRINUSE) if Instant::now() < deadline => std::thread::sleep(POLL),
                Err(error) => return Err(error),
            }
        }
    }

    fn note_subscriptions(&self) {
        while let Ok(message) = self.publisher.recv_bytes(zmq::DONTWAIT) {
            let mut topics = self.lock_topics();
            match message.split_first() {
                Some((1, topic)) => topics.push(topic.to_vec()),
                Some((0, topic)) => topics.retain(|known| known != topic),
                _ => {}
            }
        }
    }

    fn lock_topics(&self) -> std::sync::MutexGuard<'_, Vec<Vec<u8>>> {
        self.topics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers requests of the form `[identity, empty, first number]` and ignores everything else.
    fn serve_replay(&self) {
        let Some(router) = &self.router else { return };
        while let Ok(request) = router.recv_multipart(zmq::DONTWAIT) {
            let [identity, empty, start] = &request[..] else { continue };
            let (true, Ok(start)) = (empty.is_empty(), <[u8; 8]>::try_from(&start[..])) else { continue };
            let start = u64::from_be_bytes(start);
            for frame in self.buffer.iter().filter(|frame| frame.sequence >= start) {
                let number = frame.sequence.to_be_bytes();
                let _ = match self.options.layout {
                    ReplayLayout::Current => {
                        router.send_multipart([&identity[..], b"", &frame.topic, &number, &frame.payload], 0)
                    }
                    _ => router.send_multipart([&identity[..], b"", &number, &frame.payload], 0),
                };
            }
            let _ = match self.options.layout {
                ReplayLayout::Current => router.send_multipart([&identity[..], b"", b"", &END, b""], 0),
                ReplayLayout::Older => router.send_multipart([&identity[..], b"", &END, b""], 0),
                ReplayLayout::First => router.send_multipart([&identity[..], b"", b""], 0),
            };
        }
    }
}

fn publisher(context: &zmq::Context, publish: &Publish) -> zmq::Result<(zmq::Socket, String)> {
    let socket = context.socket(zmq::XPUB)?;
    socket.set_xpub_verbose(true)?;
    socket.set_sndhwm(100_000)?;
    socket.set_linger(LINGER_MS)?;
    match publish {
        Publish::Bind(endpoint) => {
            socket.set_ipv6(endpoint.contains('['))?;
            socket.bind(endpoint)?;
            let bound = socket.get_last_endpoint()?.unwrap_or_else(|_| endpoint.clone());
            Ok((socket, bound))
        }
        Publish::Connect(endpoint) => {
            socket.set_ipv6(endpoint.contains('['))?;
            // A subscriber that comes up later should not be waited for long.
            socket.set_reconnect_ivl(50)?;
            socket.connect(endpoint)?;
            Ok((socket, endpoint.clone()))
        }
    }
}

fn listen(context: &zmq::Context, kind: zmq::SocketType, endpoint: &str) -> zmq::Result<(zmq::Socket, String)> {
    let socket = context.socket(kind)?;
    socket.set_linger(LINGER_MS)?;
    socket.set_sndhwm(100_000)?;
    socket.set_ipv6(endpoint.contains('['))?;
    socket.bind(endpoint)?;
    let bound = socket.get_last_endpoint()?.unwrap_or_else(|_| endpoint.to_owned());
    Ok((socket, bound))
}

/// One stretch of a recording: the frames that precede a prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// Frames sent now.
    pub frames: usize,
    /// Number of the last frame sent so far; `None` before the first.
    pub last: Option<u64>,
    /// The prompt reached; `None` at the end of the recording.
    pub prompt: Option<Prompt>,
    /// The prefix cache was reset by hand within the stretch.
    pub reset: bool,
}

/// Plays a recording prompt by prompt.
///
/// Before the lookup of a step's prompt, wait until the subscriber's `acknowledged_sequence` has reached its `last`.
#[derive(Debug)]
pub struct CapturePlayer {
    engine: FakeEngine,
    rows: VecDeque<Row>,
    last: Option<u64>,
}

impl CapturePlayer {
    /// Plays on these sockets. Nothing is sent yet.
    #[must_use]
    pub fn new(engine: FakeEngine, capture: Capture) -> Self {
        Self { engine, rows: capture.rows.into(), last: None }
    }

    /// The sockets.
    #[must_use]
    pub fn engine(&self) -> &FakeEngine {
        &self.engine
    }

    /// Topic of the next frame; `None` when there is none any more.
    #[must_use]
    pub fn topic(&self) -> Option<&[u8]> {
        self.rows.iter().find_map(|row| match row {
            Row::Frame(frame) => Some(&frame.topic[..]),
            _ => None,
        })
    }

    /// Sends the next frame, whatever lies before it; `None` when there is none any more.
    ///
    /// # Errors
    ///
    /// When the socket refuses.
    pub fn next_frame(&mut self) -> io::Result<Option<u64>> {
        while let Some(row) = self.rows.pop_front() {
            if let Row::Frame(frame) = row {
                self.last = Some(self.engine.publish_frame(frame)?);
                return Ok(self.last);
            }
        }
        Ok(None)
    }

    /// Sends the frames up to the next prompt; `None` at the end of the recording.
    ///
    /// # Errors
    ///
    /// When the socket refuses.
    pub fn step(&mut self) -> io::Result<Option<Step>> {
        if self.rows.is_empty() {
            return Ok(None);
        }
        let mut step = Step { frames: 0, last: self.last, prompt: None, reset: false };
        while let Some(row) = self.rows.pop_front() {
            match row {
                Row::Frame(frame) => {
                    self.last = Some(self.engine.publish_frame(frame)?);
                    step.frames += 1;
                    step.last = self.last;
                }
                Row::Prompt(prompt) => {
                    step.prompt = Some(prompt);
                    break;
                }
                Row::Reset => step.reset = true,
            }
        }
        Ok(Some(step))
    }
}
