//! CacheBackend: which engine Pods share a cache, what cache it is, and how it fares.

mod lmcache;
mod status;
mod storage;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::EnvVar;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::lmcache::{
    DEFAULT_CHUNK_SIZE_TOKENS, LmCache, NodeLocal, NodeLocalScheduling, NodeLocalServer, PodLocal, PodLocalServer,
    Topology,
};
pub use self::status::{
    CacheBackendStatus, ConnectorMode, ConnectorStatus, EnginePodCoverage, IndexParticipation, RemoteStorageStatus,
};
pub use self::storage::{Ownership, Provider, Redis, RedisAuthentication, RedisTls, RemoteStorage, Workload};

use super::duration::GoDuration;
use super::names::CACHE_DOMAIN;
use super::open_enum::{absent_if_empty, open_enum, optional_at_root};

open_enum! {
    /// Engine family.
    pub enum Runtime {
        /// vLLM.
        Vllm = "VLLM",
        /// SGLang.
        SgLang = "SGLang",
    }
}

impl Runtime {
    /// The name of the runtime in lower case: the runtime id of adapters and the hash scheme of the index.
    #[must_use]
    pub fn id(&self) -> String {
        self.as_str().to_lowercase()
    }
}

open_enum! {
    /// Cache implementation inside the engine.
    pub enum CacheType {
        /// LMCache, as a multiprocess server beside the engine or on its node.
        LmCache = "LMCache",
        /// SGLang's own host cache.
        SgLangHiCache = "SGLangHiCache",
    }
}

open_enum! {
    /// What the integration does.
    pub enum Mode {
        /// Routing and a cache tier.
        Offload = "Offload",
        /// Routing only.
        EventsOnly = "EventsOnly",
    }
}

open_enum! {
    /// Direction of the connector.
    pub enum Role {
        /// Reserved.
        ReadOnly = "ReadOnly",
        /// Reserved.
        WriteOnly = "WriteOnly",
        /// Both, the only direction that is offered.
        ReadWrite = "ReadWrite",
    }
}

open_enum! {
    /// When SGLang writes to its host cache.
    pub enum WritePolicy {
        /// On eviction from the device.
        WriteBack = "write_back",
        /// At once.
        WriteThrough = "write_through",
        /// At once, what is used often.
        WriteThroughSelective = "write_through_selective",
    }
}

open_enum! {
    /// How SGLang moves pages between host and device.
    pub enum IoBackend {
        /// Copies by the driver.
        Direct = "direct",
        /// Copies by a kernel.
        Kernel = "kernel",
        /// Copies by a kernel of Ascend devices.
        KernelAscend = "kernel_ascend",
    }
}

open_enum! {
    /// Layout of SGLang's host pages.
    pub enum MemoryLayout {
        /// By layer.
        LayerFirst = "layer_first",
        /// By page.
        PageFirst = "page_first",
        /// By page, for direct copies.
        PageFirstDirect = "page_first_direct",
        /// By page, keys and values apart.
        PageFirstKvSplit = "page_first_kv_split",
        /// By page and head.
        PageHead = "page_head",
    }
}

/// Binds the engine Pods of one namespace to one cache hierarchy.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "inferencecache.io",
    version = "v1alpha1",
    kind = "CacheBackend",
    plural = "cachebackends",
    shortname = "cb",
    namespaced,
    schema = "disabled",
    status = "CacheBackendStatus",
    derive = "Default",
    derive = "PartialEq",
    doc = "Binds the engine Pods of one namespace to one cache hierarchy.",
    printcolumn(name = "Type", type_ = "string", json_path = ".spec.type"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Matched", type_ = "integer", json_path = ".status.matchedEnginePods"),
    printcolumn(name = "Remote", type_ = "string", json_path = ".status.remoteStorage.endpoint"),
    printcolumn(name = "Prefixes", type_ = "integer", json_path = ".status.indexParticipation.prefixCount"),
    printcolumn(name = "LastEvent", type_ = "date", json_path = ".status.indexParticipation.lastEventAt"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase", default, remote = "Self")]
pub struct CacheBackendSpec {
    /// Engine family. In lower case it is also the hash scheme of the index.
    pub runtime: Runtime,
    /// Cache implementation inside the engine. It says nothing about remote storage.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none", deserialize_with = "absent_if_empty")]
    #[schemars(extend("x-default" = "LMCache"))]
    pub cache_type: Option<CacheType>,
    /// LMCache as a multiprocess server. Required for type LMCache with mode Offload, not allowed otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lm_cache: Option<LmCache>,
    /// SGLang's own host cache. Required for type SGLangHiCache, not allowed otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hi_cache: Option<HiCache>,
    /// Shared tier behind the engines. Left out, there is none, and none is provisioned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote_storage: Option<RemoteStorage>,
    /// Observation of the engines' KV events.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observation: Option<Observation>,
    /// How engines are integrated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub integration: Option<Integration>,
    /// Engine Pods that belong to this backend. Absent or empty, it selects none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine_selector: Option<EngineSelector>,
    /// Whether an External endpoint may be a Service of another namespace. Absent is false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allow_cross_namespace: Option<bool>,
}

optional_at_root!(CacheBackendSpec);

/// What an absent member means. Admission, reconciling and injection must agree, so it is said here only.
impl CacheBackendSpec {
    /// The cache type; LMCache where none is given.
    #[must_use]
    pub fn effective_type(&self) -> &CacheType {
        self.cache_type.as_ref().unwrap_or(&CacheType::LmCache)
    }

    /// The mode; Offload where none is given.
    #[must_use]
    pub fn effective_mode(&self) -> &Mode {
        self.integration.as_ref().and_then(|i| i.mode.as_ref()).unwrap_or(&Mode::Offload)
    }

    /// The role; ReadWrite where none is given.
    #[must_use]
    pub fn effective_role(&self) -> &Role {
        self.integration.as_ref().and_then(|i| i.role.as_ref()).unwrap_or(&Role::ReadWrite)
    }

    /// Whether engines serve on without their remote tier; true where nothing is said.
    #[must_use]
    pub fn effective_fail_open(&self) -> bool {
        self.integration.as_ref().and_then(|i| i.fail_open).unwrap_or(true)
    }

    /// Whether only events are taken from the engines. This beats every setting of storage.
    #[must_use]
    pub fn events_only(&self) -> bool {
        *self.effective_mode() == Mode::EventsOnly
    }

    /// The labels that select engine Pods; `None` where there are none, which selects nothing.
    #[must_use]
    pub fn selector(&self) -> Option<&BTreeMap<String, String>> {
        let labels = self.engine_selector.as_ref().and_then(|s| s.match_labels.as_ref())?;
        (!labels.is_empty()).then_some(labels)
    }

    /// The cache domain that the selector names, if it names one.
    #[must_use]
    pub fn domain(&self) -> Option<&str> {
        self.selector()?.get(CACHE_DOMAIN).map(String::as_str).filter(|domain| !domain.is_empty())
    }

    /// The model whose events are observed, without blanks around it; `None` where none is named.
    #[must_use]
    pub fn model_id(&self) -> Option<&str> {
        let model = self.observation.as_ref()?.model_id.as_deref()?.trim();
        (!model.is_empty()).then_some(model)
    }
}

/// SGLang's own host cache. Exactly one of `sizeGB` and `ratio` is given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HiCache {
    /// Size of the host pool in decimal gigabytes.
    #[serde(rename = "sizeGB", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub size_gb: Option<i32>,
    /// Size of the host pool relative to the device pool: a finite number above zero, as text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<String>,
    /// When pages are written to the host.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "absent_if_empty")]
    pub write_policy: Option<WritePolicy>,
    /// How pages are moved.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "absent_if_empty")]
    pub io_backend: Option<IoBackend>,
    /// Layout of the host pages.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "absent_if_empty")]
    pub memory_layout: Option<MemoryLayout>,
}

/// Observation of KV events.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Observation {
    /// Model that the events are about. Empty, no subscriber is attached to engine Pods.
    #[serde(rename = "modelID", skip_serializing_if = "Option::is_none")]
    pub model_id: Option<String>,
    /// How long the first KV event may take, in Go's syntax. Zero and less count as 5m.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = "5m"))]
    pub first_event_timeout: Option<GoDuration>,
}

/// How engines are integrated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Integration {
    /// Offload: routing and a cache tier. EventsOnly: routing only, for models that cannot load a connector.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "absent_if_empty")]
    #[schemars(extend("x-default" = "Offload"))]
    pub mode: Option<Mode>,
    /// Direction of the connector. ReadOnly and WriteOnly are reserved and refused.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "absent_if_empty")]
    #[schemars(extend("x-default" = "ReadWrite"))]
    pub role: Option<Role>,
    /// Whether engines serve on without the remote tier. False lets the tier decide over Ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = true))]
    pub fail_open: Option<bool>,
    /// Changes to what is injected into the engine container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub engine_overrides: Option<EngineOverrides>,
}

/// Changes to what is injected into the engine container. What the adapter itself relies on is reserved.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EngineOverrides {
    /// Replaces the value of an injected flag, or adds a flag that nobody set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub args: Option<Vec<String>>,
    /// Injected flags to leave out; applied before `args`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suppress_args: Option<Vec<String>>,
    /// Environment to set, by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env: Option<Vec<EnvVar>>,
    /// Injected environment to leave out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suppress_env: Option<Vec<String>>,
}

/// Which Pods belong to a backend.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EngineSelector {
    /// Exactly one label, `inferencecache.io/cache-domain`, or none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub match_labels: Option<BTreeMap<String, String>>,
}

/// The rule of the API server on `l1Capacity`.
fn positive_capacity() -> serde_json::Value {
    serde_json::json!([{
        "rule": "quantity(string(self)).isGreaterThan(quantity('0'))",
        "message": "l1Capacity must be greater than zero",
    }])
}
