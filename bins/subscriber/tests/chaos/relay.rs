//! A bad network between engine and subscriber: it loses, repeats and reorders whole messages, and breaks connections.
//!
//! ```text
//! engine PUB ══> SUB │ noise │ XPUB ══> subscriber          one thread for each rank; the subscriber's side keeps its ports
//! engine ROUTER <══ DEALER (one for each requester) │ noise │ ROUTER <══ subscriber
//! ```
//!
//! While the engine is dead its ports are closed, as they would be without a relay, except behind a forwarder.

use std::collections::HashMap;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};

use super::plan::Noise;

/// How often the sockets are looked at.
const TICK_MS: i64 = 2;
/// Frames of a new engine behind a forwarder that pass unharmed: nothing but its small numbers tells that it is new.
const CALM: u32 = 3;
/// Later than a subscriber waits for a reply.
const TOO_LATE: Duration = Duration::from_millis(2600);

type Parts = Vec<Vec<u8>>;

enum Order {
    /// The engine is there.
    Up {
        events: String,
        replay: Option<String>,
    },
    /// It is gone.
    Down {
        forwarder: bool,
    },
    Noise(Noise),
    Cut,
}

/// The relay of one rank. Ends when it is dropped.
pub(crate) struct Relay {
    orders: Option<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Will listen on these ports once the engine is there.
    pub(crate) fn start(seed: u64, events: u16, replay: u16) -> Self {
        let (orders, receiver) = channel();
        let side = |port| format!("tcp://127.0.0.1:{port}");
        let mut line = Line {
            context: zmq::Context::new(),
            ports: (side(events), side(replay)),
            rng: SmallRng::seed_from_u64(seed),
            noise: Noise::default(),
            calm: 0,
            engine: None,
            public: None,
            late: Vec::new(),
            asked: HashMap::new(),
        };
        let thread = std::thread::spawn(move || line.run(&receiver));
        Self { orders: Some(orders), thread: Some(thread) }
    }

    pub(crate) fn up(&self, events: String, replay: Option<String>) {
        self.order(Order::Up { events, replay });
    }

    pub(crate) fn down(&self, forwarder: bool) {
        self.order(Order::Down { forwarder });
    }

    pub(crate) fn noise(&self, noise: Noise) {
        self.order(Order::Noise(noise));
    }

    pub(crate) fn cut(&self) {
        self.order(Order::Cut);
    }

    fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            let _ = orders.send(order);
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.orders = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Sockets towards the subscriber.
struct Public {
    events: zmq::Socket,
    replay: Option<zmq::Socket>,
}

struct Engine {
    events: zmq::Socket,
    replay: Option<String>,
}

/// Where a message that was held back goes to.
enum Late {
    Events(Parts),
    Replay(Parts),
    /// A request of this identity.
    Ask(Vec<u8>, Parts),
}

struct Line {
    context: zmq::Context,
    ports: (String, String),
    rng: SmallRng,
    noise: Noise,
    /// Frames that pass unharmed.
    calm: u32,
    engine: Option<Engine>,
    public: Option<Public>,
    late: Vec<(Instant, Late)>,
    asked: HashMap<Vec<u8>, zmq::Socket>,
}

impl Line {
    fn run(&mut self, orders: &Receiver<Order>) {
        loop {
            match orders.try_recv() {
                Ok(order) => {
                    self.obey(order).expect("relay sockets");
                    continue;
                }
                Err(TryRecvError::Disconnected) => return,
                Err(TryRecvError::Empty) => {}
            }
            self.wait();
            self.events();
            self.requests();
            self.replies();
            self.overdue();
        }
    }

    fn obey(&mut self, order: Order) -> zmq::Result<()> {
        match order {
            Order::Up { events, replay } => {
                let socket = self.socket(zmq::SUB)?;
                socket.set_rcvhwm(0)?;
                socket.set_subscribe(b"")?;
                socket.connect(&events)?;
                self.engine = Some(Engine { events: socket, replay });
                if self.public.is_none() {
                    self.open()?;
                } else {
                    self.calm = CALM;
                }
            }
            Order::Down { forwarder } => {
                self.engine = None;
                // What was on its way dies with the connection.
                self.late.clear();
                self.asked.clear();
                if !forwarder {
                    self.close();
                }
            }
            Order::Noise(noise) => self.noise = noise,
            Order::Cut => {
                if self.public.is_some() {
                    self.late.clear();
                    self.asked.clear();
                    self.close();
                    self.open()?;
                }
            }
        }
        Ok(())
    }

    fn socket(&self, kind: zmq::SocketType) -> zmq::Result<zmq::Socket> {
        let socket = self.context.socket(kind)?;
        socket.set_linger(0)?;
        Ok(socket)
    }

    fn open(&mut self) -> zmq::Result<()> {
        let events = self.socket(zmq::XPUB)?;
        events.set_sndhwm(0)?;
        bind(&events, &self.ports.0)?;
        let replay = match self.engine.as_ref().and_then(|engine| engine.replay.as_ref()) {
            Some(_) => {
                let socket = self.socket(zmq::ROUTER)?;
                socket.set_sndhwm(0)?;
                bind(&socket, &self.ports.1)?;
                Some(socket)
            }
            None => None,
        };
        self.public = Some(Public { events, replay });
        Ok(())
    }

    fn close(&mut self) {
        if let Some(public) = self.public.take() {
            let _ = public.events.unbind(&self.ports.0);
            if let Some(replay) = public.replay {
                let _ = replay.unbind(&self.ports.1);
            }
        }
    }

    fn wait(&self) {
        let mut items = Vec::new();
        items.extend(self.engine.iter().map(|engine| engine.events.as_poll_item(zmq::POLLIN)));
        items.extend(self.asked.values().map(|socket| socket.as_poll_item(zmq::POLLIN)));
        if let Some(public) = &self.public {
            items.push(public.events.as_poll_item(zmq::POLLIN));
            items.extend(public.replay.iter().map(|socket| socket.as_poll_item(zmq::POLLIN)));
        }
        if items.is_empty() {
            std::thread::sleep(Duration::from_millis(TICK_MS as u64));
        } else {
            let _ = zmq::poll(&mut items, TICK_MS);
        }
    }

    fn chance(&mut self, thousandths: u32) -> bool {
        thousandths > 0 && self.rng.random_range(0..1000) < thousandths
    }

    fn events(&mut self) {
        while let Some(parts) = self.engine.as_ref().and_then(|engine| receive(&engine.events)) {
            let noise = if self.calm > 0 { Noise::default() } else { self.noise };
            self.calm = self.calm.saturating_sub(1);
            if self.chance(noise.drop) {
                continue;
            }
            if self.chance(noise.duplicate) {
                self.hold(Noise::LATE, Late::Events(parts.clone()));
            }
            if self.chance(noise.delay) {
                self.hold(Noise::LATE, Late::Events(parts));
            } else {
                self.deliver(Late::Events(parts));
            }
        }
        // Subscriptions; we have asked for everything anyhow.
        while self.public.as_ref().is_some_and(|public| receive(&public.events).is_some()) {}
    }

    fn requests(&mut self) {
        while let Some(mut parts) = self.public.as_ref().and_then(|public| receive(public.replay.as_ref()?)) {
            let request = parts.split_off(1);
            let Some(identity) = parts.pop() else { continue };
            if self.chance(self.noise.slow_reply) {
                self.late.push((Instant::now() + TOO_LATE, Late::Ask(identity, request)));
            } else {
                self.deliver(Late::Ask(identity, request));
            }
        }
    }

    fn replies(&mut self) {
        let mut replies = Vec::new();
        for (identity, socket) in &self.asked {
            while let Some(reply) = receive(socket) {
                replies.push([vec![identity.clone()], reply].concat());
            }
        }
        for reply in replies {
            if !self.chance(self.noise.lose_reply) {
                self.deliver(Late::Replay(reply));
            }
        }
    }

    fn hold(&mut self, most: Duration, message: Late) {
        let wait = most.mul_f64(self.rng.random());
        self.late.push((Instant::now() + wait, message));
    }

    fn overdue(&mut self) {
        let now = Instant::now();
        let quiet = self.noise == Noise::default();
        let due = |at: Instant, message: &Late| at <= now || quiet && matches!(message, Late::Events(_));
        let mut messages: Vec<_> = self.late.extract_if(.., |(at, message)| due(*at, message)).collect();
        messages.sort_by_key(|&(at, _)| at);
        for (_, message) in messages {
            self.deliver(message);
        }
    }

    fn deliver(&mut self, message: Late) {
        let Some(public) = &self.public else { return };
        match message {
            Late::Events(parts) => drop(public.events.send_multipart(parts, zmq::DONTWAIT)),
            Late::Replay(parts) => {
                if let Some(replay) = &public.replay {
                    let _ = replay.send_multipart(parts, zmq::DONTWAIT);
                }
            }
            Late::Ask(identity, request) => {
                let Some(endpoint) = self.engine.as_ref().and_then(|engine| engine.replay.clone()) else { return };
                if !self.asked.contains_key(&identity) {
                    let Ok(socket) = self.socket(zmq::DEALER) else { return };
                    let _ = socket.set_rcvhwm(0);
                    if socket.connect(&endpoint).is_err() {
                        return;
                    }
                    self.asked.insert(identity.clone(), socket);
                }
                if let Some(socket) = self.asked.get(&identity) {
                    let _ = socket.send_multipart(request, zmq::DONTWAIT);
                }
            }
        }
    }
}

fn receive(socket: &zmq::Socket) -> Option<Parts> {
    socket.recv_multipart(zmq::DONTWAIT).ok()
}

/// Sockets close in the background, so a port may be taken for a moment.
fn bind(socket: &zmq::Socket, endpoint: &str) -> zmq::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        match socket.bind(endpoint) {
            Err(zmq::Error::EADDRINUSE) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(2)),
            result => return result,
        }
    }
}
