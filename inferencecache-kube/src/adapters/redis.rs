//! Redis as a second tier: one that we run, and one that somebody else runs.
//!
//! Ours is one process without persistence: losing it costs misses. Its memory is capped a fifth below the container's limit,
//! which leaves room for what Redis does not count. It is started without a shell and through the image's own entry point,
//! which gives up root.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, ContainerPort, ExecAction, PodSpec, Probe, ResourceRequirements, Service, ServicePort, ServiceSpec,
    TCPSocketAction,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::contract::StorageProvider;
use super::error::AdapterError;
use super::pod::env_from_secret;
use super::value::{Protocol, RenderedStorage};
use crate::api::backend::{Ownership, Provider, RedisAuthentication, RemoteStorage};
use crate::api::names::REDIS_PORT;
use crate::api::{Amount, CacheBackend, Quantity};

const IMAGE: &str = "docker.io/library/redis:7.4-alpine";
const CONTAINER: &str = "redis-l2";
const PORT_NAME: &str = "redis";
/// What the container gets where the object asks for nothing.
const MEMORY_REQUEST: &str = "4Gi";
const MEMORY_LIMIT: &str = "8Gi";
/// The same as bytes, for the cap.
const DEFAULT_LIMIT: i64 = 8 << 30;

/// A Redis that the controller runs.
#[derive(Debug, Clone, Copy, Default)]
pub struct ManagedRedis;

/// A Redis that somebody else runs: nothing to render, and nobody asks whether it is there.
#[derive(Debug, Clone, Copy, Default)]
pub struct ExternalRedis;

impl StorageProvider for ManagedRedis {
    fn supports(&self, storage: &RemoteStorage) -> bool {
        storage.provider == Provider::Redis && storage.ownership == Ownership::Managed
    }

    fn render(&self, backend: &CacheBackend) -> Result<RenderedStorage, AdapterError> {
        let redis = backend.spec.remote_storage.as_ref().and_then(|storage| storage.redis.as_ref());
        let authentication = redis.and_then(|redis| redis.authentication.as_ref());
        if authentication.is_some_and(|authentication| authentication.username.is_some()) {
            return Err(AdapterError::backend(
                "spec.remoteStorage.redis.authentication.username",
                "is not supported for a managed Redis; its password belongs to the default user",
            ));
        }
        let given = redis.and_then(|redis| redis.resources.clone());
        let maximum = maximum_memory(given.as_ref());
        let image = redis.and_then(|redis| redis.image.as_deref()).map(str::trim).filter(|image| !image.is_empty());
        let container = Container {
            name: CONTAINER.to_owned(),
            image: Some(image.unwrap_or(IMAGE).to_owned()),
            image_pull_policy: Some("IfNotPresent".to_owned()),
            args: Some(args(maximum, authentication.is_some())),
            env: authentication.map(|authentication| {
                ["REDIS_PASSWORD", "REDISCLI_AUTH"].map(|name| env_from_secret(name, &authentication.password)).into()
            }),
            ports: Some(vec![ContainerPort {
                name: Some(PORT_NAME.to_owned()),
                container_port: REDIS_PORT,
                protocol: Some("TCP".to_owned()),
                ..ContainerPort::default()
            }]),
            readiness_probe: Some(readiness(authentication)),
            resources: Some(given.unwrap_or_else(default_resources)),
            ..Container::default()
        };
        Ok(RenderedStorage {
            protocol: Protocol::resp(),
            pod: Some(PodSpec { containers: vec![container], ..PodSpec::default() }),
            service: Some(service()),
        })
    }
}

impl StorageProvider for ExternalRedis {
    fn supports(&self, storage: &RemoteStorage) -> bool {
        storage.provider == Provider::Redis && storage.ownership == Ownership::External
    }

    fn render(&self, _: &CacheBackend) -> Result<RenderedStorage, AdapterError> {
        Ok(RenderedStorage { protocol: Protocol::resp(), pod: None, service: None })
    }
}

/// Four fifths of the limit, in bytes; never nothing, which Redis would take for everything.
fn maximum_memory(resources: Option<&ResourceRequirements>) -> i64 {
    let limit = resources.and_then(|resources| resources.limits.as_ref()?.get("memory"));
    let limit = limit.and_then(|limit| Amount::of(limit).ok()).map(Amount::ceil).filter(|bytes| *bytes > 0);
    let base = limit.unwrap_or(DEFAULT_LIMIT);
    base - base / 5
}

fn args(maximum: i64, password: bool) -> Vec<String> {
    let maximum = maximum.to_string();
    let mut args = vec!["redis-server", "--save", "", "--appendonly", "no", "--protected-mode", "no"];
    args.extend(["--maxmemory", &maximum, "--maxmemory-policy", "allkeys-lru"]);
    if password {
        // Put in by the kubelet, from the variable.
        args.extend(["--requirepass", "$(REDIS_PASSWORD)"]);
    }
    args.into_iter().map(str::to_owned).collect()
}

/// Without a password the open port will do; with one only an authenticated answer shows that the Secret is the right one.
fn readiness(authentication: Option<&RedisAuthentication>) -> Probe {
    let probe = Probe {
        initial_delay_seconds: Some(3),
        period_seconds: Some(10),
        failure_threshold: Some(6),
        ..Probe::default()
    };
    if authentication.is_some() {
        let command = Some(vec!["redis-cli".to_owned(), "ping".to_owned()]);
        return Probe { exec: Some(ExecAction { command }), timeout_seconds: Some(2), ..probe };
    }
    let port = IntOrString::String(PORT_NAME.to_owned());
    Probe { tcp_socket: Some(TCPSocketAction { port, host: None }), ..probe }
}

fn default_resources() -> ResourceRequirements {
    let memory = |amount: &str| Some(BTreeMap::from([("memory".to_owned(), Quantity(amount.to_owned()))]));
    ResourceRequirements { requests: memory(MEMORY_REQUEST), limits: memory(MEMORY_LIMIT), claims: None }
}

fn service() -> Service {
    let port = ServicePort {
        name: Some(PORT_NAME.to_owned()),
        port: REDIS_PORT,
        target_port: Some(IntOrString::String(PORT_NAME.to_owned())),
        protocol: Some("TCP".to_owned()),
        ..ServicePort::default()
    };
    let spec = ServiceSpec { type_: Some("ClusterIP".to_owned()), ports: Some(vec![port]), ..ServiceSpec::default() };
    Service { spec: Some(spec), ..Service::default() }
}
