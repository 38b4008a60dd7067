//! Runtime adapters with one fault each, to prove that the suite notices.

use std::sync::atomic::{AtomicU32, Ordering};

use k8s_openapi::api::core::v1::{Container, EmptyDirVolumeSource, Pod, PodSpec, Volume};

use super::report::text;
use super::rules::Rule;
use crate::adapters::pod::{env, env_from_secret};
use crate::adapters::{AdapterError, Binding, MpRuntimeAdapter, Protocol, RuntimeAdapter, RuntimeId, SupportedPair};
use crate::api::CacheBackend;
use crate::api::backend::Observation;

/// What is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RuntimeFault {
    /// Supports runtimes that nobody knows.
    SupportsAnything,
    /// Cannot judge an object without a spec.
    PanicsOnNothing,
    /// Refuses a binding whose endpoint is not known yet.
    LooksAtEndpoint,
    /// Wires a Pod without containers.
    WiresNothing,
    /// Takes the first container for the engine.
    GuessesEngine,
    /// Adds the same argument once more each time.
    AppendsAgain,
    /// Numbers its calls.
    CountsCalls,
    /// Leaves a trace of every object it has seen.
    LeavesTraces,
    /// Throws out what is in its way.
    TakesOver,
    /// Sorts the engine's variables.
    SortsVariables,
    /// Changes the engine's image.
    ChangesImage,
    /// Moves the Pod onto the host's network.
    ChangesNetwork,
    /// Sets a flag that is the operator's to tune.
    SetsTunables,
    /// Reserves a flag that it never injects.
    ReservesTooMuch,
    /// Says yes to every protocol.
    AcceptsAnyBinding,
    /// Treats every protocol as its own.
    InjectsAnyBinding,
    /// Passes the store's password to the engine.
    LeaksPassword,
    /// Makes up a model to observe.
    InventsModel,
    /// Gives the sidecar a flag that it does not know.
    InventsFlag,
    /// Writes the Pod's name into the sidecar.
    WritesName,
    /// Refuses the Pod of a router that it has no wiring for.
    RefusesRouter,
    /// Accepts every engine Pod.
    AcceptsAnyPod,
    /// Lists a pair that it does not support.
    Boasts,
    /// Adds a volume a second time.
    DuplicatesVolume,
    /// Has a container's last words where the API server does not put them by default, and insists.
    FightsDefaults,
    /// Puts its variables first.
    WrongOrder,
}

impl RuntimeFault {
    /// All of them, each with the rule that must catch it.
    pub const ALL: [(Self, Rule); 26] = [
        (Self::SupportsAnything, Rule::A1),
        (Self::PanicsOnNothing, Rule::A1),
        (Self::LooksAtEndpoint, Rule::A2),
        (Self::WiresNothing, Rule::A3),
        (Self::GuessesEngine, Rule::A3),
        (Self::AppendsAgain, Rule::A5),
        (Self::CountsCalls, Rule::A5),
        (Self::LeavesTraces, Rule::A6),
        (Self::TakesOver, Rule::A7),
        (Self::SortsVariables, Rule::A8),
        (Self::ChangesImage, Rule::A9),
        (Self::ChangesNetwork, Rule::A9),
        (Self::SetsTunables, Rule::A10),
        (Self::ReservesTooMuch, Rule::A11),
        (Self::AcceptsAnyBinding, Rule::A12),
        (Self::InjectsAnyBinding, Rule::A12),
        (Self::LeaksPassword, Rule::A13),
        (Self::InventsModel, Rule::A14),
        (Self::InventsFlag, Rule::A14),
        (Self::WritesName, Rule::A15),
        (Self::RefusesRouter, Rule::A16),
        (Self::AcceptsAnyPod, Rule::A17),
        (Self::Boasts, Rule::A18),
        (Self::DuplicatesVolume, Rule::A19),
        (Self::FightsDefaults, Rule::A21),
        (Self::WrongOrder, Rule::A22),
    ];
}

/// A right adapter with one fault. One that claims other people's objects (A20) is any right adapter whose suite is not told
/// that it ships.
pub struct BrokenRuntime<'a> {
    inner: &'a dyn RuntimeAdapter,
    fault: RuntimeFault,
    calls: AtomicU32,
}

impl<'a> BrokenRuntime<'a> {
    /// Breaks an adapter.
    #[must_use]
    pub fn new(inner: &'a dyn RuntimeAdapter, fault: RuntimeFault) -> Self {
        Self { inner, fault, calls: AtomicU32::new(0) }
    }

    fn spoil(&self, mut pod: PodSpec, binding: Option<&Binding>, backend: &CacheBackend) -> PodSpec {
        let Some(engine) = pod.containers.first_mut() else { return pod };
        let args = engine.args.get_or_insert_default();
        let list = engine.env.get_or_insert_default();
        match self.fault {
            RuntimeFault::AppendsAgain => args.push("--again".to_owned()),
            RuntimeFault::CountsCalls => {
                let call = self.calls.fetch_add(1, Ordering::Relaxed);
                list.retain(|var| var.name != "CALLS");
                list.push(env("CALLS", call.to_string()));
            }
            RuntimeFault::LeavesTraces => {
                let name = format!("SEEN_{}", text(backend).len());
                list.retain(|var| var.name != name);
                list.push(env(&name, "1"));
            }
            RuntimeFault::SortsVariables => list.sort_by(|one, other| other.name.cmp(&one.name)),
            RuntimeFault::ChangesImage => engine.image = Some("another".to_owned()),
            RuntimeFault::SetsTunables => crate::adapters::args::upsert_pair(args, "--max-num-seqs", "5"),
            RuntimeFault::LeaksPassword => {
                let password = binding.and_then(|b| Some(&b.redis.as_ref()?.authentication.as_ref()?.password));
                list.retain(|var| var.name != "PASSWORD");
                list.extend(password.map(|selector| env_from_secret("PASSWORD", selector)));
            }
            RuntimeFault::WrongOrder => list.rotate_right(1),
            RuntimeFault::ChangesNetwork => pod.host_network = Some(true),
            RuntimeFault::DuplicatesVolume => {
                let twin = Volume {
                    name: "twin".to_owned(),
                    empty_dir: Some(EmptyDirVolumeSource::default()),
                    ..Volume::default()
                };
                pod.volumes = Some(pod.volumes.into_iter().flatten().filter(|volume| volume.name != "twin").collect());
                pod.volumes.get_or_insert_default().extend([twin.clone(), twin]);
            }
            RuntimeFault::FightsDefaults => {
                for container in pod.init_containers.iter_mut().flatten() {
                    container.termination_message_path = None;
                }
            }
            _ => {}
        }
        pod
    }
}

impl RuntimeAdapter for BrokenRuntime<'_> {
    fn supports(&self, runtime: &RuntimeId, backend: &CacheBackend) -> bool {
        match self.fault {
            RuntimeFault::SupportsAnything => true,
            RuntimeFault::PanicsOnNothing => {
                assert!(!backend.spec.runtime.is_empty(), "an object without a spec");
                self.inner.supports(runtime, backend)
            }
            _ => self.inner.supports(runtime, backend),
        }
    }

    fn supports_binding(&self, binding: Option<&Binding>) -> bool {
        match self.fault {
            RuntimeFault::LooksAtEndpoint if binding.is_some_and(|binding| binding.endpoint.is_empty()) => false,
            RuntimeFault::AcceptsAnyBinding => true,
            _ => self.inner.supports_binding(binding),
        }
    }

    fn inject_engine(
        &self,
        pod: &PodSpec,
        binding: Option<&Binding>,
        backend: &CacheBackend,
    ) -> Result<PodSpec, AdapterError> {
        let relabelled = binding
            .filter(|_| self.fault == RuntimeFault::InjectsAnyBinding)
            .map(|binding| Binding { protocol: Protocol::resp(), ..binding.clone() });
        let binding = relabelled.as_ref().or(binding);
        let mut given = pod.clone();
        match self.fault {
            RuntimeFault::WiresNothing if pod.containers.is_empty() => return Ok(given),
            RuntimeFault::GuessesEngine if !pod.containers.is_empty() => given.containers.truncate(1),
            _ => {}
        }
        let mut wired = self.inner.inject_engine(&given, binding, backend);
        if self.fault == RuntimeFault::TakesOver && wired.is_err() && !given.containers.is_empty() {
            given.init_containers = None;
            given.volumes = None;
            given.containers.iter_mut().for_each(|container| container.volume_mounts = None);
            wired = self.inner.inject_engine(&given, binding, backend);
        }
        wired.map(|pod| self.spoil(pod, binding, backend))
    }

    fn inject_router(
        &self,
        pod: &PodSpec,
        binding: Option<&Binding>,
        backend: &CacheBackend,
    ) -> Result<PodSpec, AdapterError> {
        if self.fault == RuntimeFault::RefusesRouter && pod.containers.is_empty() {
            return Err(AdapterError::pod("containers", "are missing"));
        }
        self.inner.inject_router(pod, binding, backend)
    }

    fn observation_sidecar(&self, backend: &CacheBackend, pod: &Pod) -> Result<Option<Container>, AdapterError> {
        let mut backend = backend.clone();
        if self.fault == RuntimeFault::InventsModel && backend.spec.model_id().is_none() {
            let model_id = Some("unknown".to_owned());
            backend.spec.observation = Some(Observation { model_id, ..Observation::default() });
        }
        let mut container = self.inner.observation_sidecar(&backend, pod)?;
        for arg in container.iter_mut().flat_map(|container| container.args.iter_mut().flatten()) {
            match self.fault {
                RuntimeFault::InventsFlag if arg.starts_with("--hash-scheme") => *arg = "--hash=1".to_owned(),
                RuntimeFault::WritesName => {
                    *arg = arg.replace("$(POD_NAME)", pod.metadata.name.as_deref().unwrap_or_default());
                }
                _ => {}
            }
        }
        Ok(container)
    }

    fn reserved_args(&self, backend: &CacheBackend) -> &[&'static str] {
        match self.fault {
            RuntimeFault::ReservesTooMuch => &["--never-injected"],
            _ => self.inner.reserved_args(backend),
        }
    }

    fn reserved_env(&self, backend: &CacheBackend) -> &[&'static str] {
        self.inner.reserved_env(backend)
    }

    fn engine_container_name(&self) -> &str {
        self.inner.engine_container_name()
    }

    fn is_wired(&self, container: &Container) -> bool {
        self.inner.is_wired(container)
    }

    fn supported_pairs(&self) -> Vec<SupportedPair> {
        let mut pairs = self.inner.supported_pairs();
        if self.fault == RuntimeFault::Boasts {
            pairs.push(SupportedPair::new("vllm", "SGLangHiCache"));
        }
        pairs
    }

    fn as_mp(&self) -> Option<&dyn MpRuntimeAdapter> {
        self.inner.as_mp().map(|_| self as _)
    }
}

impl MpRuntimeAdapter for BrokenRuntime<'_> {
    fn validate_mp_engine_pod(&self, pod: &Pod, backend: &CacheBackend) -> Result<(), AdapterError> {
        match self.inner.as_mp() {
            Some(mp) if self.fault != RuntimeFault::AcceptsAnyPod => mp.validate_mp_engine_pod(pod, backend),
            _ => Ok(()),
        }
    }
}

impl std::fmt::Debug for BrokenRuntime<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BrokenRuntime").field("fault", &self.fault).finish_non_exhaustive()
    }
}
