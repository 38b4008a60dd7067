//! What the engine's command says beside its arguments.
//!
//! Adapters judge and edit `args`. An engine that is started by its `command` has flags there too, and a shell that runs a
//! line drops whatever is appended behind that line.

use k8s_openapi::api::core::v1::{Container, Pod};

use crate::adapters::AdapterError;

const SHELLS: [&str; 6] = ["sh", "bash", "dash", "ash", "ksh", "zsh"];

/// Whether arguments that are appended reach the engine.
///
/// # Errors
/// A shell gets a line to run.
pub(super) fn takes_arguments(engine: &Container) -> Result<(), AdapterError> {
    let mut words = engine.command.iter().flatten().chain(engine.args.iter().flatten());
    let program = engine.command.iter().flatten().next().map(|program| program.rsplit('/').next().unwrap_or(program));
    if !program.is_some_and(|program| SHELLS.contains(&program)) {
        return Ok(());
    }
    words.next();
    // Options of the shell come first, "o" with a word of its own; one with a "c" in it says that a line follows.
    while let Some(option) = words.next().filter(|word| word.starts_with(['-', '+'])) {
        if option.ends_with('o') && !option.starts_with("--") {
            words.next();
        }
        if option.starts_with("--") || !option.starts_with('-') || !option.contains('c') {
            continue;
        }
        let object = format!("container {:?}", engine.name);
        return Err(AdapterError::pod(
            object,
            "runs a shell's line, which arguments cannot be added to; call the engine itself",
        ));
    }
    Ok(())
}

/// The Pod with the words of the engine's command before its arguments: the line that the engine will see.
#[must_use]
pub(super) fn spelled_out(pod: &Pod, engine: usize) -> Pod {
    let mut pod = pod.clone();
    if let Some(engine) = pod.spec.as_mut().and_then(|spec| spec.containers.get_mut(engine))
        && let Some(command) = engine.command.clone().filter(|command| !command.is_empty())
    {
        let args = engine.args.take().unwrap_or_default();
        engine.args = Some(command.into_iter().chain(args).collect());
    }
    pod
}
