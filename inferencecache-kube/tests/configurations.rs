//! The shipped webhook configurations.

use inferencecache_kube::testkit::manifests;
use inferencecache_kube::webhook::names::{Kind, POD_PATH, POD_WEBHOOK};
use serde_json::{Value, json};

const FILES: [(&str, &str, &str); 2] = [
    ("mutating", "m", include_str!("../deploy/webhooks/mutating.yaml")),
    ("validating", "v", include_str!("../deploy/webhooks/validating.yaml")),
];

/// The six entries of the custom resources, after the Pod linker's.
#[test]
fn they_name_what_is_judged_and_nothing_else() {
    for (name, prefix, file) in FILES {
        let [configuration] = manifests::read(file).expect("YAML").try_into().expect("one configuration");
        assert_eq!(configuration["metadata"]["name"], format!("inference-cache-{name}-webhook-configuration"));
        let mut entries = configuration["webhooks"].as_array().expect("entries").as_slice();
        if name == "mutating" {
            entries = entries.split_first().expect("the linker's").1;
        }
        assert_eq!(entries.len(), Kind::ALL.len());
        for (entry, kind) in entries.iter().zip(Kind::ALL) {
            assert_eq!(entry["name"], format!("{prefix}{}.inferencecache.io", kind.singular()));
            let path = if prefix == "m" { kind.mutate_path() } else { kind.validate_path() };
            let service = json!({"name": "webhook-service", "namespace": "inference-cache-system", "path": path});
            assert_eq!(entry["clientConfig"], json!({"service": service}), "no caBundle: it is filled in");
            let rule = json!([{"apiGroups": ["inferencecache.io"], "apiVersions": ["v1alpha1"],
                "operations": ["CREATE", "UPDATE"], "resources": [kind.plural()], "scope": "Namespaced"}]);
            assert_eq!(entry["rules"], rule);
            assert_eq!((&entry["failurePolicy"], &entry["sideEffects"]), (&json!("Fail"), &json!("None")));
            assert_eq!(entry["admissionReviewVersions"], json!(["v1"]));
        }
    }
}

/// field:49: first, ignored when nobody answers, soon, and never asked about what the cluster and the controller need.
#[test]
fn the_linker_is_asked_about_new_pods_and_waited_for_briefly() {
    let configurations = manifests::read(FILES[0].2).expect("YAML");
    let entry = &configurations[0]["webhooks"][0];
    assert_eq!(entry["name"], POD_WEBHOOK);
    assert_eq!(entry["clientConfig"]["service"]["path"], POD_PATH);
    assert_eq!((&entry["failurePolicy"], &entry["sideEffects"]), (&json!("Ignore"), &json!("None")));
    assert!(entry["timeoutSeconds"].as_u64().is_some_and(|seconds| seconds <= 3), "{entry}");
    let rule = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"], "scope": "Namespaced"}]);
    assert_eq!(entry["rules"], rule);
    let excluded = &entry["namespaceSelector"]["matchExpressions"][0];
    assert_eq!((&excluded["key"], &excluded["operator"]), (&json!("kubernetes.io/metadata.name"), &json!("NotIn")));
    assert_eq!(excluded["values"], json!(["kube-system", "inference-cache-system"]));
}

/// field:48: applying the files again must not wipe what was filled in.
#[test]
fn they_carry_no_authority_of_their_own() {
    fn look(value: &Value) {
        match value {
            Value::Object(members) => {
                assert!(!members.contains_key("caBundle"));
                members.values().for_each(look);
            }
            Value::Array(items) => items.iter().for_each(look),
            _ => {}
        }
    }
    for (_, _, file) in FILES {
        for configuration in manifests::read(file).expect("YAML") {
            let source = &configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"];
            assert_eq!(source, "inference-cache-system/serving-cert");
            look(&configuration);
        }
    }
}
