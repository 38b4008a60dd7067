//! The projections, as data.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use prometheus::{Registry, TextEncoder};
use serde_json::{Value, json};

use super::participation::{Key, Pods, Sums, attribute, changed};
use super::snapshot::{ReplicaRow, Snapshot, TenantRow};
use super::t2::T2;
use super::tenants;
use crate::api::{CacheBackend, CacheTenant};

/// `NAMESPACE/NAME` selecting a domain, or nothing.
fn backend(name: &str, domain: Option<&str>) -> CacheBackend {
    let (namespace, name) = name.split_once('/').expect("a namespace");
    let selector = domain.map(|domain| json!({"matchLabels": {"inferencecache.io/cache-domain": domain}}));
    serde_json::from_value(json!({"apiVersion": "inferencecache.io/v1alpha1", "kind": "CacheBackend",
        "metadata": {"namespace": namespace, "name": name, "uid": format!("uid-of-{name}")},
        "spec": {"runtime": "VLLM", "engineSelector": selector}}))
    .expect("a backend")
}

/// `NAMESPACE/NAME`, its domain, its record, the uid in it.
type PodRow<'a> = (&'a str, &'a str, &'a str, &'a str);

fn pods(rows: &[PodRow<'_>]) -> Pods {
    let mut pods = Pods::default();
    for (name, domain, by, uid) in rows {
        let (namespace, name) = name.split_once('/').expect("a namespace");
        let pairs = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            let given = pairs.iter().filter(|(_, value)| !value.is_empty());
            given.map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let meta = ObjectMeta {
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
            labels: Some(pairs(&[("inferencecache.io/cache-domain", domain)])),
            annotations: Some(pairs(&[
                ("inferencecache.io/injected-by", by),
                ("inferencecache.io/injected-by-uid", uid),
            ])),
            ..ObjectMeta::default()
        };
        pods.found.insert((namespace.to_owned(), name.to_owned()), meta);
    }
    pods
}

fn rows(body: Value) -> Vec<ReplicaRow> {
    let snapshot: Snapshot = serde_json::from_value(json!({"replicas": body})).expect("rows");
    snapshot.replicas
}

fn row(pod: &str, prefixes: i64, second: i64) -> Value {
    let (tenant, id) = pod.split_once('/').expect("a namespace");
    let at = Timestamp::from_second(second).expect("a time").to_string();
    json!({"replicaId": id, "tenant": tenant, "prefixCount": prefixes, "lastEventAt": at})
}

fn sums(all: &HashMap<Key, Sums>, name: &str) -> Option<(i64, Option<i64>)> {
    let (namespace, name) = name.split_once('/').expect("a namespace");
    let sums = all.get(&(namespace.to_owned(), name.to_owned()))?;
    Some((sums.prefixes, sums.last_event.map(|at| at.as_second())))
}

/// controller:127 controller:131 controller:132
#[test]
fn rows_count_for_the_backend_that_selects_their_pod() {
    let backends = [backend("n/a", Some("a")), backend("n/b", Some("b")), backend("m/b", Some("b"))];
    let pods = pods(&[("n/a0", "a", "", ""), ("n/a1", "a", "", ""), ("n/b0", "b", "", ""), ("m/b0", "b", "", "")]);
    let rows = rows(json!([
        row("n/a0", 2, 10), row("n/a1", 3, 20), row("n/b0", 1, 30), row("m/b0", 7, 40), row("n/gone", 100, 99),
        {"replicaId": "a0", "prefixCount": 100}, {"tenant": "n", "prefixCount": 100}
    ]));
    let found = attribute(&rows, &pods, &backends);
    assert_eq!(sums(&found, "n/a"), Some((5, Some(20))));
    assert_eq!(sums(&found, "n/b"), Some((1, Some(30))));
    assert_eq!(sums(&found, "m/b"), Some((7, Some(40))));
    let participation = found[&("n".to_owned(), "a".to_owned())].participation();
    assert_eq!((participation.prefix_count, participation.hit_rate, participation.t2_hit_rate), (5, None, None));
}

/// controller:130
#[test]
fn a_record_of_injection_decides_alone() {
    let backends = [backend("n/alpha", Some("x")), backend("n/beta", Some("y"))];
    for (by, uid, owner) in [
        ("n/beta", "", Some("n/beta")),
        ("n/beta", "uid-of-beta", Some("n/beta")),
        ("n/beta", "uid-of-another", None),
        ("n/gone", "", None),
        ("other/foreign", "", Some("n/alpha")),
        ("n/a/b", "", Some("n/alpha")),
        ("n/", "", Some("n/alpha")),
        ("beta", "", Some("n/alpha")),
        ("", "", Some("n/alpha")),
    ] {
        let found = attribute(&rows(json!([row("n/p", 1, 1)])), &pods(&[("n/p", "x", by, uid)]), &backends);
        let owners: Vec<String> = found.keys().map(|(namespace, name)| format!("{namespace}/{name}")).collect();
        assert_eq!(owners.first().map(String::as_str), owner, "{by} {uid}");
    }
    let siblings = [backend("n/cache", Some("x")), backend("n/cache-2", Some("x"))];
    let found = attribute(&rows(json!([row("n/p", 1, 1)])), &pods(&[("n/p", "x", "n/cache", "")]), &siblings);
    assert_eq!((sums(&found, "n/cache"), sums(&found, "n/cache-2")), (Some((1, Some(1))), None));
}

/// controller:128 controller:129 controller:139
#[test]
fn only_what_differs_on_the_wire_is_written() {
    let mut selecting = backend("n/a", Some("a"));
    let without = backend("n/b", None);
    let zero = changed(&selecting, Sums::default()).expect("a backend with a selector has a part");
    assert_eq!(serde_json::to_value(&zero).expect("JSON"), json!({"prefixCount": 0}));
    assert_eq!(changed(&without, Sums::default()), None);
    let at = "2026-01-02T03:04:05.678901Z".parse().expect("a time");
    let five = Sums { prefixes: 5, last_event: Some(at), ..Sums::default() };
    let written = changed(&selecting, five).expect("new");
    selecting.status.get_or_insert_default().index_participation = Some(written);
    assert_eq!(changed(&selecting, five), None, "what is finer than a second does not count");
    let drained = changed(&selecting, Sums::default()).expect("drained");
    assert_eq!((drained.prefix_count, drained.last_event_at), (0, None));
    let mut unselected = without;
    unselected.status.get_or_insert_default().index_participation =
        selecting.status.unwrap_or_default().index_participation;
    assert!(changed(&unselected, Sums::default()).is_some(), "clearing the selector drains");
}

/// controller:133 controller:134
#[test]
fn t2_metrics_follow_what_is_used() {
    let registry = Registry::new();
    let mut t2 = T2::new(&registry).expect("metrics");
    let key = |name: &str| ("n".to_owned(), name.to_owned());
    let used = |hits: i64, queries: i64| Sums { hits, queries, ..Sums::default() };
    let existing: BTreeSet<Key> = [key("a"), key("b"), key("c")].into();
    let none = BTreeSet::new();
    let shown = |registry: &Registry| -> Vec<String> {
        let text = TextEncoder::new().encode_to_string(&registry.gather()).expect("text");
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    };
    let first: HashMap<Key, Sums> =
        [(key("a"), used(750, 1000)), (key("b"), used(0, 500)), (key("c"), used(0, 0))].into();
    let rates: Vec<_> = ["a", "b", "c"].map(|name| first[&key(name)].participation().t2_hit_rate).into();
    assert_eq!(rates, [Some("0.75".to_owned()), Some("0".to_owned()), None]);
    t2.update(&first, &none, &existing);
    let rate = "inferencecache_backend_t2_hit_rate";
    let total = "inferencecache_backend_t2_query_tokens_total";
    assert_eq!(
        shown(&registry),
        [
            format!("{rate}{{backend=\"n/a\"}} 0.75"),
            format!("{rate}{{backend=\"n/b\"}} 0"),
            format!("{total}{{backend=\"n/a\"}} 0"),
            format!("{total}{{backend=\"n/b\"}} 0"),
        ]
    );
    let second: HashMap<Key, Sums> = [(key("a"), used(1200, 1500))].into();
    t2.update(&second, &["n".to_owned()].into(), &existing);
    assert_eq!(shown(&registry).len(), 4, "a namespace whose Pods could not be read keeps what it has");
    t2.update(&second, &none, &existing);
    assert_eq!(shown(&registry), [format!("{rate}{{backend=\"n/a\"}} 0.8"), format!("{total}{{backend=\"n/a\"}} 500")]);
    t2.update(&[(key("a"), used(1, 100))].into(), &none, &existing);
    assert!(
        shown(&registry).contains(&format!("{total}{{backend=\"n/a\"}} 500")),
        "an engine that restarted takes nothing back"
    );
    t2.update(&HashMap::new(), &none, &BTreeSet::new());
    assert!(shown(&registry).is_empty());
    assert_eq!(used(9, 3).ratio(), Some(1.0));
}

/// `NAME`, tenantID, budget.
fn tenant(name: &str, id: &str, budget: Option<i64>) -> CacheTenant {
    serde_json::from_value(json!({"apiVersion": "inferencecache.io/v1alpha1", "kind": "CacheTenant",
        "metadata": {"namespace": "n", "name": name, "generation": 2},
        "spec": {"tenantID": id, "quota": budget.map(|budget| json!({"maxIndexEntries": budget}))}}))
    .expect("a tenant")
}

/// Ready, its reason, QuotaExceeded, its reason, entries.
type Shown = (String, String, String, String, Option<i64>);

fn shown(tenants: &[CacheTenant], id: &str, entries: i64) -> Vec<Shown> {
    let rows = [TenantRow { tenant_id: id.to_owned(), index_entries: entries, ..TenantRow::default() }];
    let changed = tenants::changed(tenants, &rows, Timestamp::UNIX_EPOCH);
    let cell = |status: &crate::api::CacheTenantStatus, type_: &str| {
        let condition = status.conditions.iter().find(|condition| condition.type_ == type_).expect("a condition");
        assert_eq!((condition.observed_generation, status.observed_generation), (Some(2), Some(2)));
        (condition.status.clone(), condition.reason.clone())
    };
    let row = |status: &crate::api::CacheTenantStatus| {
        let (ready, quota) = (cell(status, "Ready"), cell(status, "QuotaExceeded"));
        (ready.0, ready.1, quota.0, quota.1, status.index_entries)
    };
    changed.values().map(row).collect()
}

fn verdict(ready: &str, why: &str, over: &str, quota: &str, entries: i64) -> Shown {
    (ready.to_owned(), why.to_owned(), over.to_owned(), quota.to_owned(), Some(entries))
}

/// controller:135 controller:136 controller:137
#[test]
fn of_several_objects_for_a_tenant_one_budget_counts() {
    let within = |entries| verdict("True", "Observed", "False", "WithinBudget", entries);
    let shadowed = |entries| verdict("False", "DuplicateTenantID", "False", "NotEffective", entries);
    let no_quota = |entries| verdict("True", "Observed", "False", "NoQuota", entries);
    let three = [tenant("alpha", "t", Some(5)), tenant("beta", "t", Some(100)), tenant("gamma", "t", None)];
    assert_eq!(shown(&three, "t", 3), [within(3), shadowed(3), shadowed(3)]);
    let one = [tenant("alpha", "t", Some(5))];
    assert_eq!(shown(&one, "t", 9), [verdict("True", "Observed", "True", "OverEntryBudget", 9)]);
    assert_eq!(shown(&one, "t", 5), [within(5)]);
    assert_eq!(shown(&one, "other", 9), [within(0)], "a tenant without a row holds nothing");
    assert_eq!(shown(&[tenant("a", "t", Some(0))], "t", 0), [within(0)], "nothing is a budget");
    assert_eq!(shown(&[tenant("a", "t", None), tenant("b", "t", None)], "t", 3), [no_quota(3), no_quota(3)]);
}

/// controller:138
#[test]
fn an_unchanged_tenant_is_not_written() {
    let mut tenant = tenant("a", "t", Some(5));
    let rows = [TenantRow { tenant_id: "t".to_owned(), index_entries: 3, ..TenantRow::default() }];
    let at = |second| Timestamp::from_second(second).expect("a time");
    let first = tenants::changed(std::slice::from_ref(&tenant), &rows, at(10));
    tenant.status = first.into_values().next();
    assert!(tenants::changed(std::slice::from_ref(&tenant), &rows, at(20)).is_empty());
    let more = [TenantRow { index_entries: 4, ..rows[0].clone() }];
    let later = tenants::changed(std::slice::from_ref(&tenant), &more, at(30));
    let status = later.values().next().expect("a change");
    assert!(status.conditions.iter().all(|condition| condition.last_transition_time.0 == at(10)), "no status moved");
}
