//! The rules on one Pod before and after: nothing lost, nothing changed that is not the adapter's, and admissible.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};

use super::fixture::RuntimeFixture;
use super::pods::lost;
use super::report::{Report, text};
use super::rules::Rule;
use super::runtime::RuntimeSuite;
use super::structure::structure;
use crate::adapters::args::token;

impl RuntimeSuite<'_> {
    pub(super) fn one_pod(
        &self,
        fixture: &RuntimeFixture,
        kind: &str,
        before: &PodSpec,
        after: &PodSpec,
        report: &mut Report,
    ) {
        let name = &fixture.name;
        let same = self.wire(fixture, before);
        report.check(same.as_ref() == Ok(after), Rule::A5, name, || format!("the {kind} Pod comes out differently"));
        let again = self.wire(fixture, after);
        report.check(again.as_ref() == Ok(after), Rule::A5, name, || {
            format!("twice, the {kind} Pod is {}, once {}", text(&again.ok()), text(after))
        });
        let mut masked = after.clone();
        masked.init_containers.clone_from(&before.init_containers);
        masked.volumes.clone_from(&before.volumes);
        for (container, old) in masked.containers.iter_mut().zip(&before.containers) {
            container.args.clone_from(&old.args);
            container.env.clone_from(&old.env);
            container.volume_mounts.clone_from(&old.volume_mounts);
        }
        report.check(masked == *before, Rule::A9, name, || {
            format!("the {kind} Pod changes beside its lists: {}", text(&masked))
        });
        let args = self.adapter.reserved_args(&fixture.backend);
        let env = self.adapter.reserved_env(&fixture.backend);
        let mut losses: Vec<String> = Vec::new();
        losses.extend(lost(&before.volumes, &after.volumes).map(text));
        losses.extend(lost(&before.init_containers, &after.init_containers).map(text));
        for (old, new) in before.containers.iter().zip(&after.containers) {
            losses.extend(lost(&Some(unreserved(old, args)), &new.args).map(text));
            let theirs = old.env.iter().flatten().filter(|var| !env.contains(&var.name.as_str()));
            losses.extend(lost(&Some(theirs.cloned().collect()), &new.env).map(text));
            losses.extend(lost(&old.volume_mounts, &new.volume_mounts).map(text));
        }
        report.check(losses.is_empty(), Rule::A8, name, || {
            format!("lost or moved on the {kind} Pod: {}", losses.join(", "))
        });
        for fault in structure(after) {
            report.add(Rule::A19, name, format!("the {kind} Pod: {fault}"));
        }
        if let Some(Err(fault)) =
            self.api_server.map(|judge| judge(&Pod { spec: Some(after.clone()), ..fixture.pod.clone() }))
        {
            report.add(Rule::A19, name, format!("the API server refuses the {kind} Pod: {fault}"));
        }
    }
}

/// References to Secrets stay where they are needed.
pub(super) fn secrets(fixture: &RuntimeFixture, wired: &PodSpec, report: &mut Report) {
    let binding = fixture.binding.as_ref().and_then(|binding| binding.redis.as_ref()?.authentication.as_ref());
    let Some(authentication) = binding else { return };
    for selector in [Some(&authentication.password), authentication.username.as_ref()].into_iter().flatten() {
        let on_engine = wired.containers.iter().any(|container| text(container).contains(&selector.name));
        let all = wired.containers.iter().chain(wired.init_containers.iter().flatten());
        let in_args = all.flat_map(|container| container.args.iter().flatten()).any(|arg| arg.contains(&selector.name));
        report.check(!on_engine && !in_args, Rule::A13, &fixture.name, || {
            format!("Secret {:?} is on the engine or in arguments", selector.name)
        });
    }
}

/// The arguments that are the user's alone: reserved flags go, with their values.
fn unreserved(container: &Container, reserved: &[&str]) -> Vec<String> {
    let mut list = Vec::new();
    let mut args = container.args.iter().flatten().peekable();
    while let Some(arg) = args.next() {
        match token(arg) {
            Some(flag) if reserved.contains(&flag) => drop(args.next_if(|next| arg == flag && !next.starts_with('-'))),
            _ => list.push(arg.clone()),
        }
    }
    list
}
