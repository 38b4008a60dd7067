//! What is filled in: parents whose absence keeps the schema from applying its own defaults.

use serde_json::{Value, json};

/// Operations of a JSON patch; empty where nothing is missing. What is there stays, whatever it is.
///
/// The schema fills in the members of `integration` and `observation` once these exist.
#[must_use]
pub fn patch(object: &Value) -> Vec<Value> {
    const TIMEOUT: &str = "5m0s";
    let add = |path: &str, value: Value| json!({"op": "add", "path": path, "value": value});
    let absent = |value: Option<&Value>| value.is_none_or(Value::is_null);
    let spec = object.get("spec");
    if absent(spec) {
        return vec![add("/spec", json!({"integration": {}, "observation": {"firstEventTimeout": TIMEOUT}}))];
    }
    let mut operations = Vec::new();
    let member = |name: &str| spec.and_then(|spec| spec.get(name));
    if !spec.is_some_and(Value::is_object) {
        return operations; // the schema says what it is not
    }
    if absent(member("integration")) {
        operations.push(add("/spec/integration", json!({})));
    }
    match member("observation") {
        observation if absent(observation) => {
            operations.push(add("/spec/observation", json!({"firstEventTimeout": TIMEOUT})));
        }
        Some(Value::Object(observation)) if absent(observation.get("firstEventTimeout")) => {
            operations.push(add("/spec/observation/firstEventTimeout", json!(TIMEOUT)));
        }
        _ => {}
    }
    operations
}
