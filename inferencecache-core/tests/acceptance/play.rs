//! Plays the steps of a case on an index and compares what it shows with what the case says.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use inferencecache_core::query::HashList;
use inferencecache_core::testkit::{Call, Dump, DumpEntry, Knobs, PolicyTable, RecordingSink, TestIndex, check};
use inferencecache_core::time::Micros;
use inferencecache_core::{
    Clock, Entry, Event, EventKind, Eviction, IndexOptions, Lookup, ManualClock, Query, Resolvers, Row, Strategy,
    Update,
};

use crate::notation::{Body, ExpectedRow, Scope, duration, name, number, rows, stats};

/// Where the clock starts: some day in 2023.
pub(crate) const START: Micros = 1_700_000_000_000_000;

/// Makes the index under test.
pub(crate) type Factory = dyn Fn(IndexOptions) -> Arc<dyn TestIndex>;

/// An index and everything around it.
pub(crate) struct World {
    pub(crate) index: Arc<dyn TestIndex>,
    pub(crate) clock: ManualClock,
    policy: Arc<PolicyTable>,
    sink: Arc<RecordingSink>,
    reserved: Vec<String>,
    scope: Scope,
}

type Outcome = Result<(), String>;

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
        Self { index: factory(options), clock, policy, sink, reserved, scope: Scope::default() }
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
            "scope" => self.scope = self.scope.strip(rest).0,
            "report" => self.report(rest),
            "update" => self.update(rest),
            "stats" => self.report_stats(rest),
            "event" => self.event(rest),
            "clock" => self.clock.advance(Duration::from_micros(duration(&rest[1..]).unsigned_abs())),
            "sweep" => self.index.sweep(),
            "flood" => self.flood(rest),
            "raw" => return self.route(step),
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

    fn flood(&self, text: &str) {
        let (replica, keys) = text.split_once(' ').expect("a replica");
        let bodies: Vec<Body> =
            (0..number(keys)).map(|n: u32| Body { key: format!("{n:08}"), ..Body::default() }).collect();
        self.ingest(&self.scope, replica, "", 0, &bodies, None);
    }

    // --- lookups ---

    /// Asks `raw <scope>→body words`; without `raw`, through the route.
    fn ask(&self, text: &str) -> Lookup {
        let raw = text.strip_prefix("raw ");
        let (scope, rest) = self.scope.strip(raw.unwrap_or(text));
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
        assert_eq!(body.is_chain(), query.is_chain());
        let mut found = Lookup::new();
        if raw.is_some() {
            self.index.lookup(&query, &mut found);
        } else {
            self.index.lookup_route(&query, &mut found);
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

    // --- state ---

    fn hold(&self, text: &str) -> (Scope, String, Body) {
        let (scope, rest) = self.scope.strip(text);
        let (replica, body) = rest.split_once(':').expect("replica:key");
        (scope, name(replica), Body::parse(body).0)
    }

    fn holds(&self, text: &str) -> Outcome {
        let dump = self.index.dump();
        let listed: Vec<_> = text.split(", ").filter(|&hold| hold != "nothing").map(|hold| self.hold(hold)).collect();
        for (scope, replica, body) in &listed {
            let Some(entry) = dump.entries.iter().find(|entry| is_hold(entry, scope, replica, body)) else {
                return Err(format!("{replica}:{} in {scope:?} is missing among {:#?}", body.key, dump.entries));
            };
            let age = self.clock.now() - entry.last_seen;
            let agrees = body.tokens.is_none_or(|tokens| tokens == entry.token_count)
                && body.age.is_none_or(|wanted| wanted == age)
                && body.tier.is_none_or(|tier| tier == entry.tier)
                && body.credits.is_none_or(|credits| credits == entry.access_count);
            if !agrees {
                return Err(format!("stored, {age} µs old: {entry:?}"));
            }
        }
        equal(&dump.entries.len(), &listed.len(), &dump.entries)
    }

    /// `r@20m^0`: liveness and report.
    fn stats_rows(&self, text: &str) -> Outcome {
        let dump = self.index.dump();
        let listed: Vec<&str> = text.split(", ").filter(|&row| row != "nothing").collect();
        for row in &listed {
            let (scope, rest) = self.scope.strip(row);
            let (rest, reported) = rest.split_once('^').map_or((rest, None), |(r, age)| (r, Some(duration(age))));
            let (replica, seen) = rest.split_once('@').map_or((rest, None), |(r, age)| (r, Some(duration(age))));
            let found = dump
                .stats
                .iter()
                .find(|row| *row.tenant == *scope.tenant && *row.model == *scope.model && *row.replica == *replica);
            let now = self.clock.now();
            let agrees = found.is_some_and(|row| {
                seen.is_none_or(|age| now - row.last_seen == age)
                    && reported.is_none_or(|age| now - row.stats_reported == age)
            });
            if !agrees {
                return Err(format!("at {now}: {:#?}", dump.stats));
            }
        }
        equal(&dump.stats.len(), &listed.len(), &dump.stats)
    }

    fn tally(&self, text: &str) -> Outcome {
        let totals = self.sink.totals();
        let mut got: BTreeMap<String, u64> = BTreeMap::new();
        got.extend(totals.evicted.iter().map(|((algorithm, cause), n)| (format!("{algorithm}/{cause}"), *n)));
        got.extend(totals.over_quota.iter().map(|(tenant, n)| (format!("over_entries[{tenant}]"), *n)));
        equal(&got, &counts(text, ", ", ' '), &())
    }

    fn gauges(&self, text: &str) -> Outcome {
        equal(&self.sink.totals().gauges, &counts(text, " ", '='), &())
    }

    fn calls(&self, text: &str) -> Outcome {
        let calls = self.sink.take_calls();
        let got: Vec<String> = calls.iter().map(|call: &Call| format!("{call:?}")).collect();
        let want: Vec<&str> = text.split("; ").filter(|&call| call != "nothing").collect();
        equal(&got, &want.into_iter().map(str::to_owned).collect(), &())
    }

    fn total(&self, text: &str) -> Outcome {
        let (total, reserved) = text.split_once(" reserved ").expect("total reserved");
        equal(&self.index.storage_entries(), &(number(total), number(reserved)), &())
    }

    fn keys(&self, text: &str) -> Outcome {
        let want: BTreeMap<String, u64> = counts(text, " ", '=').into_iter().filter(|&(_, count)| count > 0).collect();
        let got = self.index.aggregate().by_tenant;
        equal(&got.into_iter().map(|(tenant, count)| (tenant.to_string(), count)).collect(), &want, &())
    }

    fn serving(&self, text: &str) -> Outcome {
        let (scope, listed) = self.scope.strip(text);
        let dump: Dump = self.index.dump();
        let key = (&*scope.tenant, &*scope.model, &*scope.scheme);
        let got = dump.serving().remove(&key).unwrap_or_default();
        let got = got.into_iter().map(|(replica, count)| (replica.to_owned(), count)).collect();
        equal(&got, &counts(listed.trim().trim_start_matches("nobody"), " ", '='), &())
    }

    fn affinity(&self, text: &str) -> Outcome {
        let (seed, want) = text.split_once("=> ").expect("seed => replica");
        let digits = seed.trim().as_bytes().chunks(2);
        let seed: Vec<u8> =
            digits.map(|pair| u8::from_str_radix(str::from_utf8(pair).expect("hex"), 16).expect("hex")).collect();
        let Scope { tenant, model, scheme } = &self.scope;
        let got = self.index.affinity_hint(tenant, model, scheme, &seed);
        equal(&got.as_deref().unwrap_or("nobody"), &want, &())
    }
}

fn is_hold(entry: &DumpEntry, scope: &Scope, replica: &str, body: &Body) -> bool {
    entry.key() == (&*scope.tenant, &*scope.model, &*scope.scheme, &*body.adapter, body.key.as_bytes())
        && *entry.replica == *replica
}

/// Reads `name 1, other 2` with these separators.
fn counts(text: &str, between: &str, inside: char) -> BTreeMap<String, u64> {
    let words = text.split(between).filter(|word| !word.is_empty() && *word != "nothing");
    words.map(|word| word.split_once(inside).expect("name and count")).map(|(n, c)| (n.to_owned(), number(c))).collect()
}

fn equal<T: PartialEq + Debug>(got: &T, want: &T, context: &impl Debug) -> Outcome {
    if got == want { Ok(()) } else { Err(format!("got {got:?}, want {want:?} {context:?}")) }
}

pub(crate) fn compare_rows(got: &[Row], want: &[ExpectedRow]) -> Outcome {
    let agrees = |(row, want): (&Row, &ExpectedRow)| {
        *row.replica == *want.replica
            && same_figure(row.score, want.score)
            && want.details.is_none_or(|(matched, prob, tier)| {
                row.matched_tokens == matched && same_figure(row.hit_prob, prob) && row.tier == tier
            })
    };
    if got.len() == want.len() && got.iter().zip(want).all(agrees) { Ok(()) } else { Err(format!("rows {got:#?}")) }
}

/// Equal to four significant digits.
fn same_figure(got: f32, want: f64) -> bool {
    format!("{:.3e}", f64::from(got)) == format!("{want:.3e}")
}
