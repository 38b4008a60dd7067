//! What is left of a request's body when its answer is there.
//!
//! A sender that is refused before it has sent everything would find its connection reset, and often no answer: a controller
//! with an expired token would not learn that it has to fetch a new one. So what a handler leaves is read beside the answer and
//! thrown away, and the connection serves its next request.
//!
//! 1. Bounded in bytes and in time, what the handler has read included; beyond that the connection breaks.
//! 2. The answer does not wait for it, and the connection counts as idle meanwhile.
//! 3. Who asks first whether to send (`Expect`) is answered instead, and sends nothing.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::http::{Request, header};
use http_body_util::BodyExt as _;
use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::http::body::{DRAIN_BYTES, TIMEOUT};

/// A body that is read to its end, by its handler or after it.
#[derive(Debug)]
pub(super) struct Lingering {
    /// `None` once there is nothing more to read.
    body: Option<Incoming>,
    /// Bytes that may still come.
    left: usize,
    until: Instant,
    /// Whether the sender waits to be asked for it.
    reluctant: bool,
    stop: CancellationToken,
}

impl Lingering {
    /// Wraps the body of `request`. What is left of it is given up when `stop` is cancelled.
    pub(super) fn wrap(request: Request<Incoming>, stop: &CancellationToken) -> Request<Self> {
        let reluctant = request.headers().contains_key(header::EXPECT);
        request.map(|body| Self {
            body: (!body.is_end_stream()).then_some(body),
            left: DRAIN_BYTES,
            until: Instant::now() + TIMEOUT,
            reluctant,
            stop: stop.clone(),
        })
    }
}

impl Body for Lingering {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.reluctant = false;
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(body).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => self.left = self.left.saturating_sub(frame.data_ref().map_or(0, Bytes::len)),
            Some(Err(_)) | None => self.body = None,
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for Lingering {
    fn drop(&mut self) {
        let Some(body) = self.body.take().filter(|body| !body.is_end_stream() && !self.reluctant) else { return };
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(discard(body, self.left, self.until, self.stop.clone()));
        }
    }
}

/// Reads what is left. The connection notices by itself if that was not all.
async fn discard(mut body: Incoming, mut left: usize, until: Instant, stop: CancellationToken) {
    let read = async {
        while left > 0 {
            let Some(Ok(frame)) = body.frame().await else { return };
            left = left.saturating_sub(frame.data_ref().map_or(0, Bytes::len));
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        _ = timeout_at(until, read) => {}
    }
}
