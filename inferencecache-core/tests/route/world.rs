//! An index with something in it, a router in front of it, and doubles that watch both.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use inferencecache_core::fingerprint;
use inferencecache_core::index::{IndexApi, IndexOptions};
use inferencecache_core::policy::{Policy, PolicySet, PolicyStore, RoutePolicy};
use inferencecache_core::query::{HashList, Lookup, Query};
use inferencecache_core::resolve::Resolvers;
use inferencecache_core::testkit::{Hooked, Hooks, TestIndex};
use inferencecache_core::tokenizer::{TokenizeError, Tokenizer};
use inferencecache_core::update::{Dropped, Entry, Stats, Update};
use inferencecache_core::{Answer, ManualClock, Question, Router};
use parking_lot::Mutex;

/// Any date will do.
pub(crate) const NOW: i64 = 1_700_000_000_000_000;

/// Makes an empty index.
pub(crate) type MakeIndex = fn(IndexOptions) -> Box<dyn TestIndex>;

/// One server's worth of core.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) clock: ManualClock,
    pub(crate) policies: Arc<PolicyStore>,
    pub(crate) router: Router<Hooked<Spy>>,
    /// The index behind the spy, which shows what it credited.
    index: Arc<dyn TestIndex>,
}

/// One report, with the keys that are the same everywhere filled in.
#[derive(Debug, Clone)]
pub(crate) struct Report {
    pub(crate) replica: String,
    pub(crate) tenant: String,
    pub(crate) model: String,
    pub(crate) scheme: String,
    pub(crate) adapter: String,
    pub(crate) age: Duration,
    pub(crate) prefix: Option<(Vec<u8>, i32)>,
    pub(crate) chain: Vec<Vec<u8>>,
    pub(crate) tokens_per_block: i32,
    pub(crate) stats: Option<Stats>,
}

impl Default for Report {
    fn default() -> Self {
        Self {
            replica: "r1".to_owned(),
            tenant: "t".to_owned(),
            model: "m".to_owned(),
            scheme: "vllm".to_owned(),
            adapter: String::new(),
            age: Duration::ZERO,
            prefix: None,
            chain: Vec::new(),
            tokens_per_block: 16,
            stats: None,
        }
    }
}

impl World {
    pub(crate) fn new(make: MakeIndex) -> Self {
        Self::with_cap(make, 0)
    }

    pub(crate) fn with_cap(make: MakeIndex, max_entries: u64) -> Self {
        let clock = ManualClock::at(NOW);
        let policies = Arc::new(PolicyStore::new());
        let options = IndexOptions {
            max_entries,
            resolvers: Resolvers::all(&policies),
            clock: Arc::new(clock.clone()),
            ..IndexOptions::default()
        };
        let index: Arc<dyn TestIndex> = make(options).into();
        let hooks = Spy { clock: clock.clone(), asked: AtomicUsize::new(0), slow: AtomicU64::new(0) };
        let hooked = Hooked { index: index.clone(), hooks };
        let mut router = Router::new(Arc::new(hooked), policies.clone() as Arc<dyn RoutePolicy>);
        router.clock = Arc::new(clock.clone());
        Self { clock, policies, router, index }
    }

    pub(crate) fn report(&self, report: &Report) {
        let (prefix_hash, token_count) =
            report.prefix.as_ref().map_or((&[][..], 0), |(hash, count)| (&hash[..], *count));
        let counts = vec![report.tokens_per_block; report.chain.len()];
        let entry = Entry {
            prefix_hash,
            token_count,
            block_hashes: HashList::Vecs(&report.chain),
            block_token_counts: &counts,
            ..Entry::default()
        };
        let empty = report.prefix.is_none() && report.chain.is_empty();
        let dropped = self.index().ingest(&Update {
            replica: &report.replica,
            model: &report.model,
            tenant: &report.tenant,
            scheme: &report.scheme,
            adapter: &report.adapter,
            timestamp: NOW - i64::try_from(report.age.as_micros()).expect("a short age"),
            entries: if empty { &[] } else { std::slice::from_ref(&entry) },
            stats: report.stats,
        });
        assert_eq!(dropped, Dropped::default());
    }

    /// Puts one policy in force, and nothing else.
    pub(crate) fn policy(&self, policy: Policy) {
        self.policies.replace(PolicySet::new([policy], []));
    }

    pub(crate) fn tokenizer(&mut self, tokens: Result<Vec<u32>, TokenizeError>) -> Arc<Double> {
        let double = Arc::new(Double { tokens, seen: Mutex::default() });
        self.router.tokenizer = Some(double.clone());
        double
    }

    pub(crate) fn block_size(&mut self, size: u32) {
        self.router.block_size = NonZeroU32::new(size).expect("a block size above 0");
    }

    pub(crate) fn index(&self) -> &dyn TestIndex {
        &*self.index
    }

    /// How often the router asked the index for anything.
    pub(crate) fn asked(&self) -> usize {
        self.router.index.hooks.asked.load(Ordering::SeqCst)
    }

    /// Makes every lookup take this long on the world's clock.
    pub(crate) fn slow_down(&self, by: Duration) {
        self.router.index.hooks.slow.store(by.as_micros().try_into().expect("a short time"), Ordering::SeqCst);
    }

    pub(crate) fn ask(&self, question: &Question<'_>) -> Answer {
        let mut answer = Answer::new();
        self.router.route(question, None, &mut answer);
        answer
    }

    /// Credited hits by replica, those without any left out.
    pub(crate) fn credits(&self) -> BTreeMap<String, u64> {
        let mut credits = BTreeMap::new();
        for entry in self.index().dump().entries {
            if entry.access_count > 0 {
                *credits.entry(entry.replica.to_string()).or_default() += entry.access_count;
            }
        }
        credits
    }
}

/// The chain of `tokens`, as a producer reports it.
pub(crate) fn chain_of(tokens: &[u32], block_size: u32) -> Vec<Vec<u8>> {
    let (mut keys, mut counts) = (Vec::new(), Vec::new());
    fingerprint::chain(tokens, NonZeroU32::new(block_size).expect("not 0"), &mut keys, &mut counts);
    keys.into_iter().map(Vec::from).collect()
}

/// A tokenizer that has its answer ready.
#[derive(Debug)]
pub(crate) struct Double {
    tokens: Result<Vec<u32>, TokenizeError>,
    pub(crate) seen: Mutex<Vec<(String, String)>>,
}

impl Tokenizer for Double {
    fn encode_chat(&self, model: &str, text: &str) -> Result<Vec<u32>, TokenizeError> {
        self.seen.lock().push((model.to_owned(), text.to_owned()));
        self.tokens.clone()
    }
}

/// Counts how often the index is asked for a route, and can make it slow.
#[derive(Debug)]
pub(crate) struct Spy {
    clock: ManualClock,
    asked: AtomicUsize,
    slow: AtomicU64,
}

impl Hooks for Spy {
    fn lookup_route(&self, index: &dyn IndexApi, query: &Query<'_>, out: &mut Lookup) {
        self.asked.fetch_add(1, Ordering::SeqCst);
        index.lookup_route(query, out);
        self.clock.advance(Duration::from_micros(self.slow.load(Ordering::SeqCst)));
    }

    fn affinity_hint(
        &self,
        index: &dyn IndexApi,
        tenant: &str,
        model: &str,
        scheme: &str,
        seed: &[u8],
    ) -> Option<Arc<str>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        index.affinity_hint(tenant, model, scheme, seed)
    }

    fn lookup(&self, _index: &dyn IndexApi, _query: &Query<'_>, _out: &mut Lookup) {
        panic!("the router has no use for the raw lookup");
    }
}
