//! Index, policies, Events of Pods and leadership, with all controllers running as they do in a process.

use std::sync::Arc;
use std::time::Duration;

use inferencecache_kube::adapters::{Options as Adapters, builtin};
use inferencecache_kube::api::{CacheBackend, CacheIndex, CachePolicy, CacheTenant};
use inferencecache_kube::controller::bridge::Tokens;
use inferencecache_kube::controller::lease;
use inferencecache_kube::controller::manager::{self, ManagerError, Options};
use inferencecache_kube::testkit::cluster::ControlPlane;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::Config;
use kube::api::{Api, DeleteParams, ListParams};
use prometheus::{Registry, TextEncoder};
use serde_json::{Value, json};
use tokio::sync::{Mutex, MutexGuard};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::accounts::config_of;
use crate::fakes::Fake;
use crate::stage::{Place, stage, until};

/// What runs here works on the whole cluster: one test at a time.
pub(crate) async fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::const_new(());
    ALONE.lock().await
}

/// All controllers, as a process has them.
pub(crate) struct Running {
    pub(crate) registry: Registry,
    stop: CancellationToken,
    ended: JoinHandle<Result<(), ManagerError>>,
}

impl Running {
    pub(crate) fn start(config: Config, options: Options) -> Self {
        let (registry, stop) = (Registry::new(), CancellationToken::new());
        let work = {
            let (registry, stop) = (registry.clone(), stop.clone());
            async move { manager::run(config, options, &registry, stop).await }
        };
        Self { registry, stop, ended: tokio::spawn(work) }
    }

    /// Ends it in good order.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.ended.await.expect("no panic").expect("a good end");
    }

    fn metrics(&self) -> String {
        TextEncoder::new().encode_to_string(&self.registry.gather()).expect("text")
    }
}

/// Ticks every 200 ms, tokens in a folder of the test.
pub(crate) fn options(fake: &Fake, tokens: &std::path::Path) -> Options {
    Options {
        registries: Arc::new(builtin(&Adapters::default())),
        snapshot: fake.at("snapshot"),
        policy: fake.at("policy"),
        probe: Some(fake.at("probe")),
        server_ca: None,
        tokens: Tokens { controller: tokens.join("controller"), policy: tokens.join("policy") },
        refresh: Duration::from_millis(200),
        push: Duration::from_millis(200),
        election: None,
        instance: "test".to_owned(),
    }
}

pub(crate) async fn admin(plane: &ControlPlane) -> Config {
    config_of(plane, "admin-token").await
}

struct World {
    _alone: MutexGuard<'static, ()>,
    place: Place,
    fake: Fake,
    folder: tempfile::TempDir,
    plane: &'static ControlPlane,
}

impl World {
    async fn new(name: &str) -> Option<Self> {
        let plane = stage()?;
        let alone = alone().await;
        let place = Place::new(plane, name).await;
        // What an earlier test left; it may be missing.
        let index = Api::<CacheIndex>::all(place.client.clone());
        let _ = index.delete("cluster-default", &DeleteParams::default()).await;
        let folder = tempfile::tempdir().expect("a folder");
        Some(Self { _alone: alone, place, fake: Fake::start().await, folder, plane })
    }

    async fn run(&self) -> Running {
        Running::start(admin(self.plane).await, options(&self.fake, self.folder.path()))
    }

    async fn policy(&self, name: &str, spec: Value) -> CachePolicy {
        self.object("CachePolicy", name, spec).await
    }

    async fn object<K>(&self, kind: &str, name: &str, spec: Value) -> K
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + serde::Serialize
            + serde::de::DeserializeOwned,
    {
        self.place
            .create(json!({"apiVersion": "inferencecache.io/v1alpha1", "kind": kind,
                "metadata": {"name": name, "namespace": self.place.namespace}, "spec": spec}))
            .await
    }

    async fn pod(&self, name: &str, domain: &str, annotations: Value) -> Pod {
        self.place
            .create(json!({"metadata": {"name": name, "labels": {"inferencecache.io/cache-domain": domain}, "annotations": annotations},
                "spec": {"containers": [{"name": "vllm", "image": "registry.internal/vllm"}]}}))
            .await
    }

    async fn events(&self, reason: &str) -> Vec<Event> {
        let all = self.place.api::<Event>().list(&ListParams::default()).await.expect("Events").items;
        all.into_iter().filter(|event| event.reason.as_deref() == Some(reason)).collect()
    }

    async fn index(&self) -> Option<CacheIndex> {
        Api::<CacheIndex>::all(self.place.client.clone()).get_opt("cluster-default").await.expect("an answer")
    }

    /// Waits for whole readings of the index that begin after now.
    async fn ticks(&self, count: usize) {
        let before = self.fake.scrapes();
        until("more readings of the index", async || (self.fake.scrapes() > before + count).then_some(())).await;
    }

    fn versions(metas: &[&kube::core::ObjectMeta]) -> Vec<Option<String>> {
        metas.iter().map(|meta| meta.resource_version.clone()).collect()
    }
}

const EVENTS_ONLY: &str = "EventsOnly";

fn selecting(domain: &str) -> Value {
    json!({"runtime": "VLLM", "integration": {"mode": EVENTS_ONLY},
        "engineSelector": {"matchLabels": {"inferencecache.io/cache-domain": domain}}})
}

/// controller:120 controller:122 controller:125 controller:127 controller:129 controller:138
#[tokio::test]
async fn what_the_server_holds_is_in_the_cluster_and_written_once() {
    let Some(world) = World::new("index").await else { return };
    let namespace = &world.place.namespace;
    world.place.backend("a", selecting("a")).await;
    let tenant: CacheTenant =
        world.object("CacheTenant", "t", json!({"tenantID": "index-t", "quota": {"maxIndexEntries": 5}})).await;
    assert_eq!(tenant.status, None);
    world.pod("a0", "a", json!({})).await;
    let running = world.run().await;
    until("the index exists", async || world.index().await).await;
    world.ticks(2).await;
    assert_eq!(world.index().await.and_then(|index| index.status), None, "a server that does not answer says nothing");

    let row = |prefixes: i64, at: &str| {
        json!({"replicaId": "a0", "tenant": namespace, "prefixCount": prefixes, "lastEventAt": at, "lastUpdate": at,
            "hitRate": 0.75, "t2HitTokens": 1, "t2QueryTokens": 4})
    };
    let snapshot = |total: i64, rows: Value| json!({"replicas": rows, "tenants": [{"tenantId": "index-t", "indexEntries": 9}], "totalPrefixes": total});
    world.fake.say(&snapshot(7, json!([row(7, "2026-01-02T03:04:05.123Z")])));
    let part = async || world.place.get::<CacheBackend>("a").await?.status?.index_participation;
    let seen = until("a part of the index", async || part().await.filter(|part| part.prefix_count == 7)).await;
    assert_eq!(seen.t2_hit_rate.as_deref(), Some("0.25"));
    let over = until("the tenant's status", async || world.place.get::<CacheTenant>("t").await?.status).await;
    assert!(over.conditions.iter().any(|condition| condition.reason == "OverEntryBudget"), "{over:?}");
    world.ticks(2).await;

    let versions = async || {
        let index = world.index().await.expect("the index");
        let backend = world.place.get::<CacheBackend>("a").await.expect("the backend");
        let tenant = world.place.get::<CacheTenant>("t").await.expect("the tenant");
        World::versions(&[&index.metadata, &backend.metadata, &tenant.metadata])
    };
    until("the reconciler has settled", async || {
        let first = versions().await;
        sleep(Duration::from_secs(1)).await;
        (versions().await == first).then_some(())
    })
    .await;
    let before = versions().await;
    world.ticks(5).await;
    assert_eq!(versions().await, before, "the same again is not written");
    for status in [401, 403, 500, 204] {
        world.fake.refuse_scrapes(status);
        world.ticks(2).await;
        assert_eq!(versions().await, before, "{status}");
    }
    world.fake.say(&snapshot(9, json!([])));
    let drained = until("drained", async || part().await.filter(|part| part.prefix_count == 0)).await;
    assert_eq!((drained.last_event_at, drained.t2_hit_rate), (None, None));
    assert!(
        running
            .metrics()
            .contains("inferencecache_controller_bridge_requests_total{channel=\"snapshot\",result=\"refused\"}")
    );
    assert!(!running.metrics().contains("t2_hit_rate{"), "drained series are gone");
    running.stop().await;
}

/// controller:146 controller:147 controller:148 controller:149 controller:151 policy:121-132
#[tokio::test]
async fn policies_reach_the_server_whatever_it_does() {
    let Some(world) = World::new("policies").await else { return };
    std::fs::write(world.folder.path().join("policy"), "tok\n").expect("written");
    world.policy("p", json!({"minimumPrefixTokens": 1})).await;
    world.fake.answer_pushes(500, Duration::ZERO);
    let running = world.run().await;
    until("two failures", async || (world.fake.pushes().len() >= 2).then_some(())).await;
    world.fake.answer_pushes(204, Duration::ZERO);
    let arrived = async |tokens: i64| {
        until(&format!("{tokens} tokens"), async || {
            let policy = world.fake.pushed("policies")?;
            (policy["minimumPrefixTokens"] == json!(tokens)).then_some(policy)
        })
        .await
    };
    arrived(1).await;
    assert_eq!(world.fake.pushes().last().map(|push| push.1.clone()).as_deref(), Some("Bearer tok"));
    std::fs::write(world.folder.path().join("policy"), "tok2").expect("written");
    until("the new token", async || (world.fake.pushes().last()?.1 == "Bearer tok2").then_some(())).await;
    std::fs::remove_file(world.folder.path().join("policy")).expect("removed");
    until("no token", async || world.fake.pushes().last()?.1.is_empty().then_some(())).await;

    world.fake.answer_pushes(204, Duration::from_millis(500));
    for tokens in 2..12 {
        world.place.patch::<CachePolicy>("p", json!({"spec": {"minimumPrefixTokens": tokens}})).await;
    }
    arrived(11).await;
    assert_eq!(world.fake.most_under_way(), 1, "pushes never overlap");
    let status = world.place.get::<CachePolicy>("p").await.expect("the policy").status;
    assert_eq!(status, None, "nobody writes it");
    running.stop().await;
}

/// controller:152 controller:153 controller:155 controller:156
#[tokio::test]
async fn a_wired_pod_is_told_of_once() {
    let Some(world) = World::new("engine-events").await else { return };
    let backend = world.place.backend("cache", selecting("d1")).await;
    let uid = backend.metadata.uid.expect("a uid");
    let by = |uid: &str| json!({"inferencecache.io/injected-by": "engine-events/cache", "inferencecache.io/injected-by-uid": uid});
    world.pod("wired", "d1", by(&uid)).await;
    world.pod("stale", "d1", by("another")).await;
    world.pod("half", "d1", json!({"inferencecache.io/injected-by": "engine-events/cache"})).await;
    world
        .pod(
            "nobody",
            "d1",
            json!({"inferencecache.io/injected-by": "engine-events/gone", "inferencecache.io/injected-by-uid": uid}),
        )
        .await;
    let skip =
        json!({"inferencecache.io/skip-inject": "true", "inferencecache.io/inject-skipped": "skip-inject-annotation"});
    world.pod("skipped", "d1", skip).await;
    let running = world.run().await;
    until("both Events", async || {
        let told = world.events("InjectedByCacheBackend").await.len() == 1
            && world.events("SkippedByOperator").await.len() == 1;
        told.then_some(())
    })
    .await;
    world.place.patch::<Pod>("wired", json!({"metadata": {"labels": {"a": "b"}}})).await;
    running.stop().await;
    let again = world.run().await;
    world.ticks(5).await;
    again.stop().await;
    let told = world.events("InjectedByCacheBackend").await;
    assert_eq!(told.len(), 1, "{told:?}");
    let event = &told[0];
    assert_eq!(event.regarding.as_ref().and_then(|pod| pod.name.as_deref()), Some("wired"));
    assert_eq!(event.related.as_ref().and_then(|backend| backend.uid.as_deref()), Some(uid.as_str()));
    assert_eq!(event.series, None);
}

/// controller:157 controller:159
#[tokio::test]
async fn one_leads_and_another_takes_over_at_once_when_it_leaves() {
    let Some(world) = World::new("leaders").await else { return };
    let other = Fake::start().await;
    let electing = |fake: &Fake, identity: &str| Options {
        election: Some(lease::Options {
            retry: Duration::from_millis(200),
            ..lease::Options::new("leaders", identity)
        }),
        ..options(fake, world.folder.path())
    };
    let first = Running::start(admin(world.plane).await, electing(&world.fake, "first"));
    until("the first leads", async || (world.fake.asked() > 0).then_some(())).await;
    let second = Running::start(admin(world.plane).await, electing(&other, "second"));
    world.ticks(10).await;
    assert_eq!(other.asked(), 0, "who does not lead asks nothing");
    let holder = async || world.place.get::<Lease>(lease::NAME).await?.spec?.holder_identity;
    assert_eq!(holder().await.as_deref(), Some("first"));
    first.stop().await;
    until("the second leads", async || (other.asked() > 0).then_some(())).await;
    assert_eq!(holder().await.as_deref(), Some("second"));
    let asked = world.fake.asked();
    until("more readings", async || (other.scrapes() > 5).then_some(())).await;
    assert_eq!(world.fake.asked(), asked, "who has left asks nothing");
    second.stop().await;
    assert_eq!(holder().await.as_deref(), Some(""), "released");
}

/// field:46
#[tokio::test]
async fn a_leader_whose_lease_is_taken_writes_nothing_more() {
    let Some(world) = World::new("deposed").await else { return };
    let election = lease::Options { retry: Duration::from_millis(200), ..lease::Options::new("deposed", "me") };
    let options = Options { election: Some(election), ..options(&world.fake, world.folder.path()) };
    let running = Running::start(admin(world.plane).await, options);
    until("it leads", async || (world.fake.asked() > 0).then_some(())).await;
    world.place.patch::<Lease>(lease::NAME, json!({"spec": {"holderIdentity": "somebody-else"}})).await;
    let ended = running.ended.await.expect("no panic");
    assert!(matches!(ended, Err(ManagerError::Deposed)), "{ended:?}");
    let asked = world.fake.asked();
    world.policy("p", json!({"minimumPrefixTokens": 9})).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(world.fake.asked(), asked);
    let holder = world.place.get::<Lease>(lease::NAME).await.and_then(|lease| lease.spec?.holder_identity);
    assert_eq!(holder.as_deref(), Some("somebody-else"), "it is not given back either");
}
