//! The `/policy` body: what is accepted, what is refused and with which words, and what every version comes to.

use std::collections::BTreeMap;

use inferencecache_core::IndexOptions;
use inferencecache_core::policy::{Effective, Policy as Stored, PolicyStore};
use inferencecache_core::resolve::Eviction;
use inferencecache_wire::policy::{
    Decoded, MAX_BODY, MINIMUM_VERSION, Oddities, Policy, PolicyError, Snapshot, Strategy, Tenant, VERSION, decode,
};
use proptest::prelude::*;
use serde::Deserialize;

/// A row of `cases/policy.json`. Methods, statuses and authentication (rows 5 and 59 to 61) are the server's.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    id: Vec<String>,
    body: String,
    refused: Option<Refusal>,
    /// What the refusal must name.
    #[serde(default)]
    names: Vec<String>,
    accepted: Option<Accepted>,
}

#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Refusal {
    Decode,
    Version,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Accepted {
    /// All policies; of each the knobs that matter, as `stored -> effective`.
    policies: BTreeMap<String, BTreeMap<String, String>>,
    /// All quotas; unchecked when absent.
    quotas: Option<BTreeMap<String, i64>>,
    /// Unchecked when absent.
    oddities: Option<BTreeMap<String, u32>>,
}

/// A row of `cases/policy_matrix.json`: one knob, one way of giving it (none: not at all), all versions.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MatrixRow {
    knob: String,
    value: Option<String>,
    #[serde(rename = "v3 to v7")]
    versions: [String; 5],
}

/// One knob as `stored -> effective`.
fn arrow(knob: &str, stored: &Stored, effective: &Effective) -> String {
    fn member(value: Option<bool>) -> char {
        value.map_or('-', |value| if value { 'T' } else { 'F' })
    }
    fn or(word: &str, number: impl ToString + PartialEq + Default) -> String {
        if number == Default::default() { word.to_owned() } else { number.to_string() }
    }
    let now = *effective;
    match knob {
        "evictionTTL" => {
            let ttl = now.ttl.map_or("default".to_owned(), |ttl| format!("{ttl} us"));
            format!("{} -> {ttl}", stored.eviction_ttl_ns)
        }
        "minimumPrefixTokens" => {
            format!("{} -> {}", stored.minimum_prefix_tokens, or("none", now.minimum_prefix_tokens))
        }
        "minimumMatchedTokens" => {
            format!("{} -> {}", stored.minimum_matched_tokens, or("off", now.minimum_matched_tokens))
        }
        "routingFloorScore" => {
            let score = |score: f32| if score > 1e38 { format!("{score:e}") } else { score.to_string() };
            let stored = stored.routing_floor_score.map_or("unset".to_owned(), score);
            let now = now.routing_floor_score;
            format!("{stored} -> {}", if now == 0.0 { "off".to_owned() } else { score(now) })
        }
        "lookupTimeoutMs" => format!("{} -> {}", stored.lookup_timeout_ms, or("none", now.lookup_timeout_ms)),
        "eviction" => {
            format!("{} -> {}", stored.eviction, if now.eviction == Eviction::Lfu { "lfu" } else { "lru" })
        }
        "strategy" => {
            let gates = |gates: [Option<bool>; 3]| gates.into_iter().map(member).collect::<String>();
            let stored = stored.strategy.map_or("unset".to_owned(), |strategy| {
                gates([strategy.enable_chain_matching, strategy.require_chain, strategy.enable_tenant_hot])
            });
            let now = [now.enable_chain_matching, now.require_chain, now.enable_tenant_hot].map(Some);
            format!("{stored} -> {}", gates(now))
        }
        "affinityRouting" => {
            let stored = stored.affinity_routing.map_or("unset".to_owned(), |on| on.to_string());
            format!("{stored} -> {}", now.affinity_routing)
        }
        other => panic!("no knob {other}"),
    }
}

#[track_caller]
fn check_knob(decoded: &Decoded, namespace: &str, knob: &str, want: &str, context: &dyn std::fmt::Debug) {
    let stored = decoded.set.policy(namespace).unwrap_or_else(|| panic!("no policy {namespace:?}: {context:#?}"));
    assert_eq!(arrow(knob, stored, &decoded.set.effective(namespace)), want, "{knob}: {context:#?}");
}

// policy:1-4, policy:6-33, policy:38-58, policy:62-96, field:44-45
#[test]
fn every_body_is_taken_or_refused_as_specified() {
    let rows: Vec<Row> = serde_json::from_str(include_str!("../cases/policy.json")).expect("the rows parse");
    assert!(rows.len() > 100, "only {} rows", rows.len());
    for row in &rows {
        assert!(!row.id.is_empty(), "{row:#?}");
        match (&row.accepted, decode(row.body.as_bytes())) {
            (Some(accepted), Ok(decoded)) => check_accepted(row, accepted, &decoded),
            (None, Err(error)) => check_refused(row, &error),
            (_, result) => panic!("{result:?}: {row:#?}"),
        }
    }
}

#[track_caller]
fn check_accepted(row: &Row, accepted: &Accepted, decoded: &Decoded) {
    assert_eq!(decoded.set.policies().len(), accepted.policies.len(), "{row:#?}");
    for (namespace, knobs) in &accepted.policies {
        assert!(decoded.set.policy(namespace).is_some(), "{row:#?}");
        for (knob, want) in knobs {
            check_knob(decoded, namespace, knob, want, row);
        }
    }
    if let Some(quotas) = &accepted.quotas {
        let stored = decoded.set.tenants().map(|quota| (quota.tenant.clone(), quota.max_index_entries)).collect();
        assert_eq!(quotas, &stored, "{row:#?}");
    }
    if let Some(oddities) = &accepted.oddities {
        let count = |name: &str| oddities.get(name).copied().unwrap_or(0);
        let want = Oddities {
            vanishing_floors: count("vanishing_floors"),
            silent_floors: count("silent_floors"),
            missing_budgets: count("missing_budgets"),
        };
        assert_eq!(decoded.oddities, want, "{row:#?}");
    }
}

#[track_caller]
fn check_refused(row: &Row, error: &PolicyError) {
    let text = error.to_string();
    let kind = if matches!(error, PolicyError::Version(_)) { Refusal::Version } else { Refusal::Decode };
    assert_eq!(Some(kind), row.refused, "{text}: {row:#?}");
    let start = match kind {
        Refusal::Decode => "decode policy snapshot: ",
        Refusal::Version => "unsupported policy snapshot version",
    };
    assert!(text.starts_with(start), "{text}: {row:#?}");
    assert!(row.names.iter().all(|name| text.contains(name)), "{text}: {row:#?}");
}

/// The full matrix of versions and values.
#[test]
fn older_versions_are_filled_in_and_the_newest_is_not() {
    let rows: Vec<MatrixRow> =
        serde_json::from_str(include_str!("../cases/policy_matrix.json")).expect("the rows parse");
    for row in &rows {
        for (version, want) in (MINIMUM_VERSION..=VERSION).zip(&row.versions) {
            let knob = row.value.as_ref().map_or(String::new(), |value| format!(r#","{}":{value}"#, row.knob));
            let body = format!(r#"{{"version":{version},"policies":[{{"namespace":"blue"{knob}}}]}}"#);
            let decoded = decode(body.as_bytes()).unwrap_or_else(|error| panic!("{error}: {body}"));
            assert_eq!(decoded.version, version);
            check_knob(&decoded, "blue", &row.knob, want, &body);
        }
    }
    // Fields that mean the same in every version.
    for version in MINIMUM_VERSION..=VERSION {
        for (knob, value, want) in [
            ("evictionTTL", "null", "0 -> default"),
            ("evictionTTL", "1", "1 -> 1 us"),
            ("evictionTTL", "1800000000000", "1800000000000 -> 1800000000 us"),
            ("evictionTTL", "-9223372036854775808", "-9223372036854775808 -> default"),
            ("minimumPrefixTokens", "null", "0 -> none"),
            ("minimumPrefixTokens", "2147483647", "2147483647 -> 2147483647"),
            ("lookupTimeoutMs", "null", "0 -> none"),
            ("lookupTimeoutMs", "2147483647", "2147483647 -> 2147483647"),
            ("eviction", "null", " -> lru"),
            ("eviction", r#""Lfu""#, "Lfu -> lfu"),
        ] {
            let body = format!(r#"{{"version":{version},"policies":[{{"namespace":"blue","{knob}":{value}}}]}}"#);
            check_knob(&decode(body.as_bytes()).expect("a good body"), "blue", knob, want, &body);
        }
    }
}

// policy:34-37, the half that is not HTTP
#[test]
fn the_whole_body_counts_towards_the_cap() {
    let body = |length: usize| {
        let frame = r#"{"version":7,"policies":[{"namespace":""}]}"#;
        frame.replace(r#""""#, &format!(r#""{}""#, "n".repeat(length - frame.len())))
    };
    assert_eq!(body(MAX_BODY).len(), MAX_BODY);
    assert_eq!(decode(body(MAX_BODY).as_bytes()).expect("just fits").set.policies().len(), 1);
    assert_eq!(decode(body(MAX_BODY + 1).as_bytes()), Err(PolicyError::TooLarge));
    let padded = format!(r#"{{"version":7}}{}"#, " ".repeat(2 << 20));
    assert_eq!(decode(padded.as_bytes()), Err(PolicyError::TooLarge));
    let policies: Vec<String> =
        (0..20_000).map(|i| format!(r#"{{"namespace":"namespace-{i:05}","minimumPrefixTokens":1}}"#)).collect();
    let many = format!(r#"{{"version":7,"policies":[{}]}}"#, policies.join(","));
    let error = decode(many.as_bytes()).expect_err("too large");
    assert!(error.to_string().starts_with("decode policy snapshot: "));
}

#[test]
fn bytes_that_are_no_text_are_refused() {
    for body in [
        &b"{\"version\":7,\"policies\":[{\"namespace\":\"\xff\"}]}"[..],
        b"{\"version\":7,\"policies\":[{\"\xc3\x28\":1}]}",
        b"{\"version\":7,\"policies\":[{\"evictionTTL\":\"\xff\"}]}",
        b"\xef\xbb\xbf{\"version\":7}",
        b"{\"version\":7}\xff",
        b"\xff\xfe{\0}\0",
    ] {
        let error = decode(body).expect_err("not UTF-8");
        assert!(error.to_string().starts_with("decode policy snapshot: "), "{error}");
    }
}

#[test]
fn deep_nesting_is_refused() {
    for open in ["[", r#"{"policies":["#, r#"{"version":7,"policies":[{"evictionTTL":["#] {
        decode(open.repeat(60_000 / open.len()).as_bytes()).expect_err("never closed");
    }
    let nested = format!(r#"{{"version":{}7{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    decode(nested.as_bytes()).expect_err("not an integer");
}

#[test]
fn explanations_stay_short() {
    let long = "k".repeat(MAX_BODY / 2);
    for body in [
        format!(r#"{{"version":7,"{long}":1}}"#),
        format!(r#"{{"version":7,"policies":"{long}"}}"#),
        format!(r#"{{"version":7,"policies":[{{"affinityRouting":"{long}"}}]}}"#),
        format!(r#""{long}""#),
    ] {
        let text = decode(body.as_bytes()).expect_err("refused").to_string();
        assert!(text.len() < 500, "{} bytes", text.len());
    }
}

/// The canonical bodies, written and read.
#[test]
fn what_is_written_is_read_back() {
    let blue = || Policy { namespace: "blue".to_owned(), ..Policy::default() };
    let snapshot = |policies: Vec<Policy>| Snapshot { version: VERSION, policies, tenants: Vec::new() };
    for (snapshot, body) in [
        (snapshot(vec![]), r#"{"version":7,"policies":[]}"#),
        (
            snapshot(vec![Policy { routing_floor_score: Some(0.0), minimum_matched_tokens: Some(0), ..blue() }]),
            r#"{"version":7,"policies":[{"namespace":"blue","routingFloorScore":0}]}"#,
        ),
        (
            snapshot(vec![Policy {
                minimum_matched_tokens: Some(64),
                routing_floor_score: Some(0.1),
                affinity_routing: Some(true),
                eviction: "lru".to_owned(),
                ..blue()
            }]),
            concat!(
                r#"{"version":7,"policies":[{"namespace":"blue","minimumMatchedTokens":64,"routingFloorScore":0.1,"#,
                r#""affinityRouting":true,"eviction":"lru"}]}"#
            ),
        ),
        (
            Snapshot {
                version: VERSION,
                policies: vec![Policy {
                    namespace: "blue".to_owned(),
                    eviction_ttl: 900_000_000_000,
                    minimum_prefix_tokens: 32,
                    minimum_matched_tokens: Some(128),
                    routing_floor_score: Some(5.0),
                    lookup_timeout_ms: 25,
                    affinity_routing: Some(true),
                    eviction: "lfu".to_owned(),
                    strategy: Some(Strategy {
                        enable_chain_matching: Some(true),
                        require_chain: Some(false),
                        enable_tenant_hot: Some(true),
                    }),
                }],
                tenants: vec![Tenant {
                    tenant_id: "blue".to_owned(),
                    max_index_entries: Some(100_000),
                    isolation_mode: "Fairness".to_owned(),
                }],
            },
            concat!(
                r#"{"version":7,"policies":[{"namespace":"blue","evictionTTL":900000000000,"minimumPrefixTokens":32,"#,
                r#""minimumMatchedTokens":128,"routingFloorScore":5,"lookupTimeoutMs":25,"affinityRouting":true,"#,
                r#""eviction":"lfu","strategy":{"enableChainMatching":true,"requireChain":false,"#,
                r#""enableTenantHot":true}}],"tenants":[{"tenantID":"blue","maxIndexEntries":100000,"#,
                r#""isolationMode":"Fairness"}]}"#
            ),
        ),
    ] {
        let written = serde_json::to_string(&snapshot).expect("snapshots can be written");
        assert_eq!(written, body);
        assert_eq!(decode(body.as_bytes()).expect("what is written is good").version, VERSION);
    }
}

/// policy:86: what a tenant gets that no body names, figure by figure and on each way there.
#[test]
fn a_tenant_without_an_entry_gets_the_published_defaults() {
    let store = PolicyStore::new();
    let others = r#"{"version":7,"policies":[{"namespace":"blue","evictionTTL":1000,"minimumPrefixTokens":3,
        "minimumMatchedTokens":9,"routingFloorScore":4,"lookupTimeoutMs":5,"affinityRouting":false,"eviction":"lfu",
        "strategy":{"enableChainMatching":false,"requireChain":true,"enableTenantHot":false}}],
        "tenants":[{"tenantID":"blue","maxIndexEntries":1}]}"#;
    for body in [None, Some(others), Some(r#"{"version":3,"policies":[null]}"#)] {
        if let Some(body) = body {
            store.replace(decode(body.as_bytes()).expect("a good body").set);
        }
        let view = store.view();
        for tenant in ["red", "", "BLUE", "blue "] {
            let now = view.effective(tenant);
            assert_eq!((now.minimum_matched_tokens, now.routing_floor_score), (64, 0.1), "{tenant:?} {body:?}");
            let gates = [now.enable_chain_matching, now.require_chain, now.enable_tenant_hot];
            assert_eq!((gates, now.affinity_routing), ([true, false, true], true), "{tenant:?} {body:?}");
            assert_eq!((now.ttl, now.eviction), (None, Eviction::Lru), "{tenant:?} {body:?}");
            assert_eq!((now.lookup_timeout_ms, now.minimum_prefix_tokens), (0, 0), "{tenant:?} {body:?}");
            assert_eq!(view.quota(tenant), None, "{tenant:?} {body:?}");
        }
    }
    // A lifetime of its own it has none: the index's applies.
    assert_eq!(IndexOptions::default().ttl, 1_800_000_000);
}

// policy:97-100, policy:102, through bodies
#[test]
fn a_refused_body_changes_nothing() {
    let store = PolicyStore::new();
    let push = |body: &str| decode(body.as_bytes()).map(|decoded| store.replace(decoded.set));
    assert_eq!(store.view().effective("red"), Effective::DEFAULT);
    let both = r#"{"version":7,"policies":[{"namespace":"blue","evictionTTL":1000},{"namespace":"green"}],
        "tenants":[{"tenantID":"t1","maxIndexEntries":1}]}"#;
    assert_eq!(push(both), Ok(true));
    assert_eq!(push(both), Ok(false));
    let view = store.view();
    assert!(push(r#"{"version":7,"policies":[],"x":1}"#).is_err() && push(r#"{"version":8}"#).is_err());
    assert_eq!(store.view().set(), view.set());
    assert_eq!(push(r#"{"version":7,"policies":[{"namespace":"blue","evictionTTL":2000}]}"#), Ok(true));
    let view = store.view();
    assert_eq!((view.effective("blue").ttl, view.effective("green")), (Some(2), Effective::DEFAULT));
    assert_eq!(view.quota("t1"), None);
    assert_eq!(push(r#"{"version":7}"#), Ok(true));
    assert_eq!(store.view().set().policies().len(), 0);
}

proptest! {
    #[test]
    fn any_snapshot_survives_the_wire(
        namespace in "[a-z\"\\\\\u{1}-\u{1f}\u{2028}é😀]{1,12}",
        eviction_ttl: i64,
        minimum_prefix_tokens: i32,
        minimum_matched_tokens: Option<i32>,
        score in prop::option::of(prop::num::f32::NORMAL | prop::num::f32::ZERO | prop::num::f32::SUBNORMAL),
        lookup_timeout_ms: i32,
        affinity_routing: Option<bool>,
        eviction in "[a-z]{0,4}",
        gates in prop::option::of(any::<[Option<bool>; 3]>()),
        budget in 0..=i64::MAX,
    ) {
        let policy = Policy {
            namespace: namespace.clone(), eviction_ttl, minimum_prefix_tokens, minimum_matched_tokens,
            routing_floor_score: score, lookup_timeout_ms, affinity_routing, eviction,
            strategy: gates.map(|[enable_chain_matching, require_chain, enable_tenant_hot]| Strategy {
                enable_chain_matching, require_chain, enable_tenant_hot,
            }),
        };
        let tenant = Tenant { tenant_id: namespace.clone(), max_index_entries: Some(budget), isolation_mode: String::new() };
        let snapshot = Snapshot { version: VERSION, policies: vec![policy.clone()], tenants: vec![tenant] };
        let body = serde_json::to_vec(&snapshot).expect("snapshots can be written");
        let decoded = decode(&body).expect("what is written is good");
        let stored = decoded.set.policy(&namespace).expect("the policy");
        prop_assert_eq!(stored.eviction_ttl_ns, policy.eviction_ttl);
        prop_assert_eq!(stored.minimum_prefix_tokens, policy.minimum_prefix_tokens);
        prop_assert_eq!(stored.minimum_matched_tokens, policy.minimum_matched_tokens.unwrap_or(0));
        prop_assert_eq!(stored.routing_floor_score, policy.routing_floor_score);
        prop_assert_eq!(stored.lookup_timeout_ms, policy.lookup_timeout_ms);
        prop_assert_eq!(stored.affinity_routing, policy.affinity_routing);
        prop_assert_eq!(&stored.eviction, &policy.eviction);
        prop_assert_eq!(stored.strategy.is_some(), policy.strategy.is_some());
        prop_assert_eq!(decoded.set.quota(&namespace), Some(budget));
        prop_assert_eq!(decoded.oddities.vanishing_floors, 0);
    }

    #[test]
    fn no_body_makes_it_panic(mut body: Vec<u8>, cut in 0_usize..400, byte: u8) {
        let _ = decode(&body);
        body = br#"{"version":7,"policies":[{"namespace":"b\u006cue","evictionTTL":9,"routingFloorScore":0.1,"strategy":{"requireChain":null}}],"tenants":[{"tenantID":"t","maxIndexEntries":-0}]}"#.to_vec();
        let cut = cut % body.len();
        body[cut] = byte;
        let _ = decode(&body);
        body.truncate(cut);
        prop_assert!(decode(&body).is_err());
    }
}
