//! The calls under way on all gRPC connections, which are bounded together.
//!
//! A connection bounds its own streams; the product with the number of connections is far more than a process has. A call
//! counts from its first header until its answer has been taken, so answers that nobody reads are bounded as well.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::Response;

use super::places::{Activity, Work};
use crate::metrics::Metrics;

/// Counts calls.
#[derive(Debug)]
pub(super) struct Calls {
    limit: usize,
    /// A bound, not a lock: relaxed.
    open: AtomicUsize,
    metrics: Arc<Metrics>,
}

/// A call under way.
#[derive(Debug)]
pub(super) struct Call {
    calls: Arc<Calls>,
    work: Work,
}

/// An answer that holds something for as long as it has not been taken.
#[derive(Debug)]
pub(super) struct Held<T> {
    inner: Body,
    _held: T,
}

impl Calls {
    pub(super) fn new(limit: usize, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self { limit, open: AtomicUsize::new(0), metrics })
    }

    /// Begins a call of a connection; `None` beyond the limit, and counted.
    pub(super) fn begin(self: &Arc<Self>, activity: &Arc<Activity>) -> Option<Call> {
        if self.open.fetch_add(1, Ordering::Relaxed) >= self.limit {
            self.open.fetch_sub(1, Ordering::Relaxed);
            self.metrics.call_refused();
            return None;
        }
        Some(Call { calls: self.clone(), work: activity.begin() })
    }

    /// What is said to a call beyond the limit.
    pub(super) fn refusal() -> Response<Body> {
        Status::resource_exhausted("too many calls are under way").into_http()
    }
}

impl Call {
    /// Attaches the call to its answer.
    pub(super) fn answered(mut self, response: Response<Body>) -> Response<Body> {
        if response.body().is_end_stream() {
            return response; // nothing but headers
        }
        self.work.answered();
        response.map(|body| Body::new(Held::new(body, self)))
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.calls.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<T> Held<T> {
    pub(super) fn new(inner: Body, held: T) -> Self {
        Self { inner, _held: held }
    }
}

impl<T: Unpin> HttpBody for Held<T> {
    type Data = <Body as HttpBody>::Data;
    type Error = <Body as HttpBody>::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
