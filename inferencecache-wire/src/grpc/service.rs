//! The eight RPCs over any [`IndexApi`], to be mounted in any tonic server.
//!
//! ```
//! # fn mounted() -> axum::Router {
//! use std::sync::Arc;
//!
//! use inferencecache_core::{Index, IndexOptions, PolicyStore, Router};
//! use inferencecache_wire::grpc::service::InferenceCacheService;
//!
//! let index = Arc::new(Index::new(IndexOptions::default()));
//! let service = InferenceCacheService::new(Router::new(index, Arc::new(PolicyStore::default())));
//! tonic::service::Routes::new(service.mount()).into_axum_router()
//! # }
//! ```
//!
//! Once a request is decoded, `LookupRoute`, `RenderTemplate` and `LookupPDRoute` answer with status OK, whatever happens.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use inferencecache_core::{IndexApi, RESERVED_TENANT, Router};
use prost::Message as _;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

use super::blocksize::BlockSizes;
use super::budget::Budget;
pub use super::budget::DEFAULT_BUDGET;
use super::deadline;
pub use super::dispatch::Dispatch;
use super::faults::{Decoded, Faults, mended};
use super::lookup::Lookups;
use super::report::{Carried, Reports};
use super::untaken::{Spent, Untaken};
use crate::hot::{LookupReply, LookupRequest, Pooled, Report};
use crate::metrics::Metrics;
use crate::{convert, pb};

/// Largest request message, in bytes, unless configured otherwise: 4 MiB.
pub const DEFAULT_MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;

/// For the request of a call to arrive, unless configured otherwise: 30 s.
pub const DEFAULT_REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The service, not yet mounted. Generic over the index, which may be a trait object.
#[derive(Debug, Clone)]
pub struct InferenceCacheService<I: ?Sized> {
    router: Router<I>,
    metrics: Arc<Metrics>,
    max_message_bytes: usize,
    max_unfinished_bytes: usize,
    request_timeout: Duration,
    isolated: bool,
    stop: CancellationToken,
}

/// What [`InferenceCacheService::mount`] gives: a service for tonic, with the agreed status codes.
pub type Mounted<I> = Faults<Dispatch<I>>;

/// The RPCs themselves.
pub(super) struct Rpcs<I: ?Sized> {
    lookups: Lookups<I>,
    reports: Reports<I>,
    untaken: Arc<Untaken>,
    stop: CancellationToken,
}

impl<I: IndexApi + ?Sized> InferenceCacheService<I> {
    /// A service that answers from the router's index under its policies, and counts into a registry of its own.
    #[must_use]
    pub fn new(router: Router<I>) -> Self {
        Self {
            router,
            metrics: Arc::default(),
            max_message_bytes: DEFAULT_MAX_MESSAGE_BYTES,
            max_unfinished_bytes: DEFAULT_BUDGET,
            request_timeout: DEFAULT_REQUEST_TIMEOUT,
            isolated: false,
            stop: CancellationToken::new(),
        }
    }

    /// Counts into `metrics`.
    #[must_use]
    pub fn metrics(mut self, metrics: Arc<Metrics>) -> Self {
        self.metrics = metrics;
        self
    }

    /// Refuses request messages above `bytes` with `RESOURCE_EXHAUSTED`. Default [`DEFAULT_MAX_MESSAGE_BYTES`].
    #[must_use]
    pub fn max_message_bytes(mut self, bytes: usize) -> Self {
        self.max_message_bytes = bytes;
        self
    }

    /// Refuses calls with `RESOURCE_EXHAUSTED` while messages that are not complete hold more than `bytes` together. As many again
    /// may be held by large answers that have not been taken; beyond that lookups get `NO_HINT`, and what may fail is refused.
    /// Default [`DEFAULT_BUDGET`].
    #[must_use]
    pub fn max_unfinished_bytes(mut self, bytes: usize) -> Self {
        self.max_unfinished_bytes = bytes;
        self
    }

    /// Ends a call with `DEADLINE_EXCEEDED` whose request is not complete after `timeout`, whatever its caller's own limit.
    /// Streams of requests have no such limit. Default [`DEFAULT_REQUEST_TIMEOUT`].
    #[must_use]
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.request_timeout = timeout;
        self
    }

    /// Asks the index on the blocking pool, at most 256 lookups at a time, so that a deadline holds even if the index
    /// blocks. Default off: the embedded index never does, and handing over costs more than its answer.
    #[must_use]
    pub fn isolate_lookups(mut self, isolated: bool) -> Self {
        self.isolated = isolated;
        self
    }

    /// Ends open streams with `UNAVAILABLE` once `stop` is cancelled.
    #[must_use]
    pub fn stop_with(mut self, stop: CancellationToken) -> Self {
        self.stop = stop;
        self
    }

    /// Makes the tonic service.
    #[must_use]
    pub fn mount(self) -> Mounted<I> {
        let Self { router, metrics, max_message_bytes, max_unfinished_bytes, request_timeout, isolated, stop } = self;
        let budget = Budget::new(max_unfinished_bytes, metrics.clone());
        let reports = Reports {
            index: router.index.clone(),
            clock: router.clock.clone(),
            metrics: metrics.clone(),
            sizes: BlockSizes::new(router.block_size),
        };
        let untaken = Untaken::new(max_unfinished_bytes, metrics.clone());
        let rpcs = Rpcs { lookups: Lookups::new(router, metrics, untaken.clone(), isolated), reports, untaken, stop };
        Faults::new(Dispatch::new(rpcs, max_message_bytes), budget, request_timeout)
    }
}

impl<I: ?Sized> fmt::Debug for Rpcs<I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rpcs").finish_non_exhaustive()
    }
}

impl<I: IndexApi + ?Sized> Rpcs<I> {
    pub(super) async fn lookup_route(
        &self,
        request: Request<Pooled<LookupRequest>>,
    ) -> Result<Response<LookupReply>, Status> {
        if let Some(decoded) = request.extensions().get::<Decoded>() {
            decoded.set();
        }
        let limit = deadline::of(request.metadata().as_ref());
        let (reply, charge) = self.lookups.answer(request.into_inner(), limit).await;
        let mut response = Response::new(reply);
        charge.travel_with(&mut response);
        Ok(response)
    }

    pub(super) async fn report_cache_state(
        &self,
        request: Request<Streaming<Pooled<Report>>>,
    ) -> Result<Response<pb::Ack>, Status> {
        let mut stream = request.into_inner();
        let mut carried = Carried::default();
        let stopped = self.stop.cancelled();
        tokio::pin!(stopped);
        loop {
            let message = tokio::select! {
                biased;
                () = &mut stopped => return Err(Status::unavailable("the server is shutting down")),
                message = stream.message() => message.map_err(mended)?,
            };
            match message {
                Some(report) => self.reports.ingest(&report, &mut carried),
                None => return Ok(Response::new(ack())),
            }
            // A producer that never pauses must not starve its neighbours.
            tokio::task::coop::consume_budget().await;
        }
    }

    pub(super) fn publish_event(&self, request: &Request<pb::CacheEvent>) -> Result<Response<pb::Ack>, Status> {
        self.reports.publish(request.get_ref());
        Ok(Response::new(ack()))
    }

    pub(super) fn get_cache_state(
        &self,
        request: &Request<pb::GetCacheStateRequest>,
    ) -> Result<Response<pb::GetCacheStateResponse>, Status> {
        let pb::GetCacheStateRequest { tenant_id, model_id } = request.get_ref();
        if tenant_id == RESERVED_TENANT {
            return Ok(Response::new(convert::cache_state(Default::default())));
        }
        match catch_unwind(AssertUnwindSafe(|| self.reports.index.cache_state(tenant_id, model_id))) {
            Ok(state) => self.charged(convert::cache_state(state)),
            Err(_) => {
                self.reports.metrics.handler_panic("GetCacheState");
                Err(Status::internal("the index failed"))
            }
        }
    }

    /// A response about any number of replicas, if there is room for it.
    fn charged(&self, state: pb::GetCacheStateResponse) -> Result<Response<pb::GetCacheStateResponse>, Status> {
        let bytes = state.encoded_len() + state.replicas.len() * size_of::<pb::ReplicaStats>();
        let charge = self.untaken.charge(bytes);
        let charge =
            charge.map_err(|Spent| Status::resource_exhausted("answers that nobody takes hold too many bytes"))?;
        let mut response = Response::new(state);
        charge.travel_with(&mut response);
        Ok(response)
    }

    /// No template source is configured: the caller hashes the prompt itself.
    pub(super) fn render(_: &Request<pb::RenderTemplateRequest>) -> Response<pb::RenderTemplateResponse> {
        Response::new(pb::RenderTemplateResponse { reason_code: "OK".to_owned(), ..Default::default() })
    }

    /// No topology is known.
    pub(super) fn pair(_: &Request<pb::LookupPdRouteRequest>) -> Response<pb::LookupPdRouteResponse> {
        Response::new(pb::LookupPdRouteResponse { reason_code: "NO_HINT".to_owned(), ..Default::default() })
    }

    /// A stream that ends at once.
    pub(super) fn events(_: &Request<pb::StreamEventsRequest>) -> Response<Nothing<pb::CacheEvent>> {
        Response::new(tokio_stream::empty())
    }

    /// A stream that ends at once.
    pub(super) fn metrics(_: &Request<pb::StreamMetricsRequest>) -> Response<Nothing<pb::Metric>> {
        Response::new(tokio_stream::empty())
    }
}

type Nothing<T> = tokio_stream::Empty<Result<T, Status>>;

fn ack() -> pb::Ack {
    pb::Ack { accepted: true, reason_code: String::new() }
}
