//! The shared tier behind the engines.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Affinity, LocalObjectReference, PodSecurityContext, ResourceRequirements, SecretKeySelector, Toleration,
    TopologySpreadConstraint,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::open_enum;

open_enum! {
    /// What the shared tier is.
    pub enum Provider {
        /// Redis, or what speaks its protocol.
        Redis = "Redis",
    }
}

open_enum! {
    /// Who runs the shared tier.
    pub enum Ownership {
        /// The controller does.
        Managed = "Managed",
        /// Somebody else does.
        External = "External",
    }
}

/// The shared tier.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RemoteStorage {
    /// What it is.
    pub provider: Provider,
    /// Who runs it. A change away from Managed deletes what the controller made.
    pub ownership: Ownership,
    /// `host:port` of an External tier; not given for a Managed one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// The Pod of a Managed tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload: Option<Workload>,
    /// Settings of Redis.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redis: Option<Redis>,
}

impl RemoteStorage {
    /// The endpoint without blanks around it; `None` where it says nothing.
    #[must_use]
    pub fn endpoint(&self) -> Option<&str> {
        self.endpoint.as_deref().map(str::trim).filter(|endpoint| !endpoint.is_empty())
    }
}

/// Placement and security of the Pod of a Managed tier.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Workload {
    /// Labels of the nodes it may run on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<BTreeMap<String, String>>,
    /// Affinity of the Pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Taints it tolerates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tolerations: Option<Vec<Toleration>>,
    /// How it is spread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topology_spread_constraints: Option<Vec<TopologySpreadConstraint>>,
    /// Secrets to pull its image with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_pull_secrets: Option<Vec<LocalObjectReference>>,
    /// Its service account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account_name: Option<String>,
    /// Its security.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub security_context: Option<PodSecurityContext>,
    /// Its priority.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class_name: Option<String>,
    /// Its scheduler; the default one where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduler_name: Option<String>,
    /// Its runtime class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime_class_name: Option<String>,
    /// Seconds to end in; 30 where absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub termination_grace_period_seconds: Option<i64>,
}

/// Settings of Redis.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Redis {
    /// Image of a Managed Redis.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Resources of a Managed Redis; the memory limit also bounds what it stores. Absent: 4Gi requested, 8Gi at most.
    /// `{}`: none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<ResourceRequirements>,
    /// Credentials, from Secrets of the same namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authentication: Option<RedisAuthentication>,
    /// Reserved, always refused: the connector has no TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls: Option<RedisTls>,
    /// Reserved, always refused: the connector cannot select a database.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub database: Option<i32>,
}

/// Credentials for Redis.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RedisAuthentication {
    /// Key of a Secret with the password.
    pub password: SecretKeySelector,
    /// Key of a Secret with the user of an External Redis.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username: Option<SecretKeySelector>,
}

/// TLS towards Redis: reserved.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RedisTls {
    /// Key of a Secret with the authority's certificate.
    pub ca_certificate: SecretKeySelector,
    /// Name that the certificate is checked against.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_name: Option<String>,
}
