//! Engine payloads as data: each case feeds encoded batches to decoder, map and window, and lists the calls that must come
//! out and what must be counted.
//!
//! `data/kv_events_samples.json` holds cases `subscriber:1-84` in order; `data/field_cases.json` those seen in production.

use std::collections::BTreeMap;
use std::path::Path;

use crate::calls::{self, unhex};
use inferencecache_wire::kvevents::{BatchHead, BatchSink, EngineDecoder, EngineEvent, Malformed, MsgpackDecoder};
use inferencecache_wire::subscriber::blockmap::{BlockMap, Outcome, Report, StreamId};
use inferencecache_wire::subscriber::config::{RemovalPolicy, Rules, UnknownParent};
use inferencecache_wire::subscriber::window::{Outgoing, Window};
use serde::Deserialize;
use serde_json::Value;

#[derive(Debug, Deserialize)]
struct File {
    cases: Vec<Case>,
}

#[derive(Debug, Deserialize)]
struct Case {
    id: String,
    title: String,
    #[serde(default)]
    config: Config,
    batches: Vec<String>,
    expect: Vec<Value>,
    #[serde(default)]
    counters: BTreeMap<String, u64>,
    /// Digests whose entries must still be beyond doubt at the end.
    confirmed: Option<Vec<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    #[serde(default)]
    l2: bool,
    unknown_parent: Option<String>,
    removal_policy: Option<String>,
    #[serde(default)]
    lora_adapter_names: BTreeMap<i64, String>,
    lora_name_from_events: Option<bool>,
    stream_from_seq0: Option<bool>,
    /// The window is flushed after each batch of this list.
    #[serde(default)]
    flush_after: Vec<usize>,
}

impl Config {
    fn rules(&self) -> Rules {
        let mut rules = Rules { ignore_block_removed: self.l2, ..Rules::default() };
        rules.lora_adapter_names = self.lora_adapter_names.iter().map(|(&id, name)| (id, name.clone())).collect();
        rules.lora_name_from_events = self.lora_name_from_events.unwrap_or(true);
        if self.unknown_parent.as_deref() == Some("root") {
            rules.unknown_parent = UnknownParent::Root;
        }
        if self.removal_policy.as_deref() == Some("first") {
            rules.removal_policy = RemovalPolicy::First;
        }
        rules
    }
}

/// Decoder, map and window without sequence numbers, as the cases have it: one stream whatever rank the batches name.
struct Machine {
    decoder: MsgpackDecoder,
    inner: Inner,
    bad_batches: u64,
}

struct Inner {
    map: BlockMap,
    stream: StreamId,
    window: Window,
    outcome: Outcome,
    at: i64,
    ordinal: u64,
    malformed: u64,
    out: Vec<Outgoing>,
}

impl BatchSink for Inner {
    fn batch(&mut self, head: BatchHead) {
        self.at = head.timestamp;
        self.ordinal += 1;
    }

    fn event(&mut self, event: Result<EngineEvent<'_>, Malformed>) {
        let Ok(event) = event else {
            self.malformed += 1;
            return self.map.malformed(self.stream);
        };
        self.map.apply(self.stream, &event, &mut self.outcome);
        for op in self.outcome.ops.drain(..) {
            self.window.push(op, self.at, self.ordinal, &mut self.out);
        }
    }
}

impl Machine {
    fn new(rules: Rules, fresh: bool) -> Self {
        let mut map = BlockMap::new(rules);
        let (stream, _) = map.stream(0, None);
        map.set_fresh(stream, fresh);
        let inner = Inner {
            map,
            stream,
            window: Window::default(),
            outcome: Outcome::default(),
            at: 0,
            ordinal: 0,
            malformed: 0,
            out: Vec::new(),
        };
        Self { decoder: MsgpackDecoder::default(), inner, bad_batches: 0 }
    }

    fn feed(&mut self, payload: &[u8]) {
        if self.decoder.decode(payload, &mut self.inner).is_err() {
            self.bad_batches += 1;
            self.inner.map.lost_batch(0);
        }
    }

    fn flush(&mut self) {
        self.inner.window.flush(&mut self.inner.out);
    }

    /// The calls, in the shape of the sample file.
    fn calls(&self) -> Vec<Value> {
        self.inner.out.iter().map(|out| calls::call(&out.delivery, &self.inner.map)).collect()
    }

    /// The counters that are not zero, under the names of the sample file.
    fn counters(&self) -> BTreeMap<String, u64> {
        [("batch_errors", self.bad_batches), ("malformed", self.inner.malformed)]
            .into_iter()
            .chain(calls::tallies(self.inner.map.tally()))
            .filter(|&(_, count)| count > 0)
            .map(|(name, count)| (name.to_owned(), count))
            .collect()
    }
}

fn hex(report: &Report) -> String {
    format!("{:016x}", report.digest)
}

fn cases(name: &str) -> Vec<Case> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    let text = std::fs::read_to_string(path).expect("the case file");
    serde_json::from_str::<File>(&text).expect("cases").cases
}

fn run(case: &Case) -> Machine {
    let mut machine = Machine::new(case.config.rules(), case.config.stream_from_seq0.unwrap_or(true));
    for (i, payload) in case.batches.iter().enumerate() {
        machine.feed(&unhex(payload));
        if case.config.flush_after.contains(&i) {
            machine.flush();
        }
    }
    machine.flush();
    machine
}

/// Returns what differs.
fn check(case: &Case) -> Vec<String> {
    let machine = run(case);
    let mut wrong = Vec::new();
    let calls = machine.calls();
    if calls != case.expect {
        wrong.push(format!("{} {}\n  expected {:?}\n  got      {calls:?}", case.id, case.title, case.expect));
    }
    let counters = machine.counters();
    if counters != case.counters {
        wrong.push(format!("{} {}\n  expected {:?}\n  counted  {counters:?}", case.id, case.title, case.counters));
    }
    if let Some(expected) = &case.confirmed {
        let mut confirmed: Vec<String> = machine.inner.map.confirmed().map(|report| hex(&report)).collect();
        confirmed.sort_unstable();
        if confirmed != *expected {
            wrong.push(format!("{} {}\n  expected {expected:?}\n  beyond doubt {confirmed:?}", case.id, case.title));
        }
    }
    wrong
}

// subscriber:1-84
#[test]
fn the_published_payload_cases_give_the_published_calls() {
    let cases = cases("kv_events_samples.json");
    assert_eq!(cases.len(), 84);
    let wrong: Vec<String> = cases.iter().flat_map(check).collect();
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
}

// field:1-12 field:14 field:15
#[test]
fn faults_seen_in_production_stay_without_effect() {
    let cases = cases("field_cases.json");
    assert_eq!(cases.len(), 15);
    let wrong: Vec<String> = cases.iter().flat_map(check).collect();
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
}
