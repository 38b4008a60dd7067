//! A budget for the bytes of messages that have begun to arrive and are not complete.
//!
//! The receive limit bounds one message, the stream limit one connection; their product is far more than a process has.
//! So every byte of an unfinished message is charged to one budget of the whole service, and given back when its message
//! is complete or its call ends. A call that finds the budget spent is refused with `RESOURCE_EXHAUSTED`.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;

use crate::metrics::Metrics;

/// Bytes of unfinished messages over all calls, unless told otherwise: 256 MiB.
pub const DEFAULT_BUDGET: usize = 256 << 20;

/// Bytes before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// The budget; one for each service.
#[derive(Debug)]
pub(super) struct Budget {
    limit: usize,
    /// A bound, not a lock: relaxed.
    used: AtomicUsize,
    metrics: Arc<Metrics>,
}

impl Budget {
    pub(super) fn new(limit: usize, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicUsize::new(0), metrics })
    }

    fn charge(&self, bytes: usize) -> bool {
        let within = self.used.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) <= self.limit;
        if !within {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
            self.metrics.buffer_refused();
        }
        within
    }

    fn refund(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Where in its messages a body is.
#[derive(Debug, Default)]
struct Progress {
    prefix: [u8; PREFIX],
    /// Bytes of the prefix seen.
    seen: usize,
    /// Bytes of the message still to come.
    left: usize,
}

impl Progress {
    /// Takes a chunk; returns how many bytes at its end belong to an unfinished message, and whether one was finished.
    fn take(&mut self, mut chunk: &[u8]) -> (usize, bool) {
        let (mut open, mut finished) = (0, false);
        while !chunk.is_empty() {
            if self.seen < PREFIX {
                let part = chunk.len().min(PREFIX - self.seen);
                self.prefix[self.seen..self.seen + part].copy_from_slice(&chunk[..part]);
                self.seen += part;
                chunk = &chunk[part..];
                if self.seen == PREFIX {
                    let [_, a, b, c, d] = self.prefix;
                    self.left = u32::from_be_bytes([a, b, c, d]) as usize;
                }
            } else {
                let part = chunk.len().min(self.left);
                self.left -= part;
                open += part;
                chunk = &chunk[part..];
            }
            if self.seen == PREFIX && self.left == 0 {
                (self.seen, open, finished) = (0, 0, true);
            }
        }
        (open, finished)
    }
}

/// A request body that charges what it passes on.
#[derive(Debug)]
pub(super) struct Metered {
    inner: Body,
    budget: Arc<Budget>,
    progress: Progress,
    charged: usize,
}

impl Metered {
    pub(super) fn wrap(inner: Body, budget: &Arc<Budget>) -> Body {
        Body::new(Self { inner, budget: budget.clone(), progress: Progress::default(), charged: 0 })
    }
}

impl HttpBody for Metered {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        let Some(frame) = ready!(Pin::new(&mut this.inner).poll_frame(cx)?) else { return Poll::Ready(None) };
        if let Some(data) = frame.data_ref() {
            let (open, finished) = this.progress.take(data);
            if finished {
                this.budget.refund(std::mem::take(&mut this.charged));
            }
            if !this.budget.charge(open) {
                let status = Status::resource_exhausted("incomplete messages hold too many bytes; send fewer at once");
                return Poll::Ready(Some(Err(status)));
            }
            this.charged += open;
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Drop for Metered {
    fn drop(&mut self) {
        self.budget.refund(self.charged);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(len: u32) -> Vec<u8> {
        [&[0][..], &len.to_be_bytes(), &vec![7; len as usize]].concat()
    }

    #[test]
    fn only_what_is_unfinished_counts() {
        let stream = [message(10), message(0), message(300), message(20)].concat();
        for size in [1, 2, 3, 7, 50, 1000] {
            let mut progress = Progress::default();
            let mut held = 0;
            for chunk in stream.chunks(size) {
                let (open, finished) = progress.take(chunk);
                held = if finished { open } else { held + open };
                assert!(held < 300, "chunks of {size}");
            }
            assert_eq!(held, 0, "chunks of {size}");
        }
        let mut progress = Progress::default();
        assert_eq!(progress.take(&message(100)[..60]), (55, false));
        assert_eq!(progress.take(&[7; 45]), (0, true));
    }
}
