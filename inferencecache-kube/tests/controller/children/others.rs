//! Other people's objects, and an API server that says no.

use inferencecache_kube::controller::backend::error::ChildError;
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};

use super::super::stage::until;
use super::{Scene, merge, somebody};

fn foreign_deployment(owners: Value) -> Value {
    json!({
        "metadata": {"name": "cache", "labels": {"app": "x"}, "ownerReferences": owners},
        "spec": {"selector": {"matchLabels": {"app": "x"}}, "template": {
            "metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "c", "image": "c:1"}]}}},
    })
}

fn foreign_service(owners: Value) -> Value {
    json!({"metadata": {"name": "cache", "ownerReferences": owners}, "spec": {"selector": {"app": "x"}, "ports": [{"port": 80}]}})
}

/// controller:19,32, and the same without a controller: nothing of it changes, nothing is published, no Service is made.
#[tokio::test]
async fn a_deployment_of_others_is_left_alone() {
    for (namespace, owners) in [("theirs-d", somebody()), ("nobodys-d", json!([]))] {
        let Some(scene) = Scene::new(namespace, "cache").await else { return };
        scene.place.create::<Deployment>(foreign_deployment(owners)).await;
        let ready = json!({"observedGeneration": 1, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1});
        let before = scene.place.status::<Deployment>("cache", ready).await;
        scene.backend("managed", json!({})).await;
        let outcome = scene.pass().await;
        assert_eq!(scene.writes.take(), 0);
        assert!(outcome.deployment.is_none() && outcome.endpoint.is_none());
        let why = outcome.storage.expect("a reason").summary();
        assert!(why.contains("Deployment \"cache\""), "{why}");
        scene.edit(json!({"spec": {"remoteStorage": {"ownership": "External", "endpoint": "r:1"}}})).await;
        assert!(scene.pass().await.storage.is_none());
        assert_eq!(scene.writes.take(), 0);
        assert_eq!(scene.deployment().await, Some(before));
        assert!(scene.service().await.is_none());
    }
}

/// controller:20, and the same without a controller.
#[tokio::test]
async fn a_service_of_others_is_left_alone() {
    for (namespace, owners) in [("theirs-s", somebody()), ("nobodys-s", json!([]))] {
        let Some(scene) = Scene::new(namespace, "cache").await else { return };
        let before = scene.place.create::<Service>(foreign_service(owners)).await;
        scene.backend("managed", json!({})).await;
        let outcome = scene.pass().await;
        assert!(outcome.deployment.is_some() && outcome.endpoint.is_none());
        let why = outcome.storage.expect("a reason").summary();
        assert!(why.contains("Service \"cache\""), "{why}");
        assert_eq!(scene.service().await, Some(before));
        scene.edit(json!({"spec": {"remoteStorage": null}})).await;
        scene.settle().await;
        assert!(scene.service().await.is_some() && scene.deployment().await.is_none());
    }
}

/// What already is what would have been created is taken over, as it is after a backup was restored.
#[tokio::test]
async fn our_own_without_an_owner_is_adopted() {
    let Some(scene) = Scene::new("adopted", "cache").await else { return };
    let selector = json!({"app.kubernetes.io/name": "cachebackend", "app.kubernetes.io/instance": "cache",
        "app.kubernetes.io/managed-by": "inference-cache-controller"});
    let mut labels = selector.clone();
    merge(&mut labels, &json!({"inferencecache.io/backend-type": "LMCache"}));
    let deployment = json!({"metadata": {"name": "cache"}, "spec": {"replicas": 2, "selector": {"matchLabels": selector},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "c:1"}]}}}});
    let deployment = scene.place.create::<Deployment>(deployment).await;
    let service = json!({"metadata": {"name": "cache"}, "spec": {"selector": selector, "ports": [{"port": 1}]}});
    let service = scene.place.create::<Service>(service).await;
    scene.backend("managed", json!({})).await;
    let outcome = scene.settle().await;
    let live = outcome.deployment.expect("one");
    assert_eq!(live.metadata.uid, deployment.metadata.uid);
    assert_eq!(live.spec.and_then(|spec| spec.replicas), Some(1));
    assert_eq!(scene.service().await.expect("one").metadata.uid, service.metadata.uid);
    assert_eq!(outcome.endpoint.as_deref(), Some("cache.adopted.svc.cluster.local:6379"));
}

/// Denies an operation in one namespace, until it is dropped by [`allow`].
async fn deny(scene: &Scene, operation: &str, group: &str, resource: &str) -> String {
    let name = format!("deny-{}", scene.place.namespace);
    let policy: ValidatingAdmissionPolicy = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": [{"apiGroups": [group], "apiVersions": ["v1"], "operations": [operation],
                "resources": [resource]}]},
            "validations": [{"expression": "false", "message": "not today"}],
        },
    }))
    .expect("a policy");
    let binding: ValidatingAdmissionPolicyBinding = serde_json::from_value(json!({
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"], "matchResources": {"namespaceSelector": {
            "matchLabels": {"kubernetes.io/metadata.name": scene.place.namespace}}}},
    }))
    .expect("a binding");
    Api::all(scene.place.client.clone()).create(&PostParams::default(), &policy).await.expect("a policy");
    Api::all(scene.place.client.clone()).create(&PostParams::default(), &binding).await.expect("a binding");
    name
}

async fn allow(scene: &Scene, name: &str) {
    let api = Api::<ValidatingAdmissionPolicyBinding>::all(scene.place.client.clone());
    api.delete(name, &DeleteParams::default()).await.expect("a deletion");
}

/// controller:22: the store runs on as it was, and is told as it was.
#[tokio::test]
async fn an_update_that_is_refused_leaves_what_runs() {
    let Some(scene) = Scene::new("refused-update", "cache").await else { return };
    scene.backend("managed", json!({})).await;
    scene.settle().await;
    let policy = deny(&scene, "UPDATE", "apps", "deployments").await;
    let images = ["a:1", "a:2"];
    // A policy takes effect some time after it is stored.
    let outcome = until("updates are refused", async || {
        for image in images {
            scene.edit(json!({"spec": {"remoteStorage": {"redis": {"image": image}}}})).await;
            let outcome = scene.pass().await;
            if outcome.storage.is_some() {
                return Some(outcome);
            }
        }
        None
    })
    .await;
    assert!(outcome.deployment.is_some() && outcome.endpoint.is_some());
    let why = outcome.storage.expect("a reason");
    assert!(matches!(why, ChildError::Api { action: "update", kind: "Deployment", .. }), "{why:?}");
    assert!(why.summary().contains("not today"), "{}", why.summary());
    allow(&scene, &policy).await;
    until("updates are allowed", async || scene.pass().await.storage.is_none().then_some(())).await;
    scene.settle().await;
}

/// controller:23
#[tokio::test]
async fn a_service_that_is_refused_comes_later() {
    let Some(scene) = Scene::new("refused-create", "cache").await else { return };
    scene.backend("managed", json!({})).await;
    let policy = deny(&scene, "CREATE", "", "services").await;
    let outcome = until("Services are refused", async || {
        let outcome = scene.pass().await;
        if outcome.storage.is_none() {
            scene.place.remove::<Service>("cache").await;
        }
        outcome.storage.is_some().then_some(outcome)
    })
    .await;
    assert!(outcome.deployment.is_some() && outcome.endpoint.is_none());
    allow(&scene, &policy).await;
    until("Services are allowed", async || scene.pass().await.endpoint).await;
    scene.settle().await;
}

/// A writer in between: what was read is read again.
#[tokio::test]
async fn a_conflict_is_answered_by_reading_again() {
    let Some(scene) = Scene::new("contested", "cache").await else { return };
    scene.backend("managed", json!({})).await;
    scene.settle().await;
    let meddle = async |count: usize| {
        for round in 0..count {
            scene
                .place
                .patch::<Deployment>("cache", json!({"metadata": {"annotations": {"round": round.to_string()}}}))
                .await;
        }
    };
    for image in ["a:1", "a:2", "a:3"] {
        scene.edit(json!({"spec": {"remoteStorage": {"redis": {"image": image}}}})).await;
        let (outcome, ()) = tokio::join!(scene.pass(), meddle(3));
        assert!(outcome.storage.is_none(), "{outcome:?}");
    }
}
