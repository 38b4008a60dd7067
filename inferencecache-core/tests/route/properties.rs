//! What holds for every question, policy and state; and that it costs no memory.

use inferencecache_core::policy::{Policy, StrategyGates};
use inferencecache_core::query::HashList;
use inferencecache_core::update::Stats;
use inferencecache_core::{Answer, Clock, Question, ReasonCode, Row};
use proptest::prelude::*;
use std::time::Duration;

use crate::world::{Report, World, chain_of};
use crate::{INDEX, MODEL};

/// Strings of which some are empty, some known, some not.
fn id(known: &'static [&'static str]) -> impl Strategy<Value = String> {
    prop::sample::select(known).prop_map(str::to_owned)
}

fn hash() -> impl Strategy<Value = Vec<u8>> {
    prop::sample::select(vec![&b""[..], b"a", b"b", b"c", b"d"]).prop_map(<[u8]>::to_vec)
}

fn report() -> impl Strategy<Value = Report> {
    let key = prop::option::of((hash().prop_filter("keys are not empty", |hash| !hash.is_empty()), 0..200));
    let chain = prop::sample::select(vec![&b""[..], b"a", b"ab", b"abc", b"abd", b"b"]);
    let stats = prop::option::of((0.0_f32..1.0, 0.0_f32..1.0));
    (id(&["r1", "r2", "r3"]), id(&["t", "u"]), id(&["", "x"]), 0_u64..2000, key, chain, stats).prop_map(
        |(replica, tenant, adapter, age, prefix, chain, stats)| Report {
            replica,
            tenant,
            adapter,
            age: Duration::from_secs(age),
            prefix,
            chain: chain.iter().map(|&byte| vec![byte]).collect(),
            tokens_per_block: 64,
            stats: stats.map(|(hit_rate, pressure)| Stats { hit_rate, pressure, ..Stats::default() }),
            ..Report::default()
        },
    )
}

fn policy() -> impl Strategy<Value = Policy> {
    let tokens = prop::sample::select(vec![-1, 0, 64, 100, 128]);
    let score = prop::option::of(prop::sample::select(vec![-1.0_f32, 0.0, 0.1, 30.0]));
    (tokens.clone(), tokens, score, 0..3_i32, id(&["", "lfu"]), any::<[Option<bool>; 4]>()).prop_map(
        |(prefix, matched, score, timeout, eviction, [chain, require, hot, affinity])| Policy {
            namespace: "t".to_owned(),
            minimum_prefix_tokens: prefix,
            minimum_matched_tokens: matched,
            routing_floor_score: score,
            lookup_timeout_ms: timeout,
            eviction,
            strategy: Some(StrategyGates {
                enable_chain_matching: chain,
                require_chain: require,
                enable_tenant_hot: hot,
            }),
            affinity_routing: affinity,
            ..Policy::default()
        },
    )
}

#[derive(Debug, Clone)]
struct Asked {
    tenant: String,
    model: String,
    scheme: String,
    adapter: String,
    key: Vec<u8>,
    key_tokens: i32,
    hashes: Vec<Vec<u8>>,
    counts: Vec<i32>,
    tokens: Vec<u32>,
    text: String,
    ttft_ms: i32,
    deadline: Option<i64>,
}

fn asked() -> impl Strategy<Value = Asked> {
    let ids = (
        id(&["t", "t", "t", "t", "t", "u", "", "v", "inferencecache.io/probe"]),
        id(&["m", "m", "m", "m", "m", "m", "", "n"]),
    );
    let ids = (ids, id(&["vllm", "vllm", "vllm", "vllm", "vllm", "", "sglang"]), id(&["", "", "x"]));
    let key = (hash(), prop::sample::select(vec![-5, 0, 64, 100, 200]));
    let counts = prop::collection::vec(prop::sample::select(vec![64, 64, 64, 16, 0, -1]), 0..4);
    let hashes = prop_oneof![
        Just(Vec::new()),
        prop::sample::select(vec!["a", "ab", "abc", "abd", "b", "cd"])
            .prop_map(|s| s.bytes().map(|b| vec![b]).collect()),
        prop::collection::vec(hash(), 0..4),
    ];
    let chain = (hashes, counts, prop::bool::weighted(0.9));
    let other = (prop_oneof![3 => Just(0_u32), 1 => 0_u32..70], id(&["", "hello"]), prop::sample::select(vec![0, 50]));
    let deadline = prop::option::weighted(0.2, prop::sample::select(vec![-1_i64, 0, 1, 10_000]));
    (ids, key, chain, other, deadline).prop_map(
        |(
            ((tenant, model), scheme, adapter),
            (key, key_tokens),
            (hashes, mut counts, balance),
            (tokens, text, ttft_ms),
            deadline,
        )| {
            if balance {
                counts.resize(hashes.len(), 64);
            }
            let tokens = (0..tokens / 10 * 10).collect();
            Asked { tenant, model, scheme, adapter, key, key_tokens, hashes, counts, tokens, text, ttft_ms, deadline }
        },
    )
}

impl Asked {
    fn question(&self) -> Question<'_> {
        Question {
            tenant: &self.tenant,
            model: &self.model,
            scheme: &self.scheme,
            adapter: &self.adapter,
            prefix_hash: &self.key,
            prefix_token_count: self.key_tokens,
            block_hashes: HashList::Vecs(&self.hashes),
            block_token_counts: &self.counts,
            token_ids: &self.tokens,
            prompt_text: &self.text,
            ttft_ms: self.ttft_ms,
        }
    }
}

/// What every answer owes to its caller, whatever the state.
fn check(asked: &Asked, policy: Option<&Policy>, answer: &Answer) -> Result<(), TestCaseError> {
    let rows = answer.rows();
    let hint = matches!(answer.reason, ReasonCode::PrefixMatch | ReasonCode::TenantHot | ReasonCode::AffinityHint);
    prop_assert_eq!(rows.is_empty(), !hint);
    let nothing = |row: &Row| (row.score, row.matched_tokens, row.hit_prob, row.tier) == (0.0, 0, 0.0, 0);
    if answer.reason == ReasonCode::AffinityHint {
        prop_assert!(rows.len() == 1 && nothing(&rows[0]));
    }
    if answer.reason == ReasonCode::TenantHot {
        prop_assert!(rows.iter().all(|row| row.matched_tokens == 0 && row.tier == 0));
        prop_assert!(asked.hashes.is_empty() || policy.is_some());
    }
    prop_assert!(rows.is_sorted_by(|a, b| (b.score, &a.replica) <= (a.score, &b.replica)));
    let before = matches!(answer.reason, ReasonCode::Timeout | ReasonCode::PolicyRequiresChain);
    prop_assert!(!(answer.consulted && (before || answer.fail_open.is_some())));
    prop_assert!(answer.consulted || before || answer.reason == ReasonCode::NoHint);
    if asked.question().is_reserved() {
        prop_assert_eq!((answer.reason, answer.consulted), (ReasonCode::NoHint, false));
    }
    if asked.deadline.is_some_and(|deadline| deadline <= 0) && !asked.question().is_reserved() {
        prop_assert_eq!(answer.reason, ReasonCode::Timeout);
    }
    if let Some(policy) = policy.filter(|policy| policy.namespace == asked.tenant) {
        let matched = policy.minimum_matched_tokens;
        if answer.reason == ReasonCode::PrefixMatch {
            prop_assert!(rows.iter().all(|row| row.matched_tokens >= matched));
            prop_assert!(rows[0].score >= policy.routing_floor_score.unwrap_or(0.1));
        }
        prop_assert!(policy.affinity_routing != Some(false) || answer.reason != ReasonCode::AffinityHint);
        let hot = policy.strategy.and_then(|gates| gates.enable_tenant_hot);
        prop_assert!(hot != Some(false) || answer.reason != ReasonCode::TenantHot);
    }
    // Tokens are the server's own or none.
    let own = !asked.text.is_empty() && asked.tokens.is_empty() && asked.key.is_empty();
    prop_assert!(own || answer.tokens.is_empty());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]
    #[test]
    fn answers_keep_their_promises_on_every_index(
        reports in prop::collection::vec(report(), 0..12),
        policy in prop::option::of(policy()),
        made in prop::sample::select(vec![0_u32, 8, 64]),
        questions in prop::collection::vec(asked(), 1..8),
    ) {
        let mut worlds = [MODEL, INDEX].map(World::new);
        let mut answers = [Answer::new(), Answer::new()];
        for world in &mut worlds {
            world.tokenizer(Ok((0..made).collect()));
            reports.iter().for_each(|report| world.report(report));
            if let Some(policy) = &policy {
                world.policy(policy.clone());
            }
        }
        for asked in &questions {
            for (world, answer) in worlds.iter().zip(&mut answers) {
                let deadline = asked.deadline.map(|deadline| world.clock.monotonic().saturating_add_signed(deadline));
                world.router.route(&asked.question(), deadline, answer);
                check(asked, policy.as_ref(), answer)?;
            }
            let [model, index] = &answers;
            prop_assert_eq!(model.reason, index.reason);
            prop_assert_eq!(model.rows(), index.rows());
            prop_assert_eq!((&model.tokens, model.fail_open), (&index.tokens, index.fail_open));
            prop_assert_eq!(worlds[0].credits(), worlds[1].credits());
        }
    }
}

#[test]
fn a_warm_answer_makes_routing_free_of_allocations() {
    let world = World::new(INDEX);
    let tokens: Vec<u32> = (0..4096).collect();
    let chain = chain_of(&tokens, 16);
    for replica in ["r1", "r2", "r3"] {
        let held = if replica == "r1" { &chain[..] } else { &chain[..100] };
        world.report(&Report { replica: replica.to_owned(), chain: held.to_vec(), ..Report::default() });
    }
    world.policy(Policy {
        namespace: "t".to_owned(),
        minimum_matched_tokens: 1601,
        lookup_timeout_ms: 1000,
        eviction: "lfu".to_owned(),
        ..Policy::default()
    });
    let novel: Vec<u32> = (9000..9512).collect();
    let base = Question { tenant: "t", model: "m", scheme: "vllm", ..Question::default() };
    let counts = vec![16; chain.len()];
    let questions = [
        (Question { token_ids: &tokens, ..base }, ReasonCode::PrefixMatch),
        (Question { token_ids: &novel, ..base }, ReasonCode::AffinityHint),
        (
            Question { block_hashes: HashList::Vecs(&chain), block_token_counts: &counts, ..base },
            ReasonCode::PrefixMatch,
        ),
        (Question { prefix_hash: b"novel", ..base }, ReasonCode::AffinityHint),
        (Question { token_ids: &novel, scheme: "sglang", ..base }, ReasonCode::UnknownHashScheme),
        (Question { token_ids: &novel[..3], ..base }, ReasonCode::NoHint),
        (Question { token_ids: &novel, tenant: "v", ..base }, ReasonCode::UnknownTenant),
    ];
    let mut answer = Answer::new();
    for warm in [false, true] {
        for (question, want) in &questions {
            let cost = allocation_counter::measure(|| world.router.route(question, None, &mut answer));
            assert_eq!(answer.reason, *want);
            assert!(!warm || cost.count_total == 0, "{} allocations for {want:?}", cost.count_total);
        }
    }
}
