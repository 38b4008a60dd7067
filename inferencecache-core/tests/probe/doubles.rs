//! Indexes and second tiers that do what a test needs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use inferencecache_core::RESERVED_TENANT;
use inferencecache_core::index::IndexApi;
use inferencecache_core::probe::{PAYLOAD_BYTES, ProbeTarget, T2Client, T2Error};
use inferencecache_core::query::{Lookup, Query, Strategy};
use inferencecache_core::testkit::Hooks;
use inferencecache_core::update::{Dropped, Event, Update};
use parking_lot::Mutex;

/// What is wrong with an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    LosesWrites,
    AnswersNothing,
    AnswersWarm,
    AnswersAnother,
    PanicsOnIngest,
    PanicsOnLookup,
    PanicsOnRoute,
    PanicsOnClear,
}

impl Hooks for Fault {
    fn ingest(&self, index: &dyn IndexApi, update: &Update<'_>) -> Dropped {
        match self {
            Self::LosesWrites => Dropped::default(),
            Self::PanicsOnIngest => {
                index.ingest(update);
                panic!("after the write");
            }
            _ => index.ingest(update),
        }
    }

    fn apply_event(&self, index: &dyn IndexApi, event: &Event<'_>) {
        assert!(*self != Self::PanicsOnClear, "instead of the cleanup");
        index.apply_event(event);
    }

    fn lookup(&self, index: &dyn IndexApi, query: &Query<'_>, out: &mut Lookup) {
        assert!(*self != Self::PanicsOnLookup, "instead of an answer");
        index.lookup(query, out);
    }

    fn lookup_route(&self, index: &dyn IndexApi, query: &Query<'_>, out: &mut Lookup) {
        index.lookup_route(query, out);
        match self {
            Self::AnswersNothing => out.clear(),
            Self::AnswersWarm => out.strategy = Strategy::TenantHot,
            Self::AnswersAnother => out.rows.iter_mut().for_each(|row| row.replica = "r1".into()),
            Self::PanicsOnRoute => panic!("instead of an answer"),
            _ => {}
        }
    }
}

/// Looks at an index whenever a probe has just changed or asked it.
pub(crate) struct Watch(pub(crate) Box<Look>);

type Look = dyn Fn(&dyn IndexApi) + Send + Sync;

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Watch")
    }
}

impl Hooks for Watch {
    fn ingest(&self, index: &dyn IndexApi, update: &Update<'_>) -> Dropped {
        let dropped = index.ingest(update);
        if update.tenant == RESERVED_TENANT {
            (self.0)(index);
        }
        dropped
    }

    fn lookup_route(&self, index: &dyn IndexApi, query: &Query<'_>, out: &mut Lookup) {
        index.lookup_route(query, out);
        if query.tenant == RESERVED_TENANT {
            (self.0)(index);
        }
    }
}

/// A second tier that remembers what it was given.
#[derive(Debug, Default)]
pub(crate) struct Store {
    /// What it answers; well when `None`.
    pub(crate) fault: Option<T2Error>,
    pub(crate) seen: Mutex<Vec<(String, Vec<u8>)>>,
}

impl T2Client for Store {
    fn round_trip(&self, target: &ProbeTarget<'_>, payload: &[u8; PAYLOAD_BYTES]) -> Result<(), T2Error> {
        self.seen.lock().push((target.backend.to_owned(), payload.to_vec()));
        self.fault.clone().map_or(Ok(()), Err)
    }
}

/// A second tier that counts who is in it at once, and does not let go before `enough` are or were.
#[derive(Debug)]
pub(crate) struct Meeting {
    pub(crate) inside: AtomicUsize,
    pub(crate) most: AtomicUsize,
    pub(crate) enough: usize,
}

impl Meeting {
    pub(crate) fn of(enough: usize) -> Arc<Self> {
        Arc::new(Self { inside: AtomicUsize::new(0), most: AtomicUsize::new(0), enough })
    }
}

impl T2Client for Meeting {
    fn round_trip(&self, _target: &ProbeTarget<'_>, _payload: &[u8; PAYLOAD_BYTES]) -> Result<(), T2Error> {
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(inside, Ordering::SeqCst);
        until("enough are inside", || self.most.load(Ordering::SeqCst) >= self.enough);
        self.inside.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }
}

/// Waits until something is so.
pub(crate) fn until(what: &str, done: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while !done() {
        assert!(std::time::Instant::now() < deadline, "not in time: {what}");
        std::thread::yield_now();
    }
}
