//! The parts of an LMCache server's container that both topologies share: arguments, credentials, probes, security.

use k8s_openapi::api::core::v1::{
    Capabilities, ContainerPort, EnvVar, HTTPGetAction, Probe, SeccompProfile, SecurityContext,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde::Serialize;

use super::settings::Server;
use crate::adapters::endpoint;
use crate::adapters::error::AdapterError;
use crate::adapters::pod::{env, env_from_secret};
use crate::adapters::value::{Binding, Protocol};
use crate::api::{Amount, names};

/// Name of the port that data goes over.
const DATA_PORT: &str = "lmcache-mp";
/// Name of the port of the health page.
const HTTP_PORT: &str = "lmcache-http";

/// The second tier as LMCache's command line takes it. The order of the fields is the order on the wire.
#[derive(Serialize)]
struct L2<'a> {
    host: &'a str,
    port: u16,
    r#type: &'a str,
}

/// The value of `--l2-adapter`; none without a binding.
///
/// # Errors
/// A protocol other than RESP, what the RESP client of LMCache 0.5.3 has not (TLS, a database number), a malformed endpoint.
pub(crate) fn l2_adapter(binding: Option<&Binding>) -> Result<Option<String>, AdapterError> {
    let Some(binding) = binding else { return Ok(None) };
    if binding.protocol != Protocol::resp() {
        return Err(AdapterError::Binding(format!(
            "protocol {:?} is not supported; LMCache takes {:?} or none",
            binding.protocol.as_str(),
            Protocol::RESP
        )));
    }
    if let Some(redis) = &binding.redis {
        if redis.tls.is_some() {
            return Err(AdapterError::backend(
                "spec.remoteStorage.redis.tls",
                "is not supported by LMCache's RESP client",
            ));
        }
        if redis.database.is_some() {
            return Err(AdapterError::backend(
                "spec.remoteStorage.redis.database",
                "is not supported by LMCache's RESP client",
            ));
        }
    }
    let (host, port) = endpoint::host_port(&binding.endpoint)?;
    let json = serde_json::to_string(&L2 { host, port, r#type: Protocol::RESP });
    json.map(Some).map_err(|error| AdapterError::Binding(error.to_string()))
}

/// The variables every server gets: what it may see, its mark, and the store's credentials as references.
pub(crate) fn credentials(binding: Option<&Binding>) -> Vec<EnvVar> {
    let authentication = binding.and_then(|binding| binding.redis.as_ref()?.authentication.as_ref());
    let Some(authentication) = authentication else { return Vec::new() };
    let mut list = Vec::new();
    if let Some(username) = &authentication.username {
        list.push(env_from_secret("LMCACHE_RESP_USERNAME", username));
    }
    list.push(env_from_secret("LMCACHE_RESP_PASSWORD", &authentication.password));
    list
}

/// GPUs are shared by CUDA IPC, which needs to see them all without holding one; then the mark.
pub(crate) fn base_env() -> Vec<EnvVar> {
    vec![env("NVIDIA_VISIBLE_DEVICES", "all"), env(names::MP_SERVER_MARK, "true")]
}

/// `--chunk-size … --eviction-policy LRU`.
pub(crate) fn cache_args(server: &Server) -> [String; 6] {
    [
        "--chunk-size".to_owned(),
        server.chunk_size.to_string(),
        "--l1-size-gb".to_owned(),
        gibibytes(Amount::of(&server.l1_capacity).unwrap_or_default().ceil()),
        "--eviction-policy".to_owned(),
        "LRU".to_owned(),
    ]
}

/// Bytes in GiB: a whole number if they are one, else the shortest decimal that reads back the same.
pub(crate) fn gibibytes(bytes: i64) -> String {
    const GIB: i64 = 1 << 30;
    if bytes % GIB == 0 { (bytes / GIB).to_string() } else { (bytes as f64 / GIB as f64).to_string() }
}

/// The two named ports; on the node's network each takes the same port of the host.
pub(crate) fn ports(data: i32, http: i32, on_host: bool) -> Vec<ContainerPort> {
    let port = |name: &str, number: i32| ContainerPort {
        name: Some(name.to_owned()),
        container_port: number,
        host_port: on_host.then_some(number),
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    };
    vec![port(DATA_PORT, data), port(HTTP_PORT, http)]
}

/// A probe of the health page.
fn probe(period: i32, failures: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some("/healthcheck".to_owned()),
            port: IntOrString::String(HTTP_PORT.to_owned()),
            scheme: Some("HTTP".to_owned()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period),
        failure_threshold: Some(failures),
        timeout_seconds: Some(2),
        ..Probe::default()
    }
}

/// Two minutes to start.
pub(crate) fn startup_probe() -> Probe {
    probe(3, 40)
}

/// Out of service after fifteen seconds.
pub(crate) fn readiness_probe() -> Probe {
    probe(5, 3)
}

/// Restarted after half a minute.
pub(crate) fn liveness_probe() -> Probe {
    probe(10, 3)
}

/// No more rights than needed. The user is the image's own: which one it is, only the image knows.
pub(crate) fn security_context() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), ..Capabilities::default() }),
        seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), ..SeccompProfile::default() }),
        ..SecurityContext::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// adapters:D26
    #[test]
    fn capacity_is_given_in_gibibytes() {
        for (bytes, text) in [
            (1536 << 20, "1.5"),
            (5_000_000_000, "4.656612873077393"),
            (32 << 30, "32"),
            (512 << 20, "0.5"),
            (1, "0.0000000009313225746154785"),
        ] {
            assert_eq!(gibibytes(bytes), text);
        }
    }
}
