//! The calls under way on all gRPC connections, which are bounded together.
//!
//! A connection bounds its own streams; the product with the number of connections is far more than a process has. A call
//! counts from its first header until its answer has been taken, so answers that nobody reads are bounded as well.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hyper::body::Body as _;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::Response;

use super::places::{Activity, Work};
use crate::grpc::Held;
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
