//! What to do when the server cannot be told anything for a while.
//!
//! 1. What is held needs no queue: it waits as dirty pairs in the map, and is reported as it is by then.
//! 2. What is not held any more waits in a bounded set. If that overflows, the server is told to forget the replica, and
//!    then everything that is held.
//! 3. The order is: that clear, the withdrawals, the dirty pairs. Each begins when the one before has been acknowledged.
//! 4. Until a call succeeds, one is tried at a time, with a backoff of 250 ms that doubles to 10 s.

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use inferencecache_core::time::Micros;

use super::blockmap::{AdapterId, BlockMap, Report};
use super::dispatch::{Call, MAX_EVICTIONS, Now};
use super::window::Delivery;
use super::withdrawals::{Fate, Withdrawal, Withdrawals};

/// Entries of one call.
const ENTRIES: usize = 16_384;
/// First wait after a failure, and the longest.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(10));

/// What is in flight.
#[derive(Debug, Clone, Copy)]
pub(super) struct Traffic<'a> {
    /// Nothing.
    pub(super) idle: bool,
    /// A report.
    pub(super) reporting: bool,
    /// A clear.
    pub(super) clearing: bool,
    /// Evictions of these digests.
    pub(super) evicting: &'a HashSet<u64>,
}

/// What comes next.
#[derive(Debug)]
pub(super) enum Next {
    /// This call.
    Start {
        /// The call.
        call: Call,
        /// It reports a move to a tier that announces nothing.
        downgrade: bool,
    },
    /// Nothing now: time must pass, or a call must end.
    Wait,
    /// The recovery is over.
    Done {
        /// The server may have started anew meanwhile, so that everything should be reported again.
        report_all: bool,
    },
}

/// A recovery under way.
#[derive(Debug)]
pub(super) struct Recovery {
    not_before: Instant,
    backoff: Duration,
    /// A call was started since the last failure.
    attempting: bool,
    /// A call succeeded since the last failure.
    proven: bool,
    /// Something failed, so that the server may have started anew.
    failed: bool,
    clear: Option<Micros>,
    withdrawals: Withdrawals,
    ordinal: Option<u64>,
}

impl Recovery {
    /// Begins at once. `proven`: nothing has failed, there is only too much to say.
    pub(super) fn new(now: Now, proven: bool) -> Self {
        Self {
            not_before: now.instant,
            backoff: BACKOFF.0,
            attempting: true,
            proven,
            failed: false,
            clear: None,
            withdrawals: Withdrawals::default(),
            ordinal: None,
        }
    }

    /// When the next call may start.
    pub(super) fn not_before(&self) -> Instant {
        self.not_before
    }

    /// Ordinal of the oldest batch that waits.
    pub(super) fn ordinal(&self) -> Option<u64> {
        self.ordinal
    }

    /// Pairs that wait to be withdrawn.
    pub(super) fn withdrawals(&self) -> usize {
        self.withdrawals.len()
    }

    /// No waiting any more.
    pub(super) fn hurry(&mut self, now: Now) {
        self.not_before = now.instant;
    }

    /// Takes a failure. Of several calls that fail together, the first one counts.
    pub(super) fn failed(&mut self, now: Now, draws: &mut u64) {
        (self.failed, self.proven) = (true, false);
        if std::mem::take(&mut self.attempting) {
            self.not_before = now.instant + jittered(self.backoff, draws).min(BACKOFF.1);
            self.backoff = (self.backoff * 2).min(BACKOFF.1);
        }
    }

    /// Takes a success.
    pub(super) fn accepted(&mut self, call: &Call, map: &mut BlockMap) {
        self.proven = true;
        self.backoff = BACKOFF.0;
        match call {
            Call::Evict { digest, adapter: AdapterId::BASE, .. } => map.mark_siblings_dirty(*digest),
            Call::Clear { .. } => {
                // All there is to say begins here: nothing is on the server any more.
                map.mark_all_dirty();
                self.failed = false;
            }
            _ => {}
        }
    }

    /// The next call, if it may start.
    pub(super) fn next(&mut self, traffic: Traffic<'_>, map: &mut BlockMap, now: Now) -> Next {
        let Traffic { idle, reporting, clearing, evicting } = traffic;
        if now.instant < self.not_before || clearing || (!idle && !self.proven) {
            return Next::Wait;
        }
        if let Some(at) = self.clear {
            if !idle {
                return Next::Wait;
            }
            self.clear = None;
            return self.start(Call::Clear { at }, false);
        }
        if !self.withdrawals.is_empty() {
            if reporting || evicting.len() >= MAX_EVICTIONS {
                return Next::Wait;
            }
            let ready = |withdrawal: &Withdrawal| match withdrawal.fate {
                Fate::Evicted => !evicting.contains(&withdrawal.digest),
                Fate::Moved { .. } => idle,
            };
            let Some(withdrawal) = self.withdrawals.pop(ready) else { return Next::Wait };
            let Withdrawal { adapter, digest, at, .. } = withdrawal;
            return match withdrawal.moved() {
                None => self.start(Call::Evict { at, digest, adapter }, false),
                Some(report) => self.start(Call::Report { at, entries: Arc::new(vec![report]) }, true),
            };
        }
        if !idle {
            return Next::Wait;
        }
        let mut entries = Vec::new();
        map.take_dirty(ENTRIES, &mut entries);
        if entries.is_empty() {
            return Next::Done { report_all: self.failed };
        }
        self.start(Call::Report { at: now.wall, entries: Arc::new(entries) }, false)
    }

    /// Takes a delivery that will not be made as it is.
    pub(super) fn absorb(&mut self, ordinal: Option<u64>, delivery: Delivery, map: &mut BlockMap) {
        self.ordinal = [self.ordinal, ordinal].into_iter().flatten().min();
        match delivery {
            Delivery::Report { at, entries, downgrade } => self.absorb_report(at, &entries, downgrade, map),
            Delivery::Evict { at, digest, adapter, sent } => self.absorb_eviction(at, digest, adapter, sent, map),
            Delivery::Clear { at } => self.absorb_clear(at),
        }
    }

    /// Takes a call that failed. What was queued behind it must have been absorbed before.
    pub(super) fn absorb_failed(&mut self, ordinal: Option<u64>, call: Call, downgrade: bool, map: &mut BlockMap) {
        self.ordinal = [self.ordinal, ordinal].into_iter().flatten().min();
        match call {
            Call::Report { at, entries } => {
                // What was queued behind the call is younger.
                let older = |entry: &&Report| !self.withdrawals.contains(entry.adapter, entry.digest);
                let entries: Vec<Report> = entries.iter().filter(older).copied().collect();
                self.absorb_report(at, &entries, downgrade, map);
            }
            Call::Evict { at, digest, adapter } => self.absorb_eviction(at, digest, adapter, true, map),
            Call::Clear { at } => self.absorb_clear(at),
        }
    }

    fn start(&mut self, call: Call, downgrade: bool) -> Next {
        self.attempting = true;
        Next::Start { call, downgrade }
    }

    fn absorb_report(&mut self, at: Micros, entries: &[Report], downgrade: bool, map: &mut BlockMap) {
        for entry in entries {
            if map.held(entry.adapter, entry.digest).is_some() {
                if self.withdrawals.remove(entry.adapter, entry.digest) {
                    map.mark_sent(entry.adapter, entry.digest);
                }
                map.mark_dirty(entry.adapter, entry.digest);
            } else if downgrade {
                let fate = Fate::Moved { tokens: entry.tokens };
                self.withdraw(Withdrawal { adapter: entry.adapter, digest: entry.digest, at, fate });
            }
        }
    }

    fn absorb_eviction(&mut self, at: Micros, digest: u64, adapter: AdapterId, sent: bool, map: &mut BlockMap) {
        let waiting = self.withdrawals.remove(adapter, digest);
        if map.held(adapter, digest).is_some() {
            // Stored again since. The eviction may have been applied, so say that it is there.
            map.mark_sent(adapter, digest);
            map.mark_dirty(adapter, digest);
        } else if sent || waiting {
            self.withdraw(Withdrawal { adapter, digest, at, fate: Fate::Evicted });
        }
    }

    fn absorb_clear(&mut self, at: Micros) {
        self.withdrawals.clear();
        self.clear = Some(at);
    }

    fn withdraw(&mut self, withdrawal: Withdrawal) {
        // A clear that is still to come says it all.
        if self.clear.is_none() && self.withdrawals.insert(withdrawal).is_err() {
            self.absorb_clear(0);
        }
    }
}

/// A wait within 20 % of `wait`.
pub(super) fn jittered(wait: Duration, draws: &mut u64) -> Duration {
    spread(wait, 200, draws)
}

/// A wait within `per_mille` of `wait`. Spreads what many replicas do; no secret depends on it.
pub(super) fn spread(wait: Duration, per_mille: u32, draws: &mut u64) -> Duration {
    *draws += 1;
    let draw = RandomState::new().hash_one(*draws) % u64::from(2 * per_mille + 1);
    wait * (1000 - per_mille + u32::try_from(draw).unwrap_or_default()) / 1000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_within_a_fifth_up_to_ten_seconds() {
        let start = Instant::now();
        let (mut now, mut draws) = (Now { instant: start, wall: 0, ticks: 0 }, 0);
        let mut recovery = Recovery::new(now, false);
        for expected in [250, 500, 1000, 2000, 4000, 8000, 10_000, 10_000] {
            recovery.attempting = true;
            recovery.failed(now, &mut draws);
            // Another call of the same attempt fails: no further wait.
            recovery.failed(now, &mut draws);
            let wait = recovery.not_before() - now.instant;
            let wanted = Duration::from_millis(expected);
            assert!(wait >= wanted * 8 / 10 && wait <= (wanted * 12 / 10).min(BACKOFF.1), "{wait:?} for {wanted:?}");
            now.instant = recovery.not_before();
        }
    }
}
