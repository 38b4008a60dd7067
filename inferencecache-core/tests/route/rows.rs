//! Runs the rows of `cases/route.json`: fixture, policy and question in, reason and ranked replicas out.

use std::collections::BTreeMap;
use std::time::Duration;

use inferencecache_core::policy::{Policy, StrategyGates};
use inferencecache_core::query::HashList;
use inferencecache_core::tokenizer::TokenizeError;
use inferencecache_core::update::Stats;
use inferencecache_core::{Answer, Question, ReasonCode};
use serde::Deserialize;

use crate::world::{MakeIndex, Report, World, chain_of};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// States by name.
    fixtures: BTreeMap<String, Vec<Told>>,
    cases: Vec<Case>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    /// Numbers of the specification's cases this row stands for.
    id: Vec<String>,
    /// Name of a fixture.
    #[serde(default)]
    given: String,
    /// What is reported on top of it.
    #[serde(default)]
    reports: Vec<Told>,
    /// The policy of the question's tenant; none when absent.
    policy: Option<Knobs>,
    #[serde(default)]
    block_size: Option<u32>,
    /// What the tokenizer makes of every text; no tokenizer when absent.
    tokenizer: Option<Output>,
    /// Whether the index is swept before the question.
    #[serde(default)]
    sweep: bool,
    ask: Ask,
    expect: Expect,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Told {
    replica: String,
    tenant: Option<String>,
    model: Option<String>,
    scheme: Option<String>,
    adapter: String,
    /// Seconds.
    age: u64,
    key: Option<String>,
    count: i32,
    chain: Vec<String>,
    /// Tokens from which the chain is fingerprinted.
    tokens: Option<Range>,
    per_block: Option<i32>,
    hit_rate: Option<f32>,
    pressure: Option<f32>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Range {
    from: u32,
    len: u32,
}

#[derive(Debug, Deserialize)]
enum Output {
    #[serde(rename = "tokens")]
    Tokens(Range),
    #[serde(rename = "error")]
    Error,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
struct Knobs {
    minimum_prefix_tokens: i32,
    minimum_matched_tokens: i32,
    routing_floor_score: Option<f32>,
    lookup_timeout_ms: i32,
    eviction: String,
    enable_chain_matching: Option<bool>,
    require_chain: Option<bool>,
    enable_tenant_hot: Option<bool>,
    affinity_routing: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Ask {
    tenant: Option<String>,
    model: Option<String>,
    scheme: Option<String>,
    adapter: String,
    key: String,
    key_tokens: i32,
    chain: Vec<String>,
    counts: Vec<i32>,
    tokens: Option<Range>,
    text: String,
    ttft: i32,
    /// Whether the caller's deadline has passed.
    late: bool,
    /// How many times it is asked; 0 is once.
    times: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expect {
    reason: String,
    /// `replica matched score probability tier`, shortened from the right; `*` is any.
    #[serde(default)]
    rows: Vec<String>,
    /// Number of echoed tokens.
    #[serde(default)]
    echo: usize,
    /// Whether the index was asked; when absent, it was unless the code says otherwise.
    index: Option<bool>,
    /// Credited hits by replica; unchecked when absent.
    credits: Option<BTreeMap<String, u64>>,
}

/// Runs every row. One answer is used for all of them, so that none may show what an earlier one left.
pub(crate) fn run(make: MakeIndex) {
    let file: File = serde_json::from_str(include_str!("../cases/route.json")).expect("the rows parse");
    let mut answer = Answer::new();
    for case in &file.cases {
        let fixture = match case.given.as_str() {
            "" => &[][..],
            name => file.fixtures.get(name).unwrap_or_else(|| panic!("{:?}: no fixture {name}", case.id)),
        };
        case.run(make, fixture, &mut answer);
    }
    assert!(file.cases.len() > 100, "only {} rows", file.cases.len());
}

impl Case {
    fn run(&self, make: MakeIndex, fixture: &[Told], answer: &mut Answer) {
        let mut world = World::new(make);
        for told in fixture.iter().chain(&self.reports) {
            world.report(&told.report());
        }
        let ask = &self.ask;
        let tenant = ask.tenant.as_deref().unwrap_or("t");
        if let Some(knobs) = &self.policy {
            world.policy(knobs.policy(tenant));
        }
        if let Some(size) = self.block_size {
            world.block_size(size);
        }
        if let Some(output) = &self.tokenizer {
            world.tokenizer(match output {
                Output::Tokens(range) => Ok(range.tokens()),
                Output::Error => Err(TokenizeError::Failed),
            });
        }
        if self.sweep {
            world.index().sweep();
        }
        let chain: Vec<Vec<u8>> = ask.chain.iter().map(|hash| bytes(hash)).collect();
        let question = Question {
            tenant,
            model: ask.model.as_deref().unwrap_or("m"),
            scheme: ask.scheme.as_deref().unwrap_or("vllm"),
            adapter: &ask.adapter,
            prefix_hash: &bytes(&ask.key),
            prefix_token_count: ask.key_tokens,
            block_hashes: HashList::Vecs(&chain),
            block_token_counts: &ask.counts,
            token_ids: &ask.tokens.map(Range::tokens).unwrap_or_default(),
            prompt_text: &ask.text,
            ttft_ms: ask.ttft,
        };
        for _ in 0..ask.times.max(1) {
            let asked = world.asked();
            world.router.route(&question, ask.late.then_some(1), answer);
            self.check(answer, world.asked() > asked);
        }
        if let Some(credits) = &self.expect.credits {
            assert_eq!(&world.credits(), credits, "{self:#?}");
        }
    }

    fn check(&self, answer: &Answer, asked: bool) {
        let expect = &self.expect;
        assert_eq!(answer.reason.as_str(), expect.reason, "{self:#?}\n{answer:#?}");
        let before = matches!(answer.reason, ReasonCode::Timeout | ReasonCode::PolicyRequiresChain);
        let index = expect.index.unwrap_or(!before);
        assert_eq!((asked, answer.consulted), (index, index), "whether the index was asked: {self:#?}");
        assert_eq!(answer.tokens.len(), expect.echo, "echo: {self:#?}");
        assert_eq!(answer.rows().len(), expect.rows.len(), "{self:#?}\n{:#?}", answer.rows());
        for (row, want) in answer.rows().iter().zip(&expect.rows) {
            let got = [
                row.replica.to_string(),
                row.matched_tokens.to_string(),
                row.score.to_string(),
                row.hit_prob.to_string(),
                row.tier.to_string(),
            ];
            for (got, want) in got.iter().zip(want.split_whitespace()) {
                assert!(same(got, want), "row {want:?}, got {got:?}: {self:#?}\n{:#?}", answer.rows());
            }
        }
    }
}

impl Told {
    fn report(&self) -> Report {
        let default = Report::default();
        let per_block = self.per_block.unwrap_or(default.tokens_per_block);
        let chain = match self.tokens {
            Some(tokens) => chain_of(&tokens.tokens(), per_block.try_into().expect("a block size")),
            None => self.chain.iter().map(|hash| bytes(hash)).collect(),
        };
        let stats = self.hit_rate.is_some() || self.pressure.is_some();
        Report {
            replica: self.replica.clone(),
            tenant: self.tenant.clone().unwrap_or(default.tenant),
            model: self.model.clone().unwrap_or(default.model),
            scheme: self.scheme.clone().unwrap_or(default.scheme),
            adapter: self.adapter.clone(),
            age: Duration::from_secs(self.age),
            prefix: self.key.as_deref().map(|key| (bytes(key), self.count)),
            chain,
            tokens_per_block: per_block,
            stats: stats.then(|| Stats {
                hit_rate: self.hit_rate.unwrap_or(0.0),
                pressure: self.pressure.unwrap_or(0.0),
                ..Stats::default()
            }),
        }
    }
}

impl Knobs {
    fn policy(&self, namespace: &str) -> Policy {
        Policy {
            namespace: namespace.to_owned(),
            eviction_ttl_ns: 0,
            minimum_prefix_tokens: self.minimum_prefix_tokens,
            minimum_matched_tokens: self.minimum_matched_tokens,
            routing_floor_score: self.routing_floor_score,
            lookup_timeout_ms: self.lookup_timeout_ms,
            eviction: self.eviction.clone(),
            strategy: Some(StrategyGates {
                enable_chain_matching: self.enable_chain_matching,
                require_chain: self.require_chain,
                enable_tenant_hot: self.enable_tenant_hot,
            }),
            affinity_routing: self.affinity_routing,
        }
    }
}

impl Range {
    fn tokens(self) -> Vec<u32> {
        (self.from..self.from + self.len).collect()
    }
}

/// Text as it is, or hexadecimal after `0x`.
fn bytes(text: &str) -> Vec<u8> {
    match text.strip_prefix("0x") {
        Some(hex) => (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).expect("hex")).collect(),
        None => text.as_bytes().to_vec(),
    }
}

/// Equal, or numbers that agree to four digits.
fn same(got: &str, want: &str) -> bool {
    let close = |got: f64, want: f64| (got - want).abs() <= want.abs() * 1e-3;
    want == "*" || got == want || matches!((got.parse(), want.parse()), (Ok(got), Ok(want)) if close(got, want))
}
