//! From one status to another by a merge patch that names only what differs.

use serde_json::{Map, Value};

use crate::api::CacheBackendStatus;

/// Belongs to the index poller.
const NOT_OURS: &str = "indexParticipation";

/// The patch of the `status` subresource, or `None` where nothing differs *as it is written*: a time in the status that is
/// finer than its text is no difference.
pub(crate) fn between(before: &CacheBackendStatus, after: &CacheBackendStatus) -> Option<Value> {
    let mut patch = difference(&serialized(before), &serialized(after))?;
    if let Value::Object(members) = &mut patch {
        members.remove(NOT_OURS);
        if members.is_empty() {
            return None;
        }
    }
    Some(serde_json::json!({"status": patch}))
}

fn serialized(status: &CacheBackendStatus) -> Value {
    // Strings, numbers and maps with text keys: it cannot fail.
    serde_json::to_value(status).unwrap_or_default()
}

/// RFC 7396, backwards: what to merge into `before` to get `after`. Lists are written whole.
fn difference(before: &Value, after: &Value) -> Option<Value> {
    let (Value::Object(old), Value::Object(new)) = (before, after) else {
        return (before != after).then(|| after.clone());
    };
    let mut patch = Map::new();
    for (key, value) in new {
        match old.get(key) {
            Some(known) => {
                if let Some(inner) = difference(known, value) {
                    patch.insert(key.clone(), inner);
                }
            }
            None => {
                patch.insert(key.clone(), value.clone());
            }
        }
    }
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        patch.insert(key.clone(), Value::Null);
    }
    (!patch.is_empty()).then_some(Value::Object(patch))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::between;
    use crate::api::CacheBackendStatus;

    fn status(value: Value) -> CacheBackendStatus {
        serde_json::from_value(value).expect("a status")
    }

    #[test]
    fn a_patch_names_what_differs_and_takes_back_what_is_gone() {
        let before = status(json!({
            "observedGeneration": 1, "failOpen": true, "matchedEnginePods": 2, "engineSelectorMessage": "m",
            "connector": {"mode": "Multiprocess", "matchedEnginePods": 2, "readyServers": 1},
            "remoteStorage": {"provider": "Redis", "endpoint": "h:1", "ready": "True"},
            "indexParticipation": {"prefixCount": 3},
        }));
        let after = status(json!({
            "observedGeneration": 2, "failOpen": true, "matchedEnginePods": 0,
            "connector": {"mode": "Multiprocess", "matchedEnginePods": 2, "desiredServers": 1},
            "indexParticipation": {"prefixCount": 9},
        }));
        let patch = between(&before, &after).expect("a patch");
        assert_eq!(
            patch,
            json!({"status": {
                "observedGeneration": 2, "matchedEnginePods": 0, "engineSelectorMessage": null, "remoteStorage": null,
                "connector": {"readyServers": null, "desiredServers": 1},
            }})
        );
        assert_eq!(between(&after, &after), None);
    }

    #[test]
    fn what_is_finer_than_its_text_is_no_difference() {
        let whole = status(json!({"firstAvailableAt": "2026-01-02T03:04:05Z"}));
        let finer = status(json!({"firstAvailableAt": "2026-01-02T03:04:05.678Z"}));
        assert_ne!(whole, finer);
        assert_eq!(between(&whole, &finer), None);
    }
}
