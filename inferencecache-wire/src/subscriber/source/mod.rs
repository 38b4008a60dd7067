//! Where messages of the engine come from.
//!
//! ```text
//! engine ══ZMQ══> a thread per rank: SUB socket and its monitor ──┐
//!                                                                 ├──bounded by bytes──> receive task
//! engine ══ZMQ══> a thread per replay: DEALER socket ─────────────┘
//! ```
//!
//! The threads do nothing but read: whatever happens further on, the engine's queue is emptied. When the receive task
//! falls 16 MiB behind, the newest messages are dropped and counted; the numbers of those that follow show the gap. A replay
//! is not dropped: its thread waits, and the engine's socket with it.

mod monitor;
mod reader;
mod replay;
mod zmq;

pub use reader::ZmqOptions;
pub use replay::{BadReply, MAX_REPLY_PARTS, Reply};
pub use zmq::ZmqSource;

use std::future::Future;
use std::pin::Pin;
use std::time::SystemTime;

use super::sequence::{ReplayId, Request};

/// Bytes that may wait between the socket and the receive task.
pub const MAX_WAITING_BYTES: usize = 16 << 20;
/// Largest message part; a peer that sends a larger one is disconnected.
pub const MAX_MESSAGE_BYTES: i64 = 16 << 20;
/// One message of the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineMessage {
    /// Which connection it came over: the number of the rank that is expected behind it.
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
    /// The connection to a publisher has ended.
    Lost {
        /// Which connection.
        connection: u16,
    },
    /// The publisher's process has ended: it refuses a connection that it accepted before.
    Gone {
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
    /// A batch that was asked for.
    Reply {
        /// Which replay.
        id: ReplayId,
        /// The batch.
        message: EngineMessage,
    },
    /// A replay has ended.
    ReplayEnded {
        /// Which replay.
        id: ReplayId,
        /// Why it ended early; `None` when the publisher has sent all it has.
        error: Option<String>,
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

    /// Connections whose missed batches can be asked for. Default none.
    fn replayable(&self) -> Vec<u16> {
        Vec::new()
    }

    /// Asks for missed batches. They come as [`Reply`](SourceEvent::Reply), in rising order, then
    /// [`ReplayEnded`](SourceEvent::ReplayEnded). `false` when that cannot even be tried.
    fn replay(&mut self, request: Request) -> bool {
        let _ = request;
        false
    }

    /// Nobody waits for a replay any more. Replies that are still to come are ignored.
    fn end_replay(&mut self, id: ReplayId) {
        let _ = id;
    }
}

/// What a waiting message is taken to cost beside its payload.
const MESSAGE_OVERHEAD: usize = 64;

fn cost(message: &EngineMessage) -> usize {
    message.payload.len() + MESSAGE_OVERHEAD
}
