//! PromptTemplate: a prompt with parts that stay and parts that change. Declared; nothing acts on it yet.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::open_enum::{open_enum, optional_at_root};

open_enum! {
    /// Whether a slot changes from request to request.
    pub enum SlotType {
        /// It stays and belongs to the cached prefix.
        Stable = "Stable",
        /// It changes.
        Mutable = "Mutable",
    }
}

/// A prompt and its slots.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "inferencecache.io",
    version = "v1alpha1",
    kind = "PromptTemplate",
    plural = "prompttemplates",
    shortname = "pt",
    namespaced,
    schema = "disabled",
    status = "PromptTemplateStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "A prompt with parts that stay and parts that change.",
    printcolumn(name = "Revision", type_ = "string", json_path = ".status.templateRevision"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase", default, remote = "Self")]
pub struct PromptTemplateSpec {
    /// The text. How it marks its slots is not checked.
    #[schemars(length(min = 1))]
    pub body: String,
    /// The slots.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub slots: Option<Vec<Slot>>,
}

optional_at_root!(PromptTemplateSpec);

/// One slot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Slot {
    /// Its name, unique in the list.
    #[schemars(length(min = 1))]
    pub name: String,
    /// Whether it stays or changes.
    #[serde(rename = "type")]
    pub slot_type: SlotType,
    /// Whether callers must fill it; absent is not false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub required: Option<bool>,
    /// What it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// Reserved: nothing writes it yet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PromptTemplateStatus {
    /// Reserved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template_revision: Option<String>,
    /// Reserved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Reserved.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}
