//! Equality after an API server has filled in its defaults.
//!
//! A Pod that comes back from an API server carries fields that nobody wrote: `fieldRef.apiVersion`, a probe's
//! `successThreshold`, where a container's last words go. Comparing such an object with a fresh rendering must not find a
//! difference, or every pass would write and none would settle.

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::api::Amount;

/// Whether `live` is `rendered` plus nothing but what an API server fills in.
#[must_use]
pub fn equal_after_defaults<T: Serialize>(rendered: &T, live: &T) -> bool {
    match (serde_json::to_value(rendered), serde_json::to_value(live)) {
        (Ok(rendered), Ok(live)) => covers(&rendered, &live),
        _ => false,
    }
}

fn covers(rendered: &Value, live: &Value) -> bool {
    match (rendered, live) {
        (Value::Object(rendered), Value::Object(live)) => {
            let kept = |key: &str, value: &Value| {
                live.get(key).map_or_else(|| is_none(key, value), |other| covers_entry(key, value, other, live))
            };
            rendered.iter().all(|(key, value)| kept(key, value))
                && live.iter().all(|(key, value)| rendered.contains_key(key) || is_default(key, value, live))
        }
        (Value::Array(rendered), Value::Array(live)) => {
            rendered.len() == live.len() && rendered.iter().zip(live).all(|(one, other)| covers(one, other))
        }
        (one, other) => one == other,
    }
}

/// Whether an API server does not keep such a value apart from none.
fn is_none(key: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(flag) => !flag && matches!(key, "readOnly" | "hostNetwork" | "hostIPC" | "hostPID"),
        Value::Number(_) => false,
    }
}

fn covers_entry(key: &str, rendered: &Value, live: &Value, beside: &Map<String, Value>) -> bool {
    match (key, rendered, live) {
        ("requests" | "limits", Value::Object(one), Value::Object(other)) => {
            // What is limited and not requested is requested by default.
            let by_default = |name: &String, amount: &Value| {
                key == "requests" && beside.get("limits").and_then(|limits| limits.get(name)) == Some(amount)
            };
            one.iter().all(|(name, amount)| other.get(name).is_some_and(|live| same_amount(amount, live)))
                && other.iter().all(|(name, amount)| one.contains_key(name) || by_default(name, amount))
        }
        ("sizeLimit", one, other) => same_amount(one, other),
        _ => covers(rendered, live),
    }
}

fn same_amount(one: &Value, other: &Value) -> bool {
    let amount = |value: &Value| value.as_str().and_then(|text| Amount::parse(text).ok());
    one == other || matches!((amount(one), amount(other)), (Some(one), Some(other)) if one == other)
}

/// Whether an API server may have put that value there, beside these fields.
fn is_default(key: &str, value: &Value, beside: &Map<String, Value>) -> bool {
    match key {
        "terminationMessagePath" => *value == json!("/dev/termination-log"),
        "terminationMessagePolicy" => *value == json!("File"),
        "apiVersion" => *value == json!("v1"),
        "successThreshold" | "timeoutSeconds" => *value == json!(1),
        "failureThreshold" => *value == json!(3),
        "periodSeconds" => *value == json!(10),
        "scheme" => *value == json!("HTTP"),
        "protocol" => *value == json!("TCP"),
        "value" | "type" => *value == json!(""),
        "readOnly" => *value == json!(false),
        "requests" => beside.get("limits") == Some(value),
        // Given by the cluster to Services that can be reached from outside.
        "nodePort" => true,
        "targetPort" => beside.get("port") == Some(value),
        "defaultMode" => *value == json!(0o644),
        "imagePullPolicy" => *value == json!("IfNotPresent") || *value == json!("Always"),
        _ => value.as_object().is_some_and(Map::is_empty) || value.as_array().is_some_and(Vec::is_empty),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Container;

    fn container(value: Value) -> Container {
        serde_json::from_value(value).expect("a container")
    }

    #[test]
    fn what_the_server_fills_in_is_no_difference() {
        let rendered = container(json!({"name": "a", "image": "i",
            "env": [{"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}],
            "resources": {"limits": {"memory": "1024Mi"}},
            "readinessProbe": {"httpGet": {"path": "/", "port": "p", "scheme": "HTTP"}, "timeoutSeconds": 2}}));
        let live = container(json!({"name": "a", "image": "i", "imagePullPolicy": "IfNotPresent",
            "env": [{"name": "IP", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.hostIP"}}}],
            "resources": {"limits": {"memory": "1Gi"}, "requests": {"memory": "1Gi"}},
            "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
            "readinessProbe": {"httpGet": {"path": "/", "port": "p", "scheme": "HTTP"}, "timeoutSeconds": 2,
                "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}}));
        assert!(equal_after_defaults(&rendered, &live));
        let empty = container(json!({"name": "a", "resources": {}, "command": [],
            "env": [{"name": "PATH", "value": ""}]}));
        assert!(equal_after_defaults(&empty, &container(json!({"name": "a", "env": [{"name": "PATH"}]}))));
        assert!(!equal_after_defaults(&live, &rendered));
    }

    #[test]
    fn anything_else_is_one() {
        let rendered = container(json!({"name": "a", "args": ["x"], "resources": {"limits": {"memory": "1Gi"}}}));
        for other in [
            json!({"name": "a", "args": ["x", "y"], "resources": {"limits": {"memory": "1Gi"}}}),
            json!({"name": "a", "args": ["x"], "resources": {"limits": {"memory": "2Gi"}}}),
            json!({"name": "a", "args": ["x"], "resources": {"limits": {"memory": "1Gi", "cpu": "1"}}}),
            json!({"name": "a", "args": ["x"], "resources": {"limits": {"memory": "1Gi"}, "requests": {"cpu": "1"}}}),
            json!({"name": "a", "args": ["x"], "resources": {"limits": {"memory": "1Gi"}}, "tty": true}),
            json!({"name": "a", "args": ["x"], "resources": {"limits": {"memory": "1Gi"}}, "command": ["sh"]}),
            json!({"name": "a", "args": ["x"]}),
        ] {
            assert!(!equal_after_defaults(&rendered, &container(other.clone())), "{other}");
        }
    }
}
