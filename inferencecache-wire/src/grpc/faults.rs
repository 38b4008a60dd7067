//! Faults that arise before a request exists, with the status codes gRPC implementations agree on.
//!
//! The library answers an oversized message with `OUT_OF_RANGE`; others say `RESOURCE_EXHAUSTED`, and so do we. And a
//! caller whose time is up before its request has arrived is told so, instead of being waited for; one without a time limit
//! of its own gets one, except for streams of requests. A time limit that cannot be read is refused. Bytes of unfinished
//! messages are charged to one budget, [`DEFAULT_BUDGET`](super::service::DEFAULT_BUDGET) unless told otherwise.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Sleep;
use tonic::body::Body;
use tonic::codegen::http::{HeaderMap, HeaderValue, Request, Response};
use tonic::server::NamedService;
use tonic::{Code, Status};
use tower::Service;

use super::budget::{Budget, Metered};
use super::{deadline, untaken};

const STATUS: &str = "grpc-status";

/// How long beyond its deadline a request may still arrive: one that is complete gets a proper `TIMEOUT` from its handler.
const GRACE: Duration = Duration::from_millis(100);

/// End of the path of the one method whose requests are a stream: it may stay open for as long as its caller likes.
const STREAM: &str = "/ReportCacheState";

/// Wraps a gRPC service; see the module.
#[derive(Debug, Clone)]
pub struct Faults<S> {
    inner: S,
    budget: Arc<Budget>,
    request_timeout: Duration,
}

impl<S> Faults<S> {
    /// Wraps `inner`; unfinished messages are charged to `budget`, and each request must arrive within `request_timeout`.
    pub(super) fn new(inner: S, budget: Arc<Budget>, request_timeout: Duration) -> Self {
        Self { inner, budget, request_timeout }
    }
}

impl<S: NamedService> NamedService for Faults<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<Request<Body>> for Faults<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Unpin,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answered<S::Future>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if let Some(refusal) = malformed_timeout(request.headers()) {
            return Answered { state: State::Refused(Some(refusal)), limit: None };
        }
        let asked = deadline::of(request.headers()).map(|limit| limit + GRACE);
        let most = (!request.uri().path().ends_with(STREAM)).then_some(self.request_timeout);
        let limit = asked.into_iter().chain(most).min().map(|limit| {
            let decoded = Decoded::default();
            request.extensions_mut().insert(decoded.clone());
            Limit { decoded, ends: tokio::time::Instant::now() + limit, sleep: None }
        });
        let request = request.map(|body| Metered::wrap(body, &self.budget));
        Answered { state: State::Asked(self.inner.call(request)), limit }
    }
}

/// The refusal of a call whose time limit cannot be read, as other implementations spell it.
pub(crate) fn malformed_timeout(headers: &HeaderMap) -> Option<Status> {
    let value = headers.get(deadline::HEADER)?;
    deadline::parse(value.as_bytes()).is_none().then(|| Status::internal("malformed grpc-timeout"))
}

/// The answer to a call whose request does not arrive in time.
pub(crate) fn late() -> Status {
    Status::deadline_exceeded("the deadline passed before the request had arrived")
}

/// Set by a handler once it has its request: from then on it answers itself when time is up.
#[derive(Debug, Clone, Default)]
pub(super) struct Decoded(Arc<AtomicBool>);

impl Decoded {
    pub(super) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

struct Limit {
    decoded: Decoded,
    ends: tokio::time::Instant,
    /// Made when the service does not answer at once; most do.
    sleep: Option<Pin<Box<Sleep>>>,
}

/// The answer of the wrapped service, its codes mended.
#[must_use = "futures do nothing unless polled"]
pub struct Answered<F> {
    state: State<F>,
    limit: Option<Limit>,
}

enum State<F> {
    /// Not handed to the service. `None` once it has been said.
    Refused(Option<Status>),
    Asked(F),
}

impl<F> std::fmt::Debug for Answered<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Answered").finish_non_exhaustive()
    }
}

impl<F> Future for Answered<F>
where
    F: Future<Output = Result<Response<Body>, Infallible>> + Unpin,
{
    type Output = Result<Response<Body>, Infallible>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let inner = match &mut this.state {
            State::Refused(status) => {
                return status.take().map_or(Poll::Pending, |status| Poll::Ready(Ok(status.into_http())));
            }
            State::Asked(inner) => inner,
        };
        if let Poll::Ready(Ok(mut response)) = Pin::new(inner).poll(cx) {
            mend(response.headers_mut());
            return Poll::Ready(Ok(untaken::attach(response)));
        }
        let Some(limit) = this.limit.as_mut().filter(|limit| !limit.decoded.0.load(Ordering::Relaxed)) else {
            return Poll::Pending;
        };
        let ends = limit.ends;
        let sleep = limit.sleep.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(ends)));
        if sleep.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        Poll::Ready(Ok(late().into_http()))
    }
}

/// Replaces the library's code for an oversized message in headers or trailers.
pub(crate) fn mend(headers: &mut HeaderMap) {
    if let Some(status) = headers.get_mut(STATUS)
        && *status == HeaderValue::from_static("11")
    {
        *status = HeaderValue::from_static("8");
    }
}

/// The same for a status that a handler gets from its stream of requests.
pub(super) fn mended(status: Status) -> Status {
    if status.code() == Code::OutOfRange { Status::resource_exhausted(status.message()) } else { status }
}
