//! What operators see: counters, labels, warnings.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex};

use crate::server::*;
use inferencecache_wire::pb;
use tracing::field::{Field, Visit};
use tracing::span;
use tracing::{Event, Metadata, Subscriber};

/// Keeps warnings, in words.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    fn taken(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().expect("unpoisoned"))
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("inferencecache") && *metadata.level() <= tracing::Level::WARN
    }
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn event(&self, event: &Event<'_>) {
        struct Words(String);
        impl Visit for Words {
            fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
                self.0.push_str(&format!(" {}={value:?}", field.name()));
            }
        }
        let mut words = Words(event.metadata().level().to_string());
        event.record(&mut words);
        self.0.lock().expect("unpoisoned").push(words.0);
    }
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

fn chain_of_tokens(tokens: &[u32], block: u32) -> pb::PrefixEntry {
    let (mut keys, mut counts) = (Vec::new(), Vec::new());
    inferencecache_core::fingerprint::chain(tokens, block.try_into().expect("above 0"), &mut keys, &mut counts);
    pb::PrefixEntry {
        block_hashes: keys.iter().map(|key| key.to_vec()).collect(),
        block_token_counts: counts,
        ..Default::default()
    }
}

/// The same blocks as single entries with cumulative counts.
fn singles(chain: &pb::PrefixEntry) -> Vec<pb::PrefixEntry> {
    let mut token_count = 0;
    let blocks = chain.block_hashes.iter().zip(&chain.block_token_counts);
    let single = |(hash, count): (&Vec<u8>, &i32)| {
        token_count += count;
        pb::PrefixEntry { prefix_hash: hash.clone(), token_count, ..Default::default() }
    };
    blocks.map(single).collect()
}

/// field:35 field:14 server:78. One thread: the warnings of this test are this test's.
#[tokio::test]
async fn another_block_size_is_noticed_and_never_matched() {
    let warnings = Warnings::default();
    let _capturing = tracing::subscriber::set_default(warnings.clone());
    let tokens: Vec<u32> = (1..=96).collect();
    let foreign = chain_of_tokens(&tokens, 32);
    let mismatches = r#"inferencecache_block_size_mismatch_total{model="m"}"#;
    for prefixes in [vec![foreign.clone()], singles(&foreign)] {
        let server = Setup::new().start().await;
        let mut client = server.client().await;
        client.report(vec![report("r1", prefixes)]).await;
        for _ in 0..20 {
            let response = client.lookup(pb::LookupRouteRequest { token_ids: tokens.clone(), ..ask() }).await;
            assert_eq!(
                (response.reason_code.as_str(), response.replica_scores[0].matched_tokens),
                ("AFFINITY_HINT", 0)
            );
        }
        let warned = warnings.taken();
        assert_eq!(warned.len(), 1, "{warned:?}");
        for part in
            ["WARN", "block_size_mismatch", "tenant=t", "model=m", "hash_scheme=vllm", "configured=16", "seen=32"]
        {
            assert!(warned[0].contains(part), "{part} is not in {warned:?}");
        }
        assert!((server.metric(mismatches) - 1.0).abs() < f64::EPSILON);
        // Once a scope, and every such report is counted.
        client.report(vec![report("r2", vec![foreign.clone()])]).await;
        assert_eq!((warnings.taken().len(), server.metric(mismatches)), (0, 2.0));

        // Neither the configured size nor the chunks of an offload tier are anything to talk about.
        let mut other = report("r1", vec![chain_of_tokens(&tokens, 16)]);
        other.prefixes.extend(singles(&chain_of_tokens(&tokens, 16)));
        other.prefixes.push(pb::PrefixEntry { tier: 2, ..key("host", 250) });
        "other".clone_into(&mut other.hash_scheme);
        client.report(vec![other]).await;
        assert_eq!((warnings.taken().len(), server.metric(mismatches)), (0, 2.0));
    }
}

/// field:36
#[tokio::test]
async fn a_header_that_everybody_shares_spreads() {
    let server = Setup::new().start().await;
    let mut client = server.client().await;
    let header = vec![0xaa; 8];
    let shared =
        pb::PrefixEntry { block_hashes: vec![header.clone()], block_token_counts: vec![64], ..Default::default() };
    client.report(["r-1", "r-2", "r-3"].map(|replica| report(replica, vec![shared.clone()])).to_vec()).await;
    let (mut first, mut totals) = (Vec::new(), BTreeMap::new());
    for i in 0..300_u64 {
        let question = pb::LookupRouteRequest {
            block_hashes: vec![header.clone(), i.to_be_bytes().to_vec()],
            block_token_counts: vec![64, 16],
            ..ask()
        };
        let (reason, replicas) = client.outcome(question).await;
        assert_eq!((reason.as_str(), replicas.len()), ("AFFINITY_HINT", 1));
        if i < 6 {
            first.push(replicas[0].clone());
        }
        *totals.entry(replicas[0].clone()).or_insert(0) += 1;
    }
    assert_eq!(first, ["r-2", "r-1", "r-2", "r-1", "r-3", "r-3"]);
    assert_eq!(totals.into_values().collect::<Vec<_>>(), [89, 98, 113]);
}

/// field:39
#[tokio::test]
async fn a_label_that_anyone_can_write_is_bounded() {
    let server = Setup::new().start().await;
    let mut client = server.client().await;
    for i in 0..10_000 {
        client.lookup(pb::LookupRouteRequest { model_id: format!("junk-{i:05}"), ..ask_key("p") }).await;
    }
    let text = get(server.http, "/metrics").await.text();
    assert!(text.len() < 1024 * 1024, "{} bytes", text.len());
    let series = samples(&text);
    let models: BTreeSet<_> = series.iter().filter_map(|(_, labels, _)| labels.get("model")).collect();
    assert!(models.len() <= 1000, "{} models", models.len());
    assert!(models.contains(&"other".to_owned()));
    let calls = series.iter().filter(|(name, ..)| name == "inferencecache_lookup_route_calls_total");
    assert!((calls.map(|(.., value)| value).sum::<f64>() - 10_000.0).abs() < f64::EPSILON);
}

/// field:40
#[tokio::test]
async fn the_exposition_parses_whatever_the_labels_are() {
    let server = Setup::new().start().await;
    let odd = "a\"b\\c\nd";
    server.policy(r#"{"version":7,"tenants":[{"tenantID":"a\"b\\c\nd","maxIndexEntries":1}]}"#);
    let mut client = server.client().await;
    let update = |hash: &str| pb::CacheStateUpdate {
        model_id: odd.to_owned(),
        tenant_id: odd.to_owned(),
        ..report("r1", vec![key(hash, 16)])
    };
    client.report(vec![update("p"), update("q")]).await;
    client.lookup(pb::LookupRouteRequest { model_id: odd.to_owned(), ..ask_key("p") }).await;
    let text = get(server.http, "/metrics").await.text();
    let series = samples(&text);
    for (name, label) in [
        ("inferencecache_index_entries", "model"),
        ("inferencecache_lookup_route_calls_total", "model"),
        ("inferencecache_lookup_route_latency_seconds_count", "model"),
        ("inferencecache_tenant_evictions_total", "tenant_id"),
    ] {
        let values: Vec<_> =
            series.iter().filter(|(have, ..)| have == name).filter_map(|(_, labels, _)| labels.get(label)).collect();
        assert_eq!(values, [odd], "{name}");
    }
    assert!(text.contains(r#"model="a\"b\\c\nd""#));
}

/// server:165-167
#[tokio::test]
async fn evictions_appear_when_they_happen() {
    let server = Setup::new().start().await;
    let mut client = server.client().await;
    assert!(!server.metrics.render().contains("evictions_total{"));
    client.report(vec![report("r1", vec![key("a", 1), key("b", 1), key("c", 1), key("d", 1)])]).await;
    assert!((server.metric(r#"inferencecache_index_entries{model="m"}"#) - 4.0).abs() < f64::EPSILON);
    server.policy(r#"{"version":7,"tenants":[{"tenantID":"t","maxIndexEntries":2}]}"#);
    client.report(vec![report("r1", vec![key("e", 1)])]).await;
    let evicted = r#"inferencecache_tenant_evictions_total{reason="over_entries",tenant_id="t"}"#;
    assert!((server.metric(evicted) - 3.0).abs() < f64::EPSILON);
    client.publish(event(pb::cache_event::Type::AllCleared, "r1")).await;
    assert!(server.metrics.render().contains("inferencecache_index_entries{model=\"m\"} 0\n"));
}

type Sample = (String, BTreeMap<String, String>, f64);

/// A strict reader of the text format 0.0.4.
fn samples(text: &str) -> Vec<Sample> {
    assert!(text.ends_with('\n'));
    let is_name = |name: &str| {
        !name.is_empty()
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == ':')
            && !name.starts_with(|c: char| c.is_ascii_digit())
    };
    let mut samples = Vec::new();
    let mut typed = BTreeSet::new();
    for line in text.lines() {
        if let Some(comment) = line.strip_prefix("# ") {
            let (kind, rest) = comment.split_once(' ').expect("a comment says what it is");
            let (name, rest) = rest.split_once(' ').expect("and about what");
            assert!(is_name(name), "{line:?}");
            match kind {
                "HELP" => {}
                "TYPE" => {
                    assert!(matches!(rest, "counter" | "gauge" | "histogram"), "{line:?}");
                    assert!(typed.insert(name.to_owned()), "{name} is typed twice");
                }
                _ => panic!("{line:?}"),
            }
            continue;
        }
        let end = line.find(['{', ' ']).unwrap_or_else(|| panic!("{line:?}"));
        let (name, mut rest) = line.split_at(end);
        assert!(is_name(name), "{line:?}");
        let mut labels = BTreeMap::new();
        if let Some(mut inside) = rest.strip_prefix('{') {
            loop {
                let (label, value) = inside.split_once("=\"").unwrap_or_else(|| panic!("{line:?}"));
                assert!(is_name(label), "{line:?}");
                let mut chars = value.char_indices();
                let mut plain = String::new();
                let end = loop {
                    match chars.next() {
                        Some((at, '"')) => break at,
                        Some((_, '\\')) => plain.push(match chars.next() {
                            Some((_, 'n')) => '\n',
                            Some((_, c @ ('"' | '\\'))) => c,
                            other => panic!("{other:?} in {line:?}"),
                        }),
                        Some((_, c)) => plain.push(c),
                        None => panic!("{line:?}"),
                    }
                };
                assert!(labels.insert(label.to_owned(), plain).is_none(), "{label} twice in {line:?}");
                inside = &value[end + 1..];
                if let Some(after) = inside.strip_prefix('}') {
                    rest = after;
                    break;
                }
                inside = inside.strip_prefix(',').unwrap_or_else(|| panic!("{line:?}"));
            }
        }
        let value = rest.strip_prefix(' ').and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{line:?}"));
        samples.push((name.to_owned(), labels, value));
    }
    samples
}
