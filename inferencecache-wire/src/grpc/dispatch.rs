//! Which method a path names, and how its messages are read and written.
//!
//! The two busy methods have codecs of their own, see [`hot`](crate::hot); the others use prost.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use inferencecache_core::IndexApi;
use tonic::body::Body;
use tonic::codec::Codec;
use tonic::codegen::http;
use tonic::server::{ClientStreamingService, Grpc, NamedService, ServerStreamingService, UnaryService};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::Service;

use super::service::Rpcs;
use crate::hot::{LookupCodec, ReportCodec};
use crate::pb::inference_cache_server::SERVICE_NAME;

type Answer = Pin<Box<dyn Future<Output = Result<http::Response<Body>, Infallible>> + Send>>;

/// The RPCs as a service of HTTP requests.
pub struct Dispatch<I: ?Sized> {
    rpcs: Arc<Rpcs<I>>,
    max_message_bytes: usize,
}

impl<I: ?Sized> Dispatch<I> {
    pub(super) fn new(rpcs: Rpcs<I>, max_message_bytes: usize) -> Self {
        Self { rpcs: Arc::new(rpcs), max_message_bytes }
    }
}

impl<I: ?Sized> Clone for Dispatch<I> {
    fn clone(&self) -> Self {
        Self { rpcs: self.rpcs.clone(), max_message_bytes: self.max_message_bytes }
    }
}

impl<I: ?Sized> std::fmt::Debug for Dispatch<I> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dispatch").finish_non_exhaustive()
    }
}

impl<I: ?Sized> NamedService for Dispatch<I> {
    const NAME: &'static str = SERVICE_NAME;
}

impl<I: IndexApi + ?Sized> Service<http::Request<Body>> for Dispatch<I> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Answer {
        let (rpcs, max) = (self.rpcs.clone(), self.max_message_bytes);
        let path = request.uri().path().strip_prefix('/').and_then(|path| path.strip_prefix(SERVICE_NAME));
        match path.unwrap_or_default() {
            "/LookupRoute" => unary(LookupCodec, max, request, move |r| {
                let rpcs = rpcs.clone();
                async move { rpcs.lookup_route(r).await }
            }),
            "/ReportCacheState" => {
                let method = Method(move |r: Request<Streaming<_>>| {
                    let rpcs = rpcs.clone();
                    async move { rpcs.report_cache_state(r).await }
                });
                Box::pin(async move { Ok(grpc(ReportCodec, max).client_streaming(method, request).await) })
            }
            "/PublishEvent" => unary(ProstCodec::default(), max, request, move |r| {
                let rpcs = rpcs.clone();
                async move { rpcs.publish_event(&r) }
            }),
            "/GetCacheState" => unary(ProstCodec::default(), max, request, move |r| {
                let rpcs = rpcs.clone();
                async move { rpcs.get_cache_state(&r) }
            }),
            "/RenderTemplate" => {
                unary(ProstCodec::default(), max, request, |r| async move { Ok(Rpcs::<I>::render(&r)) })
            }
            "/LookupPDRoute" => unary(ProstCodec::default(), max, request, |r| async move { Ok(Rpcs::<I>::pair(&r)) }),
            "/StreamCacheEvents" => stream(max, request, |r| async move { Ok(Rpcs::<I>::events(&r)) }),
            "/StreamMetrics" => stream(max, request, |r| async move { Ok(Rpcs::<I>::metrics(&r)) }),
            _ => Box::pin(async { Ok(Status::unimplemented("no such method").into_http()) }),
        }
    }
}

fn grpc<C: Codec>(codec: C, max_message_bytes: usize) -> Grpc<C> {
    Grpc::new(codec).max_decoding_message_size(max_message_bytes)
}

fn unary<C, F, Fut>(codec: C, max: usize, request: http::Request<Body>, method: F) -> Answer
where
    C: Codec + Send + 'static,
    F: FnMut(Request<C::Decode>) -> Fut + Send + 'static,
    Fut: Future<Output = Result<Response<C::Encode>, Status>> + Send + 'static,
{
    Box::pin(async move { Ok(grpc(codec, max).unary(Method(method), request).await) })
}

fn stream<Req, Res, S, F, Fut>(max: usize, request: http::Request<Body>, method: F) -> Answer
where
    Req: prost::Message + Default + 'static,
    Res: prost::Message + 'static,
    S: tokio_stream::Stream<Item = Result<Res, Status>> + Send + 'static,
    F: FnMut(Request<Req>) -> Fut + Send + 'static,
    Fut: Future<Output = Result<Response<S>, Status>> + Send + 'static,
{
    let codec = ProstCodec::<Res, Req>::default();
    Box::pin(async move { Ok(grpc(codec, max).server_streaming(Method(method), request).await) })
}

/// A function as the library wants a method.
struct Method<F>(F);

impl<F, Fut, Req, Res> UnaryService<Req> for Method<F>
where
    F: FnMut(Request<Req>) -> Fut,
    Fut: Future<Output = Result<Response<Res>, Status>>,
{
    type Response = Res;
    type Future = Fut;

    fn call(&mut self, request: Request<Req>) -> Fut {
        (self.0)(request)
    }
}

impl<F, Fut, Req, Res> ClientStreamingService<Req> for Method<F>
where
    F: FnMut(Request<Streaming<Req>>) -> Fut,
    Fut: Future<Output = Result<Response<Res>, Status>>,
{
    type Response = Res;
    type Future = Fut;

    fn call(&mut self, request: Request<Streaming<Req>>) -> Fut {
        (self.0)(request)
    }
}

impl<F, Fut, Req, Res, S> ServerStreamingService<Req> for Method<F>
where
    F: FnMut(Request<Req>) -> Fut,
    Fut: Future<Output = Result<Response<S>, Status>>,
    S: tokio_stream::Stream<Item = Result<Res, Status>>,
{
    type Response = Res;
    type ResponseStream = S;
    type Future = Fut;

    fn call(&mut self, request: Request<Req>) -> Fut {
        (self.0)(request)
    }
}
