//! `/snapshot`, read leniently: what is unknown is ignored, what is missing or null is nothing.

use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Deserializer};

/// What the server holds.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Snapshot {
    /// Replicas, in the server's order.
    #[serde(deserialize_with = "or_nothing")]
    pub replicas: Vec<ReplicaRow>,
    /// Tenants, in the server's order.
    #[serde(deserialize_with = "or_nothing")]
    pub tenants: Vec<TenantRow>,
    /// Distinct keys.
    #[serde(deserialize_with = "or_nothing")]
    pub total_prefixes: i64,
    /// Of these, the hot ones.
    #[serde(deserialize_with = "or_nothing")]
    pub hot_prefixes: i64,
}

/// One replica.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReplicaRow {
    /// Name of the engine's Pod.
    #[serde(deserialize_with = "or_nothing")]
    pub replica_id: String,
    /// Namespace of the engine's Pod.
    #[serde(deserialize_with = "or_nothing")]
    pub tenant: String,
    /// Bytes of the engine's cache.
    #[serde(deserialize_with = "or_nothing")]
    pub cache_memory_bytes: i64,
    /// Rolling hit rate.
    #[serde(deserialize_with = "or_nothing")]
    pub hit_rate: f32,
    /// Memory pressure.
    #[serde(deserialize_with = "or_nothing")]
    pub pressure: f32,
    /// When statistics were last reported.
    #[serde(deserialize_with = "moment")]
    pub last_update: Option<Timestamp>,
    /// Prefixes it holds.
    #[serde(deserialize_with = "or_nothing")]
    pub prefix_count: i64,
    /// When an event last arrived.
    #[serde(deserialize_with = "moment")]
    pub last_event_at: Option<Timestamp>,
    /// Tokens that the shared tier had, over the engine's life.
    #[serde(deserialize_with = "or_nothing")]
    pub t2_hit_tokens: i64,
    /// Tokens that the shared tier was asked for.
    #[serde(deserialize_with = "or_nothing")]
    pub t2_query_tokens: i64,
}

/// One tenant.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TenantRow {
    /// Its identity.
    #[serde(deserialize_with = "or_nothing")]
    pub tenant_id: String,
    /// Distinct keys.
    #[serde(deserialize_with = "or_nothing")]
    pub index_entries: i64,
    /// Mean hit rate.
    #[serde(deserialize_with = "or_nothing")]
    pub hit_rate: f32,
    /// Whether a hit rate of 0 was measured.
    #[serde(deserialize_with = "or_nothing")]
    pub hit_rate_reported: bool,
}

fn or_nothing<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::<T>::deserialize(deserializer)?.unwrap_or_default())
}

/// The first instant of year 1 is how the server says that there is none.
fn moment<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    let text = Option::<String>::deserialize(deserializer)?;
    let Some(text) = text.filter(|text| !text.is_empty() && text != "0001-01-01T00:00:00Z") else { return Ok(None) };
    text.parse().map(Some).map_err(serde::de::Error::custom)
}

/// The shortest decimal that reads back as the same number, without an exponent.
pub(super) fn rate(value: f32) -> String {
    if value.is_finite() && value != 0.0 { value.to_string() } else { "0".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// controller:126 field:45
    #[test]
    fn what_is_unknown_missing_or_null_does_no_harm() {
        let body = r#"{"replicas":null,"tenants":null,"totalPrefixes":0,"hotPrefixes":0,"future":1}"#;
        assert_eq!(serde_json::from_str::<Snapshot>(body).expect("readable"), Snapshot::default());
        let body = r#"{"replicas":[{"replicaId":"r","cacheMemoryBytes":9007199254740993,"hitRate":null,"x":[],
            "lastUpdate":"0001-01-01T00:00:00Z","lastEventAt":"2026-01-02T03:04:05.678901Z"}]}"#;
        let snapshot: Snapshot = serde_json::from_str(body).expect("readable");
        let row = &snapshot.replicas[0];
        assert_eq!((row.cache_memory_bytes, row.hit_rate, row.last_update), (9_007_199_254_740_993, 0.0, None));
        assert_eq!(row.last_event_at.map(|at| at.as_second()), Some(1_767_323_045));
        assert!(
            serde_json::from_str::<Snapshot>(r#"{"totalPrefixes":"many"}"#).is_err(),
            "a wrong type is no snapshot"
        );
    }

    #[test]
    fn rates_are_short_and_have_no_exponent() {
        for (value, text) in
            [(0.8, "0.8"), (0.0, "0"), (1.0 / 3.0, "0.33333334"), (1e-7, "0.0000001"), (1.0, "1"), (-0.0, "0")]
        {
            assert_eq!(rate(value), text);
        }
    }
}
