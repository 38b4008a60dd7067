//! The suite for storage providers.

use k8s_openapi::api::core::v1::{PodSpec, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::report::{Report, text};
use super::rules::Rule;
use crate::adapters::{RenderedStorage, StorageProvider};
use crate::api::CacheBackend;
use crate::api::backend::{Ownership, Provider, RemoteStorage};

/// An object whose storage the provider runs or knows.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StorageFixture {
    /// For reports.
    pub name: String,
    /// The object.
    pub backend: CacheBackend,
    /// Objects that ask for what the provider cannot do.
    pub unsupported: Vec<(String, CacheBackend)>,
}

impl StorageFixture {
    /// Without refusals.
    #[must_use]
    pub fn new(name: &str, backend: CacheBackend) -> Self {
        Self { name: name.to_owned(), backend, unsupported: Vec::new() }
    }

    /// With an object that asks for too much.
    #[must_use]
    pub fn unsupported(mut self, what: &str, backend: CacheBackend) -> Self {
        self.unsupported.push((what.to_owned(), backend));
        self
    }
}

/// Checks every rule on every fixture.
pub fn storage_provider(provider: &dyn StorageProvider, fixtures: &[StorageFixture]) -> Report {
    let mut report = Report::default();
    for fixture in fixtures {
        let Some(storage) = fixture.backend.spec.remote_storage.as_ref() else {
            report.add(Rule::P1, &fixture.name, "the fixture has no storage");
            continue;
        };
        selection(provider, &fixture.name, storage, &mut report);
        for (what, backend) in &fixture.unsupported {
            let rendered = provider.render(backend);
            report.check(rendered.is_err(), Rule::P8, &fixture.name, || format!("{what} is rendered"));
        }
        match (provider.render(&fixture.backend), provider.render(&fixture.backend)) {
            (Ok(one), Ok(other)) => {
                report.check(one == other, Rule::P2, &fixture.name, || "two renderings differ".to_owned());
                rendering(&fixture.name, storage, &one, &mut report);
            }
            (Err(error), _) | (_, Err(error)) => {
                report.add(Rule::P8, &fixture.name, format!("the fixture itself is refused: {error}"));
            }
        }
    }
    report
}

fn selection(provider: &dyn StorageProvider, name: &str, storage: &RemoteStorage, report: &mut Report) {
    report.check(provider.supports(storage), Rule::P1, name, || "the fixture is not supported".to_owned());
    for ownership in ["Managed", "External", "NoSuchOwnership"].map(Ownership::from) {
        let meant = ownership == storage.ownership;
        let other = RemoteStorage { ownership: ownership.clone(), ..storage.clone() };
        report.check(provider.supports(&other) == meant, Rule::P1, name, || {
            format!("ownership {ownership} is not told apart")
        });
    }
    let stranger = RemoteStorage { provider: Provider::from("NoSuchProvider"), ..storage.clone() };
    report.check(!provider.supports(&stranger), Rule::P1, name, || "an unknown provider is supported".to_owned());
    let bare = RemoteStorage { endpoint: None, workload: None, redis: None, ..storage.clone() };
    report.check(provider.supports(&bare), Rule::P1, name, || {
        "support depends on more than provider and ownership".to_owned()
    });
}

fn rendering(name: &str, storage: &RemoteStorage, rendered: &RenderedStorage, report: &mut Report) {
    if storage.ownership == Ownership::External {
        let nothing = rendered.pod.is_none() && rendered.service.is_none();
        report.check(nothing, Rule::P9, name, || "objects are rendered for a store that somebody else runs".to_owned());
    }
    report.check(!rendered.protocol.as_str().is_empty(), Rule::P9, name, || "no protocol is named".to_owned());
    let authentication = storage.redis.as_ref().and_then(|redis| redis.authentication.as_ref());
    if let Some(pod) = &rendered.pod {
        let bare = PodSpec {
            containers: pod.containers.clone(),
            init_containers: pod.init_containers.clone(),
            volumes: pod.volumes.clone(),
            // Judged by P10.
            host_network: pod.host_network,
            host_pid: pod.host_pid,
            host_ipc: pod.host_ipc,
            ..PodSpec::default()
        };
        report.check(*pod == bare, Rule::P4, name, || {
            format!("the Pod has more than containers and volumes: {}", text(pod))
        });
        containers(name, pod, authentication.is_some(), report);
        let args: Vec<&String> = pod.containers.iter().flat_map(|container| container.args.iter().flatten()).collect();
        let selectors = authentication.into_iter().flat_map(|a| [Some(&a.password), a.username.as_ref()]).flatten();
        for selector in selectors {
            let given = args.iter().any(|arg| arg.contains(&selector.name));
            report.check(!given, Rule::P7, name, || format!("Secret {:?} is in arguments", selector.name));
            let env = pod.containers.iter().flat_map(|container| container.env.iter().flatten());
            let passed =
                env.filter_map(|var| var.value_from.as_ref()?.secret_key_ref.as_ref()).any(|key| key == selector);
            report.check(passed, Rule::P7, name, || format!("Secret {:?} reaches no container", selector.name));
        }
    }
    if let Some(service) = &rendered.service {
        ports(name, service, rendered.pod.as_ref(), report);
    }
}

fn containers(name: &str, pod: &PodSpec, password: bool, report: &mut Report) {
    let host = [pod.host_network, pod.host_pid, pod.host_ipc].contains(&Some(true));
    let path = pod.volumes.iter().flatten().any(|volume| volume.host_path.is_some());
    report.check(!host && !path, Rule::P10, name, || "the Pod uses the host's namespaces or paths".to_owned());
    for container in &pod.containers {
        let privileged = container.security_context.as_ref().and_then(|context| context.privileged) == Some(true);
        report.check(!privileged, Rule::P10, name, || format!("container {:?} is privileged", container.name));
        let Some(probe) = &container.readiness_probe else {
            report.add(Rule::P6, name, format!("container {:?} has no readiness probe", container.name));
            continue;
        };
        report.check(!password || probe.exec.is_some(), Rule::P6, name, || {
            format!("readiness of container {:?} does not try the password", container.name)
        });
    }
}

fn ports(name: &str, service: &Service, pod: Option<&PodSpec>, report: &mut Report) {
    let spec = service.spec.clone().unwrap_or_default();
    let left = service.metadata == ObjectMeta::default() && spec.selector.is_none() && service.status.is_none();
    report.check(left, Rule::P4, name, || "the Service has metadata or a selector".to_owned());
    let inside = spec.type_.as_deref().is_none_or(|kind| kind == "ClusterIP");
    report.check(inside, Rule::P10, name, || format!("the Service is of type {:?}", spec.type_));
    let named: Vec<&str> = pod
        .into_iter()
        .flat_map(|pod| &pod.containers)
        .flat_map(|container| container.ports.iter().flatten())
        .filter_map(|port| port.name.as_deref().filter(|_| port.protocol.is_some()))
        .collect();
    report.check(spec.ports.iter().flatten().next().is_some(), Rule::P5, name, || "the Service has no port".to_owned());
    for port in spec.ports.iter().flatten() {
        let target = matches!(&port.target_port, Some(IntOrString::String(target)) if named.contains(&target.as_str()));
        report.check(target && port.protocol.is_some(), Rule::P5, name, || {
            format!("port {} names no container port, or one without protocol", port.port)
        });
        report
            .check(port.node_port.is_none(), Rule::P10, name, || format!("port {} is opened on every node", port.port));
    }
}
