//! Every sample is admitted, and every invalid manifest is refused by the layer that the specification names.

use kube::core::Status;
use serde_json::{Value, json};

use super::stage::{Api, causes, collection, stage, url};
use inferencecache_kube::testkit::manifests;

/// A sample by the name of its file.
fn sample(name: &str) -> Value {
    let path = format!("{}/deploy/samples/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|why| panic!("{path}: {why}"));
    manifests::read(&text).expect("YAML").remove(0)
}

async fn in_its_namespace(api: &Api, object: &Value) {
    if let Some(namespace) = object["metadata"]["namespace"].as_str() {
        api.namespace(namespace).await;
    }
}

#[tokio::test]
async fn every_sample_is_admitted_and_keeps_its_text() {
    let Some(stage) = stage() else { return };
    let api = Api::new(stage).await;
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/samples");
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .expect("samples")
        .map(|entry| entry.expect("a file").file_name().to_string_lossy().trim_end_matches(".yaml").to_owned())
        .collect();
    names.sort();
    assert_eq!(names.len(), 21);
    for name in names {
        let object = sample(&name);
        in_its_namespace(&api, &object).await;
        let stored = match api.create(&collection(&object), &object, "fieldValidation=Strict").await {
            Ok(stored) => stored,
            Err(status) => panic!("{name}: {}", status.message),
        };
        assert!(stored.get("status").is_none(), "{name}: only the status subresource writes a status");
        covers(&name, &object["spec"], &stored["spec"]);
        api.delete(&url(&object), &Value::Null).await.unwrap_or_else(|why| panic!("{name}: {}", why.message));
    }
}

/// Everything that was given is still there, as it was given.
fn covers(path: &str, given: &Value, stored: &Value) {
    match (given, stored) {
        (Value::Object(given), Value::Object(stored)) => {
            for (key, value) in given {
                covers(&format!("{path}.{key}"), value, stored.get(key).unwrap_or(&Value::Null));
            }
        }
        _ => assert_eq!(given, stored, "{path}"),
    }
}

/// crds:1-32 crds:34-111 crds:113-120 crds:122-134, by the numbers in the file.
#[tokio::test]
async fn every_invalid_manifest_is_refused_by_the_layer_that_is_named() {
    let Some(stage) = stage() else { return };
    let api = Api::new(stage).await;
    let rows: Vec<Value> = serde_json::from_str(include_str!("../cases/invalid.json")).expect("rows");
    let mut wrong = Vec::new();
    for row in &rows {
        let mut object = sample(row["base"].as_str().expect("a base"));
        in_its_namespace(&api, &object).await;
        for (path, value) in row["edits"].as_object().expect("edits") {
            edit(&mut object, path, value);
        }
        let why = match api.create(&collection(&object), &object, "dryRun=All").await {
            Ok(_) => Some("is admitted".to_owned()),
            Err(status) => differs(row, &status),
        };
        if let Some(why) = why {
            wrong.push(format!("{} {}: {why}", row["case"], row["edits"]));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
}

/// What looks wrong and is not: admitted, and stored as it was given.
#[tokio::test]
async fn what_looks_wrong_and_is_not_is_admitted_as_it_is() {
    let Some(stage) = stage() else { return };
    let api = Api::new(stage).await;
    api.namespace("accepted").await;
    let rows: Vec<Value> = serde_json::from_str(include_str!("../cases/accepted.json")).expect("rows");
    let mut wrong = Vec::new();
    for row in &rows {
        let mut object = sample(row["base"].as_str().expect("a base"));
        if object["metadata"].get("namespace").is_some() {
            object["metadata"]["namespace"] = "accepted".into();
        }
        for (path, value) in row["edits"].as_object().expect("edits") {
            edit(&mut object, path, value);
        }
        match api.create(&collection(&object), &object, "dryRun=All&fieldValidation=Strict").await {
            Ok(stored) if object["spec"].is_object() => {
                covers(&row["edits"].to_string(), &object["spec"], &stored["spec"]);
            }
            Ok(_) => {}
            Err(status) => wrong.push(format!("{}: {}", row["edits"], status.message)),
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), rows.len(), wrong.join("\n"));
}

/// crds §8, the edits that are refused: what is stored is fine, or a fault that the edit makes another one.
#[tokio::test]
async fn an_edit_that_breaks_a_rule_is_refused_and_nothing_is_stored() {
    let Some(stage) = stage() else { return };
    let api = Api::new(stage).await;
    api.namespace("edits").await;
    for (base, patch, path) in [
        ("cachepolicy-2", json!({"spec": {"evictionTTL": "-1m"}}), "spec.evictionTTL"),
        ("cachetenant-1", json!({"spec": {"tenantID": "inferencecache.io/probe"}}), "spec.tenantID"),
        (
            "cachebackend-3",
            json!({"spec": {"lmCache": {"nodeLocal": {"server": {"httpPort": 17411}}}}}),
            "spec.lmCache.nodeLocal.server.httpPort",
        ),
        ("cachebackend-3", json!({"spec": {"remoteStorage": {"endpoint": "h:http"}}}), "spec.remoteStorage.endpoint"),
    ] {
        let mut object = sample(base);
        object["metadata"]["namespace"] = "edits".into();
        let stored = match api.get(&url(&object)).await {
            Ok(stored) => stored,
            Err(_) => api.store(&object).await,
        };
        let refused = api.merge(&url(&object), &patch).await.expect_err(path);
        assert!(causes(&refused).iter().any(|(field, _)| field == path), "{path}: {}", refused.message);
        assert_eq!(refused.code, 422, "{path}: {}", refused.message);
        let after = api.get(&url(&object)).await.expect("stored");
        assert_eq!(after["metadata"]["resourceVersion"], stored["metadata"]["resourceVersion"], "{path}");
    }
}

fn edit(object: &mut Value, path: &str, value: &Value) {
    let pointer = format!("/{}", path.replace('.', "/"));
    let (parent, key) = pointer.rsplit_once('/').expect("a path");
    let parent = if parent.is_empty() { &mut *object } else { make(object, parent) };
    let members = parent.as_object_mut().unwrap_or_else(|| panic!("{path} has no parent"));
    if value == "<remove>" {
        members.remove(key).unwrap_or_else(|| panic!("{path} is not there"));
    } else {
        members.insert(key.to_owned(), value.clone());
    }
}

/// The object at a path; made where it is not there.
fn make<'a>(object: &'a mut Value, pointer: &str) -> &'a mut Value {
    let mut at = object;
    for key in pointer.split('/').skip(1) {
        at = &mut at[key];
    }
    if at.is_null() {
        *at = Value::Object(serde_json::Map::new());
    }
    at
}

/// What about a refusal is not as the row says.
fn differs(row: &Value, status: &Status) -> Option<String> {
    let text = |key: &str| row[key].as_str().expect("text");
    let message = &status.message;
    let told = |why: &str| Some(format!("{why}\n    {} {message}", status.code));
    let by_webhook = message.contains("admission webhook \"v");
    let (layer, kind, path) = (text("layer"), text("kind"), text("path"));
    if by_webhook != matches!(layer, "Webhook" | "Decode") {
        return told(&format!("is refused elsewhere than by {layer}"));
    }
    if (status.code == 400) != (layer == "Decode") {
        return told("has the wrong code");
    }
    let causes = causes(status);
    if layer != "Decode" && !causes.iter().any(|(field, _)| field == path) {
        return told(&format!("names {causes:?}, not {path}"));
    }
    let (reason, words): (&str, &str) = match kind {
        "Required" => ("FieldValueRequired", "Required value"),
        "NotSupported" => ("FieldValueNotSupported", "Unsupported value"),
        "Forbidden" => ("FieldValueForbidden", "Forbidden"),
        "Duplicate" => ("FieldValueDuplicate", "Duplicate value"),
        "Invalid" => ("FieldValueInvalid", "Invalid value"),
        "Minimum" => ("", "should be greater than or equal to"),
        "Maximum" => ("", "should be less than or equal to"),
        "Pattern" => ("", "should match"),
        "MinLength" => ("", "should be at least 1 chars long"),
        "MaxProperties" => ("", "must have at most 0 items"),
        "Type" => ("", "must be of type"),
        "BadRequest" => ("", path),
        _ => panic!("no such kind: {kind}"),
    };
    if !reason.is_empty() && !causes.iter().any(|(field, given)| field.starts_with(path) && given == reason) {
        return told(&format!("gives {causes:?}, not {reason}"));
    }
    let mut wanted: Vec<&str> = row["names"].as_array().expect("names").iter().filter_map(Value::as_str).collect();
    wanted.push(words);
    let silent: Vec<&str> = wanted.into_iter().filter(|word| !message.contains(word)).collect();
    if silent.is_empty() { None } else { told(&format!("does not say {silent:?}")) }
}
