//! One batch at a time, from its bytes to what the server must be told.
//!
//! ```text
//! frame ──decoder──> events ──blockmap──> operations ──window──> deliveries
//! ```
//!
//! Every batch gets an ordinal, counted over all streams. Deliveries carry the ordinal of the batch they answer for;
//! [`Ingest::progress`] turns the oldest one that is not settled back into engine sequences.

use std::collections::VecDeque;

use inferencecache_core::time::Micros;

use super::blockmap::{BlockMap, Notice, Op, Outcome, StreamId, Ticks};
use super::config::Rules;
use super::sequence::SequenceTracker;
use super::window::{Outgoing, Window};
use crate::kvevents::{BatchError, BatchHead, BatchSink, EngineDecoder, EngineEvent, Malformed};

/// Batches per stream whose sequence is remembered until the server has acknowledged them. Beyond it every second one is
/// forgotten, so that the figure of [`Ingest::progress`] gets coarser while the server lags; it never runs ahead.
const HISTORY: usize = 4096;

/// One message of the engine.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    /// Which of our connections it came over.
    pub connection: u16,
    /// Its number, if it carried one.
    pub sequence: Option<u64>,
    /// The encoded batch.
    pub payload: &'a [u8],
}

/// Counts since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EventTally {
    /// Batches, undecodable ones included.
    pub batches: u64,
    /// Batches that were refused whole.
    pub bad_batches: u64,
    /// Events that were dropped as malformed.
    pub bad_events: u64,
    /// Events of each type.
    pub stored: u64,
    /// See [`stored`](Self::stored).
    pub removed: u64,
    /// See [`stored`](Self::stored).
    pub cleared: u64,
    /// Events of types that say nothing about blocks.
    pub unknown: u64,
}

/// What one stream has reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Which of our connections.
    pub connection: u16,
    /// Data-parallel rank, if batches name it.
    pub rank: Option<i64>,
    /// The last engine sequence all of whose consequences are settled; `None` before the first.
    pub sequence: Option<u64>,
    /// Our own number of the batch that carried it: of two streams under one name, the later has come further.
    pub ordinal: u64,
}

#[derive(Debug, Default)]
struct History {
    connection: u16,
    rank: Option<i64>,
    settled: Option<u64>,
    /// Ordinal of the batch that is `settled`.
    ordinal: u64,
    /// (ordinal, sequence) of batches that are not known to be settled, oldest first.
    open: VecDeque<(u64, u64)>,
}

/// Decoder, map and window in one, fed by the receive task.
#[derive(Debug)]
pub struct Ingest<D> {
    decoder: D,
    state: State,
}

#[derive(Debug)]
struct State {
    map: BlockMap,
    window: Window,
    tracker: SequenceTracker,
    /// Ordinal of the current batch.
    ordinal: u64,
    tally: EventTally,
    histories: Vec<History>,
    /// Connection and stream of the last batch that could be decoded.
    last: Option<(u16, StreamId)>,
    outcome: Outcome,
    refresh_min: Ticks,
}

impl<D: EngineDecoder> Ingest<D> {
    /// Knows nothing yet. `refresh_min`: repetitions of an acknowledged report within that time are left out.
    pub fn new(decoder: D, rules: Rules, startup_clear: bool, refresh_min: Ticks) -> Self {
        let state = State {
            map: BlockMap::new(rules),
            window: Window::default(),
            tracker: SequenceTracker::new(startup_clear),
            ordinal: 0,
            tally: EventTally::default(),
            histories: Vec::new(),
            last: None,
            outcome: Outcome::default(),
            refresh_min,
        };
        Self { decoder, state }
    }

    /// Applies one message and appends what must be delivered now. Notices go to `notices`. Returns the time of the batch.
    ///
    /// # Errors
    ///
    /// [`BatchError`] when the batch is refused whole. It is counted and leaves its mark on what is believed.
    pub fn apply(
        &mut self,
        message: Message<'_>,
        now: Ticks,
        out: &mut Vec<Outgoing>,
        notices: &mut Vec<Notice>,
    ) -> Result<Micros, BatchError> {
        let state = &mut self.state;
        state.ordinal += 1;
        state.tally.batches += 1;
        let mut current = Current { state, message, now, out, stream: None, at: 0 };
        let decoded = self.decoder.decode(message.payload, &mut current);
        let (stream, at) = (current.stream, current.at);
        let state = &mut self.state;
        notices.append(&mut state.outcome.notices);
        let result = match decoded {
            Ok(()) => {
                state.last = stream.map(|stream| (message.connection, stream));
                Ok(at)
            }
            Err(error) => {
                state.tally.bad_batches += 1;
                state.map.lost_batch(message.connection);
                Err(error)
            }
        };
        // The rank of a batch that cannot be decoded is unknown; its number belongs to whoever spoke last.
        if let (Some((connection, stream)), Some(sequence)) = (state.last, message.sequence)
            && connection == message.connection
        {
            state.remember(stream, sequence);
        }
        result
    }

    /// Whether the window holds anything.
    #[must_use]
    pub fn is_gathering(&self) -> bool {
        self.state.window.ordinal().is_some()
    }

    /// Appends what the window holds.
    pub fn flush(&mut self, out: &mut Vec<Outgoing>) {
        self.state.window.flush(out);
    }

    /// The map, for delivery.
    pub fn map(&mut self) -> &mut BlockMap {
        &mut self.state.map
    }

    /// Counts since the start.
    #[must_use]
    pub fn tally(&self) -> &EventTally {
        &self.state.tally
    }

    /// Says that every delivery with an ordinal below `oldest` is settled (all of them when `None`), and returns how far
    /// each stream has come.
    pub fn progress(&mut self, oldest: Option<u64>) -> impl Iterator<Item = Progress> + '_ {
        let oldest = match (oldest, self.state.window.ordinal()) {
            (Some(a), Some(b)) => a.min(b),
            (a, b) => a.or(b).unwrap_or(u64::MAX),
        };
        self.state.histories.iter_mut().map(move |history| {
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

impl State {
    fn remember(&mut self, stream: StreamId, sequence: u64) {
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
}

/// A batch while it is being decoded.
struct Current<'a> {
    state: &'a mut State,
    message: Message<'a>,
    now: Ticks,
    out: &'a mut Vec<Outgoing>,
    stream: Option<StreamId>,
    at: Micros,
}

impl BatchSink for Current<'_> {
    fn batch(&mut self, head: BatchHead) {
        let state = &mut *self.state;
        let (stream, new) = state.map.stream(self.message.connection, head.rank);
        if new {
            let verdict = state.tracker.first(self.message.sequence);
            state.map.set_fresh(stream, verdict.fresh);
            state.histories.push(History {
                connection: self.message.connection,
                rank: head.rank,
                ..History::default()
            });
            if verdict.clear {
                state.window.push(Op::Clear, 0, state.ordinal, self.out);
            }
        }
        if self.message.sequence.is_none() {
            state.map.set_fresh(stream, false);
        }
        self.stream = Some(stream);
        self.at = head.timestamp;
    }

    fn event(&mut self, event: Result<EngineEvent<'_>, Malformed>) {
        let (state, Some(stream)) = (&mut *self.state, self.stream) else { return };
        let tally = &mut state.tally;
        match &event {
            Ok(EngineEvent::Stored(_)) => tally.stored += 1,
            Ok(EngineEvent::Removed(_)) => tally.removed += 1,
            Ok(EngineEvent::Cleared) => tally.cleared += 1,
            Ok(EngineEvent::Unknown) => tally.unknown += 1,
            Err(Malformed) => {
                tally.bad_events += 1;
                state.map.malformed(stream);
                return;
            }
        }
        let Ok(event) = event else { return };
        state.map.apply(stream, &event, &mut state.outcome);
        for op in state.outcome.ops.drain(..) {
            match &op {
                Op::Add { report, again } => {
                    if !again && state.map.repeats(report, self.now, state.refresh_min) {
                        continue;
                    }
                    state.map.hand_on(report);
                }
                Op::Downgrade(reports) => reports.iter().for_each(|report| state.map.hand_on(report)),
                Op::Evict { .. } | Op::Clear => {}
            }
            state.window.push(op, self.at, state.ordinal, self.out);
        }
    }
}
