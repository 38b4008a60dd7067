//! Which call to the server may start now, and what becomes of one that failed.
//!
//! ```text
//!            deliveries                          a call failed, the queue is full, the connection broke
//!                │                                                     │
//!  flowing       ▼                                                     ▼
//!            queue, in order ──> calls          recovering: [clear] ─> withdrawals ─> dirty pairs of the map ──> flowing
//! ```
//!
//! 1. For any one digest the server sees operations in state order. Calls start in queue order; an eviction waits for a
//!    report of its digest in flight and the reverse. At most one report, and at most [`MAX_EVICTIONS`] evictions of
//!    different digests are in flight.
//! 2. A clear starts when nothing is in flight, and nothing starts before it has ended.
//! 3. While recovering nothing queues up; what is held waits in the map, what is not held any more in
//!    a bounded set, and one call at a time is tried until the first succeeds.
//! 4. What is held beyond doubt is reported again in each interval: the server forgets what is not.
//! 5. After a failure, and on every new connection after the first, everything held is reported again, spread over ten
//!    seconds: the server may have started empty.
//!
//! A pure machine: time is passed in, calls are made by the caller.

mod call;
mod repeat;

pub use call::{Call, CallId, Ended, Now};

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::repeat::Sweep;
use super::blockmap::{BlockMap, Report};
use super::reannounce::Schedule;
use super::recovery::{Next, Recovery, Traffic};
use super::window::{Delivery, Outgoing};

/// Evictions in flight at once.
pub const MAX_EVICTIONS: usize = 64;
/// Entries and events that may queue up while the server is slow; beyond it they fold back into the map.
pub const MAX_QUEUED: usize = 65_536;

#[derive(Debug)]
struct Queued {
    ordinal: Option<u64>,
    delivery: Delivery,
}

#[derive(Debug)]
struct InFlight {
    ordinal: Option<u64>,
    call: Call,
    downgrade: bool,
}

/// The machine. It shares the map with the one that fills it.
#[derive(Debug, Default)]
pub struct Dispatcher {
    queue: VecDeque<Queued>,
    queued: usize,
    queued_evictions: usize,
    /// Evictions and clears among what is queued.
    queued_events: usize,
    in_flight: BTreeMap<CallId, InFlight>,
    evicting: HashSet<u64>,
    /// Digests of the report in flight.
    reporting: Option<HashSet<u64, foldhash::fast::RandomState>>,
    clearing: bool,
    recovery: Option<Recovery>,
    sweep: Option<Sweep>,
    /// A sweep is due once the queue flows.
    sweep_wanted: bool,
    reannounce: Option<Schedule>,
    /// The process is about to end.
    hurrying: bool,
    next_id: CallId,
    draws: u64,
    /// Full reports that were begun.
    pub sweeps: u64,
    /// Entries that were queued because they are still held.
    pub reannounced: u64,
}

impl Dispatcher {
    /// A machine that reports everything held again each `interval`; never when that is 0.
    #[must_use]
    pub fn reannouncing(interval: Duration) -> Self {
        Self { reannounce: (!interval.is_zero()).then(|| Schedule::new(interval)), ..Self::default() }
    }

    /// Takes one delivery. The batch it comes from is already in the map.
    pub fn offer(&mut self, outgoing: Outgoing, map: &mut BlockMap, now: Now) {
        let Outgoing { ordinal, delivery } = outgoing;
        if let Some(recovery) = &mut self.recovery {
            recovery.absorb(Some(ordinal), delivery, map);
            return;
        }
        self.queued += weight(&delivery);
        self.queued_evictions += usize::from(matches!(delivery, Delivery::Evict { .. }));
        self.queued_events += usize::from(!matches!(delivery, Delivery::Report { .. }));
        self.queue.push_back(Queued { ordinal: Some(ordinal), delivery });
        if self.queued > MAX_QUEUED {
            self.recover(map, now, false);
        }
    }

    /// The next call that may start; ask until there is none.
    pub fn next_call(&mut self, map: &mut BlockMap, now: Now) -> Option<(CallId, Call)> {
        if let Some((call, downgrade)) = self.recovery_call(map, now) {
            return Some(self.start(None, call, downgrade, map));
        }
        if self.recovery.is_some() {
            return None;
        }
        self.continue_sweep(map, now);
        self.continue_reannouncing(map, now);
        let ready = match &self.queue.front()?.delivery {
            Delivery::Report { entries, .. } => self.may_report(entries),
            Delivery::Evict { digest, .. } => self.may_evict(*digest),
            Delivery::Clear { .. } => self.in_flight.is_empty(),
        };
        if self.clearing || !ready {
            return None;
        }
        let Queued { ordinal, delivery } = self.queue.pop_front()?;
        self.queued -= weight(&delivery);
        self.queued_events -= usize::from(!matches!(delivery, Delivery::Report { .. }));
        let (call, downgrade) = match delivery {
            Delivery::Report { at, entries, downgrade } => (Call::Report { at, entries: Arc::new(entries) }, downgrade),
            Delivery::Evict { at, digest, adapter, .. } => {
                self.queued_evictions -= 1;
                (Call::Evict { at, digest, adapter }, false)
            }
            Delivery::Clear { at } => (Call::Clear { at }, false),
        };
        Some(self.start(ordinal, call, downgrade, map))
    }

    /// Takes the end of a call.
    pub fn ended(&mut self, id: CallId, ended: Ended, map: &mut BlockMap, now: Now) {
        let Some(InFlight { ordinal, call, downgrade }) = self.in_flight.remove(&id) else { return };
        match &call {
            Call::Report { .. } => self.reporting = None,
            Call::Evict { digest, .. } => {
                self.evicting.remove(digest);
            }
            Call::Clear { .. } => self.clearing = false,
        }
        if let Call::Report { entries, .. } = &call {
            let arrived = ended != Ended::NeverSent;
            entries.iter().for_each(|entry| map.end_sending(entry.adapter, entry.digest, arrived));
        }
        if ended == Ended::Accepted {
            self.accepted(&call, map, now);
        } else {
            self.failed(ordinal, call, downgrade, map, now);
        }
    }

    /// The server has a new connection to us.
    pub fn connected(&mut self, first: bool) {
        self.sweep_wanted |= !first;
    }

    /// The connection to the server was lost. If anything is held, a new one is sought without waiting for news.
    pub fn disconnected(&mut self, map: &mut BlockMap, now: Now) {
        if self.recovery.is_none() {
            self.recover(map, now, true);
            map.mark_any_dirty();
        }
    }

    /// When [`next_call`](Self::next_call) should be asked again even if nothing happens.
    #[must_use]
    pub fn wake_at(&self) -> Option<Instant> {
        match (&self.recovery, &self.sweep) {
            (Some(recovery), _) => self.in_flight.is_empty().then(|| recovery.not_before()),
            (None, Some(sweep)) => Some(sweep.due()),
            (None, None) if self.may_reannounce() => self.reannounce.as_ref().and_then(Schedule::wake),
            (None, None) => None,
        }
    }

    /// The ordinal of the oldest batch with something that the server has not acknowledged; `None` when it has everything.
    #[must_use]
    pub fn oldest(&self) -> Option<u64> {
        let queued = self.queue.iter().find_map(|queued| queued.ordinal);
        let in_flight = self.in_flight.values().filter_map(|call| call.ordinal).min();
        let recovering = self.recovery.as_ref().and_then(Recovery::ordinal);
        [queued, in_flight, recovering].into_iter().flatten().min()
    }

    /// Whether everything but a full report has been delivered.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.queue.is_empty() && self.in_flight.is_empty() && self.recovery.is_none()
    }

    /// Evictions that have not been acknowledged.
    #[must_use]
    pub fn pending_evictions(&self) -> usize {
        self.queued_evictions + self.evicting.len() + self.recovery.as_ref().map_or(0, Recovery::withdrawals)
    }

    /// Entries that are queued or in flight, and what a full report has still to cover.
    #[must_use]
    pub fn pending_reports(&self, map: &BlockMap) -> usize {
        let in_flight = self.reporting.as_ref().map_or(0, HashSet::len);
        self.queued - self.queued_events + in_flight + self.sweep_left(map)
    }

    /// The process is about to end: no full report any more, and no waiting.
    pub fn hurry(&mut self, now: Now) {
        self.hurrying = true;
        self.sweep = None;
        if let Some(recovery) = &mut self.recovery {
            recovery.hurry(now);
        }
    }

    // === private ===

    fn start(&mut self, ordinal: Option<u64>, call: Call, downgrade: bool, map: &mut BlockMap) -> (CallId, Call) {
        let id = self.next_id;
        self.next_id += 1;
        match &call {
            Call::Report { entries, .. } => {
                self.reporting = Some(entries.iter().map(|entry| entry.digest).collect());
                for entry in entries.iter() {
                    map.begin_sending(entry.adapter, entry.digest);
                    if self.recovery.is_some() || ordinal.is_none() {
                        // Made from the map, not handed on when an event was applied.
                        map.hand_on(entry);
                    }
                }
            }
            Call::Evict { digest, .. } => {
                self.evicting.insert(*digest);
            }
            Call::Clear { .. } => self.clearing = true,
        }
        self.in_flight.insert(id, InFlight { ordinal, call: call.clone(), downgrade });
        (id, call)
    }

    fn may_report(&self, entries: &[Report]) -> bool {
        self.reporting.is_none()
            && (self.evicting.is_empty() || !entries.iter().any(|entry| self.evicting.contains(&entry.digest)))
    }

    fn may_evict(&self, digest: u64) -> bool {
        self.evicting.len() < MAX_EVICTIONS
            && !self.evicting.contains(&digest)
            && !self.reporting.as_ref().is_some_and(|reporting| reporting.contains(&digest))
    }

    fn accepted(&mut self, call: &Call, map: &mut BlockMap, now: Now) {
        if let Call::Report { entries, .. } = call {
            entries.iter().for_each(|entry| map.acknowledge(entry, now.ticks));
        }
        if let Some(recovery) = &mut self.recovery {
            recovery.accepted(call, map);
        }
    }

    fn failed(&mut self, ordinal: Option<u64>, call: Call, downgrade: bool, map: &mut BlockMap, now: Now) {
        self.recover(map, now, true);
        if let Some(recovery) = &mut self.recovery {
            recovery.absorb_failed(ordinal, call, downgrade, map);
        }
    }

    /// Begins or continues recovery: whatever is queued folds back into the map and the withdrawals.
    fn recover(&mut self, map: &mut BlockMap, now: Now, failed: bool) {
        let recovery = self.recovery.get_or_insert_with(|| Recovery::new(now, !failed));
        if failed {
            recovery.failed(now, &mut self.draws);
        }
        // The rest of a full report would only add to the queue; it starts again afterwards.
        self.sweep_wanted |= self.sweep.take().is_some();
        for mut queued in self.queue.drain(..) {
            if let Delivery::Evict { sent, .. } = &mut queued.delivery {
                // A report that was queued before it may have been sent since.
                *sent = true;
            }
            recovery.absorb(queued.ordinal, queued.delivery, map);
        }
        (self.queued, self.queued_evictions, self.queued_events) = (0, 0, 0);
    }

    /// The next call of a recovery, if it may start. Ends the recovery when nothing is left to do.
    fn recovery_call(&mut self, map: &mut BlockMap, now: Now) -> Option<(Call, bool)> {
        let recovery = self.recovery.as_mut()?;
        let traffic = Traffic {
            idle: self.in_flight.is_empty(),
            reporting: self.reporting.is_some(),
            clearing: self.clearing,
            evicting: &self.evicting,
        };
        match recovery.next(traffic, map, now) {
            Next::Start { call, downgrade } => Some((call, downgrade)),
            Next::Wait => None,
            Next::Done { report_all } => {
                self.sweep_wanted |= report_all;
                self.recovery = None;
                None
            }
        }
    }
}

fn weight(delivery: &Delivery) -> usize {
    match delivery {
        Delivery::Report { entries, .. } => entries.len(),
        Delivery::Evict { .. } | Delivery::Clear { .. } => 1,
    }
}
