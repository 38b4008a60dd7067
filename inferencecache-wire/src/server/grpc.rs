//! The gRPC listener: our own service by the shortest way, health and reflection beside it.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::server::conn::http2;
use hyper::service::Service as HyperService;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use inferencecache_core::IndexApi;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::body::Body;
use tonic::codegen::http::{HeaderMap, HeaderValue, Request, Response};
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;
use tower::Service as _;

use super::ServerOptions;
use super::calls::Calls;
use super::handshake::Introduced;
use super::http::until_asked;
use super::places::Activity;
use crate::grpc::service::Mounted;
use crate::grpc::{Held, UNCHARGED, faults};
use crate::metrics::{Closed, Metrics};
use crate::pb;

const UNAVAILABLE: &str = "14";

/// Longest head of a call, in bytes as HTTP/2 counts them; a longer one is answered 431.
const MAX_HEADERS: u32 = 16 * 1024;

/// Everything that is served on the port.
pub(super) struct GrpcPort<I: IndexApi + ?Sized> {
    main: Mounted<I>,
    beside: Routes,
    calls: Arc<Calls>,
    metrics: Arc<Metrics>,
    request_timeout: Duration,
    pub(super) stop: CancellationToken,
}

/// The port, as one connection sees it.
struct Connected<I: IndexApi + ?Sized> {
    port: GrpcPort<I>,
    activity: Arc<Activity>,
}

/// The health service's answers: for the server as a whole and for our service, always the same.
pub(super) struct Health {
    reporter: HealthReporter,
    names: [&'static str; 2],
}

impl Health {
    pub(super) async fn set(&self, ready: bool) {
        let status = if ready { ServingStatus::Serving } else { ServingStatus::NotServing };
        for name in self.names {
            self.reporter.set_service_status(name, status).await;
        }
    }

    /// Follows the switch for as long as it is polled.
    pub(super) async fn follow(&self, mut readiness: watch::Receiver<bool>) {
        loop {
            let ready = *readiness.borrow_and_update();
            self.set(ready).await;
            if readiness.changed().await.is_err() {
                return;
            }
        }
    }
}

impl<I: IndexApi + ?Sized> Clone for GrpcPort<I> {
    fn clone(&self) -> Self {
        Self {
            main: self.main.clone(),
            beside: self.beside.clone(),
            calls: self.calls.clone(),
            metrics: self.metrics.clone(),
            request_timeout: self.request_timeout,
            stop: self.stop.clone(),
        }
    }
}

impl<I: IndexApi + ?Sized> GrpcPort<I> {
    /// The port, and the handle that drives its health service.
    pub(super) fn new(
        main: Mounted<I>,
        metrics: &Arc<Metrics>,
        options: &ServerOptions,
        stop: CancellationToken,
    ) -> (Self, Health) {
        let (reporter, health) = tonic_health::server::health_reporter();
        let mut routes = Routes::builder();
        routes.add_service(health);
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(pb::FILE_DESCRIPTOR_SET)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        // The two descriptor sets are compiled in; a test asks for what they describe.
        if let (Ok(v1), Ok(v1alpha)) = (reflection().build_v1(), reflection().build_v1alpha()) {
            routes.add_service(v1);
            routes.add_service(v1alpha);
        }
        let names = ["", <Mounted<I> as NamedService>::NAME];
        let port = Self {
            main,
            beside: routes.routes().prepare(),
            calls: Calls::new(options.max_calls, metrics.clone()),
            metrics: metrics.clone(),
            request_timeout: options.request_timeout,
            stop,
        };
        (port, Health { reporter, names })
    }

    /// Serves one connection until it ends or is asked to.
    pub(super) fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        stream: S,
        activity: &Arc<Activity>,
        options: &ServerOptions,
    ) -> impl Future<Output = ()> + Send + use<I, S> {
        let mut http = http2::Builder::new(TokioExecutor::new());
        http.timer(TokioTimer::new())
            .keep_alive_interval(options.keepalive_interval)
            .keep_alive_timeout(options.keepalive_timeout)
            .max_header_list_size(MAX_HEADERS)
            .max_send_buf_size(UNCHARGED)
            .max_concurrent_streams(options.max_streams);
        let io = TokioIo::new(Introduced::within(options.header_timeout, stream));
        let connection = http.serve_connection(io, Connected { port: self.clone(), activity: activity.clone() });
        let (stop, metrics) = (self.stop.clone(), self.metrics.clone());
        let (activity, patience) = (activity.clone(), options.reader_timeout);
        async move {
            let connection = std::pin::pin!(connection);
            tokio::select! {
                biased;
                () = until_asked(connection, &stop, &activity.leave) => {}
                () = unread(&activity, patience) => metrics.connection_closed("grpc", Closed::SlowReader),
            }
        }
    }
}

/// Resolves when a peer has let its answers lie for `patience`, and at most twice that.
async fn unread(activity: &Activity, patience: Duration) {
    let mut before = None;
    loop {
        tokio::time::sleep(patience).await;
        let now = activity.awaits_reader();
        if now.is_some() && now == before {
            return;
        }
        before = now;
    }
}

impl<I: IndexApi + ?Sized> HyperService<Request<Incoming>> for Connected<I> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let GrpcPort { main, beside, calls, request_timeout, stop, .. } = &self.port;
        let Some(call) = calls.begin(&self.activity) else {
            return Box::pin(std::future::ready(Ok(Calls::refusal())));
        };
        let request = request.map(Body::new);
        let rest = request.uri().path().strip_prefix('/').and_then(|path| path.strip_prefix(Mounted::<I>::NAME));
        if rest.is_some_and(|rest| rest.starts_with('/')) {
            let answer = main.clone().call(request);
            return Box::pin(async move { Ok(call.answered(answer.await?)) });
        }
        if let Some(refusal) = faults::malformed_timeout(request.headers()) {
            return Box::pin(std::future::ready(Ok(refusal.into_http())));
        }
        // Both directions end: who serves a stream may wait for its requests in a task of its own.
        let request = request.map(|body| Body::new(Ended::new(body, stop, false)));
        let answer = tokio::time::timeout(*request_timeout, beside.clone().call(request));
        let stop = stop.clone();
        Box::pin(async move {
            let Ok(answer) = answer.await else { return Ok(faults::late().into_http()) };
            let mut response = answer?;
            faults::mend(response.headers_mut());
            // A stream of answers may have nothing to say for hours; only a peer that does not take a whole one is slow.
            Ok(response.map(|body| Body::new(Held::new(Body::new(Ended::new(body, &stop, true)), call))))
        })
    }
}

/// A stream of messages that ends when the server does: responses with `UNAVAILABLE`, and otherwise with the agreed codes.
struct Ended<B> {
    /// `None` once it has ended.
    inner: Option<B>,
    stop: Pin<Box<WaitForCancellationFutureOwned>>,
    is_response: bool,
}

impl<B> Ended<B> {
    fn new(inner: B, stop: &CancellationToken, is_response: bool) -> Self {
        Self { inner: Some(inner), stop: Box::pin(stop.clone().cancelled_owned()), is_response }
    }
}

impl<B: HttpBody + Unpin> HttpBody for Ended<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.get_mut();
        let Some(inner) = &mut this.inner else {
            return Poll::Ready(None);
        };
        if let Poll::Ready(frame) = Pin::new(inner).poll_frame(cx) {
            return Poll::Ready(frame.map(|frame| {
                frame.map(|mut frame| {
                    if let Some(trailers) = frame.trailers_mut() {
                        faults::mend(trailers);
                    }
                    frame
                })
            }));
        }
        if this.stop.as_mut().poll(cx).is_pending() {
            return Poll::Pending;
        }
        this.inner = None;
        if !this.is_response {
            return Poll::Ready(None);
        }
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", HeaderValue::from_static(UNAVAILABLE));
        trailers.insert("grpc-message", HeaderValue::from_static("the server is shutting down"));
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(HttpBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map(HttpBody::size_hint).unwrap_or_default()
    }
}
