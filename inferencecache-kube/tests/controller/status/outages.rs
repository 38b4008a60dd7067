//! Watches that break, freeze, or have nothing to watch yet.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use inferencecache_kube::api::CacheBackend;
use inferencecache_kube::testkit::cluster::ControlPlane;
use kube::api::{Api, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::world::{Running, events_only, says_of, world};
use crate::stage::{Place, define, stage, until};

/// [+] Definitions that come after the reconciler are found without a restart.
#[tokio::test]
async fn a_reconciler_waits_for_its_definitions() {
    if stage().is_none() {
        return;
    }
    let plane = tokio::task::spawn_blocking(|| ControlPlane::start().expect("a control plane of its own"));
    let plane = plane.await.expect("a control plane of its own");
    let place = Place::new(&plane, "status-early").await;
    let running = Running::start(&place.client, "status-early", None, 180);
    // It has asked and found nothing.
    until("the kind does not exist", async || place.api::<CacheBackend>().list(&Default::default()).await.err()).await;
    define(&place.client).await;
    backend(&place, "cache").await;
    until("it is reconciled", async || waits(&place, "cache").await).await;
    running.end().await;
}

/// field:53, for the edit of a CacheBackend; the period of a watch is a second here instead of three minutes.
#[tokio::test]
async fn a_frozen_watch_is_replaced() {
    let Some(plane) = stage() else { return };
    let place = Place::new(plane, "status-frozen").await;
    let relay = Relay::before(plane.url()).await;
    let mut file = Kubeconfig::read_from(plane.kubeconfig()).expect("a kubeconfig");
    file.clusters[0].cluster.as_mut().expect("a cluster").server = Some(relay.url.clone());
    let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.expect("a config");
    let client = kube::Client::try_from(config).expect("a client");
    let running = Running::start(&client, "status-frozen", None, 1);
    backend(&place, "before").await;
    until("it is reconciled", async || waits(&place, "before").await).await;
    relay.freeze();
    backend(&place, "after").await;
    until("it is reconciled past the frozen watches", async || waits(&place, "after").await).await;
    running.end().await;
}

/// As in field:55, but the break is a restart: a Pod went while nobody watched.
#[tokio::test]
async fn what_happened_during_a_break_is_made_up_for() {
    let Some(world) = world("status-break", None).await else { return };
    let backend = world.create("cache", super::world::host_only(), &json!({})).await;
    for pod in ["a", "b"] {
        world.engine(pod, &backend).await;
    }
    world.settled("cache", &[("ConnectorReady", "True/ConnectorReady")]).await;
    world.running.end().await;
    world.place.remove::<k8s_openapi::api::core::v1::Pod>("a").await;
    let running = Running::start(&world.place.client, "status-break", None, 180);
    until("the other one is counted", async || (world.status("cache").await["matchedEnginePods"] == 1).then_some(()))
        .await;
    running.end().await;
}

async fn backend(place: &Place, name: &str) {
    let mut spec = events_only("1h");
    spec["engineSelector"]["matchLabels"] = json!({"inferencecache.io/cache-domain": name});
    let object = json!({
        "apiVersion": "inferencecache.io/v1alpha1", "kind": "CacheBackend", "metadata": {"name": name}, "spec": spec,
    });
    let object: CacheBackend = serde_json::from_value(object).expect("a CacheBackend");
    let api: Api<CacheBackend> = place.api();
    // A definition may be established before every request finds it.
    until("it is stored", async || api.create(&PostParams::default(), &object).await.ok()).await;
}

async fn waits(place: &Place, name: &str) -> Option<()> {
    let status: Value = serde_json::to_value(place.get::<CacheBackend>(name).await?.status).expect("a status");
    (says_of(&status, "Ready") == "False/AwaitingFirstKVEvent").then_some(())
}

/// Passes connections on. Frozen, those that are open carry nothing more and stay open; later ones are passed on.
struct Relay {
    url: String,
    /// Of the connections that are open now.
    frozen: Arc<std::sync::Mutex<Arc<AtomicBool>>>,
}

impl Relay {
    async fn before(url: &str) -> Self {
        let target = url.trim_start_matches("https://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a listener");
        let url = format!("https://{}", listener.local_addr().expect("an address"));
        let frozen = Arc::new(std::sync::Mutex::new(Arc::new(AtomicBool::new(false))));
        let generation = Arc::clone(&frozen);
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(&target).await else { continue };
                let frozen = Arc::clone(&generation.lock().expect("the flag"));
                let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
                tokio::spawn(pass(near_in, far_out, Arc::clone(&frozen)));
                tokio::spawn(pass(far_in, near_out, frozen));
            }
        });
        Self { url, frozen }
    }

    fn freeze(&self) {
        let mut flag = self.frozen.lock().expect("the flag");
        flag.store(true, Ordering::SeqCst);
        *flag = Arc::new(AtomicBool::new(false));
    }
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    frozen: Arc<AtomicBool>,
) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if frozen.load(Ordering::SeqCst) {
            continue;
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
    if frozen.load(Ordering::SeqCst) {
        std::future::pending::<()>().await;
    }
}
