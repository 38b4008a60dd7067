//! An index under test, and the operations of [`generate`](super::generate) put to it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::doubles::{PolicyTable, RecordingSink};
use super::dump::Dump;
use super::generate::{Ask, Credit, Hash, Notice, Op, Report, Setup};
use super::{Inspect, TestIndex};
use crate::index::{Aggregate, CacheState, IndexApi, IndexOptions, Snapshot};
use crate::query::{HashList, Lookup, Query, Row, Strategy};
use crate::time::{Clock, ManualClock};
use crate::update::{Dropped, Entry, Event, Update};

/// Builds the index under test.
pub type Factory<'a> = dyn Fn(IndexOptions) -> Subject + 'a;

/// An index under test.
#[derive(Clone)]
pub enum Subject {
    /// It can be looked into.
    Open(Arc<dyn TestIndex>),
    /// It shows its answers alone.
    Opaque(Arc<dyn IndexApi>),
}

/// What an operation answered, in a form that compares exactly.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// There is nothing to answer.
    Nothing,
    /// Of an ingest.
    Refused(Dropped),
    /// Of a lookup.
    Found {
        /// How it was answered.
        strategy: Strategy,
        /// Rows with the bits of score and probability, and how many entries were captured for each.
        rows: Vec<(Row, [u32; 2], u32)>,
    },
    /// Of affinity.
    Pick(Option<Arc<str>>),
    /// Of everything that counts.
    Counted(Box<Counted>),
}

/// Answers of everything that counts.
#[derive(Debug, Clone, PartialEq)]
pub struct Counted {
    storage: (u64, u64),
    state: CacheState,
    aggregate: Aggregate,
    snapshot: Snapshot,
    by_model: BTreeMap<Arc<str>, u64>,
    known: [bool; 3],
}

/// One index with its own sink and its own memory of lookups.
#[derive(Debug)]
pub struct Side {
    subject: Subject,
    /// What it reported.
    pub sink: Arc<RecordingSink>,
    clock: ManualClock,
    found: Lookup,
    late: Vec<Lookup>,
}

// === impl Subject ===

impl Subject {
    /// An index that can be looked into.
    pub fn open(index: impl IndexApi + Inspect) -> Self {
        Self::Open(Arc::new(index))
    }

    /// An index that shows its answers alone.
    pub fn opaque(index: impl IndexApi) -> Self {
        Self::Opaque(Arc::new(index))
    }

    /// Its answers.
    #[must_use]
    pub fn api(&self) -> &dyn IndexApi {
        match self {
            Self::Open(index) => &**index,
            Self::Opaque(index) => &**index,
        }
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.api().fmt(f)
    }
}

// === impl Side ===

impl Side {
    /// A new index.
    #[must_use]
    pub fn new(factory: &Factory<'_>, setup: &Setup, clock: &ManualClock, policy: &Arc<PolicyTable>) -> Self {
        let sink = Arc::new(RecordingSink::default());
        let subject = factory(setup.options(Arc::new(clock.clone()), policy, sink.clone()));
        Self { subject, sink, clock: clock.clone(), found: Lookup::new(), late: Vec::new() }
    }

    /// Everything it holds, if it shows it.
    #[must_use]
    pub fn dump(&self) -> Option<Dump> {
        match &self.subject {
            Subject::Open(index) => Some(index.dump()),
            Subject::Opaque(_) => None,
        }
    }

    /// Looks into it, if it lets one.
    pub fn check(&self, look: impl FnOnce(&dyn TestIndex) -> Result<(), String>) -> Result<(), String> {
        match &self.subject {
            Subject::Open(index) => look(&**index),
            Subject::Opaque(_) => Ok(()),
        }
    }

    /// Puts `op` to it. Moves of the clock and changes of policy are the caller's.
    pub fn apply(&mut self, op: &Op) -> Answer {
        let index = self.subject.api();
        match op {
            Op::Ingest(report) => Answer::Refused(ingest(index, report, &self.clock)),
            Op::Event(notice) => {
                notify(index, notice, &self.clock);
                Answer::Nothing
            }
            Op::Lookup(ask) => self.lookup(ask),
            Op::CreditLate => {
                if !self.late.is_empty() {
                    self.late.remove(0).credit_hits();
                }
                Answer::Nothing
            }
            Op::Affinity { tenant, model, scheme, seed } => {
                Answer::Pick(index.affinity_hint(tenant, model, scheme, seed))
            }
            Op::Sweep => {
                index.sweep();
                Answer::Nothing
            }
            Op::Clock(_) | Op::Policy(..) => Answer::Nothing,
            Op::Read(tenant, model) => Answer::Counted(Box::new(Counted {
                storage: index.storage_entries(),
                state: index.cache_state(tenant, model),
                aggregate: index.aggregate(),
                snapshot: index.snapshot(),
                by_model: index.entry_counts_by_model(),
                known: [
                    index.has_any_tenant(tenant),
                    index.has_any_tenant_model(tenant, model),
                    index.has_any_tenant_model_scheme(tenant, model, "vllm"),
                ],
            })),
        }
    }

    fn lookup(&mut self, ask: &Ask) -> Answer {
        let index = self.subject.api();
        let blocks = slices(&ask.blocks);
        let query = Query {
            tenant: &ask.tenant,
            model: &ask.model,
            scheme: &ask.scheme,
            adapter: &ask.adapter,
            prefix_hash: &ask.key.0,
            block_hashes: HashList::Slices(&blocks),
            block_token_counts: &ask.counts,
            ttft_ms: ask.ttft_ms,
        };
        if ask.raw {
            index.lookup(&query, &mut self.found);
        } else {
            index.lookup_route(&query, &mut self.found);
        }
        let mut captured = vec![0; self.found.rows.len()];
        for capture in &self.found.captures {
            captured[capture.row as usize] += 1;
        }
        let bits = |row: &Row| [row.score.to_bits(), row.hit_prob.to_bits()];
        let rows = self.found.rows.iter().zip(captured).map(|(row, captured)| (row.clone(), bits(row), captured));
        let answer = Answer::Found { strategy: self.found.strategy, rows: rows.collect() };

        let mut position = 0;
        let mut keep = |mask: u64| {
            position += 1;
            mask >> (position % 64) & 1 == 1
        };
        match ask.credit {
            Credit::Never => {}
            Credit::Now(mask) => {
                self.found.retain(|_| keep(mask));
                self.found.credit_hits();
            }
            Credit::Late(mask) => {
                let mut aside = std::mem::take(&mut self.found);
                aside.retain(|_| keep(mask));
                self.late.push(aside);
                self.late.truncate(4);
            }
        }
        answer
    }
}

fn slices(hashes: &[Hash]) -> Vec<&[u8]> {
    hashes.iter().map(|hash| &*hash.0).collect()
}

/// Puts a report to an index.
pub fn ingest(index: &dyn IndexApi, report: &Report, clock: &dyn Clock) -> Dropped {
    let blocks: Vec<Vec<&[u8]>> = report.entries.iter().map(|entry| slices(&entry.blocks)).collect();
    let entries: Vec<Entry<'_>> = report
        .entries
        .iter()
        .zip(&blocks)
        .map(|(entry, blocks)| Entry {
            adapter: &entry.adapter,
            tier: entry.tier,
            prefix_hash: &entry.key.0,
            token_count: entry.tokens,
            block_hashes: HashList::Slices(blocks),
            block_token_counts: &entry.counts,
        })
        .collect();
    index.ingest(&Update {
        replica: &report.replica,
        model: &report.model,
        tenant: &report.tenant,
        scheme: &report.scheme,
        adapter: &report.adapter,
        timestamp: report.stamp.at(clock.now()),
        entries: &entries,
        stats: report.stats,
    })
}

/// Puts an event to an index.
pub fn notify(index: &dyn IndexApi, notice: &Notice, clock: &dyn Clock) {
    index.apply_event(&Event {
        kind: notice.kind,
        replica: &notice.replica,
        model: &notice.model,
        tenant: &notice.tenant,
        prefix_hash: &notice.hash.0,
        adapter: &notice.adapter,
        timestamp: notice.stamp.at(clock.now()),
    });
}
