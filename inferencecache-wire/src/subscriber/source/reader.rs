//! The thread that reads one publisher.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::mpsc;

use super::monitor::{
    CONNECT_DELAYED, CONNECT_RETRIED, DISCONNECTED, FAILED_AUTH, FAILED_NO_DETAIL, FAILED_PROTOCOL,
    HANDSHAKE_SUCCEEDED, Monitor,
};
use super::{EngineMessage, MAX_MESSAGE_BYTES, MAX_WAITING_BYTES, SourceEvent, cost};
use crate::subscriber::endpoint::{Side, refuses, side, wants_ipv6};

/// Longest wait between attempts to reach the engine.
const MAX_BACKOFF: Duration = Duration::from_secs(5);
/// How long the thread waits for news before it looks whether it should end.
const POLL: Duration = Duration::from_millis(100);
/// How long a dialling socket may say nothing of its next attempt after a loss before it is replaced.
const SILENCE: Duration = Duration::from_secs(1);
/// An attempt that takes longer was not refused.
const REFUSAL: Duration = Duration::from_secs(1);
/// Messages read in a row before the monitor is looked at again.
const BURST: usize = 1000;
/// What may wait to be told while a connection's last messages are read.
const MAX_NEWS: usize = 64;

/// How a [`ZmqSource`](super::ZmqSource) receives from one publisher.
#[derive(Debug, Clone)]
pub struct ZmqOptions {
    /// Number of this connection. Default 0.
    pub connection: u16,
    /// ZMQ endpoint; see [`side`].
    pub endpoint: String,
    /// Where missed batches are asked for; always dialled. Default nowhere.
    pub replay: Option<String>,
    /// Topic prefix; empty takes all. Default empty.
    pub topic: String,
    /// Messages that libzmq queues. Default 100000.
    pub rcvhwm: i32,
    /// First wait after a failure; doubles up to 5 s. Default 1 s.
    pub backoff: Duration,
    /// How often a silent peer is asked for a sign of life, and how long it may take. Default 10 s and 30 s.
    pub heartbeat: (Duration, Duration),
}

impl Default for ZmqOptions {
    fn default() -> Self {
        Self {
            connection: 0,
            endpoint: "tcp://127.0.0.1:5557".to_owned(),
            replay: None,
            topic: String::new(),
            rcvhwm: 100_000,
            backoff: Duration::from_secs(1),
            heartbeat: (Duration::from_secs(10), Duration::from_secs(30)),
        }
    }
}

/// What is known about the process behind a dialled endpoint.
#[derive(Debug, Default)]
struct Peer {
    /// A connection stood, and has ended.
    lost: bool,
    /// Attempts that libzmq has announced since then.
    attempts: u32,
    /// When the last one began.
    dialled: Option<Instant>,
}

/// The receiver is gone.
struct Closed;

/// Runs on the thread.
pub(super) struct Reader {
    pub(super) sender: mpsc::UnboundedSender<SourceEvent>,
    /// Shared with the receiver: it subtracts what it takes. Only a bound, so relaxed.
    pub(super) waiting: Arc<AtomicUsize>,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) options: ZmqOptions,
    dropped: u64,
    draws: u64,
    backoff: Duration,
    peer: Peer,
}

impl Reader {
    pub(super) fn new(
        options: ZmqOptions,
        sender: mpsc::UnboundedSender<SourceEvent>,
        waiting: Arc<AtomicUsize>,
        stop: Arc<AtomicBool>,
    ) -> Self {
        // Readers draw their waits apart.
        let (backoff, draws) = (options.backoff, u64::from(options.connection) << 32);
        Self { sender, waiting, stop, options, dropped: 0, draws, backoff, peer: Peer::default() }
    }

    pub(super) fn run(mut self, context: &zmq::Context) {
        let mut receiving = false;
        while !self.stopped() {
            let failed = match self.session(context, &mut receiving) {
                Ok(()) => return,
                Err(error) => error,
            };
            let connection = self.options.connection;
            let event = SourceEvent::Failed { connection, receiving, error: failed.message().to_owned() };
            if self.sender.send(event).is_err() {
                return;
            }
            receiving = false;
            self.wait();
        }
    }

    /// One life of the socket. Ends without an error when we should stop.
    fn session(&mut self, context: &zmq::Context, receiving: &mut bool) -> zmq::Result<()> {
        let endpoint = self.options.endpoint.clone();
        let socket = context.socket(zmq::SUB)?;
        self.set_up(&socket)?;
        let monitor = Monitor::of(context, &socket)?;
        let binding = side(&endpoint) == Side::Bind;
        if binding {
            bind(&socket, &endpoint)?;
            *receiving = true;
            let endpoint = socket.get_last_endpoint()?.unwrap_or(endpoint);
            if self.tell(SourceEvent::Subscribed { connection: self.options.connection, endpoint }).is_err() {
                return Ok(());
            }
        } else {
            socket.connect(&endpoint)?;
        }
        let timeout = i64::try_from(POLL.as_millis()).unwrap_or(100);
        // After a breach of protocol (a frame that is too large, junk in the handshake) libzmq gives a dialled peer up for
        // good and says nothing more. A socket that does not announce its next attempt is replaced.
        let mut given_up: Option<Instant> = None;
        let mut news = Vec::new();
        while !self.stopped() {
            if given_up.is_some_and(|since| since.elapsed() > SILENCE) {
                return Err(zmq::Error::EPROTO);
            }
            let mut items = [socket.as_poll_item(zmq::POLLIN), monitor.socket.as_poll_item(zmq::POLLIN)];
            match zmq::poll(&mut items, timeout) {
                Ok(_) | Err(zmq::Error::EINTR) => {}
                Err(error) => return Err(error),
            }
            for _ in 0..BURST {
                let message = match receive(&socket) {
                    Ok(message) => Some(message),
                    Err(zmq::Error::EAGAIN | zmq::Error::EINTR) => None,
                    Err(error) => return Err(error),
                };
                // Looked at after each message: what a connection brings is queued behind the news of it.
                while let Some(event) = monitor.next()? {
                    news.push(event);
                }
                // What came over a connection that is lost is still to be read, so its loss is told once nothing is left,
                // or once there is a new one.
                if message.is_none() || news.contains(&HANDSHAKE_SUCCEEDED) || news.len() >= MAX_NEWS {
                    for event in news.drain(..) {
                        match event {
                            DISCONNECTED | FAILED_NO_DETAIL | FAILED_PROTOCOL | FAILED_AUTH if !binding => {
                                given_up = Some(Instant::now());
                            }
                            HANDSHAKE_SUCCEEDED | CONNECT_RETRIED => given_up = None,
                            _ => {}
                        }
                        if self.connection_event(event, binding, receiving).is_err() {
                            return Ok(());
                        }
                    }
                }
                let Some(message) = message else { break };
                self.backoff = self.options.backoff;
                if message.is_some_and(|message| self.hand_over(message).is_err()) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn set_up(&self, socket: &zmq::Socket) -> zmq::Result<()> {
        let ms = |duration: Duration| i32::try_from(duration.as_millis()).unwrap_or(i32::MAX);
        socket.set_linger(0)?;
        socket.set_rcvhwm(self.options.rcvhwm)?;
        socket.set_maxmsgsize(MAX_MESSAGE_BYTES)?;
        socket.set_ipv6(wants_ipv6(&self.options.endpoint))?;
        socket.set_heartbeat_ivl(ms(self.options.heartbeat.0))?;
        socket.set_heartbeat_timeout(ms(self.options.heartbeat.1))?;
        socket.set_heartbeat_ttl(ms(self.options.heartbeat.1))?;
        // libzmq dials again by itself, with a random share of the first wait on top of each.
        socket.set_reconnect_ivl(ms(self.options.backoff).max(1))?;
        socket.set_reconnect_ivl_max(ms(MAX_BACKOFF.max(self.options.backoff)))?;
        socket.set_subscribe(self.options.topic.as_bytes())
    }

    fn connection_event(&mut self, event: u16, binding: bool, receiving: &mut bool) -> Result<(), Closed> {
        let connection = self.options.connection;
        match event {
            HANDSHAKE_SUCCEEDED => {
                self.peer = Peer::default();
                if !binding {
                    *receiving = true;
                    self.tell(SourceEvent::Subscribed { connection, endpoint: self.options.endpoint.clone() })?;
                }
                self.tell(SourceEvent::Connected { connection })
            }
            DISCONNECTED => {
                *receiving = binding;
                self.peer = Peer { lost: !binding, ..Peer::default() };
                self.tell(SourceEvent::Lost { connection })
            }
            CONNECT_DELAYED => {
                self.peer.dialled = Some(Instant::now());
                Ok(())
            }
            CONNECT_RETRIED => {
                self.peer.attempts += 1;
                if self.peer.lost && self.refused() {
                    self.peer.lost = false;
                    self.tell(SourceEvent::Gone { connection })?;
                }
                let error = "no connection; dialling again".to_owned();
                self.tell(SourceEvent::Failed { connection, receiving: false, error })
            }
            _ => Ok(()),
        }
    }

    /// Whether the attempt that has just failed was refused. libzmq does not say why one failed, so we look ourselves: a
    /// host that cannot be reached is no proof that the process has ended.
    fn refused(&self) -> bool {
        // The first announcement after a loss comes before the attempt.
        let tried = self.peer.attempts > 1;
        tried && self.peer.dialled.is_none_or(|at| at.elapsed() < REFUSAL) && refuses(&self.options.endpoint)
    }

    fn hand_over(&mut self, (sequence, payload): (Option<u64>, Vec<u8>)) -> Result<(), Closed> {
        let connection = self.options.connection;
        let message = EngineMessage { connection, sequence, payload, received: SystemTime::now() };
        let cost = cost(&message);
        if self.waiting.load(Ordering::Relaxed) + cost > MAX_WAITING_BYTES {
            self.dropped += 1;
            return Ok(());
        }
        let messages = std::mem::take(&mut self.dropped);
        if messages > 0 {
            self.tell(SourceEvent::Dropped { connection, messages })?;
        }
        self.waiting.fetch_add(cost, Ordering::Relaxed);
        self.tell(SourceEvent::Message(message))
    }

    fn tell(&self, event: SourceEvent) -> Result<(), Closed> {
        self.sender.send(event).map_err(|_| Closed)
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Waits before the next attempt, at most until we should stop.
    fn wait(&mut self) {
        let until = Instant::now() + crate::subscriber::recovery::jittered(self.backoff, &mut self.draws);
        self.backoff = (self.backoff * 2).min(MAX_BACKOFF.max(self.options.backoff));
        while !self.stopped() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(POLL));
        }
    }
}

/// Listens; on hosts without IPv6 a wildcard falls back to IPv4.
fn bind(socket: &zmq::Socket, endpoint: &str) -> zmq::Result<()> {
    match socket.bind(endpoint) {
        Err(error) if error != zmq::Error::EADDRINUSE && endpoint.starts_with("tcp://*:") => {
            socket.set_ipv6(false)?;
            socket.bind(endpoint)
        }
        result => result,
    }
}

/// The number and the payload of one message; `None` for a message without parts that say anything.
///
/// The payload is the last part. There is a number only with three parts or more, when the second has 8 bytes.
fn receive(socket: &zmq::Socket) -> zmq::Result<Option<(Option<u64>, Vec<u8>)>> {
    let mut part = zmq::Message::new();
    let (mut parts, mut number) = (0_usize, None);
    loop {
        socket.recv(&mut part, zmq::DONTWAIT)?;
        if parts == 1 {
            number = <[u8; 8]>::try_from(&part[..]).ok().map(u64::from_be_bytes);
        }
        parts += 1;
        if !part.get_more() {
            let sequence = number.filter(|_| parts >= 3);
            return Ok(Some((sequence, part.to_vec())));
        }
    }
}
