//! What libzmq says about the connections of a socket.

use std::sync::atomic::{AtomicUsize, Ordering};

// The events that we ask libzmq for, as it encodes them.
pub(super) const HANDSHAKE_SUCCEEDED: u16 = zmq::SocketEvent::HANDSHAKE_SUCCEEDED as u16;
pub(super) const DISCONNECTED: u16 = zmq::SocketEvent::DISCONNECTED as u16;
pub(super) const CONNECT_DELAYED: u16 = zmq::SocketEvent::CONNECT_DELAYED as u16;
pub(super) const CONNECT_RETRIED: u16 = zmq::SocketEvent::CONNECT_RETRIED as u16;
pub(super) const FAILED_NO_DETAIL: u16 = zmq::SocketEvent::HANDSHAKE_FAILED_NO_DETAIL as u16;
pub(super) const FAILED_PROTOCOL: u16 = zmq::SocketEvent::HANDSHAKE_FAILED_PROTOCOL as u16;
pub(super) const FAILED_AUTH: u16 = zmq::SocketEvent::HANDSHAKE_FAILED_AUTH as u16;
const WATCHED: u16 = HANDSHAKE_SUCCEEDED
    | DISCONNECTED
    | CONNECT_DELAYED
    | CONNECT_RETRIED
    | FAILED_NO_DETAIL
    | FAILED_PROTOCOL
    | FAILED_AUTH;

/// What libzmq says about the connections of a socket.
pub(super) struct Monitor {
    pub(super) socket: zmq::Socket,
}

impl Monitor {
    pub(super) fn of(context: &zmq::Context, socket: &zmq::Socket) -> zmq::Result<Self> {
        // Sockets share a context, and a name is free again only once its socket is closed.
        static NAMES: AtomicUsize = AtomicUsize::new(0);
        let name = format!("inproc://kvevents-monitor-{}", NAMES.fetch_add(1, Ordering::Relaxed));
        socket.monitor(&name, i32::from(WATCHED))?;
        let pair = context.socket(zmq::PAIR)?;
        pair.set_linger(0)?;
        pair.connect(&name)?;
        Ok(Self { socket: pair })
    }

    pub(super) fn next(&self) -> zmq::Result<Option<u16>> {
        let parts = match self.socket.recv_multipart(zmq::DONTWAIT) {
            Ok(parts) => parts,
            Err(zmq::Error::EAGAIN | zmq::Error::EINTR) => return Ok(None),
            Err(error) => return Err(error),
        };
        // Two bytes of event in native order, then a value.
        Ok(parts.first().and_then(|part| part.first_chunk::<2>()).map(|raw| u16::from_ne_bytes(*raw)))
    }
}
