//! The source that speaks ZMQ.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use tokio::sync::mpsc;

use super::reader::{Reader, ZmqOptions};
use super::replay::Replayer;
use super::{EventSource, SourceEvent, cost};
use crate::subscriber::sequence::{ReplayId, Request};

/// libzmq sockets, each on its own thread: a SUB socket per publisher, and a DEALER socket per replay.
pub struct ZmqSource {
    context: zmq::Context,
    sender: mpsc::WeakUnboundedSender<SourceEvent>,
    events: mpsc::UnboundedReceiver<SourceEvent>,
    waiting: Arc<AtomicUsize>,
    /// Bytes of replies that wait.
    replies: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    /// Replay endpoints by connection.
    endpoints: HashMap<u16, String>,
    replays: HashMap<ReplayId, Arc<AtomicBool>>,
}

impl std::fmt::Debug for ZmqSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ZmqSource").field("threads", &self.threads.len()).finish_non_exhaustive()
    }
}

impl ZmqSource {
    /// Starts to receive from one publisher. Never waits for the engine.
    ///
    /// # Errors
    ///
    /// When the system gives us no thread.
    pub fn start(options: ZmqOptions) -> std::io::Result<Self> {
        Self::start_all(vec![options])
    }

    /// Starts to receive from several publishers, whose connections have different numbers. They share one bound on what
    /// waits.
    ///
    /// # Errors
    ///
    /// When the system gives us no thread.
    pub fn start_all(publishers: Vec<ZmqOptions>) -> std::io::Result<Self> {
        let (sender, events) = mpsc::unbounded_channel();
        let mut source = Self {
            context: zmq::Context::new(),
            sender: sender.downgrade(),
            events,
            waiting: Arc::default(),
            replies: Arc::default(),
            stop: Arc::default(),
            threads: Vec::new(),
            endpoints: HashMap::new(),
            replays: HashMap::new(),
        };
        for options in publishers {
            if let Some(endpoint) = &options.replay {
                source.endpoints.insert(options.connection, endpoint.clone());
            }
            let context = source.context.clone();
            let reader = Reader::new(options, sender.clone(), Arc::clone(&source.waiting), Arc::clone(&source.stop));
            let thread = std::thread::Builder::new().name("kvevents".to_owned());
            source.threads.push(thread.spawn(move || reader.run(&context))?);
        }
        Ok(source)
    }

    fn taken(&self, event: Option<SourceEvent>) -> Option<SourceEvent> {
        match &event {
            Some(SourceEvent::Message(message)) => self.waiting.fetch_sub(cost(message), Ordering::Relaxed),
            Some(SourceEvent::Reply { message, .. }) => self.replies.fetch_sub(cost(message), Ordering::Relaxed),
            _ => 0,
        };
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
        for (_, ended) in self.replays.drain() {
            ended.store(true, Ordering::Relaxed);
        }
    }

    fn replayable(&self) -> Vec<u16> {
        self.endpoints.keys().copied().collect()
    }

    fn replay(&mut self, request: Request) -> bool {
        // When all readers have ended, so has everything else.
        let (Some(endpoint), Some(sender)) = (self.endpoints.get(&request.connection), self.sender.upgrade()) else {
            return false;
        };
        let ended = Arc::new(AtomicBool::new(false));
        let replayer = Replayer {
            request,
            endpoint: endpoint.clone(),
            sender,
            waiting: Arc::clone(&self.replies),
            ended: Arc::clone(&ended),
        };
        let context = self.context.clone();
        let thread = std::thread::Builder::new().name("kvevents-replay".to_owned());
        // It ends by itself soon after nobody waits for it any more.
        let started = thread.spawn(move || replayer.run(&context)).is_ok();
        if started {
            self.replays.insert(request.id, ended);
        }
        started
    }

    fn end_replay(&mut self, id: ReplayId) {
        if let Some(ended) = self.replays.remove(&id) {
            ended.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for ZmqSource {
    fn drop(&mut self) {
        self.stop();
        for thread in self.threads.drain(..) {
            // They look at the flag ten times a second; a panic there has already been reported.
            let _ = thread.join();
        }
    }
}
