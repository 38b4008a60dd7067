//! The thread that asks an engine for what was missed.
//!
//! ```text
//! DEALER ──[empty, start]──> ROUTER       which sees [identity, empty, start]
//!        <──[empty, topic, number, payload]──  …  <──[empty, empty, ff×8, empty]──   today
//!        <──[empty, number, payload]────────── …  <──[empty, ff×8, empty]─────────   before
//!                                              …  <──[empty, empty]───────────────   at first
//! ```
//!
//! A replay has a socket of its own: replies to a request that was given up find nobody.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use thiserror::Error;
use tokio::sync::mpsc;

use super::{EngineMessage, MAX_MESSAGE_BYTES, SourceEvent, cost};
use crate::subscriber::endpoint::wants_ipv6;
use crate::subscriber::sequence::Request;

/// Most parts of one reply.
pub const MAX_REPLY_PARTS: usize = 8;
/// Bytes of replies that may wait for the receive task; the thread waits with the next one.
const MAX_WAITING: usize = 4 << 20;
/// Replies that libzmq queues.
const HWM: i32 = 64;
/// How long the thread waits for news before it looks whether it should end.
const POLL: Duration = Duration::from_millis(50);
/// Whoever asked has given up long before.
const LIMIT: Duration = Duration::from_secs(60);

/// A reply of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reply<'a> {
    /// A batch and its number.
    Batch(u64, &'a [u8]),
    /// There is no more.
    End,
}

/// A reply that no engine sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the replay endpoint sent what is no reply")]
pub struct BadReply;

impl<'a> Reply<'a> {
    /// Reads the parts as they arrive at the DEALER. Further parts are tolerated.
    ///
    /// # Errors
    ///
    /// [`BadReply`].
    pub fn parse<T: Deref<Target = [u8]>>(parts: &'a [T]) -> Result<Self, BadReply> {
        let part = |i: usize| parts.get(i).map(|part| &**part).ok_or(BadReply);
        if !part(0)?.is_empty() || parts.len() > MAX_REPLY_PARTS {
            return Err(BadReply);
        }
        let (number, payload) = match parts.len() {
            2 if part(1)?.is_empty() => return Ok(Self::End),
            3 => (part(1)?, part(2)?),
            _ => (part(2)?, part(3)?),
        };
        match <[u8; 8]>::try_from(number).map(u64::from_be_bytes) {
            Ok(u64::MAX) => Ok(Self::End),
            Ok(number) => Ok(Self::Batch(number, payload)),
            Err(_) => Err(BadReply),
        }
    }
}

/// One replay.
pub(super) struct Replayer {
    pub(super) request: Request,
    pub(super) endpoint: String,
    pub(super) sender: mpsc::UnboundedSender<SourceEvent>,
    /// Bytes of all replies that wait. Only a bound, so relaxed.
    pub(super) waiting: Arc<AtomicUsize>,
    /// Nobody waits for it any more.
    pub(super) ended: Arc<AtomicBool>,
}

impl Replayer {
    pub(super) fn run(self, context: &zmq::Context) {
        let error = self.replay(context).err().map(|error| error.message().to_owned());
        let _ = self.sender.send(SourceEvent::ReplayEnded { id: self.request.id, error });
    }

    fn replay(&self, context: &zmq::Context) -> zmq::Result<()> {
        let socket = context.socket(zmq::DEALER)?;
        socket.set_linger(0)?;
        socket.set_rcvhwm(HWM)?;
        socket.set_maxmsgsize(MAX_MESSAGE_BYTES)?;
        socket.set_ipv6(wants_ipv6(&self.endpoint))?;
        socket.connect(&self.endpoint)?;
        socket.send_multipart([&b""[..], &self.request.start.to_be_bytes()], zmq::DONTWAIT)?;
        let begun = Instant::now();
        let timeout = i64::try_from(POLL.as_millis()).unwrap_or(50);
        let mut above = None;
        while !self.ended.load(Ordering::Relaxed) && begun.elapsed() < LIMIT {
            if self.waiting.load(Ordering::Relaxed) >= MAX_WAITING {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            match socket.poll(zmq::POLLIN, timeout) {
                Ok(0) | Err(zmq::Error::EINTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(error),
            }
            let parts = receive(&socket)?;
            match Reply::parse(&parts) {
                Ok(Reply::End) => return Ok(()),
                // In rising order, each once: whatever else comes is no buffer of batches.
                Ok(Reply::Batch(sequence, payload)) if above.is_none_or(|above| sequence > above) => {
                    above = Some(sequence);
                    if sequence >= self.request.until {
                        return Ok(());
                    }
                    self.hand_over(sequence, payload);
                }
                Ok(Reply::Batch(..)) | Err(BadReply) => return Err(zmq::Error::EPROTO),
            }
        }
        Err(zmq::Error::EAGAIN)
    }

    fn hand_over(&self, sequence: u64, payload: &[u8]) {
        let message = EngineMessage {
            connection: self.request.connection,
            sequence: Some(sequence),
            payload: payload.to_vec(),
            received: SystemTime::now(),
        };
        self.waiting.fetch_add(cost(&message), Ordering::Relaxed);
        let _ = self.sender.send(SourceEvent::Reply { id: self.request.id, message });
    }
}

/// All parts of a message, unless they are too many.
fn receive(socket: &zmq::Socket) -> zmq::Result<Vec<zmq::Message>> {
    let mut parts = Vec::with_capacity(4);
    loop {
        let part = socket.recv_msg(zmq::DONTWAIT)?;
        let more = part.get_more();
        parts.push(part);
        if !more {
            return Ok(parts);
        }
        if parts.len() >= MAX_REPLY_PARTS {
            return Err(zmq::Error::EPROTO);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIVE: &[u8] = &[0, 0, 0, 0, 0, 0, 0, 5];
    const END: &[u8] = &[0xff; 8];

    #[test]
    fn all_layouts_are_read() {
        for (parts, reply) in [
            (&[&b""[..], b"topic", FIVE, b"x"][..], Ok(Reply::Batch(5, b"x"))),
            (&[b"", b"", FIVE, b"x"], Ok(Reply::Batch(5, b"x"))),
            (&[b"", b"topic", FIVE, b"x", b"more"], Ok(Reply::Batch(5, b"x"))),
            (&[b"", FIVE, b"x"], Ok(Reply::Batch(5, b"x"))),
            (&[b"", FIVE, b""], Ok(Reply::Batch(5, b""))),
            (&[b"", b"", END, b""], Ok(Reply::End)),
            (&[b"", END, b""], Ok(Reply::End)),
            (&[b"", b""], Ok(Reply::End)),
            (&[], Err(BadReply)),
            (&[b""], Err(BadReply)),
            (&[b"", b"x"], Err(BadReply)),
            (&[b"x", FIVE, b"x"], Err(BadReply)),
            (&[b"", &FIVE[1..], b"x"], Err(BadReply)),
            (&[b"", b"topic", &END[1..], b""], Err(BadReply)),
            (&[b"", b"", END, b"", b"", b"", b"", b"", b""], Err(BadReply)),
        ] {
            assert_eq!(Reply::parse(parts), reply, "{parts:?}");
        }
    }
}
