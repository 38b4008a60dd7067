//! What decoding fills: sequences, map and window, and how far each stream has come.

use std::collections::VecDeque;

use foldhash::fast::RandomState;
use inferencecache_core::time::Micros;

use super::batch::Decoded;
use super::{EventTally, Progress};
use crate::subscriber::blockmap::{BlockMap, Op, Outcome, StreamId, Ticks};
use crate::subscriber::sequence::{Held, Sequences, Step, Verdict};
use crate::subscriber::window::{Outgoing, Window};

/// Batches per stream whose sequence is remembered until the server has acknowledged them. Beyond it every second one is
/// forgotten, so that the figure of progress gets coarser while the server lags; it never runs ahead.
const HISTORY: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct History {
    pub(super) connection: u16,
    pub(super) rank: Option<i64>,
    pub(super) settled: Option<u64>,
    /// Ordinal of the batch that is `settled`.
    pub(super) ordinal: u64,
    /// (ordinal, sequence) of batches that are not known to be settled, oldest first.
    pub(super) open: VecDeque<(u64, u64)>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) map: BlockMap,
    pub(super) window: Window,
    pub(super) sequences: Sequences,
    pub(super) hasher: RandomState,
    /// Ordinal of the current batch.
    pub(super) ordinal: u64,
    pub(super) tally: EventTally,
    pub(super) histories: Vec<History>,
    pub(super) outcome: Outcome,
    pub(super) refresh_min: Ticks,
}

impl State {
    /// Does what comes before a frame.
    pub(super) fn change(&mut self, stream: StreamId, step: &Step, out: &mut Vec<Outgoing>) {
        if step.restarted {
            self.window.flush(out);
            self.map.forget(stream, &mut self.outcome);
            self.push(0, 0, out);
        }
        if let Some(begins) = step.begins {
            self.map.set_fresh(stream, begins.fresh);
            if begins.clear {
                self.window.push(Op::Clear, 0, self.ordinal, out);
            }
        }
        if step.lost > 0 || step.unproven {
            self.map.unconfirm(stream);
        }
    }

    /// Keeps a frame that was judged to wait.
    pub(super) fn keep(&mut self, stream: StreamId, decoded: &Decoded, payload: Option<&[u8]>) {
        let held = || Held { frame: decoded.frame, payload: payload.map(<[u8]>::to_vec) };
        match decoded.verdict {
            Verdict::Hold => self.sequences.hold(stream, held()),
            Verdict::Suspect => self.sequences.suspect(stream, held()),
            Verdict::Apply | Verdict::Ignore => {}
        }
    }

    /// A batch of the stream, or perhaps of another one of its connection, was lost under this number.
    pub(super) fn unreadable(&mut self, connection: u16, stream: StreamId, sequence: u64) {
        self.map.lost_batch(connection);
        self.remember(stream, sequence);
    }

    /// Hands on what an event has led to.
    pub(super) fn push(&mut self, at: Micros, now: Ticks, out: &mut Vec<Outgoing>) {
        for op in self.outcome.ops.drain(..) {
            match &op {
                Op::Add { report, again } => {
                    if !again && self.map.repeats(report, now, self.refresh_min) {
                        continue;
                    }
                    self.map.hand_on(report);
                }
                Op::Downgrade(reports) => reports.iter().for_each(|report| self.map.hand_on(report)),
                Op::Evict { .. } | Op::Clear => {}
            }
            self.window.push(op, at, self.ordinal, out);
        }
    }

    pub(super) fn remember(&mut self, stream: StreamId, sequence: u64) {
        let open = &mut self.histories[stream.index()].open;
        if open.len() >= HISTORY {
            let mut keep = false;
            open.retain(|_| {
                keep = !keep;
                keep
            });
        }
        open.push_back((self.ordinal, sequence));
    }

    pub(super) fn progress(&mut self, oldest: Option<u64>) -> impl Iterator<Item = Progress> + '_ {
        let oldest = match (oldest, self.window.ordinal()) {
            (Some(a), Some(b)) => a.min(b),
            (a, b) => a.or(b).unwrap_or(u64::MAX),
        };
        self.histories.iter_mut().map(move |history| {
            while let Some(&(ordinal, sequence)) = history.open.front() {
                if ordinal >= oldest {
                    break;
                }
                (history.settled, history.ordinal) = (Some(sequence), ordinal);
                history.open.pop_front();
            }
            Progress {
                connection: history.connection,
                rank: history.rank,
                sequence: history.settled,
                ordinal: history.ordinal,
            }
        })
    }
}
