//! Sinks and resolvers may look at the index that calls them: none is called under its lock.

use std::sync::{Arc, OnceLock, Weak, mpsc};
use std::thread;
use std::time::Duration;

use inferencecache_core::metrics::{EvictionCause, MetricsSink};
use inferencecache_core::resolve::{EvictionResolver, QuotaResolver, TtlResolver};
use inferencecache_core::testkit::generate::Op;
use inferencecache_core::time::Micros;
use inferencecache_core::{Eviction, Index, IndexApi, Resolvers};

use super::{World, rngs};

/// Asks its index something that needs the lock, whatever it is called for.
#[derive(Debug, Default)]
struct Curious(OnceLock<Weak<Index>>);

impl Curious {
    fn look(&self) {
        if let Some(index) = self.0.get().and_then(Weak::upgrade) {
            let _ = (index.aggregate(), index.snapshot(), index.cache_state("t", "m"));
        }
    }
}

impl MetricsSink for Curious {
    fn set_index_entries(&self, _model: &str, _entries: u64) {
        self.look();
    }

    fn add_tenant_evictions(&self, _tenant: &str, _prefixes: u64) {
        self.look();
    }

    fn add_index_evictions(&self, _algorithm: Eviction, _cause: EvictionCause, _entries: u64) {
        self.look();
    }
}

impl TtlResolver for Curious {
    fn ttl(&self, _tenant: &str) -> Option<Micros> {
        self.look();
        None
    }
}

impl EvictionResolver for Curious {
    fn eviction(&self, _tenant: &str) -> Eviction {
        self.look();
        Eviction::Lfu
    }
}

impl QuotaResolver for Curious {
    fn quota(&self, _tenant: &str) -> Option<i64> {
        self.look();
        Some(4)
    }
}

/// Plays operations in a thread of its own: a deadlock shows as silence.
fn play(curious: &Arc<Curious>, change: impl FnOnce(&mut inferencecache_core::IndexOptions), wanted: fn(&Op) -> bool) {
    let world = World::with(change);
    curious.0.set(Arc::downgrade(&world.index)).expect("set once");
    let (done, finished) = mpsc::channel();
    thread::spawn(move || {
        for (_, mut rng) in rngs(1) {
            for _ in 0..500 {
                let op = Op::random(&mut rng, &world.names);
                if wanted(&op) {
                    world.apply(&op);
                }
            }
        }
        done.send(()).expect("somebody waits");
    });
    finished.recv_timeout(Duration::from_secs(60)).expect("a callback ran under the lock");
}

#[test]
fn a_sink_may_look_at_the_index() {
    let curious = Arc::new(Curious::default());
    let sink = curious.clone();
    play(&curious, |options| (options.max_entries, options.sink) = (10, sink), |_| true);
}

/// Not in a sweep or a cap pass: there they are asked under the lock, and say so.
#[test]
fn a_resolver_may_look_at_the_index() {
    let curious = Arc::new(Curious::default());
    let resolvers = Resolvers::all(&curious);
    play(&curious, |options| options.resolvers = resolvers, |op| !matches!(op, Op::Sweep));
}
