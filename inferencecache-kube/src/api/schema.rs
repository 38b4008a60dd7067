//! From what schemars says about a type to what a CustomResourceDefinition may hold.
//!
//! ```text
//!  schemars ── definitions by name ──> + markers of core types (core_markers.json)
//!           ── references inlined ───> no null, no derived default, no title
//!           ── own keywords ─────────> x-default becomes default, x-optional leaves `required`
//! ```
//!
//! The published core types carry markers (atomic maps, list keys, default names, bounds of conditions) that the bindings'
//! own schemas lack; `core_markers.json` brings them, from the API description of Kubernetes itself, keyed by definition
//! and member (`.` is the definition).
//!
//! Own keywords, given with `#[schemars(extend(...))]`: `x-default` is the default of the schema (what serde's defaults
//! derive is dropped). A member is required if it is always written, that is, has no `skip_serializing_if`; `x-optional` and
//! `x-required` mark the exceptions.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

const CORE_MARKERS: &str = include_str!("core_markers.json");

/// What the API server takes for a quantity, whether written as a number or as text.
pub(super) const QUANTITY_PATTERN: &str = r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$";

/// The structural schema of one type.
pub(super) fn structural<T: JsonSchema>() -> Value {
    let mut settings = SchemaSettings::draft2020_12().for_serialize();
    settings.meta_schema = None;
    let root = settings.into_generator().into_root_schema_for::<T>().to_value();
    let mut definitions = match root.get("$defs") {
        Some(Value::Object(definitions)) => definitions.clone(),
        _ => Map::new(),
    };
    mark(&mut definitions);
    tidy(&root, &definitions)
}

/// Adds the markers of core types to their definitions.
fn mark(definitions: &mut Map<String, Value>) {
    let markers: Map<String, Value> = serde_json::from_str(CORE_MARKERS).unwrap_or_default();
    for (name, members) in &markers {
        let Some(definition) = definitions.get_mut(name) else {
            continue;
        };
        for (member, keywords) in members.as_object().into_iter().flatten() {
            let at = match member.as_str() {
                "." => Some(&mut *definition),
                member => definition.pointer_mut(&format!("/properties/{member}")),
            };
            if let (Some(Value::Object(at)), Value::Object(keywords)) = (at, keywords) {
                // `x-` so that the marker survives where derived defaults are dropped.
                at.extend(keywords.iter().map(|(k, v)| match k.as_str() {
                    "default" => ("x-default".to_owned(), v.clone()),
                    _ => (k.clone(), v.clone()),
                }));
            }
        }
    }
}

/// One schema node with its references inlined and everything removed that a structural schema must not hold.
fn tidy(node: &Value, definitions: &Map<String, Value>) -> Value {
    let Value::Object(node) = flat(node, definitions) else {
        return Value::Bool(true);
    };
    let mut out = Map::new();
    let mut required = strings(node.get("required"));
    for (keyword, value) in node {
        match (keyword.as_str(), value) {
            ("x-default", value) => {
                out.insert("default".to_owned(), value);
            }
            ("type", Value::Array(types)) => {
                out.extend(types.into_iter().find(|t| t != "null").map(|t| ("type".to_owned(), t)));
            }
            ("enum", Value::Array(mut members)) => {
                members.retain(|member| !member.is_null());
                out.insert(keyword, Value::Array(members));
            }
            ("properties", Value::Object(properties)) => {
                let mut tidied = Map::new();
                for (name, property) in properties {
                    if property.get("x-optional").is_some() {
                        required.remove(&name);
                    }
                    if property.get("x-required").is_some() {
                        required.insert(name.clone());
                    }
                    tidied.insert(name, tidy(&property, definitions));
                }
                out.insert(keyword, Value::Object(tidied));
            }
            ("items", items) => {
                out.insert(keyword, tidy(&items, definitions));
            }
            ("additionalProperties", Value::Object(values)) => {
                out.insert(keyword, tidy(&Value::Object(values), definitions));
            }
            (
                "title"
                | "$defs"
                | "$schema"
                | "$id"
                | "default"
                | "required"
                | "x-optional"
                | "x-required"
                | "additionalProperties",
                _,
            ) => {}
            (_, value) => {
                out.insert(keyword, value);
            }
        }
    }
    if !required.is_empty() {
        out.insert("required".to_owned(), json!(required));
    }
    if out.get("x-kubernetes-int-or-string") == Some(&json!(true)) {
        out.remove("type");
        out.insert("anyOf".to_owned(), json!([{"type": "integer"}, {"type": "string"}]));
        out.insert("pattern".to_owned(), json!(QUANTITY_PATTERN));
    }
    Value::Object(out)
}

/// Follows a reference, and takes the other side of "this or null". What stands beside the reference wins.
fn flat(node: &Value, definitions: &Map<String, Value>) -> Value {
    let Value::Object(node) = node else {
        return node.clone();
    };
    let mut node = node.clone();
    let target = match (node.remove("$ref"), node.get("anyOf")) {
        (Some(Value::String(reference)), _) => {
            definitions.get(reference.trim_start_matches("#/$defs/")).map(|definition| flat(definition, definitions))
        }
        (_, Some(Value::Array(sides))) => {
            let side = sides.iter().find(|side| side.get("type").is_none_or(|t| t != "null"));
            let side = side.map(|side| flat(side, definitions));
            node.remove("anyOf");
            side
        }
        _ => None,
    };
    if let Some(Value::Object(target)) = target {
        for (keyword, value) in target {
            node.entry(keyword).or_insert(value);
        }
    }
    Value::Object(node)
}

fn strings(array: Option<&Value>) -> BTreeSet<String> {
    array.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}
