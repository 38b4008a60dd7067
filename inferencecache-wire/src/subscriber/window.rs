//! Reports gathered for a moment, in an order the server can rely on.
//!
//! ```text
//! Add, Add, Add …      gathered; the last one of a pair wins, at the place of the first
//! Downgrade, Evict     what is gathered goes out first
//! Clear                what is gathered is moot; one that follows another says nothing new and is left out
//! ```
//!
//! One report has one time, the last one its adds came with. Whatever goes out carries the ordinal of the first batch that
//! it answers for, so that acknowledgements can be traced back to the engine's sequence.

use std::collections::HashMap;

use inferencecache_core::time::Micros;

use super::blockmap::{AdapterId, Op, Report};

/// Reports at which the window closes by itself, and the most that one message to the server carries.
pub const MAX_ENTRIES: usize = 4096;

/// One thing to tell the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delivery {
    /// An update of `ReportCacheState`.
    Report {
        /// Its time in microseconds since the Unix epoch; 0 is the server's now.
        at: Micros,
        /// What it reports, in order.
        entries: Vec<Report>,
        /// Falls of tier. What they name may have left the map: moved to a tier that announces nothing.
        downgrade: bool,
    },
    /// A `PREFIX_EVICTED` event.
    Evict {
        /// Its time.
        at: Micros,
        /// Digest of the pair.
        digest: u64,
        /// Partition of the pair.
        adapter: AdapterId,
        /// Whether a report of it may have reached the server.
        sent: bool,
    },
    /// An `ALL_CLEARED` event.
    Clear {
        /// Its time.
        at: Micros,
    },
}

/// A delivery and the batch from which on it answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outgoing {
    /// Ordinal of the first batch of which this is a consequence. Never falls from one delivery to the next.
    pub ordinal: u64,
    /// What to tell.
    pub delivery: Delivery,
}

/// The buffer.
#[derive(Debug, Default)]
pub struct Window {
    entries: Vec<Report>,
    places: HashMap<(AdapterId, u64), usize, foldhash::fast::RandomState>,
    /// The last positive time among the entries.
    at: Micros,
    /// Ordinal of the oldest entry.
    ordinal: Option<u64>,
    /// Nothing came since the last clear, so that another one would say nothing new.
    cleared: bool,
}

impl Window {
    /// Takes one operation of the batch with this time and ordinal, and appends what must go out because of it.
    pub fn push(&mut self, op: Op, at: Micros, ordinal: u64, out: &mut Vec<Outgoing>) {
        let cleared = std::mem::replace(&mut self.cleared, matches!(op, Op::Clear));
        match op {
            Op::Add { report, .. } => self.add(report, at, ordinal, out),
            Op::Downgrade(entries) => {
                self.flush(out);
                out.push(Outgoing { ordinal, delivery: Delivery::Report { at, entries, downgrade: true } });
            }
            Op::Evict { digest, adapter, sent } => {
                self.flush(out);
                out.push(Outgoing { ordinal, delivery: Delivery::Evict { at, digest, adapter, sent } });
            }
            // Each clear deletes the load of the replica as well; a storm of them would leave it looking idle.
            Op::Clear if cleared => {}
            Op::Clear => {
                // The clear answers for what it makes moot.
                let ordinal = self.ordinal.unwrap_or(ordinal);
                self.reset();
                out.push(Outgoing { ordinal, delivery: Delivery::Clear { at } });
            }
        }
    }

    /// Appends what is gathered, if anything, as one report.
    pub fn flush(&mut self, out: &mut Vec<Outgoing>) {
        if let Some(ordinal) = self.ordinal {
            let entries = std::mem::take(&mut self.entries);
            let delivery = Delivery::Report { at: self.at, entries, downgrade: false };
            out.push(Outgoing { ordinal, delivery });
            self.reset();
        }
    }

    /// Reports that wait in the window.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether no report waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Ordinal of the oldest batch with a report in the window.
    #[must_use]
    pub fn ordinal(&self) -> Option<u64> {
        self.ordinal
    }

    fn add(&mut self, report: Report, at: Micros, ordinal: u64, out: &mut Vec<Outgoing>) {
        let place = *self.places.entry((report.adapter, report.digest)).or_insert(self.entries.len());
        match self.entries.get_mut(place) {
            Some(entry) => *entry = report,
            None => self.entries.push(report),
        }
        if at > 0 {
            self.at = at;
        }
        self.ordinal.get_or_insert(ordinal);
        if self.entries.len() >= MAX_ENTRIES {
            self.flush(out);
        }
    }

    fn reset(&mut self) {
        self.entries.clear();
        self.places.clear();
        self.at = 0;
        self.ordinal = None;
    }
}

#[cfg(test)]
mod tests {
    use super::super::blockmap::Tier;
    use super::*;

    fn report(digest: u64, tier: Tier) -> Report {
        Report { digest, tokens: 2, adapter: AdapterId::BASE, tier }
    }

    fn add(digest: u64, tier: Tier) -> Op {
        Op::Add { report: report(digest, tier), again: false }
    }

    #[test]
    fn the_last_report_of_a_pair_wins_at_the_place_of_the_first() {
        let (mut window, mut out) = (Window::default(), Vec::new());
        window.push(add(1, Tier::T2), 10, 1, &mut out);
        window.push(add(2, Tier::T1), 20, 2, &mut out);
        window.push(add(1, Tier::T1), 0, 3, &mut out);
        assert_eq!((out.len(), window.ordinal()), (0, Some(1)));
        window.flush(&mut out);
        let entries = vec![report(1, Tier::T1), report(2, Tier::T1)];
        assert_eq!(out, [Outgoing { ordinal: 1, delivery: Delivery::Report { at: 20, entries, downgrade: false } }]);
        window.flush(&mut out);
        assert_eq!((out.len(), window.ordinal()), (1, None));
    }

    #[test]
    fn the_window_closes_before_an_eviction_and_when_it_is_full() {
        let (mut window, mut out) = (Window::default(), Vec::new());
        for digest in 0..5000 {
            window.push(add(digest, Tier::T1), 1, digest, &mut out);
        }
        window.push(Op::Evict { digest: 7, adapter: AdapterId::BASE, sent: true }, 2, 5000, &mut out);
        let sizes: Vec<(u64, usize)> = out
            .iter()
            .map(|out| match &out.delivery {
                Delivery::Report { entries, .. } => (out.ordinal, entries.len()),
                _ => (out.ordinal, 0),
            })
            .collect();
        assert_eq!(sizes, [(0, 4096), (4096, 904), (5000, 0)]);
    }

    #[test]
    fn a_clear_after_a_clear_is_left_out() {
        let (mut window, mut out) = (Window::default(), Vec::new());
        for (time, op) in (1..).zip([Op::Clear, Op::Clear, add(1, Tier::T1), Op::Clear, Op::Clear, Op::Clear]) {
            window.push(op, time, 1, &mut out);
        }
        let clear = |at| Outgoing { ordinal: 1, delivery: Delivery::Clear { at } };
        assert_eq!(out, [clear(1), clear(4)]);
    }

    #[test]
    fn a_clear_drops_what_is_gathered_and_answers_for_it() {
        let (mut window, mut out) = (Window::default(), Vec::new());
        window.push(add(1, Tier::T1), 10, 4, &mut out);
        window.push(Op::Clear, 11, 5, &mut out);
        assert_eq!(out, [Outgoing { ordinal: 4, delivery: Delivery::Clear { at: 11 } }]);
        window.flush(&mut out);
        assert_eq!(out.len(), 1);
    }
}
