//! Plays the steps of a case on an index and compares what it shows with what the case says.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use inferencecache_core::policy::{Effective, RoutePolicy};
use inferencecache_core::query::HashList;
use inferencecache_core::testkit::{Knobs, PolicyTable, RecordingSink, TestIndex, check};
use inferencecache_core::time::Micros;
use inferencecache_core::{
    Answer, Clock, Entry, Event, EventKind, Eviction, IndexOptions, Lookup, ManualClock, Query, Question, Resolvers,
    Router, Strategy, Update,
};

use crate::expect::{compare_rows, equal};
use crate::notation::{Body, Scope, duration, name, number, rows, stats};

/// Where the clock starts: some day in 2023.
pub(crate) const START: Micros = 1_700_000_000_000_000;

/// Makes the index under test.
pub(crate) type Factory = dyn Fn(IndexOptions) -> Arc<dyn TestIndex>;

/// An index and everything around it.
pub(crate) struct World {
    pub(crate) index: Arc<dyn TestIndex>,
    router: Router<dyn TestIndex>,
    gates: Arc<Gates>,
    pub(crate) clock: ManualClock,
    policy: Arc<PolicyTable>,
    pub(crate) sink: Arc<RecordingSink>,
    reserved: Vec<String>,
    pub(crate) scope: Scope,
}

pub(crate) type Outcome = Result<(), String>;

/// Route policies by tenant.
#[derive(Debug, Default)]
struct Gates(Mutex<BTreeMap<String, Effective>>);

impl RoutePolicy for Gates {
    fn effective(&self, tenant: &str) -> Effective {
        self.0.lock().unwrap().get(tenant).copied().unwrap_or_default()
    }
}

impl World {
    pub(crate) fn new(factory: &Factory, words: &[String]) -> Self {
        let (clock, policy) = (ManualClock::at(START), Arc::new(PolicyTable::default()));
        let sink = Arc::new(RecordingSink::default());
        let mut options = IndexOptions {
            clock: Arc::new(clock.clone()),
            resolvers: Resolvers::all(&policy),
            sink: sink.clone(),
            ..IndexOptions::default()
        };
        for word in words {
            match word.split_once('=').expect("option=value") {
                ("ttl", value) => options.ttl = duration(value),
                ("cap", value) => options.max_entries = number(value),
                ("max_stats", value) => options.max_stats = number(value),
                ("max_age", value) => options.rank.tenant_hot_max_age = duration(value),
                ("pressure_weight", value) => options.rank.pressure_weight = number(value),
                ("slo_ms", value) => options.rank.slo_tight_ttft_ms = number(value),
                ("slo_bias", value) => options.rank.slo_tight_bias = number(value),
                ("reserved", value) => options.reserved = value.split(',').map(str::to_owned).collect(),
                (other, _) => panic!("no option is called `{other}`"),
            }
        }
        let reserved = options.reserved.clone();
        let (index, gates) = (factory(options), Arc::new(Gates::default()));
        let router = Router { clock: Arc::new(clock.clone()), ..Router::new(index.clone(), gates.clone()) };
        Self { index, router, gates, clock, policy, sink, reserved, scope: Scope::default() }
    }

    /// Plays one step, then looks whether the derived tables still agree with the entries.
    pub(crate) fn play(&mut self, step: &str) -> Outcome {
        self.step(step)?;
        check::structure(&*self.index, &self.reserved)
    }

    fn step(&mut self, step: &str) -> Outcome {
        if step.starts_with('→') || step.starts_with('<') {
            return self.route(step);
        }
        let (verb, rest) = step.split_once(' ').unwrap_or((step, ""));
        match verb {
            "policy" => self.set_policy(rest),
            "gates" => self.set_gates(rest),
            "scope" => self.scope = self.scope.strip(rest).0,
            "report" => self.report(rest),
            "update" => self.update(rest),
            "stats" => self.report_stats(rest),
            "event" => self.event(rest),
            "clock" => self.clock.advance(Duration::from_micros(duration(&rest[1..]).unsigned_abs())),
            "sweep" => self.index.sweep(),
            "flood" => self.flood(rest),
            "raw" => return self.route(step),
            "reply" => return self.reply(rest),
            "credit" => self.credit(rest),
            "holds" => return self.holds(rest),
            "rows" => return self.stats_rows(rest),
            "tally" => return self.tally(rest),
            "gauges" => return self.gauges(rest),
            "calls" => return self.calls(rest),
            "total" => return self.total(rest),
            "keys" => return self.keys(rest),
            "serving" => return self.serving(rest),
            "affinity" => return self.affinity(rest),
            _ => panic!("no step is called `{verb}`"),
        }
        Ok(())
    }

    // --- writes ---

    fn stamp(&self, age: Option<Micros>) -> Micros {
        age.map_or(0, |age| self.clock.now() - age)
    }

    fn set_policy(&self, text: &str) {
        let (tenant, words) = text.split_once(' ').expect("a tenant");
        let mut knobs = Knobs::default();
        for word in words.split_whitespace() {
            match word.split_once('=').expect("knob=value") {
                ("ttl", value) => knobs.ttl = Some(duration(value)),
                ("eviction", value) => knobs.eviction = Some(Eviction::parse(value)),
                ("quota", value) => knobs.quota = Some(number(value)),
                (other, _) => panic!("no knob is called `{other}`"),
            }
        }
        self.policy.set(tenant, knobs);
    }

    fn set_gates(&self, text: &str) {
        let (tenant, words) = text.split_once(' ').expect("a tenant");
        let mut gates = Effective::default();
        for word in words.split_whitespace() {
            match word.split_once('=').expect("gate=value") {
                ("matched", value) => gates.minimum_matched_tokens = number(value),
                ("score", value) => gates.routing_floor_score = number(value),
                ("hot", value) => gates.enable_tenant_hot = number(value),
                ("affinity", value) => gates.affinity_routing = number(value),
                (other, _) => panic!("no gate is called `{other}`"),
            }
        }
        self.gates.0.lock().unwrap().insert(tenant.to_owned(), gates);
    }

    fn report(&self, text: &str) {
        for hold in text.split(", ") {
            let (scope, replica, body) = self.hold(hold);
            self.ingest(&scope, &replica, "", self.stamp(body.age), &[body], None);
        }
    }

    fn update(&self, text: &str) {
        let (head, items) = text.split_once(" : ").expect("head : items");
        let (mut scope, mut adapter, mut stamp) = (self.scope.clone(), String::new(), 0);
        let mut words = head.split_whitespace();
        let replica = name(words.next().expect("a replica"));
        for word in words {
            if let Some(word) = word.strip_prefix('/') {
                adapter = name(word);
            } else if let Some(word) = word.strip_prefix('@') {
                stamp = self.stamp(Some(duration(word)));
            } else if let Some(word) = word.strip_prefix("stamp=") {
                stamp = number(word);
            } else if let Some(word) = word.strip_prefix("scheme=") {
                scope.scheme = word.to_owned();
            }
        }
        let (mut bodies, mut figures) = (Vec::new(), None);
        for item in items.split(", ") {
            match item.strip_prefix("stats ") {
                Some(words) => figures = Some(stats(words).0),
                None => bodies.push(Body::parse(item).0),
            }
        }
        self.ingest(&scope, &replica, &adapter, stamp, &bodies, figures);
    }

    fn report_stats(&self, text: &str) {
        let (replica, words) = text.split_once(' ').expect("a replica");
        let (figures, age) = stats(words);
        self.ingest(&self.scope, replica, "", self.stamp(age), &[], Some(figures));
    }

    fn ingest(
        &self,
        scope: &Scope,
        replica: &str,
        adapter: &str,
        timestamp: Micros,
        bodies: &[Body],
        stats: Option<inferencecache_core::Stats>,
    ) {
        let blocks: Vec<Vec<&[u8]>> =
            bodies.iter().map(|body| body.blocks.iter().map(String::as_bytes).collect()).collect();
        let entries: Vec<Entry<'_>> = bodies
            .iter()
            .zip(&blocks)
            .map(|(body, blocks)| Entry {
                adapter: &body.adapter,
                tier: body.tier.unwrap_or_default(),
                prefix_hash: body.key.as_bytes(),
                token_count: body.tokens.unwrap_or(i32::from(!body.key.is_empty())),
                block_hashes: HashList::Slices(blocks),
                block_token_counts: &body.counts,
            })
            .collect();
        let Scope { tenant, model, scheme } = scope;
        let _ =
            self.index.ingest(&Update { replica, model, tenant, scheme, adapter, timestamp, entries: &entries, stats });
    }

    fn event(&self, text: &str) {
        let mut words = text.split_whitespace();
        let kind = match words.next().expect("a kind") {
            "PREFIX_ADDED" => EventKind::PrefixAdded,
            "PREFIX_EVICTED" => EventKind::PrefixEvicted,
            "REPLICA_UPDATED" => EventKind::ReplicaUpdated,
            "ALL_CLEARED" => EventKind::AllCleared,
            "UNSPECIFIED" => EventKind::Unspecified,
            other => panic!("no event is called `{other}`"),
        };
        let replica = words.next().expect("a replica");
        let (mut key, mut adapter, mut timestamp) = ("", "", 0);
        for word in words {
            if let Some(word) = word.strip_prefix('/') {
                adapter = word;
            } else if let Some(word) = word.strip_prefix('@') {
                timestamp = self.stamp(Some(duration(word)));
            } else {
                key = word;
            }
        }
        let Scope { tenant, model, .. } = &self.scope;
        let prefix_hash = key.as_bytes();
        self.index.apply_event(&Event { kind, replica, model, tenant, prefix_hash, adapter, timestamp });
    }

    pub(crate) fn hold(&self, text: &str) -> (Scope, String, Body) {
        let (scope, rest) = self.scope.strip(text);
        let (replica, body) = rest.split_once(':').expect("replica:key");
        (scope, name(replica), Body::parse(body).0)
    }

    fn flood(&self, text: &str) {
        let (replica, keys) = text.split_once(' ').expect("a replica");
        let bodies: Vec<Body> =
            (0..number(keys)).map(|n: u32| Body { key: format!("{n:08}"), ..Body::default() }).collect();
        self.ingest(&self.scope, replica, "", 0, &bodies, None);
    }

    // --- lookups ---

    /// Reads `<scope>→body words` and hands the question to `ask`.
    fn with_query<T>(&self, text: &str, ask: impl FnOnce(&Query<'_>) -> T) -> T {
        let (scope, rest) = self.scope.strip(text);
        let (body, words) = Body::parse(rest.strip_prefix('→').expect("a request"));
        let (mut adapter, mut ttft_ms) = (body.adapter.as_str(), 0);
        for word in words.split_whitespace() {
            if let Some(word) = word.strip_prefix('/') {
                adapter = word;
            } else if let Some(word) = word.strip_prefix("ttft=") {
                ttft_ms = number(word);
            }
        }
        let blocks: Vec<&[u8]> = body.blocks.iter().map(String::as_bytes).collect();
        let query = Query {
            tenant: &scope.tenant,
            model: &scope.model,
            scheme: &scope.scheme,
            adapter,
            prefix_hash: body.key.as_bytes(),
            block_hashes: HashList::Slices(&blocks),
            block_token_counts: &body.counts,
            ttft_ms,
        };
        ask(&query)
    }

    /// Asks `raw <scope>→body words`; without `raw`, with fallback and classification.
    fn ask(&self, text: &str) -> Lookup {
        let mut found = Lookup::new();
        match text.strip_prefix("raw ") {
            Some(text) => self.with_query(text, |query| self.index.lookup(query, &mut found)),
            None => self.with_query(text, |query| self.index.lookup_route(query, &mut found)),
        }
        found
    }

    fn route(&self, step: &str) -> Outcome {
        let (request, expected) = step.split_once(" => ").expect("request => answer");
        let found = self.ask(request);
        if request.starts_with("raw ") {
            return compare_rows(&found.rows, &rows(expected, false));
        }
        let (word, listed) = expected.split_once(' ').unwrap_or((expected, ""));
        let strategy = match word {
            "PM" => Strategy::PrefixMatch,
            "TH" => Strategy::TenantHot,
            "NONE" => Strategy::None,
            "UNKNOWN_TENANT" => Strategy::UnknownTenant,
            "UNKNOWN_MODEL" => Strategy::UnknownModel,
            "UNKNOWN_HASH_SCHEME" => Strategy::UnknownHashScheme,
            other => panic!("no strategy is called `{other}`"),
        };
        if found.strategy != strategy {
            return Err(format!("answered {:?} {:?}", found.strategy, found.rows));
        }
        compare_rows(&found.rows, &rows(listed, word == "TH"))
    }

    /// Asks the router, which applies the gates.
    fn reply(&self, text: &str) -> Outcome {
        let (request, expected) = text.split_once(" => ").expect("request => answer");
        let mut answer = Answer::default();
        self.with_query(request, |query| {
            let question = Question {
                tenant: query.tenant,
                model: query.model,
                scheme: query.scheme,
                adapter: query.adapter,
                prefix_hash: query.prefix_hash,
                block_hashes: query.block_hashes,
                block_token_counts: query.block_token_counts,
                ttft_ms: query.ttft_ms,
                ..Question::default()
            };
            self.router.route(&question, None, &mut answer);
        });
        let (code, listed) = expected.split_once(' ').unwrap_or((expected, ""));
        equal(&answer.reason.as_str(), &code, &answer.rows())?;
        if listed.is_empty() {
            // An affinity pick is one row, whichever; every other code without rows has none.
            return equal(&answer.rows().len(), &usize::from(code == "AFFINITY_HINT"), &answer.rows());
        }
        compare_rows(answer.rows(), &rows(listed, false))
    }

    /// `5 keep r1 r2 →p`
    fn credit(&self, text: &str) {
        let (times, rest) = text.split_once(' ').expect("a number of times");
        let request = rest.find(['→', '<']).expect("a request");
        let keep: Vec<&str> = rest[..request].split_whitespace().skip(1).collect();
        for _ in 0..number::<u32>(times) {
            let mut found = self.ask(&rest[request..]);
            found.retain(|row| keep.is_empty() || keep.contains(&&*row.replica));
            found.credit_hits();
        }
    }
}
