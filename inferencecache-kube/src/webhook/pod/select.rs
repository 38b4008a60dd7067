//! Which backend a Pod belongs to: the only one of its namespace whose whole selector is among the Pod's labels.
//!
//! There is no priority and no "more specific". Of two that match neither is taken: wiring a Pod into the wrong cache breaks
//! trust, leaving it unwired is only slow. Backends on their way out count, their engines still carry the domain.

use std::collections::BTreeMap;

use kube::core::DynamicObject;
use serde_json::Value;

/// What matches.
#[derive(Debug)]
pub(super) enum Match<'a> {
    /// Nothing.
    None,
    /// This one.
    One(&'a DynamicObject),
    /// Several, by name in order.
    Several(Vec<&'a str>),
}

/// The candidates that select these labels. Looks at selectors alone, so that a sibling that cannot be read otherwise does
/// not stand in anybody's way.
#[must_use]
pub(super) fn matching<'a>(labels: Option<&BTreeMap<String, String>>, candidates: &'a [DynamicObject]) -> Match<'a> {
    let Some(labels) = labels.filter(|labels| !labels.is_empty()) else { return Match::None };
    let mut found = candidates.iter().filter(|candidate| selects(candidate, labels));
    let Some(first) = found.next() else { return Match::None };
    let mut names: Vec<&str> = found.map(name).collect();
    if names.is_empty() {
        return Match::One(first);
    }
    names.push(name(first));
    names.sort_unstable();
    Match::Several(names)
}

fn name(candidate: &DynamicObject) -> &str {
    candidate.metadata.name.as_deref().unwrap_or_default()
}

fn selects(candidate: &DynamicObject, labels: &BTreeMap<String, String>) -> bool {
    let selector = candidate.data.pointer("/spec/engineSelector/matchLabels").and_then(Value::as_object);
    selector.is_some_and(|selector| {
        !selector.is_empty()
            && selector.iter().all(|(key, value)| labels.get(key).is_some_and(|label| value.as_str() == Some(label)))
    })
}
