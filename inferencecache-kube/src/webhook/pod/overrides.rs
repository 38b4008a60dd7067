//! An object's changes to what its adapter put on the engine.
//!
//! Nothing of the Pod's author is ever changed: what was on the engine before injection and is unchanged after it belongs to
//! the author, and an override of that is passed over in silence. On a Pod that is wired already only what injection changes
//! back counts as the adapter's, so a second merge ends where the first one did.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, EnvVar};

use crate::adapters::args;
use crate::adapters::defaults::equal_after_defaults;
use crate::api::backend::EngineOverrides;

/// Merges the overrides into the engine, in the order suppressed arguments, arguments, suppressed variables, variables.
/// `before` is the engine as it was before injection, and `wired` whether it carried the wiring already.
pub(super) fn merge(before: &Container, wired: bool, engine: &mut Container, overrides: &EngineOverrides) {
    let empty = Vec::new();
    let suppressed = overrides.suppress_args.as_ref().unwrap_or(&empty);
    let given = overrides.args.as_ref().unwrap_or(&empty);
    if !suppressed.is_empty() || !given.is_empty() {
        let old = before.args.as_deref().unwrap_or_default();
        let new = merge_args(old, wired, engine.args.as_deref().unwrap_or_default(), suppressed, given);
        engine.args = (!new.is_empty()).then_some(new);
    }
    let suppressed = overrides.suppress_env.as_ref().unwrap_or(&empty);
    let given = overrides.env.as_deref().unwrap_or_default();
    if !suppressed.is_empty() || !given.is_empty() {
        let old = before.env.as_deref().unwrap_or_default();
        let new = merge_env(old, engine.env.as_deref().unwrap_or_default(), suppressed, given);
        engine.env = (!new.is_empty()).then_some(new);
    }
}

/// One flag with its value, or one word that belongs to no flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece<'a> {
    flag: Option<&'a str>,
    words: &'a [String],
}

impl<'a> Piece<'a> {
    fn value(&self) -> &'a str {
        match self.words {
            [_, value] => value,
            [word] => word.split_once('=').map_or("", |(_, value)| value),
            _ => "",
        }
    }
}

/// Takes an argument vector apart. A flag without `=` takes the next word, unless that is a flag.
fn pieces(words: &[String]) -> Vec<Piece<'_>> {
    let mut rest = words;
    let mut list = Vec::new();
    while let Some(word) = rest.first() {
        let flag = args::token(word);
        let takes_next = flag == Some(word.as_str()) && rest.get(1).is_some_and(|next| !next.starts_with('-'));
        let (words, left) = rest.split_at(if takes_next { 2 } else { 1 });
        list.push(Piece { flag, words });
        rest = left;
    }
    list
}

type Values<'a> = BTreeMap<&'a str, Vec<&'a str>>;

fn values<'a>(pieces: &[Piece<'a>]) -> Values<'a> {
    let mut map = Values::new();
    for piece in pieces {
        if let Some(flag) = piece.flag {
            map.entry(flag).or_default().push(piece.value());
        }
    }
    map
}

fn merge_args(
    before: &[String],
    wired: bool,
    after: &[String],
    suppressed: &[String],
    overrides: &[String],
) -> Vec<String> {
    let (old, given) = (pieces(before), pieces(overrides));
    let mut now = pieces(after);
    let (old_values, new_values) = (values(&old), values(&now));
    let injected = |flag: &str| new_values.get(flag).is_some_and(|value| old_values.get(flag) != Some(value));
    // What an earlier merge put back after suppressing it stays where that merge put it.
    let put_back = |flag: &str| given.iter().any(|piece| piece.flag == Some(flag) && old.contains(piece));
    now.retain(|piece| {
        !piece.flag.is_some_and(|flag| suppressed.iter().any(|one| one == flag) && injected(flag) && !put_back(flag))
    });
    let settled = wired || (!overrides.is_empty() && before.ends_with(overrides));
    let mut there: Vec<&String> = if settled { before.iter().collect() } else { Vec::new() };
    for piece in given {
        match piece.flag {
            Some(flag) if injected(flag) => match now.iter_mut().find(|one| one.flag == Some(flag)) {
                Some(one) => *one = piece,
                None => now.push(piece),
            },
            Some(flag) if old_values.contains_key(flag) => {}
            Some(_) => now.push(piece),
            None => match there.iter().position(|word| Some(*word) == piece.words.first()) {
                Some(at) => {
                    there.swap_remove(at);
                }
                None => now.push(piece),
            },
        }
    }
    now.iter().flat_map(|piece| piece.words).cloned().collect()
}

fn merge_env(before: &[EnvVar], after: &[EnvVar], suppressed: &[String], overrides: &[EnvVar]) -> Vec<EnvVar> {
    fn of<'a>(list: &'a [EnvVar], name: &str) -> Vec<&'a EnvVar> {
        list.iter().filter(|var| var.name == name).collect()
    }
    let injected = |name: &str| {
        let now = of(after, name);
        !now.is_empty() && of(before, name) != now
    };
    // As it is on the Pod, with what an API server filled in.
    let put_back = |name: &str| {
        let var = overrides.iter().find(|var| var.name == name)?;
        before.iter().find(|live| live.name == name && equal_after_defaults(var, *live))
    };
    let mut now = after.to_vec();
    now.retain(|var| !(suppressed.contains(&var.name) && injected(&var.name) && put_back(&var.name).is_none()));
    for var in overrides {
        if injected(&var.name) {
            let ours = put_back(&var.name).unwrap_or(var).clone();
            match now.iter_mut().find(|entry| entry.name == var.name) {
                Some(entry) => *entry = ours,
                None => now.push(ours),
            }
        } else if of(before, &var.name).is_empty() {
            now.push(var.clone());
        }
    }
    now
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn arguments_of_the_author_stay_and_injected_ones_change() {
        for (before, after, suppressed, given, expected) in [
            ("--m x", "--m x --kv 1 --off", "--off", "", "--m x --kv 1"),
            ("--m x", "--m x --kv 1 --off", "--kv", "", "--m x --off"),
            ("--m x", "--m x --kv 1", "--m", "--m y", "--m x --kv 1"),
            ("--m x", "--m x --kv 1 --off", "", "--kv=2", "--m x --kv=2 --off"),
            ("--m x", "--m x --kv 1 --off", "--kv", "--kv 2", "--m x --off --kv 2"),
            ("--m x", "--m x --kv 1", "", "--new 3 word --flag", "--m x --kv 1 --new 3 word --flag"),
            ("--kv 0", "--kv 1", "--kv", "", ""),
            ("--kv 1", "--kv 1", "--kv", "", "--kv 1"),
            ("", "--kv 1", "", "--a 1 --a 2", "--kv 1 --a 1 --a 2"),
        ] {
            let merged = merge_args(&words(before), false, &words(after), &words(suppressed), &words(given));
            assert_eq!(merged, words(expected), "{before} | {after} | {suppressed} | {given}");
        }
    }

    #[test]
    fn a_second_merge_of_arguments_has_nothing_to_do() {
        // As injection leaves them: the pair is put back in place, a missing flag is appended.
        let inject = |args: &[String]| {
            let mut args = args.to_vec();
            args::upsert_pair(&mut args, "--kv", "1");
            args::upsert_flag(&mut args, "--off");
            args
        };
        for (suppressed, given) in [
            ("--off", ""),
            ("", "--kv=2"),
            ("--kv", "--kv 2"),
            ("--kv --off", "--kv 2 --b 1"),
            ("", "one two --b 1 one"),
            ("--off", "--b one two"),
        ] {
            let (suppressed, given) = (words(suppressed), words(given));
            let first = merge_args(&words("--m x"), false, &inject(&words("--m x")), &suppressed, &given);
            let again = merge_args(&first, true, &inject(&first), &suppressed, &given);
            assert_eq!(again, first, "{suppressed:?} {given:?}");
        }
    }
}
