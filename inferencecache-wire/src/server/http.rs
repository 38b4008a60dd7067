//! One of the two HTTP listeners: how its connections are served.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::ServerOptions;
use super::linger::Lingering;
use super::paced::Paced;
use super::places::Activity;
use crate::http::access::Peer;
use crate::metrics::{Closed, Metrics};

/// What the connections of a listener have in common.
pub(super) struct Http {
    pub(super) name: &'static str,
    pub(super) routes: axum::Router,
    pub(super) options: ServerOptions,
    pub(super) metrics: Arc<Metrics>,
    pub(super) stop: CancellationToken,
}

impl Http {
    /// Serves one HTTP/1.1 connection until it ends or is asked to.
    pub(super) fn serve(&self, stream: TcpStream, activity: &Arc<Activity>) -> impl Future<Output = ()> + Send + use<> {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(self.options.header_timeout);
        let peer = stream.peer_addr().map(|address| Peer(address.ip()));
        let routes = TowerToHyperService::new(self.routes.clone());
        let (working, ending) = (activity.clone(), self.stop.clone());
        let routes = service_fn(move |request: Request<Incoming>| {
            let mut request = Lingering::wrap(request, &ending);
            if let Ok(peer) = &peer {
                request.extensions_mut().insert(*peer);
            }
            let (answer, work) = (routes.call(request), working.begin());
            async move {
                let answer = answer.await;
                drop(work);
                answer
            }
        });
        let (name, metrics) = (self.name, self.metrics.clone());
        let paced = Paced::within(self.options.reader_timeout, stream, move || {
            metrics.connection_closed(name, Closed::SlowReader);
        });
        let connection = http.serve_connection(TokioIo::new(paced), routes);
        let (stop, leave) = (self.stop.clone(), activity.leave.clone());
        async move { until_asked(std::pin::pin!(connection), &stop, &leave).await }
    }
}

/// Drives a connection to its end, which begins when one of the two is fired.
pub(super) async fn until_asked<C: GracefulConnection>(
    mut connection: Pin<&mut C>,
    stop: &CancellationToken,
    leave: &CancellationToken,
) {
    tokio::select! {
        _ = connection.as_mut() => return,
        () = stop.cancelled() => {}
        () = leave.cancelled() => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}
