//! The traces of one probe in the index, and their removal.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::RESERVED_TENANT;
use crate::index::IndexApi;
use crate::query::{HashList, Lookup, Query, Row, Strategy};
use crate::route::ReasonCode;
use crate::update::{Entry, Event, EventKind, Stats, Update};

use super::target::ProbeTarget;

/// Tokens of the one block that is written.
const COUNTS: [i32; 1] = [16];

/// What one probe writes and looks for.
pub(super) struct Trace<'a> {
    pub(super) target: &'a ProbeTarget<'a>,
    pub(super) replica: &'a str,
    pub(super) hashes: &'a [&'a [u8]; 1],
}

impl Trace<'_> {
    /// What it writes goes away when this does.
    pub(super) fn cleanup<'a, I: IndexApi + ?Sized>(&'a self, index: &'a I) -> Cleanup<'a, I> {
        let event = Event {
            kind: EventKind::AllCleared,
            replica: self.replica,
            model: self.target.model,
            tenant: RESERVED_TENANT,
            ..Event::default()
        };
        Cleanup { index, event }
    }

    /// Writes, and reads what was written.
    pub(super) fn ingest(&self, index: &(impl IndexApi + ?Sized)) -> Result<(), String> {
        let entry =
            Entry { block_hashes: HashList::Slices(self.hashes), block_token_counts: &COUNTS, ..Entry::default() };
        index.ingest(&Update {
            replica: self.replica,
            model: self.target.model,
            tenant: RESERVED_TENANT,
            scheme: self.target.scheme,
            entries: &[entry],
            stats: Some(Stats { hit_rate: 1.0, ..Stats::default() }),
            ..Update::default()
        });
        let mut found = Lookup::new();
        index.lookup(&self.query(), &mut found);
        if self.is_among(&found.rows) {
            Ok(())
        } else {
            Err(format!("ingested, but a direct lookup does not find the replica {}", self.replica))
        }
    }

    /// Finds what was written, as a router would.
    pub(super) fn route(&self, index: &(impl IndexApi + ?Sized)) -> Result<(), String> {
        let mut answer = Lookup::new();
        index.lookup_route(&self.query(), &mut answer);
        if answer.strategy != Strategy::PrefixMatch {
            let (want, got) = (ReasonCode::PrefixMatch.as_str(), ReasonCode::from(answer.strategy).as_str());
            return Err(format!("expected {want}, the index answered {got}"));
        }
        if self.is_among(&answer.rows) {
            Ok(())
        } else {
            Err(format!("the probe's own replica is not among the scored replicas: {}", self.replica))
        }
    }

    fn query(&self) -> Query<'_> {
        Query {
            tenant: RESERVED_TENANT,
            model: self.target.model,
            scheme: self.target.scheme,
            block_hashes: HashList::Slices(self.hashes),
            block_token_counts: &COUNTS,
            ..Query::default()
        }
    }

    fn is_among(&self, rows: &[Row]) -> bool {
        rows.iter().any(|row| *row.replica == *self.replica)
    }
}

/// Removes what a probe wrote when it goes out of scope, also while a panic passes through.
pub(super) struct Cleanup<'a, I: IndexApi + ?Sized> {
    index: &'a I,
    event: Event<'a>,
}

impl<I: IndexApi + ?Sized> Drop for Cleanup<'_, I> {
    fn drop(&mut self) {
        // A second panic would end the process. What stays behind then is swept when its time is over.
        let _ = catch_unwind(AssertUnwindSafe(|| self.index.apply_event(&self.event)));
    }
}
