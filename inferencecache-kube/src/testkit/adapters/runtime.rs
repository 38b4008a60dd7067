//! The suite for runtime adapters.

use std::panic::{AssertUnwindSafe, catch_unwind};

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

use super::defaulted::defaulted;
use super::fixture::RuntimeFixture;
use super::pods::{Added, busy, with_foreign};
use super::report::{Report, text};
use super::rules::Rule;
use super::samples::shipped_samples;
use super::wiring::secrets;
use crate::adapters::{Binding, Protocol, RuntimeAdapter, RuntimeId};
use crate::api::CacheBackend;

/// A suite with its subject and fixtures.
#[derive(Clone)]
pub struct RuntimeSuite<'a> {
    pub(super) adapter: &'a dyn RuntimeAdapter,
    fixtures: Vec<RuntimeFixture>,
    has_router: bool,
    ships: bool,
    parse_sidecar: Option<&'a Judge<'a, [String]>>,
    pub(super) api_server: Option<&'a Judge<'a, Pod>>,
}

/// Somebody else's judgement.
pub(super) type Judge<'a, T> = dyn Fn(&T) -> Result<(), String> + 'a;

/// Runs the suite as it is for most: no router, not one of the shipped adapters.
pub fn runtime_adapter(adapter: &dyn RuntimeAdapter, fixtures: &[RuntimeFixture]) -> Report {
    RuntimeSuite::new(adapter, fixtures).run()
}

impl<'a> RuntimeSuite<'a> {
    /// A suite.
    #[must_use]
    pub fn new(adapter: &'a dyn RuntimeAdapter, fixtures: &[RuntimeFixture]) -> Self {
        Self {
            adapter,
            fixtures: fixtures.to_vec(),
            has_router: false,
            ships: false,
            parse_sidecar: None,
            api_server: None,
        }
    }

    /// The adapter wires routers, so it may refuse a Pod of one (A16 is not checked).
    #[must_use]
    pub fn with_router(mut self) -> Self {
        self.has_router = true;
        self
    }

    /// The adapter is one of the shipped ones, which own the shipped samples (A20 is not checked).
    #[must_use]
    pub fn shipped(mut self) -> Self {
        self.ships = true;
        self
    }

    /// The parser of the sidecar's arguments, for A14.
    #[must_use]
    pub fn with_sidecar_parser(mut self, parse: &'a Judge<'a, [String]>) -> Self {
        self.parse_sidecar = Some(parse);
        self
    }

    /// An API server's dry run, for A19, beside the checks of [`structure`](super::structure).
    #[must_use]
    pub fn with_api_server(mut self, dry_run: &'a Judge<'a, Pod>) -> Self {
        self.api_server = Some(dry_run);
        self
    }

    /// Checks every rule on every fixture.
    pub fn run(&self) -> Report {
        let mut report = Report::default();
        for fixture in &self.fixtures {
            self.selection(fixture, &mut report);
            self.binding(fixture, &mut report);
            self.refusals(fixture, &mut report);
            self.sidecar(fixture, &mut report);
            match self.wire(fixture, &fixture.spec()) {
                Ok(wired) => self.wiring(fixture, &wired, &mut report),
                Err(error) => report.add(Rule::A3, &fixture.name, format!("the fixture's own Pod is refused: {error}")),
            }
        }
        self.reserved(&mut report);
        self.pairs(&mut report);
        if self.adapter.as_mp().is_some() && self.fixtures.iter().all(|fixture| fixture.refused_pods.is_empty()) {
            report.add(Rule::A17, "all", "no fixture has a Pod to refuse");
        }
        report
    }

    pub(super) fn wire(&self, fixture: &RuntimeFixture, pod: &PodSpec) -> Result<PodSpec, String> {
        let wired = self.adapter.inject_engine(pod, fixture.binding.as_ref(), &fixture.backend);
        wired.map_err(|error| error.to_string())
    }

    fn selection(&self, fixture: &RuntimeFixture, report: &mut Report) {
        let (adapter, name) = (self.adapter, &fixture.name);
        report.check(adapter.supports(&fixture.runtime(), &fixture.backend), Rule::A1, name, || {
            "the fixture is not supported".to_owned()
        });
        for id in ["", "no-such-runtime"] {
            report.check(!adapter.supports(&RuntimeId::new(id), &fixture.backend), Rule::A1, name, || {
                format!("runtime {id:?} is supported")
            });
        }
        let nothing = CacheBackend::default();
        let total = catch_unwind(AssertUnwindSafe(|| adapter.supports(&fixture.runtime(), &nothing)));
        report.check(total.is_ok(), Rule::A1, name, || "an empty object panics".to_owned());
        if self.ships {
            return;
        }
        for (sample, backend) in shipped_samples() {
            report.check(!adapter.supports(&RuntimeId::of(Some(&backend)), &backend), Rule::A20, name, || {
                format!("the shipped sample {sample:?} is claimed")
            });
        }
    }

    fn binding(&self, fixture: &RuntimeFixture, report: &mut Report) {
        let (adapter, name) = (self.adapter, &fixture.name);
        report.check(adapter.supports_binding(fixture.binding.as_ref()), Rule::A2, name, || {
            "the fixture's binding is refused".to_owned()
        });
        if let Some(binding) = &fixture.binding {
            let bare = Binding { endpoint: String::new(), ..binding.clone() };
            report.check(adapter.supports_binding(Some(&bare)), Rule::A2, name, || {
                "the answer changes without an endpoint".to_owned()
            });
        }
        let unknown = Binding::new(Protocol::new("no-such-protocol"), "h:1");
        report.check(!adapter.supports_binding(Some(&unknown)), Rule::A12, name, || {
            "supports_binding takes an unknown protocol".to_owned()
        });
        let wired = adapter.inject_engine(&fixture.spec(), Some(&unknown), &fixture.backend);
        report.check(wired.is_err(), Rule::A12, name, || "inject_engine takes an unknown protocol".to_owned());
    }

    fn refusals(&self, fixture: &RuntimeFixture, report: &mut Report) {
        let (adapter, name) = (self.adapter, &fixture.name);
        let mut pod = fixture.spec();
        pod.containers.clear();
        report.check(self.wire(fixture, &pod).is_err(), Rule::A3, name, || {
            "a Pod without containers is wired".to_owned()
        });
        if !adapter.engine_container_name().is_empty() {
            let engine = fixture.spec().containers.first().cloned().unwrap_or_default();
            pod.containers = ["a", "b"].map(|name| Container { name: name.to_owned(), ..engine.clone() }).into();
            report.check(self.wire(fixture, &pod).is_err(), Rule::A3, name, || {
                "a Pod is wired in which the engine cannot be told".to_owned()
            });
        }
        for (what, backend) in &fixture.refused_objects {
            let wired = adapter.inject_engine(&fixture.spec(), fixture.binding.as_ref(), backend);
            report.check(wired.is_err(), Rule::A3, name, || format!("an object with {what} is wired"));
        }
        if !self.has_router {
            for pod in [PodSpec::default(), fixture.spec()] {
                let routed = adapter.inject_router(&pod, fixture.binding.as_ref(), &fixture.backend);
                report.check(routed.as_ref() == Ok(&pod), Rule::A16, name, || {
                    format!("the router's Pod becomes {routed:?}")
                });
            }
        }
        let Some(mp) = adapter.as_mp() else { return };
        let judged = mp.validate_mp_engine_pod(&fixture.pod, &fixture.backend);
        report.check(judged.is_ok(), Rule::A17, name, || format!("the fixture's own Pod is refused: {judged:?}"));
        for (what, pod) in &fixture.refused_pods {
            let judged = mp.validate_mp_engine_pod(pod, &fixture.backend);
            report.check(judged.is_err(), Rule::A17, name, || format!("a Pod with {what} is accepted"));
        }
    }

    fn wiring(&self, fixture: &RuntimeFixture, wired: &PodSpec, report: &mut Report) {
        let name = &fixture.name;
        let plain = fixture.spec();
        let crowded = busy(&plain, self.adapter.engine_container_name());
        for (kind, before) in [("plain", &plain), ("busy", &crowded)] {
            match self.wire(fixture, before) {
                Ok(after) => self.one_pod(fixture, kind, before, &after, report),
                Err(error) => report.add(Rule::A8, name, format!("the {kind} Pod is refused: {error}")),
            }
        }
        for edit in &fixture.edits {
            let fresh = self.adapter.inject_engine(&plain, edit.binding.as_ref(), &edit.backend);
            let again = self.adapter.inject_engine(wired, edit.binding.as_ref(), &edit.backend);
            report.check(fresh.is_ok() && fresh == again, Rule::A6, name, || {
                format!("after {:?} the Pod is {}, and a fresh one {}", edit.name, text(&again.ok()), text(&fresh.ok()))
            });
        }
        let added = Added::between(&plain, wired);
        for (what, pod) in with_foreign(&plain, &added) {
            report
                .check(self.wire(fixture, &pod).is_err(), Rule::A7, name, || format!("a foreign {what} is taken over"));
        }
        let args = self.adapter.reserved_args(&fixture.backend);
        let env = self.adapter.reserved_env(&fixture.backend);
        for token in added.flags.iter().chain(&added.env) {
            let known = args.contains(&token.as_str()) || env.contains(&token.as_str());
            report.check(known || fixture.overridable.contains(token), Rule::A10, name, || {
                format!("{token} is injected, but neither reserved nor declared overridable")
            });
        }
        secrets(fixture, wired, report);
        let returned = defaulted(wired);
        let again = self.wire(fixture, &returned);
        report.check(again.as_ref() == Ok(&returned), Rule::A21, name, || {
            format!("a Pod that comes back as {} becomes {}", text(&returned), text(&again.ok()))
        });
        if let Some(worked) = &fixture.worked {
            let mut after = wired.clone();
            let pod = Pod { spec: Some(wired.clone()), ..fixture.pod.clone() };
            after.containers.extend(self.adapter.observation_sidecar(&fixture.backend, &pod).ok().flatten());
            report.check(after == *worked, Rule::A22, name, || format!("got {}, want {}", text(&after), text(worked)));
        }
    }

    fn sidecar(&self, fixture: &RuntimeFixture, report: &mut Report) {
        let name = &fixture.name;
        let render = |backend: &CacheBackend, pod: &Pod| {
            self.adapter.observation_sidecar(backend, pod).map_err(|error| error.to_string())
        };
        let mut silent = fixture.backend.clone();
        silent.spec.observation = None;
        let without = render(&silent, &fixture.pod);
        report.check(without == Ok(None), Rule::A14, name, || {
            format!("without a model there is {}", text(&without.ok()))
        });
        let Ok(Some(container)) = render(&fixture.backend, &fixture.pod) else { return };
        if let Some(Err(fault)) = self.parse_sidecar.map(|parse| parse(container.args.as_deref().unwrap_or_default())) {
            report.add(Rule::A14, name, format!("the sidecar's arguments are refused: {fault}"));
        }
        let mut other = fixture.pod.clone();
        other.metadata.name = Some("another-name".to_owned());
        other.metadata.namespace = Some("another-namespace".to_owned());
        let there = render(&fixture.backend, &other);
        report.check(there == Ok(Some(container)), Rule::A15, name, || {
            "the sidecar of a Pod with another name is another one".to_owned()
        });
    }

    fn reserved(&self, report: &mut Report) {
        let mut injected: Vec<String> = Vec::new();
        for fixture in &self.fixtures {
            if let Ok(wired) = self.wire(fixture, &fixture.spec()) {
                let added = Added::between(&fixture.spec(), &wired);
                injected.extend(added.flags.into_iter().chain(added.env));
            }
        }
        for fixture in &self.fixtures {
            let args = self.adapter.reserved_args(&fixture.backend);
            for token in args.iter().chain(self.adapter.reserved_env(&fixture.backend)) {
                report.check(injected.iter().any(|known| known == token), Rule::A11, &fixture.name, || {
                    format!("{token} is reserved and injected nowhere")
                });
            }
        }
    }

    fn pairs(&self, report: &mut Report) {
        for pair in self.adapter.supported_pairs() {
            let shown = self.fixtures.iter().any(|fixture| {
                let same = fixture.backend.spec.effective_type().as_str() == pair.cache_type;
                same && self.adapter.supports(&pair.runtime, &fixture.backend)
            });
            report.check(shown, Rule::A18, "all", || format!("{pair} is listed, but no fixture of it is supported"));
        }
    }
}

impl std::fmt::Debug for RuntimeSuite<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RuntimeSuite").field("fixtures", &self.fixtures.len()).finish_non_exhaustive()
    }
}
