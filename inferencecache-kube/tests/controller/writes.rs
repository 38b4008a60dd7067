//! A client that tells how often it wrote.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use axum::http::{Method, Request};
use inferencecache_kube::testkit::cluster::ControlPlane;
use kube::client::ClientBuilder;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tower::{Layer, Service};

/// Requests that were not reads.
#[derive(Clone, Default)]
pub(crate) struct Writes(Arc<AtomicUsize>);

impl Writes {
    /// How many there were since the last question.
    pub(crate) fn take(&self) -> usize {
        self.0.swap(0, Ordering::Relaxed)
    }
}

impl<S> Layer<S> for Writes {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted { inner, writes: self.clone() }
    }
}

#[derive(Clone)]
pub(crate) struct Counted<S> {
    inner: S,
    writes: Writes,
}

impl<S: Service<Request<B>>, B> Service<Request<B>> for Counted<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> S::Future {
        if request.method() != Method::GET {
            self.writes.0.fetch_add(1, Ordering::Relaxed);
        }
        self.inner.call(request)
    }
}

/// A client of an administrator, counted.
pub(crate) async fn counted(plane: &ControlPlane) -> (Client, Writes) {
    let file = Kubeconfig::read_from(plane.kubeconfig()).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.expect("a configuration");
    let writes = Writes::default();
    let client = ClientBuilder::try_from(config).expect("a client").with_layer(&writes).build();
    (client, writes)
}
