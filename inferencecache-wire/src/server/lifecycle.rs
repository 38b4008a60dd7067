//! From bound to served to ended, in the order that lets traffic move away first.

use std::future::Future;
use std::sync::Arc;
use std::time::Instant;

use inferencecache_core::IndexApi;
use tokio::net::TcpListener;

use super::accept::{Accepting, Ending};
use super::grpc::GrpcPort;
use super::http::Http;
use super::{Listeners, ServeError, Server, ServerOptions};
use crate::grpc::service::InferenceCacheService;
use crate::http::bridge::Bridge;
use crate::http::public;
use crate::metrics::Metrics;

/// Serves until `shutdown` resolves or a listener fails.
pub(super) async fn run<I: IndexApi + ?Sized>(
    server: Server<I>,
    listeners: Listeners,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let Server { router, policies, access, metrics, readiness, options, second_tier, transport } = server;
    let index = router.index.clone();
    let ending = Ending::default();
    let service = InferenceCacheService::new(router)
        .metrics(metrics.clone())
        .max_message_bytes(options.max_message_bytes)
        .max_unfinished_bytes(options.max_unfinished_bytes)
        .request_timeout(options.request_timeout)
        .isolate_lookups(options.isolate_lookups)
        .stop_with(ending.stop.clone());
    let (port, health) = GrpcPort::new(service.mount(), &metrics, &options, ending.stop.clone());
    let accepting = |name, listener, max_connections| Accepting {
        name,
        listener,
        max_connections,
        metrics: metrics.clone(),
        ending: ending.clone(),
    };
    let grpc = accepting("grpc", listeners.grpc, options.max_grpc_connections);
    let grpc = grpc.run(|stream, activity| transport.serve(stream, activity, &port, &options));
    let http = |name, listener: TcpListener, routes: axum::Router| {
        let http = Http { name, routes, options: options.clone(), metrics: metrics.clone(), stop: ending.stop.clone() };
        accepting(name, listener, options.max_http_connections)
            .run(move |stream, activity| http.serve(stream, activity))
    };
    let public = http("http", listeners.http, public::router(metrics.clone(), readiness.clone()));
    let bridge = Bridge::new(index.clone(), policies, metrics.clone(), access).second_tier(second_tier);
    let bridge = http("bridge", listeners.bridge, bridge.router());

    let counted = Arc::downgrade(&index);
    metrics.count_storage(move || {
        let (all, reserved) = counted.upgrade()?.storage_entries();
        Some(all.saturating_sub(reserved))
    });
    metrics.set_grpc_tls(transport.is_tls());
    readiness.set(true);
    health.set(true).await;
    metrics.set_up(true);
    let serving = async { tokio::try_join!(grpc, public, bridge).map(|_| ()) };
    let upkeep =
        async { tokio::join!(health.follow(readiness.follow()), sweep(index, &metrics, &options), transport.watch()) };
    let life = async {
        tokio::pin!(serving);
        let failed = tokio::select! {
            biased;
            ended = serving.as_mut() => ended.err(),
            () = shutdown => None,
        };
        readiness.set(false);
        health.set(false).await;
        metrics.set_up(false);
        if failed.is_none() {
            tracing::info!("graceful_shutdown_started");
            tokio::select! {
                biased;
                _ = serving.as_mut() => {} // a listener that fails now has nothing left to lose
                () = tokio::time::sleep(options.lame_duck) => {}
            }
        }
        ending.stop.cancel();
        failed
    };
    tokio::pin!(upkeep);
    let failed = tokio::select! {
        failed = life => failed,
        _ = upkeep.as_mut() => None,
    };
    ending.open.close();
    // Health watchers and reports end by themselves; what else is open gets its time and no more.
    let drained = async {
        let _ = tokio::time::timeout(options.drain_timeout, ending.open.wait()).await;
    };
    tokio::select! {
        () = drained => {}
        _ = upkeep => {}
    }
    ending.kill.cancel();
    match failed {
        Some(why) => Err(why),
        None => {
            tracing::info!("graceful_shutdown_done");
            Ok(())
        }
    }
}

/// Removes what has outlived its TTL, again and again.
async fn sweep<I: IndexApi + ?Sized>(index: Arc<I>, metrics: &Metrics, options: &ServerOptions) {
    let first = tokio::time::Instant::now() + options.sweep_interval;
    let mut tick = tokio::time::interval_at(first, options.sweep_interval);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let index = index.clone();
        let swept = tokio::task::spawn_blocking(move || {
            let start = Instant::now();
            index.sweep();
            start.elapsed()
        });
        match swept.await {
            Ok(took) => metrics.swept(took),
            Err(_) => metrics.handler_panic("sweep"),
        }
    }
}
