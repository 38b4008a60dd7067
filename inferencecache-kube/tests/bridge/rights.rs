//! The controller as its own account, with RBAC on: what it may do is what it does.

use std::collections::BTreeSet;
use std::time::Duration;

use inferencecache_kube::api::{CacheBackend, CacheIndex, CacheTenant};
use inferencecache_kube::controller::lease;
use inferencecache_kube::controller::manager::Options;
use inferencecache_kube::testkit::cluster::ControlPlane;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::events::v1::Event;
use kube::api::{Api, DeleteParams, ListParams};
use serde_json::{Value, json};

use crate::accounts::{CONTROLLER, SYSTEM, config_of, install, shipped, token};
use crate::fakes::Fake;
use crate::leader::{Running, alone, options};
use crate::stage::{Place, stage, until};

/// Group, resource, verb.
type Right = (String, String, String);

/// What the shipped roles grant.
fn granted() -> BTreeSet<Right> {
    let texts = |value: &Value| -> Vec<String> {
        let list = value.as_array().cloned().unwrap_or_default();
        list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let mut rights = BTreeSet::new();
    for object in shipped("controller.yaml") {
        for rule in object["rules"].as_array().cloned().unwrap_or_default() {
            for group in texts(&rule["apiGroups"]) {
                for resource in texts(&rule["resources"]) {
                    for verb in texts(&rule["verbs"]) {
                        rights.insert((group.clone(), resource.clone(), verb));
                    }
                }
            }
        }
    }
    rights
}

/// What the controller's account asked for, and what of it was refused.
fn asked(plane: &ControlPlane) -> (BTreeSet<Right>, BTreeSet<Right>) {
    let log = std::fs::read_to_string(plane.folder().join("audit.log")).expect("the log");
    let account = format!("system:serviceaccount:{SYSTEM}:{CONTROLLER}");
    let (mut used, mut refused) = (BTreeSet::new(), BTreeSet::new());
    for line in log.lines().filter(|line| line.contains(&account)) {
        let entry: Value = serde_json::from_str(line).expect("JSON");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let object = &entry["objectRef"];
        if object.is_null() {
            continue;
        }
        let resource = match object["subresource"].as_str() {
            Some(part) => format!("{}/{part}", text(&object["resource"])),
            None => text(&object["resource"]),
        };
        let right = (text(&object["apiGroup"]), resource, text(&entry["verb"]));
        if entry["responseStatus"]["code"] == json!(403) {
            refused.insert(right);
        } else {
            used.insert(right);
        }
    }
    (used, refused)
}

const IMAGE: &str = "registry.example/lmcache@sha256:0000000000000000000000000000000000000000000000000000000000000000";

fn resources() -> Value {
    json!({"requests": {"cpu": "1", "memory": "5Gi"}, "limits": {"memory": "5Gi"}})
}

fn spec(domain: &str, lm_cache: Value) -> Value {
    json!({"runtime": "VLLM", "type": "LMCache",
        "engineSelector": {"matchLabels": {"inferencecache.io/cache-domain": domain}},
        "integration": {"mode": "Offload", "role": "ReadWrite", "failOpen": true},
        "observation": {"modelID": "m1", "firstEventTimeout": "5m"},
        "lmCache": lm_cache})
}

fn pod_local() -> Value {
    json!({"topology": "PodLocal", "podLocal": {"server": {"image": IMAGE, "port": 6500, "l1Capacity": "4Gi", "maxWorkers": 4,
        "resources": resources()}}})
}

fn node_local() -> Value {
    json!({"topology": "NodeLocal", "nodeLocal": {"idleRetentionSeconds": 300, "server": {"image": IMAGE, "port": 6555,
        "httpPort": 18080, "l1Capacity": "4Gi", "maxGPUWorkers": 4, "maxCPUWorkers": 4, "resources": resources()}}})
}

/// controller:160
#[tokio::test]
async fn the_controller_may_do_what_it_does_and_nothing_else() {
    let Some(plane) = stage() else { return };
    let _alone = alone().await;
    let place = Place::new(plane, "rights").await;
    install(&place.client).await;
    // Another test may have left one; making it needs a right.
    let _ = Api::<CacheIndex>::all(place.client.clone()).delete("cluster-default", &DeleteParams::default()).await;
    let fake = Fake::start().await;
    let folder = tempfile::tempdir().expect("a folder");
    let own = token(&place.client, SYSTEM, CONTROLLER, &[]).await;
    let election = lease::Options { retry: Duration::from_millis(500), ..lease::Options::new(SYSTEM, "me") };
    let options = Options { election: Some(election), ..options(&fake, folder.path()) };
    let running = Running::start(config_of(plane, &own).await, options);
    managed(&place, &fake).await;
    servers(&place).await;
    running.stop().await;

    let (used, refused) = asked(plane);
    assert_eq!(refused, BTreeSet::new(), "refused");
    let mut granted = granted();
    // Asked for by an admission plugin of some clusters, not by us.
    let finalize = ("inferencecache.io".to_owned(), "cachebackends/finalizers".to_owned(), "update".to_owned());
    assert!(granted.remove(&finalize));
    assert_eq!(granted.difference(&used).collect::<Vec<_>>(), Vec::<&Right>::new(), "granted and never used");
    assert_eq!(used.difference(&granted).collect::<Vec<_>>(), Vec::<&Right>::new(), "used and not granted here");
}

/// Redis comes, is put right, and goes; the index, a tenant and the status are written; one Event is counted up.
async fn managed(place: &Place, fake: &Fake) {
    let mut object = spec("d1", pod_local());
    object["remoteStorage"] = json!({"provider": "Redis", "ownership": "Managed", "redis": {}});
    let uid = place.backend("cache", object).await.metadata.uid.expect("a uid");
    place
        .create::<CacheTenant>(json!({"apiVersion": "inferencecache.io/v1alpha1", "kind": "CacheTenant",
            "metadata": {"name": "t", "namespace": place.namespace}, "spec": {"tenantID": "rights-t"}}))
        .await;
    until("the Service", async || place.get::<Service>("cache").await).await;
    place.patch::<Service>("cache", json!({"spec": {"selector": {"app": "somebody-else"}}})).await;
    place.patch::<Deployment>("cache", json!({"spec": {"replicas": 3}})).await;
    until("both put right", async || {
        let replicas = place.get::<Deployment>("cache").await?.spec?.replicas;
        let selector = place.get::<Service>("cache").await?.spec?.selector?;
        (replicas == Some(1) && !selector.contains_key("app")).then_some(())
    })
    .await;
    let record = json!({"inferencecache.io/injected-by": "rights/cache", "inferencecache.io/injected-by-uid": uid});
    engine(place, "e1", "d1", record).await;
    fake.say(&json!({"replicas": [{"replicaId": "e1", "tenant": "rights", "prefixCount": 3}], "totalPrefixes": 3}));
    until("a part of the index", async || {
        let part = place.get::<CacheBackend>("cache").await?.status?.index_participation?;
        (part.prefix_count == 3).then_some(())
    })
    .await;
    until("the tenant's status", async || place.get::<CacheTenant>("t").await?.status).await;
    for fail_open in [false, true, false] {
        place.patch::<CacheBackend>("cache", json!({"spec": {"integration": {"failOpen": fail_open}}})).await;
        until("the setting in force", async || {
            (place.get::<CacheBackend>("cache").await?.status?.fail_open == Some(fail_open)).then_some(())
        })
        .await;
    }
    until("an Event counted up", async || {
        let events = place.api::<Event>().list(&ListParams::default()).await.expect("Events").items;
        events.iter().any(|event| event.series.is_some()).then_some(())
    })
    .await;
    place.patch::<CacheBackend>("cache", json!({"spec": {"remoteStorage": null}})).await;
    until("Redis is gone", async || {
        (place.get::<Deployment>("cache").await.is_none() && place.get::<Service>("cache").await.is_none())
            .then_some(())
    })
    .await;
}

/// A node's server comes, is marked idle, and goes.
async fn servers(place: &Place) {
    let backend = place.backend("nodes", spec("d2", node_local())).await;
    let generation = backend.metadata.generation.unwrap_or_default().to_string();
    let record = json!({"inferencecache.io/injected-by": "rights/nodes", "inferencecache.io/injected-by-uid": backend.metadata.uid,
        "inferencecache.io/injected-generation": generation});
    engine(place, "e2", "d2", record).await;
    let server = async || {
        let mut pods = place.pods().await.into_iter();
        let ours = |pod: &Pod| {
            pod.metadata
                .labels
                .as_ref()
                .is_some_and(|labels| labels.contains_key("inferencecache.io/lmcache-node-server"))
        };
        pods.find(ours)
    };
    until("a server", &server).await;
    place.remove::<Pod>("e2").await;
    until("it is idle", async || {
        let annotations = server().await?.metadata.annotations?;
        annotations.keys().any(|key| key.ends_with("/node-local-idle-since")).then_some(())
    })
    .await;
    place.patch::<CacheBackend>("nodes", json!({"spec": {"lmCache": {"topology": "PodLocal", "nodeLocal": null, "podLocal": pod_local()["podLocal"]}}})).await;
    until("it is told to go", async || match server().await {
        None => Some(()),
        Some(pod) => pod.metadata.deletion_timestamp.map(|_| ()),
    })
    .await;
}

async fn engine(place: &Place, name: &str, domain: &str, annotations: Value) {
    let labels = json!({"inferencecache.io/cache-domain": domain});
    place
        .create::<Pod>(json!({"metadata": {"name": name, "labels": labels, "annotations": annotations},
            "spec": {"nodeName": "node-1", "containers": [{"name": "vllm", "image": "registry.internal/vllm"}]}}))
        .await;
    place.status::<Pod>(name, json!({"phase": "Running"})).await;
}
