//! The poller's reads and writes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::StreamExt as _;
use futures::future::{BoxFuture, FutureExt as _};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::participation::{self, Key, Pods};
use super::snapshot::{ReplicaRow, Snapshot};
use super::{T2, mirror, tenants};
use crate::api::backend::IndexParticipation;
use crate::api::{CacheBackend, CacheIndex, CacheIndexSpec, CacheTenant};
use crate::controller::bridge::{Bridge, Endpoint};
use crate::controller::pages;
use crate::dns::is_dns_subdomain;

/// The one CacheIndex.
pub const NAME: &str = "cluster-default";
/// For a whole tick; what is left then is done by the next one.
const TICK: Duration = Duration::from_secs(300);
/// Writes at a time.
const WRITES: usize = 8;
/// Tries to write CacheIndex status against others who write it.
const TRIES: usize = 5;
/// Pods of a namespace up to which each is read by itself.
const FEW: usize = 4;

/// Mirrors the server.
pub struct Poller {
    client: Client,
    bridge: Bridge,
    server: Endpoint,
    every: Duration,
    t2: T2,
}

impl std::fmt::Debug for Poller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Poller").field("server", &self.server).field("every", &self.every).finish_non_exhaustive()
    }
}

/// What went wrong; only ever logged.
type Trouble = Box<dyn std::error::Error + Send + Sync>;

impl Poller {
    /// Polls `server` at that pace.
    #[must_use]
    pub fn new(client: Client, bridge: Bridge, server: Endpoint, every: Duration, t2: T2) -> Self {
        Self { client, bridge, server, every, t2 }
    }

    /// Polls until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut ticks = interval(self.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut said = None;
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let tick = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                tick = timeout(TICK, self.tick()) => tick,
            };
            let trouble = match tick {
                Ok(Ok(())) => None,
                Ok(Err(why)) => Some(why.to_string()),
                Err(_) => Some(format!("not done within {TICK:?}")),
            };
            // The same trouble is told once.
            match &trouble {
                Some(why) if trouble != said => tracing::warn!(error = why, "index not refreshed"),
                Some(why) => tracing::debug!(error = why, "index not refreshed"),
                None if said.is_some() => tracing::info!("index refreshed again"),
                None => {}
            }
            said = trouble;
        }
    }

    async fn tick(&mut self) -> Result<(), Trouble> {
        self.index().await?;
        let snapshot = self.bridge.snapshot(&self.server).await?;
        let Self { client, server, t2, .. } = self;
        let (backends, index, tenants) = tokio::join!(
            project_backends(client, &snapshot, t2),
            project_index(client, &snapshot, server),
            project_tenants(client, &snapshot),
        );
        let mut troubles = [backends, index, tenants].into_iter().filter_map(Result::err).map(|why| why.to_string());
        match troubles.next() {
            None => Ok(()),
            Some(first) => Err(troubles.fold(first, |all, next| format!("{all}; {next}")).into()),
        }
    }

    async fn index(&self) -> Result<CacheIndex, kube::Error> {
        find_or_create(&Api::all(self.client.clone())).await
    }
}

/// The one CacheIndex, made if it is not there.
async fn find_or_create(api: &Api<CacheIndex>) -> Result<CacheIndex, kube::Error> {
    if let Some(index) = api.get_opt(NAME).await? {
        return Ok(index);
    }
    let fresh = CacheIndex::new(NAME, CacheIndexSpec::default());
    match api.create(&PostParams::default(), &fresh).await {
        // Somebody else was faster.
        Err(kube::Error::Api(status)) if status.code == 409 => api.get(NAME).await,
        created => created,
    }
}

async fn project_index(client: &Client, snapshot: &Snapshot, server: &Endpoint) -> Result<(), Trouble> {
    let api: Api<CacheIndex> = Api::all(client.clone());
    let mut tries = 0;
    loop {
        let mut index = find_or_create(&api).await?;
        let Some(status) = mirror::changed(index.status.as_ref(), snapshot, server.as_str(), Timestamp::now()) else {
            return Ok(());
        };
        index.status = Some(status);
        index.metadata.managed_fields = None;
        tries += 1;
        match api.replace_status(NAME, &PostParams::default(), &index).await {
            Ok(_) => return Ok(()),
            // Changed or deleted meanwhile.
            Err(kube::Error::Api(why)) if matches!(why.code, 404 | 409) && tries < TRIES => {}
            Err(why) => return Err(why.into()),
        }
    }
}

async fn project_backends(client: &Client, snapshot: &Snapshot, t2: &mut T2) -> Result<(), Trouble> {
    let backends = match pages::all(&Api::<CacheBackend>::all(client.clone())).await {
        Err(why) if why.is_missing() => Vec::new(),
        backends => backends?,
    };
    let inhabited: BTreeSet<&str> =
        backends.iter().map(|backend| participation::names_of(&backend.metadata).0).collect();
    let pods = read_pods(client, &snapshot.replicas, &inhabited).await;
    let sums = participation::attribute(&snapshot.replicas, &pods, &backends);
    let existing = backends.iter().map(|backend| owned(&backend.metadata)).collect();
    t2.update(&sums, &pods.tainted, &existing);
    let writes = backends.iter().filter_map(|backend| {
        let key = owned(&backend.metadata);
        if pods.tainted.contains(&key.0) {
            return None;
        }
        let wanted = participation::changed(backend, sums.get(&key).copied().unwrap_or_default())?;
        Some(write_participation(client.clone(), key, backend.metadata.uid.clone(), wanted).boxed())
    });
    all(writes.collect()).await
}

async fn write_participation(
    client: Client,
    (namespace, name): Key,
    uid: Option<String>,
    wanted: IndexParticipation,
) -> Result<(), Trouble> {
    let IndexParticipation { prefix_count, last_event_at, hit_rate: _, t2_hit_rate } = wanted;
    // Null takes away what was there.
    let participation = json!({
        "prefixCount": prefix_count, "lastEventAt": last_event_at, "t2HitRate": t2_hit_rate, "hitRate": null,
    });
    let patch = json!({"metadata": {"uid": uid}, "status": {"indexParticipation": participation}});
    let api: Api<CacheBackend> = Api::namespaced(client, &namespace);
    patched(api.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await, &namespace, &name)
}

async fn project_tenants(client: &Client, snapshot: &Snapshot) -> Result<(), Trouble> {
    let found = match pages::all(&Api::<CacheTenant>::all(client.clone())).await {
        Err(why) if why.is_missing() => return Ok(()),
        found => found?,
    };
    let changed = tenants::changed(&found, &snapshot.tenants, Timestamp::now());
    let writes = changed.into_iter().filter_map(|(place, status)| {
        let meta = &found.get(place)?.metadata;
        let ((namespace, name), uid, client) = (owned(meta), meta.uid.clone(), client.clone());
        let write = async move {
            let patch = json!({"metadata": {"uid": uid}, "status": status});
            let api: Api<CacheTenant> = Api::namespaced(client, &namespace);
            patched(api.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await, &namespace, &name)
        };
        Some(write.boxed())
    });
    all(writes.collect()).await
}

/// What a patch came to. An object that is gone, or another one by now, needs none.
fn patched<K>(answer: Result<K, kube::Error>, namespace: &str, name: &str) -> Result<(), Trouble> {
    match answer {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        Err(why) => Err(format!("{namespace}/{name}: {why}").into()),
    }
}

/// Does all writes, a few at a time; the first failure is told, and none ends the others.
async fn all(writes: Vec<BoxFuture<'static, Result<(), Trouble>>>) -> Result<(), Trouble> {
    let results: Vec<_> = futures::stream::iter(writes).buffer_unordered(WRITES).collect().await;
    let failures = results.iter().filter(|result| result.is_err()).count();
    match results.into_iter().find_map(Result::err) {
        Some(first) if failures > 1 => Err(format!("{first} (and {} more)", failures - 1).into()),
        Some(first) => Err(first),
        None => Ok(()),
    }
}

/// The Pods of the rows, read live. Namespaces without backends need none.
async fn read_pods(client: &Client, rows: &[ReplicaRow], inhabited: &BTreeSet<&str>) -> Pods {
    let mut wanted: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for row in rows.iter().filter(|row| participation::is_of_a_pod(row) && inhabited.contains(row.tenant.as_str())) {
        wanted.entry(&row.tenant).or_default().insert(&row.replica_id);
    }
    let mut pods = Pods::default();
    for (namespace, names) in wanted {
        match pods_of(client, namespace, &names).await {
            Ok(found) => {
                pods.found.extend(found.into_iter().map(|meta| (owned(&meta), meta)));
            }
            Err(why) => {
                tracing::warn!(namespace, error = %why, "Pods not read: the namespace is left as it is");
                pods.tainted.insert(namespace.to_owned());
            }
        }
    }
    pods
}

async fn pods_of(client: &Client, namespace: &str, names: &BTreeSet<&str>) -> Result<Vec<ObjectMeta>, Trouble> {
    let api: Api<Pod> = Api::namespaced(client.clone(), namespace);
    if names.len() > FEW {
        let mut all = pages::metadata(&api, |meta| names.contains(meta.name.as_deref().unwrap_or_default())).await?;
        for meta in &mut all {
            meta.managed_fields = None;
        }
        return Ok(all);
    }
    let mut found = Vec::new();
    for name in names {
        // A reporter chooses this text, and it becomes part of an address.
        if !is_dns_subdomain(name) {
            continue;
        }
        match api.get_metadata_opt(name).await {
            Ok(Some(pod)) => found.push(pod.metadata),
            Ok(None) => {}
            Err(why) => return Err(why.into()),
        }
    }
    Ok(found)
}

fn owned(meta: &ObjectMeta) -> Key {
    let (namespace, name) = participation::names_of(meta);
    (namespace.to_owned(), name.to_owned())
}
