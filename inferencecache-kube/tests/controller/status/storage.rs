//! From an empty namespace to a backend that serves, and failures on the way.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use kube::api::{DynamicObject, PostParams};
use kube::core::ApiResource;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use super::world::{managed, says_of, world};

const OFF: &str = "inferencecache.io/require-kv-events";

/// controller:3,4,5,7,8,21
#[tokio::test]
async fn a_managed_backend_becomes_ready_and_tells_it() {
    let Some(world) = world("status-managed", None).await else { return };
    let mut closed = managed();
    closed["integration"]["failOpen"] = json!(false);
    let backend = world.create("cache", closed, &json!({OFF: "false"})).await;
    let status = world
        .settled("cache", &[("RemoteStorageReady", "Unknown/RemoteStoragePending"), ("Ready", "False/NoEnginePods")])
        .await;
    assert_eq!(status["remoteStorage"]["endpoint"], "cache.status-managed.svc.cluster.local:6379");
    assert_eq!((&status["failOpen"], &status["observedGeneration"]), (&json!(false), &json!(1)));
    for event in [
        "Warning RemoteStoragePending",
        "Warning NoEnginePods",
        "Normal EngineSelectorUnmatched",
        "Warning FailClosedEnabled",
    ] {
        world.told("cache", event, 1).await;
    }
    world.engine("e1", &backend).await;
    world.deployment(1, 0).await;
    world.settled("cache", &[("Ready", "False/RemoteStorageUnavailable")]).await;
    world.deployment(1, 1).await;
    let status = world.settled("cache", &[("Ready", "True/ConnectorReady"), ("Degraded", "False/NotDegraded")]).await;
    assert_eq!(status["connector"]["coveredEnginePods"], 1);
    for event in ["Warning RemoteStorageUnavailable", "Normal RemoteStorageReady", "Normal ConnectorReady"] {
        world.told("cache", event, 1).await;
    }
    let events = world.events("cache").await;
    assert!(!events.contains_key("Warning BackendDegraded"), "{events:?}");

    let before = world.place.get::<Deployment>("cache").await.expect("the Deployment").uid();
    world.place.remove::<Deployment>("cache").await;
    crate::stage::until("another Deployment", async || {
        world.place.get::<Deployment>("cache").await.filter(|now| now.uid() != before)
    })
    .await;
    world.deployment(1, 1).await;
    world.settled("cache", &[("Ready", "True/ConnectorReady")]).await;
    world.running.end().await;
}

/// controller:11,19 and [+] conditions that name the cause; others go on.
#[tokio::test]
async fn a_backend_that_cannot_be_brought_about_says_why() {
    let Some(world) = world("status-refused", None).await else { return };
    let mut refused = managed();
    let secret = json!({"name": "s", "key": "k"});
    refused["remoteStorage"]["redis"] = json!({"authentication": {"username": secret, "password": secret}});
    world.create("refused", refused, &json!({})).await;
    let foreign = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "taken", "ownerReferences": [{
            "apiVersion": "v1", "kind": "ConfigMap", "name": "someone", "uid": "11111111-1111-1111-1111-111111111111", "controller": true,
        }]},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": {
            "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]},
        }},
    });
    let theirs: Deployment = world.place.create(foreign).await;
    let mut other = managed();
    other["engineSelector"]["matchLabels"] = json!({"inferencecache.io/cache-domain": "d2"});
    world.create("taken", other.clone(), &json!({})).await;
    other["engineSelector"]["matchLabels"] = json!({"inferencecache.io/cache-domain": "d3"});
    world.create("fine", other, &json!({})).await;
    world.settled("fine", &[("RemoteStorageReady", "Unknown/RemoteStoragePending")]).await;
    for (name, word) in [("refused", "username"), ("taken", "someone")] {
        let status = world.settled(name, &[("RemoteStorageReady", "False/RemoteStorageUnavailable")]).await;
        let message = status["conditions"].as_array().into_iter().flatten().find(|c| c["type"] == "RemoteStorageReady");
        assert!(message.is_some_and(|c| c["message"].as_str().is_some_and(|m| m.contains(word))), "{status}");
        assert!(status["observedGeneration"].is_null() && status["remoteStorage"]["endpoint"].is_null(), "{status}");
        assert_ne!(says_of(&status, "Ready").split('/').next(), Some("True"));
        world.told(name, "Warning RemoteStorageUnavailable", 1).await;
        assert!(world.place.get::<Service>(name).await.is_none());
    }
    assert!(world.place.get::<Deployment>("refused").await.is_none());
    let now: Deployment = world.place.get("taken").await.expect("their Deployment");
    assert_eq!(now.resource_version(), theirs.resource_version(), "untouched");
    world.running.end().await;
}

/// controller:119
#[tokio::test]
async fn an_event_tells_only_what_was_accepted() {
    let Some(world) = world("status-rejected", None).await else { return };
    world.good(managed(), &json!({OFF: "false"})).await;
    world.settled("cache", &[("RemoteStorageReady", "True/RemoteStorageReady")]).await;
    policy(&world.place.client, "status-rejected", true).await;
    crate::stage::until("statuses are refused", async || {
        let touched = json!({"status": {"observedGeneration": 1}});
        let patch = kube::api::Patch::Merge(touched);
        let api = world.place.api::<inferencecache_kube::api::CacheBackend>();
        api.patch_status("cache", &kube::api::PatchParams::default(), &patch).await.err().map(|_| ())
    })
    .await;
    let failed = world.running.count("inferencecache_controller_reconcile_total");
    world.deployment(1, 0).await;
    crate::stage::until("passes fail", async || {
        (world.running.count("inferencecache_controller_reconcile_total") > failed + 3).then_some(())
    })
    .await;
    assert!(!world.events("cache").await.contains_key("Warning RemoteStorageUnavailable"));
    policy(&world.place.client, "status-rejected", false).await;
    world.settled("cache", &[("RemoteStorageReady", "False/RemoteStorageUnavailable")]).await;
    world.told("cache", "Warning RemoteStorageUnavailable", 1).await;
    world.running.end().await;
}

/// Whether a policy refuses every status of the namespace.
async fn policy(client: &kube::Client, namespace: &str, refuse: bool) {
    let resource = |kind: &str, plural: &str| ApiResource {
        group: "admissionregistration.k8s.io".to_owned(),
        version: "v1".to_owned(),
        api_version: "admissionregistration.k8s.io/v1".to_owned(),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    };
    let policies = resource("ValidatingAdmissionPolicy", "validatingadmissionpolicies");
    let bindings = resource("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings");
    if !refuse {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &bindings);
        api.delete(namespace, &Default::default()).await.expect("a deletion");
        return;
    }
    let rule = json!({
        "apiGroups": ["inferencecache.io"], "apiVersions": ["v1alpha1"], "operations": ["UPDATE"], "resources": ["cachebackends/status"],
    });
    let selector = json!({"matchLabels": {"kubernetes.io/metadata.name": namespace}});
    let spec = json!({
        "matchConstraints": {"resourceRules": [rule], "namespaceSelector": selector},
        "validations": [{"expression": "false"}],
    });
    let binding = json!({"policyName": namespace, "validationActions": ["Deny"]});
    for (resource, spec) in [(policies, spec), (bindings, binding)] {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let object: Value = json!({
            "apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": namespace}, "spec": spec,
        });
        let object = serde_json::from_value(object).expect("an object");
        api.create(&PostParams::default(), &object).await.expect("a policy");
    }
}
