//! The index against the naive oracle, and the properties that hold whatever the input.
//!
//! The letters are those of the acceptance text: M monotone, I idempotent, O independent of order, S separate, E extreme.

mod callbacks;
mod differential;
mod extremes;
mod image;
mod isolation;
mod monotone;
mod order;

use std::sync::Arc;

use inferencecache_core::query::HashList;
use inferencecache_core::testkit::generate::{Ask, EPOCH, Names, Op, Shape};
use inferencecache_core::testkit::subject::{ingest, notify};
use inferencecache_core::testkit::{Dump, Inspect, PolicyTable, RecordingSink};
use inferencecache_core::{Clock, Index, IndexApi, IndexOptions, Lookup, ManualClock, Query, Resolvers};
use rand::SeedableRng;
use rand::rngs::SmallRng;

/// An index with its surroundings.
struct World {
    index: Arc<Index>,
    clock: ManualClock,
    policy: Arc<PolicyTable>,
    sink: Arc<RecordingSink>,
    names: Names,
}

impl World {
    /// An unbounded one with default options.
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut IndexOptions)) -> Self {
        let (clock, policy) = (ManualClock::at(EPOCH), Arc::new(PolicyTable::default()));
        let sink = Arc::new(RecordingSink::default());
        let mut options = IndexOptions {
            max_entries: 0,
            clock: Arc::new(clock.clone()),
            resolvers: Resolvers::all(&policy),
            sink: sink.clone(),
            ..IndexOptions::default()
        };
        change(&mut options);
        Self { index: Arc::new(Index::new(options)), clock, policy, sink, names: Names::new(Shape::Small) }
    }

    /// Does what `op` says, lookups credited and forgotten.
    fn apply(&self, op: &Op) {
        match op {
            Op::Ingest(report) => drop(ingest(&*self.index, report, &self.clock)),
            Op::Event(notice) => notify(&*self.index, notice, &self.clock),
            Op::Lookup(_) => self.lookup(op).credit_hits(),
            Op::Sweep => self.index.sweep(),
            Op::Clock(by) => self.clock.set(self.clock.now() + by),
            Op::Policy(tenant, knobs) => self.policy.set(tenant, *knobs),
            Op::CreditLate | Op::Affinity { .. } | Op::Read(..) => {}
        }
    }

    /// Plays so many random operations.
    fn play(&self, rng: &mut SmallRng, ops: usize) {
        for _ in 0..ops {
            self.apply(&Op::random(rng, &self.names));
        }
    }

    /// The answer to a lookup operation; the empty one to any other.
    fn lookup(&self, op: &Op) -> Lookup {
        let mut found = Lookup::new();
        if let Op::Lookup(ask) = op {
            let blocks: Vec<&[u8]> = ask.blocks.iter().map(|hash| &*hash.0).collect();
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
            self.index.lookup_route(&query, &mut found);
        }
        found
    }

    /// No tenant has a budget any more.
    fn lift_budgets(&self) {
        for tenant in &self.names.tenants {
            self.policy.edit(tenant, |knobs| knobs.quota = None);
        }
    }

    fn dump(&self) -> Dump {
        self.index.dump()
    }
}

/// The next random operation that `wanted` accepts.
fn draw(rng: &mut SmallRng, names: &Names, wanted: impl Fn(&Op) -> bool) -> Op {
    loop {
        let op = Op::random(rng, names);
        if wanted(&op) {
            return op;
        }
    }
}

fn is_lookup(op: &Op) -> bool {
    matches!(op, Op::Lookup(_))
}

/// One generator a seed.
fn rngs(seeds: u64) -> impl Iterator<Item = (u64, SmallRng)> {
    (0..seeds).map(|seed| (seed, SmallRng::seed_from_u64(seed)))
}

/// The same question with another target.
fn with_target(ask: &Ask, ttft_ms: i32) -> Op {
    Op::Lookup(Ask { ttft_ms, ..ask.clone() })
}
