//! Names, labels, bounds and escaping of what is exposed.

use super::*;

fn metrics() -> Metrics {
    Metrics::default()
}

/// server:164
#[test]
fn a_lookup_is_counted_under_its_model_code_and_use() {
    let metrics = metrics();
    metrics.lookup("m", ReasonCode::UnknownHashScheme, false, Duration::from_micros(120));
    metrics.lookup("m", ReasonCode::PrefixMatch, true, Duration::from_micros(90));
    let text = metrics.render();
    for line in [
        "inferencecache_lookup_route_calls_total{hint_used=\"false\",model=\"m\",reason_code=\"UNKNOWN_HASH_SCHEME\"} 1",
        "inferencecache_lookup_route_calls_total{hint_used=\"true\",model=\"m\",reason_code=\"PREFIX_MATCH\"} 1",
        "inferencecache_lookup_route_latency_seconds_bucket{model=\"m\",le=\"0.0001\"} 1",
        "inferencecache_lookup_route_latency_seconds_bucket{model=\"m\",le=\"0.00025\"} 2",
        "inferencecache_lookup_route_latency_seconds_count{model=\"m\"} 2",
        "inferencecache_server_up 0",
        "inferencecache_server_grpc_tls_enabled 0",
    ] {
        assert!(text.lines().any(|have| have == line), "{line} is missing in\n{text}");
    }
}

/// server:165 server:166 server:167
#[test]
fn the_sink_feeds_the_published_families() {
    let metrics = metrics();
    assert!(!metrics.render().contains("evictions_total{"));
    metrics.add_tenant_evictions("team-a", 3);
    metrics.add_index_evictions(Eviction::Lfu, EvictionCause::Cap, 2);
    metrics.set_index_entries("m", 7);
    metrics.set_index_entries("m", 0);
    let text = metrics.render();
    for line in [
        "inferencecache_tenant_evictions_total{reason=\"over_entries\",tenant_id=\"team-a\"} 3",
        "inferencecache_index_evictions_total{algorithm=\"lfu\",reason=\"cap\"} 2",
        "inferencecache_index_entries{model=\"m\"} 0",
    ] {
        assert!(text.lines().any(|have| have == line), "{line} is missing in\n{text}");
    }
}

/// field:39
#[test]
fn junk_models_stay_bounded_and_sums_exact() {
    let metrics = metrics();
    for i in 0..10_000 {
        metrics.lookup(&format!("junk-{i:05}"), ReasonCode::UnknownModel, false, Duration::from_micros(50));
    }
    // What the index holds still gets a name of its own.
    metrics.set_index_entries("real", 5);
    metrics.lookup("real", ReasonCode::PrefixMatch, true, Duration::from_micros(50));
    let text = metrics.render();
    assert!(text.len() < 1024 * 1024, "{} bytes", text.len());
    let calls: Vec<&str> =
        text.lines().filter(|line| line.starts_with("inferencecache_lookup_route_calls_total{")).collect();
    assert!(calls.len() <= 1000, "{} series", calls.len());
    let sum: u64 =
        calls.iter().map(|line| line.rsplit(' ').next().expect("a value").parse::<u64>().expect("a count")).sum();
    assert_eq!(sum, 10_001);
    assert!(text.contains("model=\"other\",reason_code=\"UNKNOWN_MODEL\"} 9750"), "overflow has its fixed value");
    assert!(text.contains("model=\"real\",reason_code=\"PREFIX_MATCH\"} 1"));
}

/// field:39
#[test]
fn models_and_tenants_beyond_the_limit_share_one_value() {
    let metrics = metrics();
    for i in 0..1_500 {
        metrics.set_index_entries(&format!("m{i}"), 2);
        metrics.add_tenant_evictions(&format!("t{i}"), 1);
    }
    let text = metrics.render();
    assert_eq!(text.matches("inferencecache_index_entries{").count(), 1000);
    assert_eq!(text.matches("inferencecache_tenant_evictions_total{").count(), 1000);
    assert!(text.contains("inferencecache_index_entries{model=\"other\"} 1002"));
    assert!(text.contains("inferencecache_tenant_evictions_total{reason=\"over_entries\",tenant_id=\"other\"} 501"));
    metrics.set_index_entries("m1499", 0);
    assert!(metrics.render().contains("inferencecache_index_entries{model=\"other\"} 1000"));
}

/// field:40
#[test]
fn label_values_are_escaped() {
    let metrics = metrics();
    let odd = "a\"b\\c\nd";
    metrics.lookup(odd, ReasonCode::NoHint, false, Duration::ZERO);
    metrics.set_index_entries(odd, 1);
    metrics.add_tenant_evictions(odd, 1);
    let text = metrics.render();
    assert!(text.contains(r#"inferencecache_index_entries{model="a\"b\\c\nd"} 1"#), "{text}");
    assert!(text.contains(r#"tenant_id="a\"b\\c\nd"} 1"#));
    assert!(text.contains(r#"inferencecache_lookup_route_calls_total{hint_used="false",model="a\"b\\c\nd","#));
}

#[test]
fn the_process_is_described() {
    let text = metrics().render();
    for name in ["process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds", "process_threads"] {
        assert!(text.contains(&format!("\n{name} ")), "{name} is missing");
    }
    if cfg!(target_os = "linux") {
        let resident =
            text.lines().find_map(|line| line.strip_prefix("process_resident_memory_bytes ")).expect("a line");
        assert!(resident.parse::<f64>().expect("a number") > 100_000.0, "{resident}");
    }
}
