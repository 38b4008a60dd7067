//! The Deployment and the Service of a managed store.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{PodSpec, Service};
use kube::api::DeleteParams;
use serde_json::{Value, json};

use super::{Scene, into};

fn pod(deployment: &Deployment) -> &PodSpec {
    deployment.spec.as_ref().and_then(|spec| spec.template.spec.as_ref()).expect("a Pod")
}

fn uid(deployment: &Deployment) -> Option<&str> {
    deployment.metadata.uid.as_deref()
}

/// controller:1-3,18
#[tokio::test]
async fn a_managed_store_gets_its_children_once() {
    let Some(scene) = Scene::new("store", "cache").await else { return };
    scene.backend("managed", json!({})).await;
    let outcome = scene.pass().await;
    assert_eq!(scene.writes.take(), 2);
    assert_eq!(outcome.endpoint.as_deref(), Some("cache.store.svc.cluster.local:6379"));
    assert!(outcome.deployment.is_some() && outcome.storage.is_none());
    let (deployment, service) = (scene.deployment().await.expect("one"), scene.service().await.expect("one"));
    assert_eq!(pod(&deployment).containers.len(), 1);
    let ip = service.spec.and_then(|spec| spec.cluster_ip).expect("an address");
    assert!(ip.starts_with("10."), "{ip}");
    let versions = |deployment: Deployment, service: Service| {
        (deployment.metadata.resource_version, service.metadata.resource_version)
    };
    let before = versions(deployment, scene.service().await.expect("one"));
    scene.settle().await;
    let after = versions(scene.deployment().await.expect("one"), scene.service().await.expect("one"));
    assert_eq!(before, after);
}

/// controller:10,12,18: every shape of store settles: what the API server fills in is no difference.
#[tokio::test]
async fn every_shape_settles() {
    let Some(scene) = Scene::new("shapes", "cache").await else { return };
    scene.backend("managed", json!({})).await;
    for (redis, memory) in [
        (json!({"resources": {"limits": {"memory": "1Gi"}}}), "858993460"),
        (json!({"resources": {"limits": {"memory": "1024Mi", "cpu": "1000m"}}}), "858993460"),
        (json!({"resources": {"requests": {"memory": "12Gi"}}}), "6871947674"),
        (json!({"resources": {}}), "6871947674"),
        (json!({"authentication": {"password": {"name": "redis-auth", "key": "password"}}}), "6871947674"),
        (json!({}), "6871947674"),
    ] {
        scene.edit(json!({"spec": {"remoteStorage": {"redis": null}}})).await;
        scene.edit(json!({"spec": {"remoteStorage": {"redis": redis}}})).await;
        scene.settle().await;
        let deployment = scene.deployment().await.expect("one");
        let container = &pod(&deployment).containers[0];
        let args = container.args.clone().unwrap_or_default();
        assert!(args.contains(&memory.to_owned()), "{redis}: {args:?}");
        assert_eq!(container.env.is_some(), redis["authentication"].is_object(), "{redis}");
        let given = serde_json::to_value(&container.resources).expect("JSON");
        if redis["resources"]["requests"].is_object() {
            assert_eq!(given, redis["resources"]);
        }
    }
}

/// controller:13,35
#[tokio::test]
async fn an_edit_changes_the_deployment_in_place() {
    let Some(scene) = Scene::new("edits", "cache").await else { return };
    scene.backend("managed", json!({})).await;
    scene.settle().await;
    let before = scene.deployment().await.expect("one");
    scene.edit(json!({"spec": {"remoteStorage": {"redis": {"image": "example.com/redis:v2"}}}})).await;
    scene.settle().await;
    let after = scene.deployment().await.expect("one");
    assert_eq!(uid(&before), uid(&after));
    assert_eq!(pod(&after).containers[0].image.as_deref(), Some("example.com/redis:v2"));
    scene.edit(json!({"spec": {"runtime": "SGLang"}})).await;
    scene.pass().await;
    assert_eq!(scene.writes.take(), 0, "another engine needs no other store");
}

/// controller:14,15
#[tokio::test]
async fn wishes_come_and_go() {
    let Some(scene) = Scene::new("wishes", "cache").await else { return };
    scene.backend("managed", json!({})).await;
    scene.settle().await;
    let plain = scene.deployment().await.expect("one");
    let wishes = json!({
        "nodeSelector": {"disk": "fast"},
        "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
            {"weight": 1, "podAffinityTerm": {"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}}}]}},
        "tolerations": [{"key": "cache", "operator": "Exists"}, {"key": "k", "value": "v"}],
        "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}],
        "imagePullSecrets": [{"name": "pull"}],
        "serviceAccountName": "redis",
        "securityContext": {"runAsUser": 999, "runAsNonRoot": false},
        "schedulerName": "packer",
        "terminationGracePeriodSeconds": 45,
    });
    scene.edit(json!({"spec": {"remoteStorage": {"workload": wishes}}})).await;
    scene.settle().await;
    let dressed = serde_json::to_value(pod(&scene.deployment().await.expect("one"))).expect("JSON");
    for (field, wish) in wishes.as_object().expect("wishes") {
        assert_eq!(&dressed[field], wish);
    }
    assert_eq!(dressed["serviceAccount"], "redis");
    scene.edit(json!({"spec": {"remoteStorage": {"workload": null}}})).await;
    scene.settle().await;
    let after = scene.deployment().await.expect("one");
    assert_eq!((pod(&plain), uid(&plain)), (pod(&after), uid(&after)));
}

/// controller:16,17
#[tokio::test]
async fn drift_is_put_back_in_one_pass() {
    let Some(scene) = Scene::new("drift", "cache").await else { return };
    scene.backend("managed", json!({})).await;
    scene.settle().await;
    let before = scene.deployment().await.expect("one");
    let drift = json!({"spec": {
        "replicas": 3,
        "strategy": {"type": "Recreate", "rollingUpdate": null},
        "template": {"spec": {
            "containers": [{"name": "redis-l2", "image": "other"}, {"name": "x", "image": "x"}],
            "volumes": [{"name": "v", "emptyDir": {}}],
            "serviceAccountName": "x",
        }},
    }});
    scene.place.patch::<Deployment>("cache", drift).await;
    scene.place.patch::<Service>("cache", json!({"spec": {"ports": [{"port": 7777}]}})).await;
    scene.settle().await;
    let after = scene.deployment().await.expect("one");
    assert_eq!(uid(&before), uid(&after));
    assert_eq!(pod(&before), pod(&after));
    let spec = after.spec.expect("a spec");
    assert_eq!((spec.replicas, spec.strategy), (Some(1), before.spec.expect("a spec").strategy));
    let ports = scene.service().await.and_then(|service| service.spec?.ports).expect("ports");
    assert_eq!(
        serde_json::to_value(ports).expect("JSON"),
        json!([{"name": "redis", "port": 6379, "targetPort": "redis", "protocol": "TCP"}])
    );
    // Its type as well; the cluster takes the node's port back.
    scene.place.patch::<Service>("cache", json!({"spec": {"type": "NodePort"}})).await;
    scene.settle().await;
    let service = scene.service().await.and_then(|service| service.spec).expect("a spec");
    assert_eq!(service.type_.as_deref(), Some("ClusterIP"));
}

/// controller:21
#[tokio::test]
async fn a_deleted_child_comes_back() {
    let Some(scene) = Scene::new("deleted", "cache").await else { return };
    scene.backend("managed", json!({})).await;
    scene.settle().await;
    let before = scene.deployment().await.expect("one");
    scene.place.remove::<Deployment>("cache").await;
    scene.place.remove::<Service>("cache").await;
    scene.settle().await;
    assert_ne!(uid(&before), uid(&scene.deployment().await.expect("one")));
    assert!(scene.service().await.is_some());
}

/// controller:24-33: away from a managed store its children go, and only then.
#[tokio::test]
async fn another_mode_sheds_the_children() {
    let Some(scene) = Scene::new("modes", "cache").await else { return };
    scene.backend("hicache", json!({})).await;
    scene.settle().await;
    assert!(scene.deployment().await.is_none() && scene.service().await.is_none());
    let clear = json!({"spec": {"hiCache": null}});
    for mode in ["external", "host-only", "events-only", "hicache"] {
        scene.edit(clear.clone()).await;
        scene.edit(into("managed")).await;
        let outcome = scene.settle().await;
        assert!(outcome.deployment.is_some() && outcome.endpoint.is_some(), "before {mode}");
        scene.edit(into(mode)).await;
        let outcome = scene.settle().await;
        assert!(outcome.deployment.is_none() && outcome.endpoint.is_none(), "{mode}");
        assert!(scene.deployment().await.is_none() && scene.service().await.is_none(), "{mode}");
    }
}

/// controller:11: nothing is created, the reason is told; what is there already runs on.
#[tokio::test]
async fn what_cannot_be_rendered_creates_nothing() {
    let Some(scene) = Scene::new("unrendered", "cache").await else { return };
    let authentication = json!({"password": {"name": "s", "key": "p"}, "username": {"name": "s", "key": "u"}});
    let with_user: Value = json!({"remoteStorage": {"redis": {"authentication": authentication}}});
    scene.backend("managed", with_user.clone()).await;
    let outcome = scene.pass().await;
    let why = outcome.storage.expect("a reason").summary();
    assert!(why.contains("redis.authentication.username"), "{why}");
    assert_eq!((scene.writes.take(), outcome.deployment.is_some()), (0, false));
    scene.edit(json!({"spec": {"remoteStorage": {"redis": {"authentication": null}}}})).await;
    scene.settle().await;
    scene.edit(json!({"spec": with_user})).await;
    let outcome = scene.pass().await;
    assert!(outcome.storage.is_some() && outcome.deployment.is_some() && outcome.endpoint.is_some());
    assert_eq!(scene.writes.take(), 0);
}

/// controller:34
#[tokio::test]
async fn on_its_way_out_an_object_gets_no_children() {
    let Some(scene) = Scene::new("leaving", "cache").await else { return };
    scene.backend("managed", json!({})).await;
    scene.edit(json!({"metadata": {"finalizers": ["example.com/hold"]}})).await;
    scene.settle().await;
    scene
        .place
        .api::<inferencecache_kube::api::CacheBackend>()
        .delete("cache", &DeleteParams::default())
        .await
        .expect("ok");
    scene.place.remove::<Deployment>("cache").await;
    scene.place.patch::<Service>("cache", json!({"metadata": {"labels": {"drift": "stays"}}})).await;
    scene.pass().await;
    assert_eq!(scene.writes.take(), 0);
    assert!(scene.deployment().await.is_none());
    scene.edit(json!({"metadata": {"finalizers": null}})).await;
    assert!(scene.place.get::<inferencecache_kube::api::CacheBackend>("cache").await.is_none());
}

/// A name with dots cannot name a Service: the Deployment is made, the rest says why without asking again and again.
#[tokio::test]
async fn a_dotted_name_has_no_service() {
    let Some(scene) = Scene::new("dotted", "cache.v1.prod").await else { return };
    scene.backend("managed", json!({})).await;
    let outcome = scene.pass().await;
    assert_eq!(scene.writes.take(), 1);
    assert!(outcome.deployment.is_some() && outcome.endpoint.is_none());
    let why = outcome.storage.expect("a reason").summary();
    assert!(why.contains("cache.v1.prod") && why.contains("dots"), "{why}");
    scene.pass().await;
    assert_eq!(scene.writes.take(), 0);
}
