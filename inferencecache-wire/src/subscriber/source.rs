//! Where messages of the engine come from.
//!
//! ```text
//! engine ══ZMQ══> own thread: SUB socket and its monitor ──bounded by bytes──> receive task
//! ```
//!
//! The thread does nothing but read: whatever happens further on, the engine's queue is emptied. When the receive task
//! falls 16 MiB behind, the newest messages are dropped and counted, as a gap.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::mpsc;

use super::endpoint::{Side, side, wants_ipv6};

/// Bytes that may wait between the socket and the receive task.
pub const MAX_WAITING_BYTES: usize = 16 << 20;
/// Largest message part; a peer that sends a larger one is disconnected.
pub const MAX_MESSAGE_BYTES: i64 = 16 << 20;
/// What a waiting message is taken to cost beside its payload.
const MESSAGE_OVERHEAD: usize = 64;

/// How often a silent peer is asked for a sign of life, and how long it may take.
const HEARTBEAT: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(30));
/// Longest wait between attempts to reach the engine.
const MAX_BACKOFF: Duration = Duration::from_secs(5);
/// How long the thread waits for news before it looks whether it should end.
const POLL: Duration = Duration::from_millis(100);
/// How long a dialling socket may say nothing of its next attempt after a loss before it is replaced.
const SILENCE: Duration = Duration::from_secs(1);
/// Messages read in a row before the monitor is looked at again.
const BURST: usize = 1000;

/// One message of the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineMessage {
    /// Which connection it came over; 0 is the first rank.
    pub connection: u16,
    /// Its number, when the message carries one.
    pub sequence: Option<u64>,
    /// The encoded batch.
    pub payload: Vec<u8>,
    /// When it was read.
    pub received: SystemTime,
}

/// What happens on a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceEvent {
    /// We have subscribed: at a publisher that is there, or, when we listen, at any that may come.
    Subscribed {
        /// Which connection.
        connection: u16,
        /// The endpoint, with the real port when the system chose it.
        endpoint: String,
    },
    /// A publisher is there.
    Connected {
        /// Which connection.
        connection: u16,
    },
    /// A publisher that was there is gone.
    Lost {
        /// Which connection.
        connection: u16,
    },
    /// An attempt failed; another one follows.
    Failed {
        /// Which connection.
        connection: u16,
        /// Whether a subscription stood before.
        receiving: bool,
        /// The system's words.
        error: String,
    },
    /// A message.
    Message(EngineMessage),
    /// Messages were dropped because the receiver is too far behind; it stands where they would have.
    Dropped {
        /// Which connection.
        connection: u16,
        /// How many.
        messages: u64,
    },
}

/// A source of engine messages. Implement it for an engine that does not publish over ZMQ.
///
/// *Callers may assume* that [`next`](Self::next) can be dropped and called again without losing anything. *Implementers
/// must* reconnect by themselves and for ever, must bound what waits, and must say [`Dropped`](SourceEvent::Dropped) when
/// the bound bites. Called by the receive task alone.
pub trait EventSource: Send + 'static {
    /// The next event; `None` after [`stop`](Self::stop), once everything that waits was taken.
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Option<SourceEvent>> + Send + '_>>;

    /// The next event if one waits.
    fn try_next(&mut self) -> Option<SourceEvent>;

    /// Stops to receive. What waits can still be taken.
    fn stop(&mut self);
}

/// How a [`ZmqSource`] receives.
#[derive(Debug, Clone)]
pub struct ZmqOptions {
    /// Number of this connection.
    pub connection: u16,
    /// ZMQ endpoint; see [`side`].
    pub endpoint: String,
    /// Topic prefix; empty takes all.
    pub topic: String,
    /// Messages that libzmq queues.
    pub rcvhwm: i32,
    /// First wait after a failure; doubles up to 5 s.
    pub backoff: Duration,
}

/// A libzmq SUB socket on its own thread.
#[derive(Debug)]
pub struct ZmqSource {
    events: mpsc::UnboundedReceiver<SourceEvent>,
    waiting: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ZmqSource {
    /// Starts to receive. Never waits for the engine.
    ///
    /// # Errors
    ///
    /// When the system gives us no thread.
    pub fn start(options: ZmqOptions) -> std::io::Result<Self> {
        let (sender, events) = mpsc::unbounded_channel();
        let (waiting, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let reader = Reader {
            sender,
            waiting: Arc::clone(&waiting),
            stop: Arc::clone(&stop),
            options,
            dropped: 0,
            draws: 0,
            backoff: Duration::ZERO,
        };
        let thread = std::thread::Builder::new().name("kvevents".to_owned()).spawn(move || reader.run())?;
        Ok(Self { events, waiting, stop, thread: Some(thread) })
    }

    fn taken(&self, event: Option<SourceEvent>) -> Option<SourceEvent> {
        if let Some(SourceEvent::Message(message)) = &event {
            self.waiting.fetch_sub(cost(message), Ordering::Relaxed);
        }
        event
    }
}

impl EventSource for ZmqSource {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Option<SourceEvent>> + Send + '_>> {
        Box::pin(async {
            let event = self.events.recv().await;
            self.taken(event)
        })
    }

    fn try_next(&mut self) -> Option<SourceEvent> {
        let event = self.events.try_recv().ok();
        self.taken(event)
    }

    fn stop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Drop for ZmqSource {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            // It looks at the flag ten times a second; a panic there has already been reported.
            let _ = thread.join();
        }
    }
}

fn cost(message: &EngineMessage) -> usize {
    message.payload.len() + MESSAGE_OVERHEAD
}

/// The receiver is gone.
struct Closed;

/// Runs on the thread.
struct Reader {
    sender: mpsc::UnboundedSender<SourceEvent>,
    /// Shared with the receiver: it subtracts what it takes. Only a bound, so relaxed.
    waiting: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    options: ZmqOptions,
    dropped: u64,
    draws: u64,
    backoff: Duration,
}

impl Reader {
    fn run(mut self) {
        let context = zmq::Context::new();
        self.backoff = self.options.backoff;
        let mut receiving = false;
        while !self.stopped() {
            let failed = match self.session(&context, &mut receiving) {
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
        while !self.stopped() {
            if given_up.is_some_and(|since| since.elapsed() > SILENCE) {
                return Err(zmq::Error::EPROTO);
            }
            let mut items = [socket.as_poll_item(zmq::POLLIN), monitor.socket.as_poll_item(zmq::POLLIN)];
            match zmq::poll(&mut items, timeout) {
                Ok(_) | Err(zmq::Error::EINTR) => {}
                Err(error) => return Err(error),
            }
            while let Some(event) = monitor.next()? {
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
            for _ in 0..BURST {
                match receive(&socket) {
                    Ok(message) => {
                        self.backoff = self.options.backoff;
                        if message.is_some_and(|message| self.hand_over(message).is_err()) {
                            return Ok(());
                        }
                    }
                    Err(zmq::Error::EAGAIN | zmq::Error::EINTR) => break,
                    Err(error) => return Err(error),
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
        socket.set_heartbeat_ivl(ms(HEARTBEAT.0))?;
        socket.set_heartbeat_timeout(ms(HEARTBEAT.1))?;
        socket.set_heartbeat_ttl(ms(HEARTBEAT.1))?;
        // libzmq dials again by itself, with a random share of the first wait on top of each.
        socket.set_reconnect_ivl(ms(self.options.backoff).max(1))?;
        socket.set_reconnect_ivl_max(ms(MAX_BACKOFF.max(self.options.backoff)))?;
        socket.set_subscribe(self.options.topic.as_bytes())
    }

    fn connection_event(&self, event: u16, binding: bool, receiving: &mut bool) -> Result<(), Closed> {
        let connection = self.options.connection;
        match event {
            HANDSHAKE_SUCCEEDED => {
                if !binding {
                    *receiving = true;
                    self.tell(SourceEvent::Subscribed { connection, endpoint: self.options.endpoint.clone() })?;
                }
                self.tell(SourceEvent::Connected { connection })
            }
            DISCONNECTED => {
                *receiving = binding;
                self.tell(SourceEvent::Lost { connection })
            }
            CONNECT_RETRIED => {
                let error = "no connection; dialling again".to_owned();
                self.tell(SourceEvent::Failed { connection, receiving: false, error })
            }
            _ => Ok(()),
        }
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
        let until = Instant::now() + super::recovery::jittered(self.backoff, &mut self.draws);
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

// The events that we ask libzmq for, as it encodes them.
const HANDSHAKE_SUCCEEDED: u16 = zmq::SocketEvent::HANDSHAKE_SUCCEEDED as u16;
const DISCONNECTED: u16 = zmq::SocketEvent::DISCONNECTED as u16;
const CONNECT_RETRIED: u16 = zmq::SocketEvent::CONNECT_RETRIED as u16;
const FAILED_NO_DETAIL: u16 = zmq::SocketEvent::HANDSHAKE_FAILED_NO_DETAIL as u16;
const FAILED_PROTOCOL: u16 = zmq::SocketEvent::HANDSHAKE_FAILED_PROTOCOL as u16;
const FAILED_AUTH: u16 = zmq::SocketEvent::HANDSHAKE_FAILED_AUTH as u16;
const WATCHED: u16 =
    HANDSHAKE_SUCCEEDED | DISCONNECTED | CONNECT_RETRIED | FAILED_NO_DETAIL | FAILED_PROTOCOL | FAILED_AUTH;

/// What libzmq says about the connections of a socket.
struct Monitor {
    socket: zmq::Socket,
}

impl Monitor {
    fn of(context: &zmq::Context, socket: &zmq::Socket) -> zmq::Result<Self> {
        // One context per source, one monitor at a time: the name is free again once the former socket is closed.
        static NAMES: AtomicUsize = AtomicUsize::new(0);
        let name = format!("inproc://kvevents-monitor-{}", NAMES.fetch_add(1, Ordering::Relaxed));
        socket.monitor(&name, i32::from(WATCHED))?;
        let pair = context.socket(zmq::PAIR)?;
        pair.set_linger(0)?;
        pair.connect(&name)?;
        Ok(Self { socket: pair })
    }

    fn next(&self) -> zmq::Result<Option<u16>> {
        let parts = match self.socket.recv_multipart(zmq::DONTWAIT) {
            Ok(parts) => parts,
            Err(zmq::Error::EAGAIN | zmq::Error::EINTR) => return Ok(None),
            Err(error) => return Err(error),
        };
        // Two bytes of event in native order, then a value.
        Ok(parts.first().and_then(|part| part.first_chunk::<2>()).map(|raw| u16::from_ne_bytes(*raw)))
    }
}
