//! What is reported again although nothing has happened to it: everything after the server may have lost it, and a part of
//! what is held at a time so that the server does not forget it.

use std::time::{Duration, Instant};

use super::{Dispatcher, Now, Queued, weight};
use crate::subscriber::blockmap::{BlockMap, Doubt, Report};
use crate::subscriber::reannounce::MAX_PART;
use crate::subscriber::window::Delivery;

/// How often a part of everything held is reported again, and in how many parts at most.
const SWEEP: (Duration, usize) = (Duration::from_millis(100), 95);
/// Places of the map that one part covers at least.
const SWEEP_STEP: usize = 256;

/// A full report under way.
#[derive(Debug)]
pub(super) struct Sweep {
    next: usize,
    step: usize,
    due: Instant,
}

impl Sweep {
    /// When its next part may be queued.
    pub(super) fn due(&self) -> Instant {
        self.due
    }
}

impl Dispatcher {
    /// Places of the map that a full report has still to cover.
    #[must_use]
    pub fn sweep_left(&self, map: &BlockMap) -> usize {
        match &self.sweep {
            Some(sweep) => map.places().saturating_sub(sweep.next),
            None if self.sweep_wanted => map.places(),
            None => 0,
        }
    }

    /// Queues the next part of a full report when it is due.
    pub(super) fn continue_sweep(&mut self, map: &mut BlockMap, now: Now) {
        if std::mem::take(&mut self.sweep_wanted) && !self.hurrying {
            let step = map.places().div_ceil(SWEEP.1).max(SWEEP_STEP);
            self.sweep = Some(Sweep { next: 0, step, due: now.instant });
            self.sweeps += 1;
            map.begin_round();
        }
        let Some(sweep) = &mut self.sweep else { return };
        if now.instant < sweep.due {
            return;
        }
        let mut entries = Vec::new();
        map.repeat(sweep.next..sweep.next + sweep.step, Doubt::Suspect, &mut entries);
        sweep.next += sweep.step;
        sweep.due = now.instant + SWEEP.0;
        if sweep.next >= map.places() {
            self.sweep = None;
            if let Some(schedule) = &mut self.reannounce {
                schedule.restart();
            }
        }
        self.queue_entries(entries, now);
    }

    /// Queues what is due to be reported again.
    pub(super) fn continue_reannouncing(&mut self, map: &mut BlockMap, now: Now) {
        if !self.may_reannounce() {
            return;
        }
        let Some(part) = self.reannounce.as_mut().and_then(|schedule| schedule.part(map.places(), now.instant)) else {
            return;
        };
        if part.first {
            map.begin_round();
        }
        let mut entries = Vec::new();
        map.repeat(part.places, Doubt::None, &mut entries);
        self.reannounced += entries.len() as u64;
        self.queue_entries(entries, now);
    }

    /// A full report covers it, and a server that is slow must not be given more.
    pub(super) fn may_reannounce(&self) -> bool {
        self.sweep.is_none() && !self.hurrying && self.queued < MAX_PART
    }

    fn queue_entries(&mut self, entries: Vec<Report>, now: Now) {
        if !entries.is_empty() {
            let delivery = Delivery::Report { at: now.wall, entries, downgrade: false };
            self.queued += weight(&delivery);
            self.queue.push_back(Queued { ordinal: None, delivery });
        }
    }
}
