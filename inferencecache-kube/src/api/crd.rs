//! The CustomResourceDefinitions of all six kinds.
//!
//! Names, scope, columns and subresources come from kube's derive; the schema is our own pipeline ([`super::schema`]), for the
//! derive's own cannot express what the published schema demands.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use schemars::JsonSchema;
use serde_json::{Value, json};

use super::{
    CacheBackend, CacheIndex, CachePolicy, CacheTenant, PDTopology, PromptTemplate, backend, index, policy, schema,
    template, tenant, topology,
};

/// What `spec` is at the root of a kind.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Root {
    /// May be left out.
    Optional,
    /// Must be given.
    Required,
    /// Is required by the schema, and given as `{}` by it where it is left out.
    Defaulted,
}

/// The definitions as JSON, complete and in the order of their file names.
#[must_use]
pub fn crd_json() -> Vec<Value> {
    vec![
        definition::<CacheBackend, backend::CacheBackendSpec, backend::CacheBackendStatus>(
            Root::Optional,
            "Binds the engine Pods of one namespace to one cache hierarchy, and runs a shared Redis tier on request.",
        ),
        definition::<CacheIndex, index::CacheIndexSpec, index::CacheIndexStatus>(
            Root::Optional,
            "Mirror of the policy server's aggregate: metadata to look at, never an input of routing.",
        ),
        definition::<CachePolicy, policy::CachePolicySpec, policy::CachePolicyStatus>(
            Root::Defaulted,
            "Lookup and eviction of one namespace, enforced by the policy server.",
        ),
        definition::<CacheTenant, tenant::CacheTenantSpec, tenant::CacheTenantStatus>(
            Root::Required,
            "An identity that requests carry, and the budget of index entries it has.",
        ),
        definition::<PDTopology, topology::PDTopologySpec, topology::PDTopologyStatus>(
            Root::Optional,
            "Pools of engines that only prefill or only decode.",
        ),
        definition::<PromptTemplate, template::PromptTemplateSpec, template::PromptTemplateStatus>(
            Root::Required,
            "A prompt with parts that stay and parts that change.",
        ),
    ]
}

/// The definitions as typed objects, for installation through a client.
///
/// # Errors
/// A definition is not what the bindings of Kubernetes expect; a test rules this out.
pub fn crds() -> Result<Vec<CustomResourceDefinition>, serde_json::Error> {
    crd_json().into_iter().map(serde_json::from_value).collect()
}

fn definition<K: CustomResourceExt, Spec: JsonSchema, Status: JsonSchema>(root: Root, about: &str) -> Value {
    let mut crd = serde_json::to_value(K::crd()).unwrap_or_default();
    let mut spec = schema::structural::<Spec>();
    if root == Root::Defaulted
        && let Some(spec) = spec.as_object_mut()
    {
        spec.insert("default".to_owned(), json!({}));
    }
    let mut schema = json!({
        "type": "object",
        "description": about,
        "properties": {
            "apiVersion": {
                "type": "string",
                "description": "Version of the schema that this object is written in.",
            },
            "kind": {"type": "string", "description": "Kind of the object."},
            "metadata": {"type": "object"},
            "spec": spec,
            "status": schema::structural::<Status>(),
        },
    });
    if root != Root::Optional
        && let Some(schema) = schema.as_object_mut()
    {
        schema.insert("required".to_owned(), json!(["spec"]));
    }
    if let Some(version) = crd.pointer_mut("/spec/versions/0").and_then(Value::as_object_mut) {
        version.insert("schema".to_owned(), json!({"openAPIV3Schema": schema}));
    }
    if let Some(names) = crd.pointer_mut("/spec/names").and_then(Value::as_object_mut) {
        names.remove("categories");
        let list = names.get("kind").and_then(Value::as_str).map(|kind| format!("{kind}List"));
        names.extend(list.map(|list| ("listKind".to_owned(), Value::String(list))));
    }
    if let Some(crd) = crd.as_object_mut() {
        crd.remove("status");
    }
    crd
}
