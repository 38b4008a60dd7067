//! CacheIndex status from a snapshot.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;

use super::snapshot::{ReplicaRow, Snapshot, TenantRow, rate};
use crate::api::{CacheIndexStatus, IndexReplica, IndexTenant, PrefixSummary, Prefixes};
use crate::controller::text::stamp;

/// The status to write, or nothing if that would change but times.
#[must_use]
pub fn changed(
    published: Option<&CacheIndexStatus>,
    snapshot: &Snapshot,
    server: &str,
    now: Timestamp,
) -> Option<CacheIndexStatus> {
    let mut status = mirrored(snapshot, server);
    if published.is_some_and(|published| timeless(published.clone()) == timeless(status.clone())) {
        return None;
    }
    status.last_updated = Some(stamp(now));
    Some(status)
}

fn mirrored(snapshot: &Snapshot, server: &str) -> CacheIndexStatus {
    let mut rows: BTreeMap<&str, (&ReplicaRow, Timestamp)> = BTreeMap::new();
    for row in &snapshot.replicas {
        // Without a time nothing was reported but prefixes.
        let Some(reported) = row.last_update else { continue };
        let known = rows.get(row.replica_id.as_str());
        if known.is_none_or(|(known, _)| row.tenant > known.tenant) {
            rows.insert(&row.replica_id, (row, reported));
        }
    }
    let summary = PrefixSummary { total: snapshot.total_prefixes, hot: snapshot.hot_prefixes };
    CacheIndexStatus {
        replicas: rows.into_values().map(|(row, reported)| replica(row, reported)).collect(),
        tenants: tenants(&snapshot.tenants),
        prefixes: Some(Prefixes { summary: Some(summary) }),
        observed_server: Some(server.to_owned()),
        last_updated: None,
    }
}

fn replica(row: &ReplicaRow, reported: Timestamp) -> IndexReplica {
    IndexReplica {
        id: row.replica_id.clone(),
        tenant: Some(row.tenant.clone()).filter(|tenant| !tenant.is_empty()),
        cache_memory_bytes: Some(row.cache_memory_bytes).filter(|bytes| *bytes != 0),
        hit_rate: Some(rate(row.hit_rate)),
        pressure: Some(rate(row.pressure)),
        last_update: Some(stamp(reported)),
    }
}

/// One row for an id: the list is keyed by it, and the API server refuses it twice.
fn tenants(rows: &[TenantRow]) -> Vec<IndexTenant> {
    let mut seen = std::collections::BTreeSet::new();
    let distinct = rows.iter().filter(|row| seen.insert(row.tenant_id.as_str()));
    distinct
        .map(|row| IndexTenant {
            id: row.tenant_id.clone(),
            index_entries: Some(row.index_entries),
            hit_rate: (row.hit_rate_reported || row.hit_rate != 0.0).then(|| rate(row.hit_rate)),
            memory_used: 0,
        })
        .collect()
}

fn timeless(mut status: CacheIndexStatus) -> CacheIndexStatus {
    status.last_updated = None;
    for row in &mut status.replicas {
        row.last_update = None;
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "http://server:8081/snapshot";

    fn snapshot(body: serde_json::Value) -> Snapshot {
        serde_json::from_value(body).expect("a snapshot")
    }

    fn status(body: serde_json::Value) -> serde_json::Value {
        let status = changed(None, &snapshot(body), URL, Timestamp::UNIX_EPOCH).expect("it is new");
        serde_json::to_value(status).expect("JSON")
    }

    /// controller:121
    #[test]
    fn a_snapshot_is_mirrored() {
        let body = serde_json::json!({"totalPrefixes": 7,
            "replicas": [{"replicaId": "vllm-0", "tenant": "tenant-a", "cacheMemoryBytes": 2048, "hitRate": 0.75, "pressure": 0.25,
                          "lastUpdate": "2026-01-02T03:04:05.5Z", "statsReported": true}],
            "tenants": [{"tenantId": "tenant-a", "indexEntries": 7, "hitRate": 0.75, "hitRateReported": true, "memoryUsed": 777}]});
        let wanted = serde_json::json!({
            "replicas": [{"id": "vllm-0", "tenant": "tenant-a", "cacheMemoryBytes": 2048, "hitRate": "0.75", "pressure": "0.25",
                          "lastUpdate": "2026-01-02T03:04:05Z"}],
            "tenants": [{"id": "tenant-a", "indexEntries": 7, "hitRate": "0.75", "memoryUsed": 0}],
            "prefixes": {"summary": {"total": 7, "hot": 0}}, "observedServer": URL, "lastUpdated": "1970-01-01T00:00:00Z"});
        assert_eq!(status(body), wanted);
    }

    /// controller:122
    #[test]
    fn times_alone_are_no_change() {
        let body = |total: i64, at: &str| {
            snapshot(serde_json::json!({"totalPrefixes": total, "replicas": [{"replicaId": "r", "lastUpdate": at}]}))
        };
        let first = changed(None, &body(7, "2026-01-02T03:04:05Z"), URL, Timestamp::UNIX_EPOCH).expect("new");
        let read = serde_json::from_value(serde_json::to_value(&first).expect("JSON")).expect("a status");
        assert_eq!(changed(Some(&read), &body(7, "2026-01-02T04:04:05Z"), URL, Timestamp::now()), None);
        let later = changed(Some(&read), &body(9, "2026-01-02T04:04:05Z"), URL, Timestamp::now()).expect("a change");
        assert!(later.last_updated > first.last_updated);
    }

    /// controller:123
    #[test]
    fn of_two_rows_of_one_id_the_greater_tenant_is_shown() {
        let at = "2026-01-02T03:04:05Z";
        let rows = serde_json::json!({"replicas": [
            {"replicaId": "vllm-0", "tenant": "ns-b", "cacheMemoryBytes": 200, "lastUpdate": at},
            {"replicaId": "vllm-0", "tenant": "ns-a", "cacheMemoryBytes": 100, "lastUpdate": at},
            {"replicaId": "vllm-1", "tenant": "ns-a", "prefixCount": 3}]});
        let shown = &status(rows)["replicas"];
        assert_eq!(shown.as_array().map(Vec::len), Some(1));
        assert_eq!((shown[0]["tenant"].as_str(), shown[0]["cacheMemoryBytes"].as_i64()), (Some("ns-b"), Some(200)));
    }

    /// controller:124
    #[test]
    fn a_rate_that_nobody_measured_is_absent() {
        let rows = serde_json::json!({"tenants": [
            {"tenantId": "a", "indexEntries": 4}, {"tenantId": "b", "hitRateReported": true}, {"tenantId": "c", "indexEntries": 3, "hitRate": 0.66}]});
        let shown = &status(rows)["tenants"];
        let rates: Vec<_> = (0..3).map(|i| shown[i]["hitRate"].as_str()).collect();
        assert_eq!(rates, [None, Some("0"), Some("0.66")]);
        assert_eq!(shown[1]["indexEntries"], 0);
    }
}
