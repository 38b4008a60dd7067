//! The eight RPCs over real sockets: one row of each kind for lookups, every row for producers and the rest.

use crate::server::*;
use inferencecache_core::RESERVED_TENANT;
use inferencecache_wire::pb;
use inferencecache_wire::pb::cache_event::Type;

async fn serving(updates: Vec<pb::CacheStateUpdate>) -> (Running, Client) {
    let server = Setup::new().start().await;
    let mut client = server.client().await;
    client.report(updates).await;
    (server, client)
}

/// Fixture P of the specification.
fn p() -> Vec<pb::CacheStateUpdate> {
    vec![report("r1", vec![key("p", 128)])]
}

/// Fixture W.
fn w() -> Vec<pb::CacheStateUpdate> {
    vec![pb::CacheStateUpdate { stats: Some(warm(0.8)), ..report("warm", vec![key("other", 1)]) }]
}

/// Fixture C3.
fn c3() -> Vec<pb::CacheStateUpdate> {
    vec![
        report("r0", vec![chain(&["b1", "b2", "b3", "b4"], 64)]),
        report("r1", vec![chain(&["b1", "b2"], 64)]),
        report("r2", vec![chain(&["b1"], 64)]),
    ]
}

async fn reason(client: &mut Client, request: pb::LookupRouteRequest) -> String {
    client.outcome(request).await.0
}

/// server:1-9 server:11-12
#[tokio::test]
async fn exact_lookups_answer_with_every_code() {
    let (_empty, mut client) = serving(vec![]).await;
    let bare = pb::LookupRouteRequest { model_id: "m".to_owned(), ..Default::default() };
    assert_eq!(reason(&mut client, bare).await, "NO_HINT");
    assert_eq!(reason(&mut client, ask_key("p")).await, "NO_HINT");

    let (_server, mut client) = serving(p()).await;
    let hit = client.lookup(ask_key("p")).await;
    assert_eq!(hit.reason_code, "PREFIX_MATCH");
    let score = &hit.replica_scores[0];
    assert_eq!((score.replica_id.as_str(), score.matched_tokens, score.tier), ("r1", 128, pb::CacheTier::T1.into()));
    assert!((score.score - 128.0).abs() < 0.2 && score.estimated_cache_hit_prob > 0.99, "{score:?}");

    let tenant = |tenant: &str| pb::LookupRouteRequest { tenant_id: tenant.to_owned(), ..ask_key("p") };
    let model = |model: &str| pb::LookupRouteRequest { model_id: model.to_owned(), ..ask_key("p") };
    let scheme = |scheme: &str| pb::LookupRouteRequest { hash_scheme: scheme.to_owned(), ..ask_key("p") };
    assert_eq!(reason(&mut client, tenant("default")).await, "UNKNOWN_TENANT");
    assert_eq!(reason(&mut client, model("m2")).await, "UNKNOWN_MODEL");
    assert_eq!(reason(&mut client, scheme("vllm-v1")).await, "UNKNOWN_HASH_SCHEME");
    let both = pb::LookupRouteRequest { hash_scheme: "y".to_owned(), ..tenant("x") };
    assert_eq!(reason(&mut client, both).await, "UNKNOWN_TENANT");
    assert_eq!(reason(&mut client, scheme("")).await, "NO_HINT");

    let novel = client.lookup(ask_key("novel")).await;
    assert_eq!(novel.reason_code, "AFFINITY_HINT");
    assert_eq!(novel.replica_scores, [pb::ReplicaScore { replica_id: "r1".to_owned(), ..Default::default() }]);
    let other = client.lookup(pb::LookupRouteRequest { adapter_id: "lora-a".to_owned(), ..ask_key("p") }).await;
    assert_eq!((other.reason_code.as_str(), other.adapter_id.as_str()), ("AFFINITY_HINT", "lora-a"));

    let slo = Some(pb::Slo { ttft_ms: 50, tbt_ms: 0 });
    let tight = client.lookup(pb::LookupRouteRequest { slo, ..ask_key("p") }).await;
    assert!((tight.replica_scores[0].score - 256.0).abs() < 0.5);
}

/// server:14-15 server:17-19 server:32 server:35
#[tokio::test]
async fn chains_and_warm_tenants() {
    let (_server, mut client) = serving(w()).await;
    let hot = client.lookup(ask_key("novel")).await;
    assert_eq!(hot.reason_code, "TENANT_HOT");
    let score = &hot.replica_scores[0];
    assert_eq!((score.replica_id.as_str(), score.matched_tokens, score.tier), ("warm", 0, 0));
    assert!((score.score - 0.8).abs() < 0.01 && (score.estimated_cache_hit_prob - 0.8).abs() < 0.01);
    assert_eq!(reason(&mut client, ask()).await, "TENANT_HOT");
    for request in [
        ask_chain(&["b1", "b2"], &[16]),
        ask_chain(&[], &[16, 16]),
        pb::LookupRouteRequest { token_ids: (0..64).collect(), ..ask_chain(&["b1"], &[]) },
    ] {
        let response = client.lookup(request).await;
        assert_eq!((response.reason_code.as_str(), response.adapter_id.as_str()), ("NO_HINT", ""));
    }

    let (_server, mut client) = serving(c3()).await;
    let response = client.lookup(ask_chain(&["b1", "b2", "b3", "b4"], &[64; 4])).await;
    assert_eq!(response.reason_code, "PREFIX_MATCH");
    let rows: Vec<_> =
        response.replica_scores.iter().map(|row| (row.replica_id.as_str(), row.matched_tokens)).collect();
    assert_eq!(rows, [("r0", 256), ("r1", 128), ("r2", 64)]);
    let response = client.lookup(ask_chain(&["b1", "b2", "b3", "x4", "x5"], &[64; 5])).await;
    assert_eq!(response.replica_scores[0].matched_tokens, 192);
}

/// server:10 server:20-21 server:51-52 server:55
#[tokio::test]
async fn policies_apply_to_lookups() {
    let (server, mut client) = serving(p()).await;
    server.policy(r#"{"version":7,"policies":[{"namespace":"t","affinityRouting":false}]}"#);
    assert_eq!(reason(&mut client, ask_key("novel")).await, "NO_HINT");
    server.policy(r#"{"version":7,"policies":[{"namespace":"t","strategy":{"requireChain":true}}]}"#);
    for request in [
        ask_key("p"),
        ask_chain(&["b"], &[1, 2]),
        pb::LookupRouteRequest { token_ids: (0..64).collect(), ..ask() },
        pb::LookupRouteRequest { prompt_text: "hello".to_owned(), ..ask() },
    ] {
        let response = client.lookup(pb::LookupRouteRequest { adapter_id: "a".to_owned(), ..request }).await;
        assert_eq!((response.reason_code.as_str(), response.adapter_id.as_str()), ("POLICY_REQUIRES_CHAIN", ""));
    }
    assert_eq!(reason(&mut client, ask_chain(&["b"], &[16])).await, "AFFINITY_HINT");
    server.policy(r#"{"version":7,"policies":[{"namespace":"t","strategy":{"enableChainMatching":false}}]}"#);
    assert_eq!(reason(&mut client, ask_chain(&["b"], &[16])).await, "NO_HINT");

    let (server, mut client) = serving(w()).await;
    for affinity in [false, true] {
        server.policy(&format!(
            r#"{{"version":7,"policies":[{{"namespace":"t","affinityRouting":{affinity},"strategy":{{"enableTenantHot":false}}}}]}}"#
        ));
        assert_eq!(reason(&mut client, ask_key("novel")).await, "NO_HINT");
    }
}

/// server:64-66 server:70
#[tokio::test]
async fn token_ids_are_fingerprinted_and_text_needs_a_tokenizer() {
    let server = Setup::new().start().await;
    let mut client = server.client().await;
    let tokens: Vec<u32> = (1..=64).collect();
    let (mut keys, mut counts) = (Vec::new(), Vec::new());
    let block = 16.try_into().expect("above 0");
    inferencecache_core::fingerprint::chain(&tokens, block, &mut keys, &mut counts);
    let held = pb::PrefixEntry {
        block_hashes: keys.iter().map(|key| key.to_vec()).collect(),
        block_token_counts: counts,
        ..Default::default()
    };
    client.report(vec![report("r1", vec![held])]).await;
    let response = client.lookup(pb::LookupRouteRequest { token_ids: tokens, ..ask() }).await;
    assert_eq!((response.reason_code.as_str(), response.replica_scores[0].matched_tokens), ("PREFIX_MATCH", 64));
    assert!(response.token_ids.is_empty());
    let few = pb::LookupRouteRequest { token_ids: (0..8).collect(), ..ask() };
    assert_eq!(reason(&mut client, few).await, "NO_HINT");
    let many = pb::LookupRouteRequest { token_ids: vec![1; 1_048_577], ..ask() };
    assert_eq!(reason(&mut client, many).await, "NO_HINT");
    let text = client.lookup(pb::LookupRouteRequest { prompt_text: "hello".to_owned(), ..ask() }).await;
    assert_eq!((text.reason_code.as_str(), text.token_ids.len()), ("NO_HINT", 0));
}

/// server:79 server:164
#[tokio::test]
async fn the_reserved_tenant_gets_no_hint_and_is_counted() {
    let (server, mut client) = serving(p()).await;
    let request = pb::LookupRouteRequest {
        tenant_id: RESERVED_TENANT.to_owned(),
        adapter_id: "a".to_owned(),
        token_ids: (0..64).collect(),
        ..ask_key("p")
    };
    let want = pb::LookupRouteResponse { reason_code: "NO_HINT".to_owned(), ..Default::default() };
    assert_eq!(client.lookup(request).await, want);
    let calls = r#"inferencecache_lookup_route_calls_total{hint_used="false",model="m",reason_code="NO_HINT"}"#;
    assert!((server.metric(calls) - 1.0).abs() < f64::EPSILON);
    let sum = server.metric(r#"inferencecache_lookup_route_latency_seconds_sum{model="m"}"#);
    assert!(sum.abs() < f64::EPSILON, "the histogram observed {sum}");
    let count = server.metric(r#"inferencecache_lookup_route_latency_seconds_count{model="m"}"#);
    assert!((count - 1.0).abs() < f64::EPSILON);
}

/// server:84-85
#[tokio::test]
async fn a_report_is_acknowledged_at_half_close() {
    let (_server, mut client) = serving(vec![]).await;
    let want = pb::Ack { accepted: true, reason_code: String::new() };
    let bare = || pb::CacheStateUpdate { replica_id: "r1".to_owned(), ..Default::default() };
    assert_eq!(client.report(vec![bare(), bare()]).await, want);
    assert_eq!(client.report(vec![]).await, want);
}

/// server:86
#[tokio::test]
async fn what_was_reported_before_a_cancel_stays() {
    let (_server, mut client) = serving(vec![]).await;
    let (updates, stream) = tokio::sync::mpsc::unbounded_channel();
    let mut reporting = client.clone();
    let call = tokio::spawn(async move {
        reporting.0.report_cache_state(tokio_stream::wrappers::UnboundedReceiverStream::new(stream)).await
    });
    updates.send(report("r1", vec![key("p", 128)])).expect("the call is open");
    client.holds().await;
    call.abort();
    assert!(call.await.is_err_and(|why| why.is_cancelled()), "no Ack");
    assert_eq!(client.outcome(ask_key("p")).await, ("PREFIX_MATCH".to_owned(), vec!["r1".to_owned()]));
}

/// server:87 server:100 server:102 server:116
#[tokio::test]
async fn the_reserved_tenant_appears_nowhere() {
    let (server, mut client) = serving(p()).await;
    let reserved = pb::CacheStateUpdate {
        tenant_id: RESERVED_TENANT.to_owned(),
        stats: Some(warm(0.5)),
        ..report("ghost", vec![key("g", 16)])
    };
    assert!(client.report(vec![reserved]).await.accepted);
    let clear = pb::CacheEvent { tenant_id: RESERVED_TENANT.to_owned(), ..event(Type::AllCleared, "ghost") };
    assert!(client.publish(clear).await.accepted);
    let state = client.state(RESERVED_TENANT, "m").await;
    assert_eq!((state.replicas.len(), state.summary), (0, Some(pb::CacheSummary::default())));
    let snapshot = get(server.bridge, "/snapshot").await.text();
    assert!(!snapshot.contains("ghost") && !snapshot.contains(RESERVED_TENANT), "{snapshot}");
    assert!(snapshot.contains("\"totalPrefixes\":1,"), "{snapshot}");
    assert_eq!(server.index.storage_entries(), (1, 0));
}

/// server:88-92 server:95
#[tokio::test]
async fn entries_are_kept_as_far_as_they_make_sense() {
    let stats = Some(warm(0.5));
    let (_server, mut client) =
        serving(vec![pb::CacheStateUpdate { hash_scheme: String::new(), stats, ..report("r1", vec![key("p", 1)]) }])
            .await;
    assert_eq!((client.state("t", "m").await.replicas.len(), client.total().await), (1, 0));

    let unbalanced = pb::PrefixEntry { block_token_counts: vec![16], ..chain(&["x", "y"], 16) };
    let both = pb::PrefixEntry { prefix_hash: b"q".to_vec(), token_count: 200, ..chain(&["b1", "b2"], 64) };
    let (server, mut client) = serving(vec![report("r1", vec![unbalanced, key("p", 128), both])]).await;
    assert_eq!(client.total().await, 4);
    for request in [ask_key("p"), ask_key("q"), ask_chain(&["b1", "b2"], &[64, 64])] {
        assert_eq!(reason(&mut client, request).await, "PREFIX_MATCH");
    }
    assert!((server.metric(r#"inferencecache_ingest_dropped_total{cause="unbalanced"}"#) - 1.0).abs() < f64::EPSILON);

    let tiers = [0, 1, 2, 99, -1].map(|tier| pb::PrefixEntry { tier, ..key(&format!("tier{tier}"), 128) });
    let (_server, mut client) = serving(vec![report("r1", tiers.to_vec())]).await;
    for (stored, shown) in [(0, 1), (1, 1), (2, 2), (99, 0), (-1, 0)] {
        assert_eq!(client.lookup(ask_key(&format!("tier{stored}"))).await.replica_scores[0].tier, shown, "{stored}");
    }
    let again = pb::PrefixEntry { tier: 2, ..key("tier1", 128) };
    client.report(vec![report("r1", vec![again])]).await;
    assert_eq!(client.lookup(ask_key("tier1")).await.replica_scores[0].tier, 2);
    assert_eq!(client.total().await, 5);

    let inherited = pb::CacheStateUpdate { adapter_id: "a".to_owned(), ..report("r1", vec![key("p", 128)]) };
    let (_server, mut client) = serving(vec![inherited]).await;
    let of_adapter = pb::LookupRouteRequest { adapter_id: "a".to_owned(), ..ask_key("p") };
    assert_eq!(reason(&mut client, of_adapter).await, "PREFIX_MATCH");
    assert_eq!(reason(&mut client, ask_key("p")).await, "AFFINITY_HINT");
}

/// server:91, of a chain: a negative tier is colder than every other, known or not, and is shown as unspecified.
#[tokio::test]
async fn a_negative_tier_is_the_coldest_of_its_run() {
    let (_server, mut client) = serving(vec![]).await;
    for (name, tiers, shown) in [
        ("known", [1, 3], pb::CacheTier::T3),
        ("first", [-1, 3], pb::CacheTier::Unspecified),
        ("last", [3, -1], pb::CacheTier::Unspecified),
        ("lowest", [i32::MIN, 1], pb::CacheTier::Unspecified),
        ("both", [-1, 99], pb::CacheTier::Unspecified),
    ] {
        let blocks = [format!("{name}-1"), format!("{name}-2")];
        let blocks = [blocks[0].as_str(), blocks[1].as_str()];
        let held = [0, 1].map(|n| pb::PrefixEntry { tier: tiers[n], ..chain(&[blocks[n]], 64) });
        client.report(vec![report("r1", held.to_vec())]).await;
        let response = client.lookup(ask_chain(&blocks, &[64, 64])).await;
        let score = &response.replica_scores[0];
        assert_eq!((score.matched_tokens, score.tier), (128, shown.into()), "{name}");
    }
}

/// server:93-94 server:101
#[tokio::test]
async fn stats_are_taken_and_published() {
    let odd = pb::ReplicaStats {
        hit_rate: f32::NAN,
        cache_memory_bytes: 77,
        client_version: "v9".to_owned(),
        replica_id: "ignored".to_owned(),
        ..Default::default()
    };
    let (server, mut client) = serving(vec![pb::CacheStateUpdate { stats: Some(odd), ..report("r1", vec![]) }]).await;
    let snapshot = get(server.bridge, "/snapshot").await;
    assert_eq!(snapshot.status, 200);
    let text = snapshot.text();
    assert!(text.contains(r#""replicaId":"r1","tenant":"t","cacheMemoryBytes":77,"hitRate":0,"#), "{text}");

    let stats = pb::ReplicaStats {
        cache_memory_bytes: 2048,
        hit_rate: 0.5,
        t2_hit_tokens: 600,
        t2_query_tokens: 1000,
        ..Default::default()
    };
    client.report(vec![pb::CacheStateUpdate { stats: Some(stats.clone()), ..report("r1", vec![key("p", 16)]) }]).await;
    let state = client.state("t", "m").await;
    assert_eq!(state.replicas, [pb::ReplicaStats { replica_id: "r1".to_owned(), ..stats }]);
    assert_eq!(state.summary, Some(pb::CacheSummary { total_prefixes: 1, hot_prefixes: 0 }));
    // field:45, where the server publishes such a number: it never passes through a double.
    let large = pb::ReplicaStats { cache_memory_bytes: 9_007_199_254_740_993, ..Default::default() };
    client.report(vec![pb::CacheStateUpdate { stats: Some(large), ..report("r2", vec![]) }]).await;
    let text = get(server.bridge, "/snapshot").await.text();
    assert!(text.contains(r#""cacheMemoryBytes":9007199254740993,"#), "{text}");
    assert_eq!(client.state("t", "m").await.replicas[1].cache_memory_bytes, 9_007_199_254_740_993);
    assert_eq!(
        client.state("t", "").await,
        pb::GetCacheStateResponse { summary: Some(Default::default()), ..Default::default() }
    );
}

/// server:96-99
#[tokio::test]
async fn events_remove_what_they_name() {
    let adapter =
        |adapter: &str| pb::CacheStateUpdate { adapter_id: adapter.to_owned(), ..report("r1", vec![key("q", 128)]) };
    let (server, mut client) =
        serving(vec![report("r1", vec![key("p", 128)]), report("r2", vec![key("p", 128)]), adapter("a"), adapter("b")])
            .await;
    let evict = |hash: &str, adapter: &str| pb::CacheEvent {
        prefix_hash: hash.as_bytes().to_vec(),
        adapter_id: adapter.to_owned(),
        ..event(Type::PrefixEvicted, "r1")
    };
    for idle in [event(Type::PrefixAdded, "r1"), event(Type::Unspecified, "r1"), event(Type::ReplicaUpdated, "r9")] {
        assert!(client.publish(pb::CacheEvent { prefix_hash: b"n".to_vec(), ..idle }).await.accepted);
    }
    let unknown = pb::CacheEvent { r#type: 77, ..evict("p", "") };
    assert_eq!(client.publish(unknown).await, pb::Ack { accepted: true, reason_code: String::new() });
    assert_eq!(client.total().await, 3);

    client.publish(evict("p", "")).await;
    let two = r#"{"version":7,"policies":[{"namespace":"t","routingFloorScore":0}]}"#;
    server.policy(two);
    assert_eq!(client.outcome(ask_key("p")).await.1, ["r2"]);
    let holders = async |adapter: &str| {
        let asked = pb::LookupRouteRequest { adapter_id: adapter.to_owned(), ..ask_key("q") };
        let (reason, replicas) = client.clone().outcome(asked).await;
        if reason == "PREFIX_MATCH" { replicas } else { vec![] }
    };
    client.clone().publish(evict("q", "a")).await;
    assert_eq!((holders("a").await, holders("b").await), (vec![], vec!["r1".to_owned()]), "b still has it");
    client.clone().report(vec![adapter("a")]).await;
    assert_eq!(holders("a").await, ["r1"]);
    client.clone().publish(evict("q", "")).await;
    assert_eq!((holders("a").await, holders("b").await), (vec![], vec![]), "gone from both");
    assert_eq!(client.total().await, 1);

    client.report(vec![pb::CacheStateUpdate { stats: Some(warm(0.5)), ..report("r2", vec![key("x", 16)]) }]).await;
    client.report(vec![pb::CacheStateUpdate { stats: Some(warm(0.6)), ..report("r1", vec![key("y", 16)]) }]).await;
    client.publish(event(Type::AllCleared, "r2")).await;
    let state = client.state("t", "m").await;
    assert_eq!(state.replicas.iter().map(|row| row.replica_id.as_str()).collect::<Vec<_>>(), ["r1"]);
    assert_eq!(client.total().await, 1);
}

/// server:103-105
#[tokio::test]
async fn rpcs_without_a_source_answer_harmlessly() {
    let (_server, mut client) = serving(vec![]).await;
    let template = pb::RenderTemplateRequest { template_ref: "ns/name".to_owned(), ..Default::default() };
    let rendered = client.0.render_template(template).await.expect("status OK").into_inner();
    assert_eq!(rendered, pb::RenderTemplateResponse { reason_code: "OK".to_owned(), ..Default::default() });
    let pd = client.0.lookup_pd_route(pb::LookupPdRouteRequest::default()).await.expect("status OK").into_inner();
    assert_eq!(pd, pb::LookupPdRouteResponse { reason_code: "NO_HINT".to_owned(), ..Default::default() });
    let mut events =
        client.0.stream_cache_events(pb::StreamEventsRequest::default()).await.expect("opens").into_inner();
    assert_eq!(events.message().await.expect("ends OK"), None);
    let mut metrics = client.0.stream_metrics(pb::StreamMetricsRequest::default()).await.expect("opens").into_inner();
    assert_eq!(metrics.message().await.expect("ends OK"), None);
}

/// server:108b
#[tokio::test]
async fn lookups_beyond_a_limit_get_no_hint() {
    let (server, mut client) = serving(p()).await;
    let long_chain = pb::LookupRouteRequest {
        block_hashes: vec![b"b".to_vec(); 65_537],
        block_token_counts: vec![16; 65_537],
        ..ask()
    };
    let long_hash = pb::LookupRouteRequest { prefix_hash: vec![1; 65], ..ask() };
    let long_block = pb::LookupRouteRequest { block_hashes: vec![vec![1; 65]], block_token_counts: vec![16], ..ask() };
    let long_tenant = pb::LookupRouteRequest { tenant_id: "t".repeat(513), ..ask_key("p") };
    for request in [long_chain, long_hash, long_block, long_tenant] {
        let response = client.lookup(pb::LookupRouteRequest { adapter_id: "a".to_owned(), ..request }).await;
        assert_eq!((response.reason_code.as_str(), response.replica_scores.len()), ("NO_HINT", 0));
        assert_eq!(response.adapter_id, "", "the index was not asked");
    }
    let refused = server.metric(r#"inferencecache_lookup_input_refused_total{cause="oversized_request"}"#);
    assert!((refused - 4.0).abs() < f64::EPSILON);
}

/// server:108c
#[tokio::test]
async fn reports_beyond_a_limit_lose_what_is_beyond_it() {
    let (server, mut client) = serving(vec![]).await;
    let long_chain = pb::PrefixEntry {
        block_hashes: vec![b"b".to_vec(); 65_537],
        block_token_counts: vec![16; 65_537],
        ..Default::default()
    };
    let long_hash = pb::PrefixEntry { prefix_hash: vec![1; 65], token_count: 16, ..Default::default() };
    assert!(client.report(vec![report("r1", vec![long_chain, key("good", 16), long_hash])]).await.accepted);
    assert_eq!(client.total().await, 1);
    let long_tenant = pb::CacheStateUpdate { tenant_id: "t".repeat(513), ..report("r1", vec![key("good", 16)]) };
    assert!(client.report(vec![long_tenant]).await.accepted);
    assert_eq!(server.index.storage_entries().0, 1);
    for cause in ["oversized_chain", "oversized_hash", "oversized_key"] {
        let dropped = server.metric(&format!(r#"inferencecache_ingest_dropped_total{{cause="{cause}"}}"#));
        assert!((dropped - 1.0).abs() < f64::EPSILON, "{cause}: {dropped}");
    }
}

/// server:108d
#[tokio::test]
async fn stamps_far_ahead_are_clamped_and_counted() {
    let (server, mut client) = serving(vec![]).await;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970").as_micros();
    let now = i64::try_from(now).expect("before 294247");
    let stamped = |name: &str, ahead: i64| pb::CacheStateUpdate {
        timestamp_us: now + ahead * 1_000_000,
        tenant_id: name.to_owned(),
        ..report(name, vec![key("p", 16)])
    };
    client.report(vec![stamped("kept", 4), stamped("near", 7), stamped("far", 3600)]).await;
    assert!((server.metric("inferencecache_timestamps_clamped_total") - 2.0).abs() < f64::EPSILON);
    let last = |name: &str| {
        let row = server.index.snapshot().replicas.into_iter().find(|row| &*row.replica == name).expect("a row");
        row.last_event_at.expect("an entry")
    };
    assert_eq!(last("kept"), now + 4_000_000);
    for name in ["near", "far"] {
        assert!((now..now + 3_000_000).contains(&last(name)), "{name} is now");
    }
    let late = pb::CacheEvent { timestamp_us: i64::MAX, ..event(Type::ReplicaUpdated, "kept") };
    client.publish(late).await;
    assert!((server.metric("inferencecache_timestamps_clamped_total") - 3.0).abs() < f64::EPSILON);
}

/// The service alone, in somebody else's server, over somebody else's index.
#[tokio::test]
async fn the_service_can_be_mounted_anywhere() {
    use inferencecache_core::testkit::Model;
    use inferencecache_core::{IndexOptions, PolicyStore, Router};
    use inferencecache_wire::grpc::service::InferenceCacheService;
    use std::sync::Arc;

    let router = Router::new(Arc::new(Model::new(IndexOptions::default())), Arc::new(PolicyStore::default()));
    let service = InferenceCacheService::new(router).max_message_bytes(1000);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    let server = tonic::transport::Server::builder().add_service(service.mount());
    let serving = tokio::spawn(server.serve_with_incoming(incoming));

    let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}")).expect("an address");
    let channel = endpoint.connect().await.expect("accepted");
    let mut client = Client(pb::inference_cache_client::InferenceCacheClient::new(channel));
    client.report(p()).await;
    assert_eq!(reason(&mut client, ask_key("p")).await, "PREFIX_MATCH");
    let large = pb::LookupRouteRequest { token_ids: vec![1; 1001], ..ask() };
    assert_eq!(client.0.lookup_route(large).await.expect_err("too large").code(), tonic::Code::ResourceExhausted);
    serving.abort();
}
