//! One batch at a time, from its bytes to what the server must be told.
//!
//! ```text
//! frame ──sequences──> in order ──decoder──> events ──blockmap──> operations ──window──> deliveries
//!             └── asks for a replay, whose replies come in beside the live frames
//! ```
//!
//! Every batch gets an ordinal, counted over all streams. Deliveries carry the ordinal of the batch they answer for;
//! [`Ingest::progress`] turns the oldest one that is not settled back into engine sequences.

mod batch;
mod state;

use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use inferencecache_core::time::Micros;

use self::batch::{Current, Decoded, Origin};
use self::state::State;
use super::blockmap::{BlockMap, Notice, Op, Outcome, StreamId, Ticks};
use super::config::Rules;
use super::sequence::{Frame, ReplayEnd, ReplayId, Request, SequenceTally, Sequences, Verdict};
use super::window::{Outgoing, Window};
use crate::kvevents::{BatchError, EngineDecoder};

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

/// Decoder, map and window in one, fed by the receive task.
#[derive(Debug)]
pub struct Ingest<D> {
    decoder: D,
    state: State,
}

impl<D: EngineDecoder> Ingest<D> {
    /// Knows nothing yet. `refresh_min`: repetitions of an acknowledged report within that time are left out.
    pub fn new(decoder: D, rules: Rules, startup_clear: bool, refresh_min: Ticks) -> Self {
        let state = State {
            map: BlockMap::new(rules),
            window: Window::default(),
            sequences: Sequences::new(startup_clear),
            hasher: RandomState::default(),
            ordinal: 0,
            tally: EventTally::default(),
            histories: Vec::new(),
            outcome: Outcome::default(),
            refresh_min,
        };
        Self { decoder, state }
    }

    /// Says that missed batches of a connection can be asked for.
    pub fn replayable(&mut self, connection: u16) {
        self.state.sequences.replayable(connection);
    }

    /// Takes one message and appends what must be delivered now. Notices go to `notices`. Returns the time of the batch.
    /// Afterwards a replay may have to be asked for: see [`next_request`](Self::next_request).
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
        self.state.tally.batches += 1;
        let decoded = self.decode(message, Origin::Live, now, out);
        let result = match decoded.result {
            Ok(()) => {
                if let Some(stream) = decoded.stream {
                    self.state.keep(stream, &decoded, Some(message.payload));
                    self.drain(stream, now, out);
                }
                Ok(decoded.frame.at)
            }
            Err(error) => {
                self.state.tally.bad_batches += 1;
                self.unreadable(message.connection, &decoded, now, out);
                Err(error)
            }
        };
        notices.append(&mut self.state.outcome.notices);
        result
    }

    /// The next replay to ask for.
    pub fn next_request(&mut self) -> Option<Request> {
        self.state.sequences.next_request()
    }

    /// Whether a replay is still waited for.
    #[must_use]
    pub fn is_wanted(&self, id: ReplayId) -> bool {
        self.state.sequences.is_wanted(id)
    }

    /// Takes one reply of a replay, and appends what must be delivered now.
    pub fn reply(
        &mut self,
        id: ReplayId,
        message: Message<'_>,
        now: Ticks,
        out: &mut Vec<Outgoing>,
        notices: &mut Vec<Notice>,
    ) {
        let Some(stream) = self.state.sequences.waiting_for(id) else { return };
        let decoded = self.decode(message, Origin::Reply(id, stream), now, out);
        let mut end = decoded.end;
        if decoded.result.is_err() {
            self.state.tally.bad_batches += 1;
            let (step, ended) = self.state.sequences.reply(id, decoded.frame, now);
            end = ended;
            self.state.change(stream, &step, out);
            if step.verdict == Verdict::Apply {
                self.state.unreadable(message.connection, stream, decoded.frame.sequence);
            }
        }
        if let Some(end) = end {
            self.replay_ended(id, end, now, out, notices);
        }
        notices.append(&mut self.state.outcome.notices);
    }

    /// A replay has ended. What it did not bring is lost; what waited for it is applied.
    pub fn replay_ended(
        &mut self,
        id: ReplayId,
        end: ReplayEnd,
        now: Ticks,
        out: &mut Vec<Outgoing>,
        notices: &mut Vec<Notice>,
    ) {
        let Some((stream, step)) = self.state.sequences.ended(id, end, now) else { return };
        self.state.ordinal += 1;
        self.state.change(stream, &step, out);
        self.drain(stream, now, out);
        notices.append(&mut self.state.outcome.notices);
    }

    /// When [`tick`](Self::tick) has something to do.
    #[must_use]
    pub fn wake_at(&self) -> Option<Ticks> {
        self.state.sequences.wake_at()
    }

    /// Gives up replays whose time is over, and looks into silences. Returns how many replays were given up.
    pub fn tick(&mut self, now: Ticks, out: &mut Vec<Outgoing>, notices: &mut Vec<Notice>) -> usize {
        let mut given_up = 0;
        while let Some(id) = self.state.sequences.expired(now) {
            self.replay_ended(id, ReplayEnd::Failed, now, out, notices);
            given_up += 1;
        }
        for stream in self.state.sequences.look(now) {
            self.state.map.unconfirm(stream);
        }
        given_up
    }

    /// A connection was lost. What came over it is in doubt, unless its publisher can be asked when it is back.
    pub fn parted(&mut self, connection: u16, now: Ticks) {
        for stream in self.state.sequences.parted(connection, now) {
            self.state.map.unconfirm(stream);
        }
    }

    /// A connection was made. If it had been lost before, its publisher may have to be asked who it is: see
    /// [`next_request`](Self::next_request).
    pub fn rejoined(&mut self, connection: u16, now: Ticks) {
        for stream in self.state.sequences.rejoined(connection, now) {
            self.state.map.unconfirm(stream);
        }
    }

    /// Live messages of a connection were dropped unseen. The number of the next one shows the gap, if it has one and there
    /// ever is a next one; what is known is in doubt already now.
    pub fn dropped(&mut self, connection: u16) {
        self.state.map.lost_batch(connection);
    }

    /// The process behind a connection is gone: it refuses what it accepted before. What it held is in doubt until the next
    /// one speaks.
    pub fn gone(&mut self, connection: u16, now: Ticks, out: &mut Vec<Outgoing>, notices: &mut Vec<Notice>) {
        if let Some(id) = self.state.sequences.cancel(connection) {
            self.replay_ended(id, ReplayEnd::Cancelled, now, out, notices);
        }
        for stream in self.state.sequences.gone(connection) {
            self.state.map.unconfirm(stream);
        }
    }

    /// Applies what follows for the server from something that came by another way than a batch. `at` is its time.
    pub fn outside(&mut self, at: Micros, out: &mut Vec<Outgoing>, apply: impl FnOnce(&mut BlockMap, &mut Vec<Op>)) {
        let state = &mut self.state;
        apply(&mut state.map, &mut state.outcome.ops);
        state.push(at, 0, out);
    }

    /// Reports that the window holds.
    #[must_use]
    pub fn gathered(&self) -> usize {
        self.state.window.len()
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

    /// Counts of what the numbers of batches showed.
    #[must_use]
    pub fn sequences(&self) -> SequenceTally {
        let tally = self.state.sequences.tally();
        SequenceTally { lost: tally.lost.saturating_add(self.state.map.tally().unnumbered_losses), ..*tally }
    }

    /// Counts since the start.
    #[must_use]
    pub fn tally(&self) -> &EventTally {
        &self.state.tally
    }

    /// Says that every delivery with an ordinal below `oldest` is settled (all of them when `None`), and returns how far
    /// each stream has come.
    pub fn progress(&mut self, oldest: Option<u64>) -> impl Iterator<Item = Progress> + '_ {
        self.state.progress(oldest)
    }
}

impl<D: EngineDecoder> Ingest<D> {
    fn decode(&mut self, message: Message<'_>, origin: Origin, now: Ticks, out: &mut Vec<Outgoing>) -> Decoded {
        let state = &mut self.state;
        state.ordinal += 1;
        let print = state.hasher.hash_one(message.payload);
        let frame = Frame { sequence: message.sequence.unwrap_or_default(), at: 0, print };
        let mut current =
            Current { state, message, origin, now, out, stream: None, frame, verdict: Verdict::Ignore, end: None };
        let result = self.decoder.decode(message.payload, &mut current);
        let Current { stream, frame, verdict, end, .. } = current;
        let applied = result.is_ok() && verdict == Verdict::Apply;
        if let (true, Some(stream), Some(sequence)) = (applied, stream, message.sequence) {
            self.state.remember(stream, sequence);
        }
        Decoded { result, stream, frame, verdict, end, numbered: message.sequence.is_some() }
    }

    /// A live message that nobody can read: a lost batch, of whichever stream of the connection.
    fn unreadable(&mut self, connection: u16, decoded: &Decoded, now: Ticks, out: &mut Vec<Outgoing>) {
        let state = &mut self.state;
        let owner = if decoded.numbered { state.sequences.owner(connection, decoded.frame.sequence) } else { None };
        let Some(stream) = owner else { return state.map.lost_batch(connection) };
        let step = state.sequences.unreadable(stream, decoded.frame, now);
        state.change(stream, &step, out);
        match step.verdict {
            Verdict::Apply => state.unreadable(connection, stream, decoded.frame.sequence),
            Verdict::Ignore => state.map.lost_batch(connection),
            Verdict::Hold | Verdict::Suspect => {
                state.keep(stream, &Decoded { verdict: step.verdict, ..*decoded }, None);
            }
        }
        self.drain(stream, now, out);
    }

    /// Goes on with the frames that waited for a replay.
    fn drain(&mut self, stream: StreamId, now: Ticks, out: &mut Vec<Outgoing>) {
        while let Some((held, step)) = self.state.sequences.next_held(stream, now) {
            self.state.ordinal += 1;
            self.state.change(stream, &step, out);
            match (step.verdict, &held.payload) {
                (Verdict::Hold, _) => self.state.sequences.hold_again(stream, held),
                (Verdict::Suspect, _) => self.state.sequences.suspect(stream, held),
                (Verdict::Ignore, _) => {}
                (Verdict::Apply, None) => {
                    let connection = self.state.histories[stream.index()].connection;
                    self.state.unreadable(connection, stream, held.frame.sequence);
                }
                (Verdict::Apply, Some(payload)) => {
                    let connection = self.state.histories[stream.index()].connection;
                    let message = Message { connection, sequence: Some(held.frame.sequence), payload };
                    // It was decoded once already.
                    let _ = self.decode(message, Origin::Judged, now, out);
                }
            }
        }
    }
}
