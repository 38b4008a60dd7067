//! A sink may look at the index that calls it: it is never called under the lock.

use std::sync::{Arc, OnceLock, Weak, mpsc};
use std::thread;
use std::time::Duration;

use inferencecache_core::metrics::{EvictionCause, MetricsSink};
use inferencecache_core::testkit::generate::Op;
use inferencecache_core::{Eviction, Index, IndexApi};

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

/// Plays operations in a thread of its own: a deadlock shows as silence.
fn play(curious: &Arc<Curious>, change: impl FnOnce(&mut inferencecache_core::IndexOptions)) {
    let world = World::with(change);
    curious.0.set(Arc::downgrade(&world.index)).expect("set once");
    let (done, finished) = mpsc::channel();
    thread::spawn(move || {
        for (_, mut rng) in rngs(1) {
            for _ in 0..500 {
                world.apply(&Op::random(&mut rng, &world.names));
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
    play(&curious, |options| (options.max_entries, options.sink) = (10, sink));
}
