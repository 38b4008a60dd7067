//! What the gRPC port is served over: TCP, or TLS over TCP.

use std::future::Future;
use std::sync::Arc;

use inferencecache_core::IndexApi;
use tokio::net::TcpStream;

use super::ServerOptions;
use super::grpc::GrpcPort;
use super::places::Activity;
#[cfg(feature = "tls")]
use super::tls::GrpcTls;

/// Plaintext unless it has TLS.
#[derive(Debug, Clone, Default)]
pub(super) struct Transport {
    #[cfg(feature = "tls")]
    pub(super) tls: Option<GrpcTls>,
}

#[cfg(feature = "tls")]
impl Transport {
    pub(super) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Keeps itself up to date, for ever.
    pub(super) async fn watch(&self) {
        match &self.tls {
            Some(tls) => tls.watch().await,
            None => std::future::pending().await,
        }
    }

    /// Serves one connection until it ends or is asked to.
    pub(super) fn serve<I: IndexApi + ?Sized>(
        &self,
        stream: TcpStream,
        activity: &Arc<Activity>,
        port: &GrpcPort<I>,
        options: &ServerOptions,
    ) -> impl Future<Output = ()> + Send + use<I> {
        use futures::future::Either;
        let Some(tls) = self.tls.clone() else {
            return Either::Left(port.serve(stream, activity, options));
        };
        let (port, activity, options) = (port.clone(), activity.clone(), options.clone());
        Either::Right(async move {
            if let Some(stream) = tls.accept(stream, &port.stop).await {
                port.serve(stream, &activity, &options).await;
            }
        })
    }
}

#[cfg(not(feature = "tls"))]
impl Transport {
    #[expect(clippy::unused_self, reason = "the one with TLS looks at itself")]
    pub(super) fn is_tls(&self) -> bool {
        false
    }

    pub(super) async fn watch(&self) {
        std::future::pending().await
    }

    pub(super) fn serve<I: IndexApi + ?Sized>(
        &self,
        stream: TcpStream,
        activity: &Arc<Activity>,
        port: &GrpcPort<I>,
        options: &ServerOptions,
    ) -> impl Future<Output = ()> + Send + use<I> {
        port.serve(stream, activity, options)
    }
}
