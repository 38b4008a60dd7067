//! A budget for large answers that their callers have not taken.
//!
//! A peer that asks and does not read holds its answers here. They are bounded in number by the calls under way, but one
//! answer about tens of thousands of replicas has megabytes. So large answers are charged to one budget of the whole service
//! until they have been taken or given up; small ones, which nearly all are, pass for free. When the budget is spent a lookup is
//! answered `NO_HINT`, and what may fail is refused with `RESOURCE_EXHAUSTED`.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use hyper::body::{Body as HttpBody, Frame, SizeHint};
use tonic::body::Body;
use tonic::codegen::http::Response;

use crate::metrics::Metrics;

/// Answers of up to so many bytes are not charged, and as much of each counts as taken while it waits for the peer's socket:
/// the library's own 400 kB would let all but the largest slip through.
pub(crate) const UNCHARGED: usize = 4096;

/// The budget; one for each service.
#[derive(Debug)]
pub(super) struct Untaken {
    limit: usize,
    /// A bound, not a lock: relaxed.
    used: AtomicUsize,
    metrics: Arc<Metrics>,
}

/// What is charged for one answer, until the last clone is dropped; by default nothing. Travels with its response, see
/// [`attach`].
#[derive(Debug, Clone, Default)]
pub(super) struct Charge {
    charged: Option<Arc<Charged>>,
}

#[derive(Debug)]
struct Charged {
    budget: Arc<Untaken>,
    bytes: usize,
}

/// There is no room for the answer. Counted.
#[derive(Debug)]
pub(super) struct Spent;

/// An answer that holds something for as long as it has not been taken.
#[derive(Debug)]
pub(crate) struct Held<T> {
    inner: Body,
    _held: T,
}

impl Untaken {
    pub(super) fn new(limit: usize, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self { limit, used: AtomicUsize::new(0), metrics })
    }

    /// Charges an answer of about so many bytes.
    pub(super) fn charge(self: &Arc<Self>, bytes: usize) -> Result<Charge, Spent> {
        if bytes <= UNCHARGED {
            return Ok(Charge::default());
        }
        let charged = Charged { budget: self.clone(), bytes }; // refunds itself, also when it is too much
        if self.used.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) > self.limit {
            self.metrics.answer_refused();
            return Err(Spent);
        }
        Ok(Charge { charged: Some(Arc::new(charged)) })
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Charge {
    /// Hands the charge to the response that it was made for.
    pub(super) fn travel_with<T>(self, response: &mut tonic::Response<T>) {
        if self.charged.is_some() {
            response.extensions_mut().insert(self);
        }
    }
}

/// Keeps the charge that a response brings for as long as its body lives.
pub(super) fn attach(mut response: Response<Body>) -> Response<Body> {
    match response.extensions_mut().remove::<Charge>() {
        Some(charge) => response.map(|body| Body::new(Held::new(body, charge))),
        None => response,
    }
}

impl<T> Held<T> {
    pub(crate) fn new(inner: Body, held: T) -> Self {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_charge_lasts_as_long_as_its_response() {
        let budget = Untaken::new(10_000, Arc::default());
        let mut typed = tonic::Response::new(());
        budget.charge(6_000).expect("there is room").travel_with(&mut typed);
        budget.charge(6_000).expect_err("no room for a second one");
        budget.charge(UNCHARGED).expect("small ones are free");
        let mut response = Response::new(Body::new("not empty".to_owned()));
        *response.extensions_mut() = std::mem::take(typed.extensions_mut());
        let response = attach(response);
        budget.charge(6_000).expect_err("its body still lives");
        drop(response);
        assert_eq!(budget.used.load(Ordering::Relaxed), 0, "refusals hold nothing");
        budget.charge(6_000).expect("there is room again");
    }
}
