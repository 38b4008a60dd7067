//! Pages in, loads out: the published cases, row by row.

use proptest::prelude::*;

use super::*;

/// What the engine of a page is told to be.
#[derive(Clone, Copy)]
struct Setup {
    scheme: &'static str,
    tier: CacheTier,
    model: &'static str,
    ceiling: f64,
    capacity: i64,
}

const VLLM: Setup = Setup { scheme: "vllm", tier: CacheTier::Auto, model: "", ceiling: 256.0, capacity: 1 << 30 };
const SGLANG: Setup = Setup { scheme: "sglang", ..VLLM };

/// An engine whose pages are read one after the other.
struct Engine {
    setup: Setup,
    deriver: Deriver,
}

impl Engine {
    fn new(setup: Setup) -> Self {
        Self { setup, deriver: Deriver::new(Profile::of(setup.scheme).0) }
    }

    fn read(&mut self, page: &[u8]) -> (Result<Load, Useless>, u64) {
        let Setup { scheme, tier, model, ceiling, capacity } = self.setup;
        let (reading, skipped) = reading(page, Wanted { profile: Profile::of(scheme).0, model, tier });
        let limits = Limits { capacity_bytes: capacity, ceiling };
        (reading.map(|reading| self.deriver.load(&reading, limits)), skipped)
    }

    fn load(&mut self, page: &str) -> Result<Load, Useless> {
        self.read(page.as_bytes()).0
    }

    fn rate(&mut self, page: &str) -> f32 {
        self.load(page).expect("a load").hit_rate
    }
}

/// A page of short rows `name value`; the prefix and the label `model_name="m"` are added, and the type by the suffix.
fn page(prefix: &str, rows: &str) -> String {
    let mut text = String::new();
    for row in rows.split(',').map(str::trim).filter(|row| !row.is_empty()) {
        let (name, value) = row.split_once(' ').expect("name value");
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        let family = name.strip_suffix("_total").unwrap_or(name);
        text += &format!("# TYPE {prefix}:{family} {kind}\n{prefix}:{name}{{model_name=\"m\"}} {value}\n");
    }
    text
}

fn vllm(rows: &str) -> String {
    page("vllm", &format!("num_requests_running 3, num_requests_waiting 5, {rows}"))
}

fn hits(hits: u32, queries: u32) -> String {
    vllm(&format!("prefix_cache_hits_total {hits}, prefix_cache_queries_total {queries}"))
}

// subscriber:122 subscriber:123
#[test]
fn a_first_scrape_and_the_rate_of_the_next() {
    let mut engine = Engine::new(VLLM);
    let first = hits(25, 100) + &page("vllm", "kv_cache_usage_perc 0.42");
    let expected = Load { memory_bytes: 450_971_566, hit_rate: 0.0, pressure: 0.03125, ..Load::default() };
    assert_eq!(engine.load(&first), Ok(expected));
    assert_eq!(engine.rate(&hits(95, 200)), 0.7);
}

// subscriber:124 subscriber:125 subscriber:126 subscriber:128 field:34
#[test]
fn rates_follow_counters_that_restart_vanish_or_disagree() {
    let unsuffixed = |hits: u32, queries: u32| {
        vllm("")
            + &format!(
                "# TYPE vllm:prefix_cache_hits counter\nvllm:prefix_cache_hits {hits}\n\
                 # TYPE vllm:prefix_cache_queries counter\nvllm:prefix_cache_queries {queries}\n"
            )
    };
    let no_load = page("vllm", "prefix_cache_hits_total 60, prefix_cache_queries_total 120");
    for (pages, expected) in [
        (vec![hits(95, 200), hits(25, 100), hits(95, 200)], vec![Some(0.0), Some(0.0), Some(0.7)]),
        (vec![hits(25, 100), vllm(""), hits(95, 200)], vec![Some(0.0), Some(0.0), Some(0.7)]),
        (vec![hits(25, 100), no_load, hits(95, 200)], vec![Some(0.0), None, Some(0.7)]),
        (vec![unsuffixed(10, 20), unsuffixed(70, 120)], vec![Some(0.0), Some(0.6)]),
        (vec![hits(100, 100), hits(400, 300)], vec![Some(0.0), Some(1.0)]),
    ] {
        let mut engine = Engine::new(VLLM);
        let rates: Vec<Option<f32>> = pages.iter().map(|p| engine.load(p).ok().map(|load| load.hit_rate)).collect();
        assert_eq!(rates, expected, "{pages:?}");
    }
}

// subscriber:127
#[test]
fn usage_is_read_under_today_s_name_or_an_older_one() {
    for (rows, tier, bytes) in [
        ("gpu_cache_usage_perc 0.61", CacheTier::Auto, 654_982_512),
        ("gpu_cache_usage_perc 0.0, cpu_cache_usage_perc 0.42", CacheTier::Auto, 450_971_566),
        ("kv_cache_usage_perc 0.42", CacheTier::Gpu, 0),
        ("kv_cache_usage_perc 0.42, gpu_cache_usage_perc 0.9", CacheTier::Auto, 450_971_566),
        ("kv_cache_usage_perc 0.1, cpu_cache_usage_perc 0.42", CacheTier::Cpu, 450_971_566),
        ("kv_cache_usage_perc NaN, gpu_cache_usage_perc 0.61", CacheTier::Auto, 654_982_512),
    ] {
        let load = Engine::new(Setup { tier, ..VLLM }).load(&vllm(rows)).expect("a load");
        assert_eq!(load.memory_bytes, bytes, "{rows} {tier:?}");
    }
}

// subscriber:129 field:34
#[test]
fn second_tier_counters_are_passed_on_as_they_are() {
    for (hits, queries) in [(750, 1000), (1500, 1000)] {
        let rows = format!("external_prefix_cache_hits_total {hits}, external_prefix_cache_queries_total {queries}");
        let load = Engine::new(VLLM).load(&vllm(&rows)).expect("a load");
        assert_eq!((load.second_tier_hits, load.second_tier_queries), (hits, queries));
    }
}

// subscriber:130
#[test]
fn pressure_and_bytes_need_a_ceiling_and_a_capacity() {
    let load = |ceiling, capacity| {
        Engine::new(Setup { ceiling, capacity, ..VLLM }).load(&vllm("kv_cache_usage_perc 0.42")).expect("a load")
    };
    assert_eq!(load(4.0, 1 << 30).pressure, 1.0);
    assert_eq!(load(0.0, 1 << 30).pressure, 0.0);
    assert_eq!(load(-1.0, 1 << 30).pressure, 0.0);
    let none = load(256.0, 0);
    assert_eq!((none.memory_bytes, none.pressure), (0, 0.03125));
}

// subscriber:131 subscriber:132
#[test]
fn series_of_another_model_do_not_count() {
    let series = |model: &str, usage: &str, running: u32, waiting: u32| {
        format!(
            "vllm:kv_cache_usage_perc{{model_name=\"{model}\"}} {usage}\n\
             vllm:num_requests_running{{model_name=\"{model}\"}} {running}\n\
             vllm:num_requests_waiting{{model_name=\"{model}\"}} {waiting}\n"
        )
    };
    let setup = Setup { model: "primary", ceiling: 8.0, ..VLLM };
    let both = series("primary", "0.20", 2, 0) + &series("other", "0.95", 50, 30);
    let load = Engine::new(setup).load(&both).expect("a load");
    assert_eq!((load.memory_bytes, load.pressure), (214_748_364, 0.25));
    let unlabelled = series("primary", "NaN", 2, 0) + "vllm:kv_cache_usage_perc 0.5\n";
    assert_eq!(Engine::new(setup).load(&unlabelled).map(|load| load.memory_bytes), Ok(0));
    assert_eq!(Engine::new(setup).load(&series("other", "0.95", 50, 30)), Err(Useless::NoLoad));
}

fn sglang(rows: &str) -> String {
    page("sglang", &format!("num_running_reqs 3, num_queue_reqs 5, {rows}"))
}

// subscriber:133 subscriber:135
#[test]
fn sglang_has_names_of_its_own_and_a_rate_at_once() {
    let load = Engine::new(SGLANG).load(&sglang("token_usage 0.63, cache_hit_rate 0.75")).expect("a load");
    let expected = Load { memory_bytes: 676_457_349, hit_rate: 0.75, pressure: 0.03125, ..Load::default() };
    assert_eq!(load, expected);
    assert_eq!(Engine::new(SGLANG).rate(&sglang("")), 0.0);
    assert_eq!(Engine::new(SGLANG).load(&page("sglang", "cache_hit_rate 0.75")), Err(Useless::NoLoad));
}

// subscriber:134
#[test]
fn ranks_add_up_and_priorities_do_not() {
    let page = "sglang:num_running_reqs{dp_rank=\"0\",priority=\"\"} 3\nsglang:num_running_reqs{dp_rank=\"1\",priority=\"\"} 5\n\
                sglang:num_running_reqs{dp_rank=\"0\",priority=\"0\"} 3\n\
                sglang:num_queue_reqs{dp_rank=\"0\"} 1\nsglang:num_queue_reqs{dp_rank=\"1\"} 2\n\
                sglang:token_usage{dp_rank=\"0\"} 0.40\nsglang:token_usage{dp_rank=\"1\"} 0.70\n\
                sglang:cache_hit_rate{dp_rank=\"0\"} 0.60\nsglang:cache_hit_rate{dp_rank=\"1\"} 0.90\n";
    let load = Engine::new(SGLANG).load(page).expect("a load");
    let expected = Load { memory_bytes: 751_619_276, hit_rate: 0.9, pressure: 0.042_968_75, ..Load::default() };
    assert_eq!(load, expected);
}

// subscriber:136 subscriber:137
#[test]
fn what_is_no_number_is_absent_and_the_wrong_engine_is_noticed() {
    let nan = page("vllm", "num_requests_running NaN, num_requests_waiting 5");
    assert_eq!(Engine::new(VLLM).load(&nan), Err(Useless::NoLoad));
    let ranks = "sglang:num_running_reqs{dp_rank=\"0\"} NaN\nsglang:num_running_reqs{dp_rank=\"1\"} 4\nsglang:num_queue_reqs 0\n";
    assert_eq!(Engine::new(SGLANG).load(ranks).map(|load| load.pressure), Ok(0.015_625));
    assert_eq!(Engine::new(VLLM).load(&sglang("token_usage 0.5")), Err(Useless::NoFamily));
    assert_eq!(Engine::new(SGLANG).load(&vllm("")), Err(Useless::NoFamily));
    assert_eq!(Engine::new(VLLM).load(""), Err(Useless::NoFamily));
}

#[test]
fn families_of_another_kind_are_not_read() {
    let typed = |kind: &str| {
        let text = vllm("")
            .replace("# TYPE vllm:num_requests_running gauge", &format!("# TYPE vllm:num_requests_running {kind}"));
        Engine::new(VLLM).load(&text).is_ok()
    };
    assert!(typed("gauge") && typed("untyped") && typed("unknown"));
    assert!(!typed("counter") && !typed("histogram"));
    let gauges = "# TYPE vllm:external_prefix_cache_hits_total gauge\nvllm:external_prefix_cache_hits_total 7\n";
    assert_eq!(Engine::new(VLLM).load(&(vllm("") + gauges)).map(|load| load.second_tier_hits), Ok(0));
}

// field:29
#[test]
fn both_spellings_of_a_name_are_one() {
    let text = sglang("token_usage 0.63, cache_hit_rate 0.75");
    let mixed: String = text
        .lines()
        .map(
            |line| {
                if line.starts_with('#') { format!("{line}\n") } else { format!("{}\n", line.replacen(':', "_", 1)) }
            },
        )
        .collect();
    let all = text.replace(':', "_");
    for page in [&mixed, &all, &(text + &mixed)] {
        let load = Engine::new(SGLANG).load(page).expect("a load");
        let expected = Load { memory_bytes: 676_457_349, hit_rate: 0.75, pressure: 0.03125, ..Load::default() };
        assert_eq!(load, expected, "{page}");
    }
}

// field:30
#[test]
fn names_that_merely_begin_alike_are_others() {
    let page = |hits: u32, queries: u32| {
        format!(
            "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{{engine=\"0\"}} 0.0\n\
             # TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{{engine=\"0\"}} 5.0\n\
             # TYPE vllm:num_requests_waiting_by_reason gauge\n\
             vllm:num_requests_waiting_by_reason{{engine=\"0\",reason=\"capacity\"}} 3.0\n\
             vllm:num_requests_waiting_by_reason{{engine=\"0\",reason=\"deferred\"}} 2.0\n\
             # TYPE vllm:prefix_cache_queries_total counter\nvllm:prefix_cache_queries_total{{engine=\"0\"}} {queries}\n\
             # TYPE vllm:prefix_cache_queries_created gauge\nvllm:prefix_cache_queries_created{{engine=\"0\"}} 1.7e9\n\
             # TYPE vllm:prefix_cache_hits_total counter\nvllm:prefix_cache_hits_total{{engine=\"0\"}} {hits}\n\
             # TYPE vllm:prefix_cache_hits_created gauge\nvllm:prefix_cache_hits_created{{engine=\"0\"}} 1.8e9\n"
        )
    };
    let mut engine = Engine::new(VLLM);
    let load = engine.load(&page(100, 100)).expect("a load");
    assert_eq!((load.pressure, load.hit_rate), (5.0 / 256.0, 0.0));
    assert_eq!(engine.rate(&page(160, 200)), 0.6);
}

// field:31
#[test]
fn a_broken_line_costs_itself_and_nothing_else() {
    let mut bad: Vec<Vec<u8>> =
        ["{A}0", "some-metric 1", "x{=\"y\"} 1", "x{a=\"b\" 1", "x NaNN"].map(|line| line.as_bytes().to_vec()).to_vec();
    bad.push(vec![b'x'; 1 << 20]);
    bad.push(b"x\xff\xfe 1".to_vec());
    for line in bad {
        let text = [vllm("").as_bytes(), &line, b"\n"].concat();
        let (load, skipped) = Engine::new(VLLM).read(&text);
        assert_eq!((load.map(|load| load.pressure), skipped), (Ok(0.03125), 1), "{}", String::from_utf8_lossy(&line));
    }
    let broken = vllm("")
        .replace("vllm:num_requests_running{model_name=\"m\"} 3", "vllm:num_requests_running{model_name=\"m} 3");
    assert_eq!(Engine::new(VLLM).read(broken.as_bytes()), (Err(Useless::NoLoad), 1));
}

// field:32
#[test]
fn sglang_s_gauge_is_the_fallback_for_its_counters() {
    let page = |gauge: &str, counters: Option<(u32, u32)>| {
        let counters = counters.map_or(String::new(), |(prompt, cached)| {
            format!(
                "sglang:prompt_tokens_total {prompt}\nsglang:cached_tokens_total{{cache_source=\"device\"}} {cached}\n\
                 sglang:cached_tokens_total{{cache_source=\"host\"}} 0\n"
            )
        });
        sglang(&format!("cache_hit_rate {gauge}")) + &counters
    };
    for (pages, expected) in [
        (vec![page("0.9", Some((1000, 200))), page("0.0", Some((2000, 1000)))], vec![0.9, 0.8]),
        // Nothing was asked: the rate stays.
        (
            vec![page("0.9", Some((1000, 200))), page("0.0", Some((2000, 1000))), page("0.0", Some((2000, 1000)))],
            vec![0.9, 0.8, 0.8],
        ),
        // Counters that vanish leave the gauge, and the baseline stays.
        (vec![page("0.9", Some((1000, 200))), page("0.5", None), page("0.0", Some((2000, 1000)))], vec![0.9, 0.5, 0.8]),
        // Another process: as at the first page.
        (vec![page("0.9", Some((1000, 200))), page("0.3", Some((10, 5)))], vec![0.9, 0.3]),
    ] {
        let mut engine = Engine::new(SGLANG);
        let rates: Vec<f32> = pages.iter().map(|page| engine.rate(page)).collect();
        assert_eq!(rates, expected);
    }
}

// field:33
#[test]
fn one_gauge_of_many_processes_is_its_maximum() {
    let mut text = "vllm:num_requests_running 1\nvllm:num_requests_waiting 0\n".to_owned();
    for pid in 271..=277 {
        let usage = if pid == 273 { "0.6530455880475035" } else { "0.0" };
        text += &format!("vllm:kv_cache_usage_perc{{engine=\"0\",model_name=\"m\",pid=\"{pid}\"}} {usage}\n");
    }
    let load = Engine::new(VLLM).load(&text).expect("a load");
    assert_eq!((load.memory_bytes, load.pressure), (701_202_360, 1.0 / 256.0));
}

fn facts(scheme: &str, model: &str, page: &str) -> Facts {
    let wanted = Wanted { profile: Profile::of(scheme).0, model, tier: CacheTier::Auto };
    Edges::default().facts(&reading(page.as_bytes(), wanted).0.expect("a load"))
}

#[test]
fn capacity_is_summed_over_engines_and_not_over_their_processes() {
    let config = |engine: &str, pid: u32, blocks: &str| {
        format!(
            "vllm:cache_config_info{{engine=\"{engine}\",pid=\"{pid}\",block_size=\"16\",enable_prefix_caching=\"True\",num_gpu_blocks=\"{blocks}\"}} 1\n"
        )
    };
    let text =
        vllm("") + &config("0", 1, "100") + &config("0", 2, "100") + &config("1", 3, "50") + &config("2", 4, "None");
    let facts_of = facts("vllm", "m", &text);
    assert_eq!((facts_of.capacity.in_blocks(None), facts_of.prefix_caching), (Some(150), Some(true)));
    // Events speak of blocks of half the size: twice as many of them fit. Of larger ones, not fewer are believed.
    assert_eq!([16, 8, 32].map(|size| facts_of.capacity.in_blocks(Some(size))), [Some(150), Some(300), Some(150)]);
    let off = facts("vllm", "", &(vllm("") + &config("0", 1, "0").replace("True", "False")));
    assert_eq!((off.capacity.in_blocks(Some(16)), off.prefix_caching), (None, Some(false)));

    let tokens = sglang("")
        + "sglang:max_total_num_tokens{dp_rank=\"0\"} 1000\nsglang:max_total_num_tokens{dp_rank=\"1\"} 1000\n";
    let blocks = |page: &str, size| facts("sglang", "", page).capacity.in_blocks(size);
    assert_eq!((blocks(&tokens, Some(16)), blocks(&tokens, None)), (Some(125), None));
    assert_eq!(blocks(&(tokens.clone() + "sglang:page_size{dp_rank=\"0\"} 64\n"), None), Some(31));
    assert_eq!(blocks(&(tokens + "sglang:cache_config_info{num_pages=\"15\",page_size=\"64\"} 1\n"), None), Some(15));
}

#[test]
fn sleep_is_read_by_its_label() {
    let state = |name: &str, value: u32| {
        format!("vllm:engine_sleep_state{{engine=\"3\",model_name=\"m\",sleep_state=\"{name}\"}} {value}\n")
    };
    let asleep = vllm("") + &state("weights_offloaded", 1) + &state("awake", 0) + &state("discard_all", 0);
    let found = facts("vllm", "m", &asleep);
    assert_eq!((found.asleep, found.only_engine), (vec![3], Some(3)));
    let awake = vllm("") + &state("weights_offloaded", 0) + &state("awake", 1);
    assert!(facts("vllm", "m", &awake).asleep.is_empty());
    // Sleep of another model is none of ours.
    let other = asleep
        .replace("running{model_name=\"m\"", "running{model_name=\"o\"")
        .replace("waiting{model_name=\"m\"", "waiting{model_name=\"o\"");
    assert!(facts("vllm", "o", &other).asleep.is_empty());
}

/// Text that resembles a page, mutated.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let words: &[&str] = &[
        "vllm:num_requests_running",
        "vllm_num_requests_waiting",
        "vllm:prefix_cache_hits_total",
        "vllm:cache_config_info",
        "vllm:engine_sleep_state",
        "{",
        "}",
        "=",
        "\"",
        "\\",
        ",",
        " ",
        "\n",
        "engine=\"0\"",
        "sleep_state=\"awake\"",
        "num_gpu_blocks=\"99999999999999999999\"",
        "num_gpu_blocks=\"18446744073709551615\"",
        "1",
        "NaN",
        "-Inf",
        "1e308",
        "# TYPE ",
        " gauge",
        " counter",
        "sglang:token_usage",
        "model_name=\"m\"",
        "\u{fc}",
        "process_start_time_seconds 5",
    ];
    let word = prop_oneof![
        6 => prop::sample::select(words).prop_map(|word| word.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..6),
    ];
    prop::collection::vec(word, 0..60).prop_map(|words| words.concat())
}

/// Reads hostile pages one after the other; loads stay within their ranges.
fn read_hostile(cases: u32) {
    let mut engines = [Engine::new(VLLM), Engine::new(SGLANG)];
    let mut edges = Edges::default();
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let engines = std::cell::RefCell::new((&mut engines, &mut edges));
    let result = runner.run(&hostile(), |page| {
        let (engines, edges) = &mut *engines.borrow_mut();
        for engine in engines.iter_mut() {
            if let Ok(load) = engine.read(&page).0 {
                prop_assert!((0.0..=1.0).contains(&load.hit_rate) && (0.0..=1.0).contains(&load.pressure), "{load:?}");
            }
        }
        let wanted = Wanted { profile: Profile::Vllm, model: "m", tier: CacheTier::Auto };
        if let Ok(reading) = reading(&page, wanted).0 {
            edges.facts(&reading);
        }
        Ok(())
    });
    result.expect("no page does harm");
}

#[test]
fn hostile_pages_do_no_harm() {
    read_hostile(100_000);
}

#[test]
#[ignore = "ten million pages"]
fn hostile_pages_do_no_harm_for_long() {
    read_hostile(10_000_000);
}

#[test]
fn a_page_of_endless_series_is_bounded() {
    let mut text = vllm("");
    for i in 0..2 * reading::MAX_SERIES {
        text += &format!("vllm:num_requests_running{{i=\"{i}\"}} 1\n");
    }
    let (load, skipped) = Engine::new(VLLM).read(text.as_bytes());
    assert!(load.is_ok());
    assert_eq!(skipped, u64::try_from(reading::MAX_SERIES + 2).expect("small"));
}
