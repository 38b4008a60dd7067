//! Redis, managed and external.

use inferencecache_kube::adapters::{
    AdapterError, ExternalRedis, ManagedRedis, Protocol, RenderedStorage, StorageProvider,
};
use inferencecache_kube::api::CacheBackend;
use k8s_openapi::api::core::v1::Container;
use serde_json::{Value, json};

use crate::fixtures::{edited, value_of, worked};

fn managed(redis: Value) -> CacheBackend {
    let storage = json!({"provider": "Redis", "ownership": "Managed", "redis": redis});
    edited(&worked("p1").backend, "/spec/remoteStorage", storage)
}

fn render(redis: Value) -> RenderedStorage {
    ManagedRedis.render(&managed(redis)).expect("a rendering")
}

fn container(redis: Value) -> Container {
    render(redis).pod.expect("a Pod").containers.remove(0)
}

/// adapters:D12
#[test]
fn a_managed_redis_by_default() {
    let rendered = render(json!({}));
    assert_eq!(rendered.protocol, Protocol::resp());
    let expected = json!({"containers": [{
        "name": "redis-l2", "image": "docker.io/library/redis:7.4-alpine", "imagePullPolicy": "IfNotPresent",
        "args": ["redis-server", "--save", "", "--appendonly", "no", "--protected-mode", "no",
            "--maxmemory", "6871947674", "--maxmemory-policy", "allkeys-lru"],
        "ports": [{"name": "redis", "containerPort": 6379, "protocol": "TCP"}],
        "readinessProbe": {"tcpSocket": {"port": "redis"}, "initialDelaySeconds": 3, "periodSeconds": 10, "failureThreshold": 6},
        "resources": {"requests": {"memory": "4Gi"}, "limits": {"memory": "8Gi"}}}]});
    assert_eq!(serde_json::to_value(rendered.pod).expect("JSON"), expected);
    let port = json!({"name": "redis", "port": 6379, "targetPort": "redis", "protocol": "TCP"});
    let service = serde_json::to_value(rendered.service).expect("JSON");
    assert_eq!(service["spec"], json!({"type": "ClusterIP", "ports": [port]}));
    let without = edited(&managed(json!({})), "/spec/remoteStorage/redis", Value::Null);
    assert_eq!(ManagedRedis.render(&without), ManagedRedis.render(&managed(json!({}))));
}

/// adapters:D13,D14
#[test]
fn memory_is_capped_a_fifth_below_the_limit() {
    for (resources, bytes) in [
        (json!({"limits": {"memory": "4Gi"}, "requests": {"memory": "2Gi"}}), "3435973837"),
        (json!({"limits": {"memory": "100Mi"}}), "83886080"),
        (json!({"limits": {"memory": "1"}}), "1"),
        (json!({"limits": {"memory": "1Gi"}}), "858993460"),
        (json!({"limits": {"memory": "16Gi"}}), "13743895348"),
        (json!({"limits": {"memory": "0"}}), "6871947674"),
        (json!({"requests": {"memory": "4Gi"}}), "6871947674"),
        (json!({}), "6871947674"),
    ] {
        let container = container(json!({"resources": resources}));
        assert_eq!(value_of(&container, "--maxmemory"), Some(bytes), "{resources}");
        assert_eq!(serde_json::to_value(&container.resources).expect("JSON"), resources);
    }
}

/// adapters:D15
#[test]
fn an_image_is_taken_as_given() {
    let container = container(json!({"image": "r/redis@sha256:1"}));
    assert_eq!((container.image.as_deref(), container.command), (Some("r/redis@sha256:1"), None));
}

/// adapters:D16
#[test]
fn a_password_is_a_reference_and_readiness_uses_it() {
    let container = container(json!({"authentication": {"password": {"name": "the-secret", "key": "pass"}}}));
    let json = serde_json::to_value(&container).expect("JSON");
    let source = json!({"secretKeyRef": {"name": "the-secret", "key": "pass"}});
    assert_eq!(
        json["env"],
        json!([{"name": "REDIS_PASSWORD", "valueFrom": source}, {"name": "REDISCLI_AUTH", "valueFrom": source}])
    );
    assert_eq!(value_of(&container, "--requirepass"), Some("$(REDIS_PASSWORD)"));
    assert!(!json["args"].to_string().contains("the-secret"));
    let probe = json!({"exec": {"command": ["redis-cli", "ping"]}, "initialDelaySeconds": 3, "periodSeconds": 10,
        "failureThreshold": 6, "timeoutSeconds": 2});
    assert_eq!(json["readinessProbe"], probe);
}

/// adapters:D17
#[test]
fn a_managed_user_is_refused() {
    let key = json!({"name": "s", "key": "k"});
    let error = ManagedRedis.render(&managed(json!({"authentication": {"password": key, "username": key}})));
    let Err(AdapterError::Backend { path, .. }) = error else { panic!("{error:?}") };
    assert_eq!(path, "spec.remoteStorage.redis.authentication.username");
}

/// adapters:D18
#[test]
fn a_rendering_shares_nothing_with_the_object() {
    let backend = managed(json!({"resources": {"limits": {"memory": "1Gi"}}}));
    let before = backend.clone();
    let mut rendered = ManagedRedis.render(&backend).expect("a rendering");
    rendered.pod.as_mut().expect("a Pod").containers[0].resources = None;
    assert_eq!(backend, before);
}

/// adapters:D19
#[test]
fn an_external_redis_is_not_rendered() {
    let storage = json!({"provider": "Redis", "ownership": "External", "endpoint": "h:1"});
    let rendered = ExternalRedis.render(&edited(&worked("p1").backend, "/spec/remoteStorage", storage));
    assert_eq!(rendered, Ok(RenderedStorage { protocol: Protocol::resp(), pod: None, service: None }));
}
