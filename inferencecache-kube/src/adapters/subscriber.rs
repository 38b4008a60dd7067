//! The subscriber beside an engine: it turns the engine's KV events into reports to the policy server.
//!
//! The flags are those of the `kvevent-subscriber` binary, which refuses ones it does not know. Who reports is taken from the
//! Pod by the downward API, because a Pod that is being admitted may not have its name yet.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Capabilities, Container, Pod, PodSpec, ResourceRequirements, SecurityContext};

use super::args::{sole_value, values};
use super::builtin::Options;
use super::error::AdapterError;
use super::pod::env_from_field;
use crate::api::names::{self, KV_EVENT_PORT};
use crate::api::{Amount, CacheBackend, Quantity};

/// The policy server of a default installation.
pub const DEFAULT_SERVER: &str = "inference-cache-server.inference-cache-system.svc.cluster.local:9090";

/// The user that the subscriber's image is built for.
const USER: i64 = 65532;

/// What every subscriber of an installation has in common.
#[derive(Debug, Clone, Default)]
pub struct Subscriber {
    image: String,
    server: String,
}

/// How engines of one family are observed.
#[derive(Debug, Clone, Copy)]
pub struct Engine {
    /// Usual name of the engine's container.
    pub container: &'static str,
    /// Namespace of the block hashes in the index; one per engine family, or their entries are taken for each other's.
    pub hash_scheme: &'static str,
    /// Where the metrics are without `--port`.
    pub metrics_port: u16,
    /// The engine's own flag for the bytes of its KV cache on one device, where it has one.
    pub cache_size_flag: Option<&'static str>,
}

impl Subscriber {
    /// From the installation's options.
    #[must_use]
    pub fn new(options: &Options) -> Self {
        let server = options.policy_server_grpc_address.trim();
        Self {
            image: options.subscriber_image.trim().to_owned(),
            server: if server.is_empty() { DEFAULT_SERVER } else { server }.to_owned(),
        }
    }

    /// Whether an object's engines get a subscriber: there is an image, and a model that the reports can be about.
    #[must_use]
    pub fn wanted(&self, backend: &CacheBackend) -> bool {
        !self.image.is_empty() && backend.spec.model_id().is_some()
    }

    /// The container, or none when it is not [`wanted`](Self::wanted). `find_engine` tells which container is the engine;
    /// its arguments say where the metrics are.
    ///
    /// Pods that are meant to end get it in the native form (`restartPolicy: Always`, an init container), or it would keep
    /// them from ending. Others get an ordinary container: a native one would hold the engine back while its image cannot
    /// be pulled.
    ///
    /// # Errors
    /// The Pod has no spec.
    pub fn container(
        &self,
        backend: &CacheBackend,
        pod: &Pod,
        engine: &Engine,
        find_engine: impl Fn(&PodSpec) -> Option<usize>,
    ) -> Result<Option<Container>, AdapterError> {
        let spec = pod.spec.as_ref().ok_or_else(|| AdapterError::pod("spec", "is missing"))?;
        let Some(model) = backend.spec.model_id().filter(|_| self.wanted(backend)) else { return Ok(None) };
        let found = find_engine(spec).and_then(|at| spec.containers.get(at));
        let port = found.and_then(port).unwrap_or(engine.metrics_port);
        let mut args = vec![
            format!("--engine-endpoint=tcp://127.0.0.1:{KV_EVENT_PORT}"),
            format!("--server={}", self.server),
            "--replica-id=$(POD_NAME)".to_owned(),
            "--tenant-id=$(POD_NAMESPACE)".to_owned(),
            format!("--model-id={model}"),
            format!("--hash-scheme={}", engine.hash_scheme),
            format!("--engine-metrics-url=http://127.0.0.1:{port}/metrics"),
        ];
        if !backend.spec.events_only() {
            // A second tier stands behind the engine and announces nothing: what is removed here is still there.
            args.push("--ignore-block-removed=true".to_owned());
        }
        if let Some(bytes) = cache_size(backend, found, engine) {
            args.push(format!("--engine-cache-size-bytes={bytes}"));
        }
        let ends = spec.restart_policy.as_deref().is_some_and(|policy| policy == "Never" || policy == "OnFailure");
        Ok(Some(Container {
            name: names::SUBSCRIBER_CONTAINER.to_owned(),
            image: Some(self.image.clone()),
            image_pull_policy: Some("IfNotPresent".to_owned()),
            restart_policy: ends.then(|| "Always".to_owned()),
            args: Some(args),
            env: Some(vec![
                env_from_field("POD_NAME", "metadata.name"),
                env_from_field("POD_NAMESPACE", "metadata.namespace"),
            ]),
            resources: Some(ResourceRequirements {
                requests: amounts("10m", "64Mi"),
                limits: amounts("200m", "128Mi"),
                claims: None,
            }),
            security_context: Some(SecurityContext {
                run_as_non_root: Some(true),
                run_as_user: Some(USER),
                allow_privilege_escalation: Some(false),
                read_only_root_filesystem: Some(true),
                capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), ..Capabilities::default() }),
                ..SecurityContext::default()
            }),
            ..Container::default()
        }))
    }
}

fn amounts(cpu: &str, memory: &str) -> Option<BTreeMap<String, Quantity>> {
    Some([("cpu", cpu), ("memory", memory)].map(|(name, amount)| (name.to_owned(), Quantity(amount.to_owned()))).into())
}

/// The last valid `--port` of the engine, in its command or its arguments.
pub(crate) fn port(engine: &Container) -> Option<u16> {
    let words: Vec<&str> =
        engine.command.iter().flatten().chain(engine.args.iter().flatten()).map(String::as_str).collect();
    let mut last = None;
    for (at, word) in words.iter().enumerate() {
        let value = match word.strip_prefix("--port") {
            Some("") => words.get(at + 1).copied(),
            Some(rest) => rest.strip_prefix('='),
            None => None,
        };
        let number = value.and_then(|value| resolve(engine, value)?.parse::<i32>().ok());
        last = number.and_then(|number| u16::try_from(number).ok()).filter(|port| *port > 0).or(last);
    }
    last
}

/// A value as the engine sees it: `$(NAME)` is the engine's own literal variable.
fn resolve<'a>(engine: &'a Container, value: &'a str) -> Option<&'a str> {
    let Some(name) = value.strip_prefix("$(").and_then(|rest| rest.strip_suffix(')')) else { return Some(value) };
    // Of two entries of one name the kubelet takes the last.
    engine.env.iter().flatten().rfind(|var| var.name == name)?.value.as_deref()
}

/// Bytes of the engine's KV cache: as annotated, else as its own flag says, times the devices that share it.
fn cache_size(backend: &CacheBackend, found: Option<&Container>, engine: &Engine) -> Option<i64> {
    let annotated = backend.metadata.annotations.as_ref().and_then(|list| list.get(names::ENGINE_CACHE_SIZE));
    if let Some(amount) =
        annotated.and_then(|text| Amount::parse(text.trim()).ok()).filter(|amount| amount.is_positive())
    {
        return Some(amount.ceil());
    }
    let args = found?.args.as_deref()?;
    let bytes = values(args, engine.cache_size_flag?).ok()?.last()?.parse::<i64>().ok().filter(|bytes| *bytes > 0)?;
    let devices = match sole_value(args, &["--tensor-parallel-size", "-tp"]).ok()? {
        Some(size) => size.parse::<i64>().ok().filter(|size| *size > 0)?,
        None => 1,
    };
    bytes.checked_mul(devices)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adapters::pod::env;

    /// adapters:D52
    #[test]
    fn the_last_valid_port_wins() {
        for (command, args, expected) in [
            ("", "--port=30000 --port 31000", Some(31000)),
            ("", "--port=33000 --port abc", Some(33000)),
            ("", "--port 70000", None),
            ("launch --port=1", "", Some(1)),
            ("", "--port=+8200", Some(8200)),
            ("", "--port=08200", Some(8200)),
            ("", "--port", None),
            ("", "--port=0", None),
            ("", "--port-range 5", None),
            ("", "--port=$(P)", Some(40000)),
            ("", "--port $(S)", None),
            ("", "--port=$(NONE)", None),
            ("", "--port=1$(P)", None),
            ("launch --port=1", "--port=2", Some(2)),
        ] {
            let list = |text: &str| Some(text.split_whitespace().map(str::to_owned).collect());
            let secret = env_from_field("S", "metadata.name");
            let engine = Container {
                command: list(command),
                args: list(args),
                env: Some(vec![env("P", "40000"), secret]),
                ..Container::default()
            };
            assert_eq!(port(&engine), expected, "{command} | {args}");
        }
    }
}
