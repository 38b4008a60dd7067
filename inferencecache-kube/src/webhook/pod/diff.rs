//! The JSON patch between two states of a Pod, for the Pod as it was sent.
//!
//! Both states are typed, so what the types do not know is in neither and is not touched: a field that is newer than this
//! build survives. Entries of a list are recognised by their name, so that a removed container does not make its neighbour
//! take its place.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Map, Value, json};

/// Largest table for comparing two lists; beyond that what lies between their common ends is replaced.
const MOST_CELLS: usize = 1 << 18;

/// The operations that make `after` out of `before`. `raw` is what `before` was decoded from, and what the patch is for.
#[must_use]
pub fn patch(raw: &Value, before: &Pod, after: &Pod) -> Vec<Value> {
    let mut operations = Vec::new();
    if let (Ok(before), Ok(after)) = (serde_json::to_value(before), serde_json::to_value(after)) {
        value(&mut operations, "", Some(raw), Some(&before), Some(&after));
    }
    operations
}

fn value(out: &mut Vec<Value>, path: &str, raw: Option<&Value>, before: Option<&Value>, after: Option<&Value>) {
    if before == after {
        return;
    }
    match (raw, before, after) {
        (Some(Value::Object(raw)), Some(Value::Object(before)), Some(Value::Object(after))) => {
            object(out, path, raw, before, after);
        }
        (Some(Value::Array(raw)), Some(Value::Array(before)), Some(Value::Array(after)))
            if raw.len() == before.len() =>
        {
            list(out, path, raw, before, after);
        }
        (None, _, None) => {}
        (Some(_), _, None) => out.push(json!({"op": "remove", "path": path})),
        (None, _, Some(after)) => out.push(json!({"op": "add", "path": path, "value": after})),
        (Some(_), _, Some(after)) => out.push(json!({"op": "replace", "path": path, "value": after})),
    }
}

fn object(
    out: &mut Vec<Value>,
    path: &str,
    raw: &Map<String, Value>,
    before: &Map<String, Value>,
    after: &Map<String, Value>,
) {
    let gone = before.keys().filter(|key| !after.contains_key(*key));
    for key in after.keys().chain(gone) {
        let path = format!("{path}/{}", key.replace('~', "~0").replace('/', "~1"));
        value(out, &path, raw.get(key), before.get(key), after.get(key));
    }
}

/// First the entries that stay, where they are; then what goes, from the end; then what comes, from the start.
fn list(out: &mut Vec<Value>, path: &str, raw: &[Value], before: &[Value], after: &[Value]) {
    let kept = common(before, after);
    for &(old, new) in &kept {
        value(out, &format!("{path}/{old}"), raw.get(old), before.get(old), after.get(new));
    }
    for old in (0..before.len()).rev().filter(|old| kept.binary_search_by_key(old, |pair| pair.0).is_err()) {
        out.push(json!({"op": "remove", "path": format!("{path}/{old}")}));
    }
    for (new, value) in
        after.iter().enumerate().filter(|(new, _)| kept.binary_search_by_key(new, |pair| pair.1).is_err())
    {
        out.push(json!({"op": "add", "path": format!("{path}/{new}"), "value": value}));
    }
}

/// Whether two entries are states of the same thing.
fn same(one: &Value, other: &Value) -> bool {
    match (one.get("name"), other.get("name")) {
        (Some(one), Some(other)) => one == other,
        _ => one == other,
    }
}

/// Pairs of indices of a longest common subsequence, in order.
fn common(before: &[Value], after: &[Value]) -> Vec<(usize, usize)> {
    let head = before.iter().zip(after).take_while(|(one, other)| same(one, other)).count();
    let (old, new) = (&before[head..], &after[head..]);
    let tail = old.iter().rev().zip(new.iter().rev()).take_while(|(one, other)| same(one, other)).count();
    let (old, new) = (&old[..old.len() - tail], &new[..new.len() - tail]);
    let mut pairs: Vec<(usize, usize)> = (0..head).map(|at| (at, at)).collect();
    let width = new.len() + 1;
    if (old.len() + 1).saturating_mul(width) <= MOST_CELLS {
        // Lengths of the longest common subsequence of what follows each pair of positions.
        let mut lengths = vec![0_u32; (old.len() + 1) * width];
        for i in (0..old.len()).rev() {
            for j in (0..new.len()).rev() {
                lengths[i * width + j] = if same(&old[i], &new[j]) {
                    lengths[(i + 1) * width + j + 1] + 1
                } else {
                    lengths[(i + 1) * width + j].max(lengths[i * width + j + 1])
                };
            }
        }
        let (mut i, mut j) = (0, 0);
        while i < old.len() && j < new.len() {
            if same(&old[i], &new[j]) {
                pairs.push((head + i, head + j));
                (i, j) = (i + 1, j + 1);
            } else if lengths[(i + 1) * width + j] >= lengths[i * width + j + 1] {
                i += 1;
            } else {
                j += 1;
            }
        }
    }
    pairs.extend((0..tail).rev().map(|back| (before.len() - 1 - back, after.len() - 1 - back)));
    pairs
}
