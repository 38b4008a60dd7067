//! One batch while it is being decoded: whose it is, whether it may be applied, and what its events lead to.

use super::Message;
use super::state::{History, State};
use crate::kvevents::{BatchError, BatchHead, BatchSink, EngineEvent, Malformed};
use crate::subscriber::blockmap::{StreamId, Ticks};
use crate::subscriber::sequence::{Frame, ReplayEnd, ReplayId, Step, Verdict};
use crate::subscriber::window::Outgoing;

/// Where a batch comes from.
#[derive(Debug, Clone, Copy)]
pub(super) enum Origin {
    Live,
    /// It was held, and may be applied now.
    Judged,
    Reply(ReplayId, StreamId),
}

/// What became of a message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Decoded {
    pub(super) result: Result<(), BatchError>,
    pub(super) stream: Option<StreamId>,
    pub(super) frame: Frame,
    pub(super) verdict: Verdict,
    pub(super) end: Option<ReplayEnd>,
    pub(super) numbered: bool,
}

/// A batch while it is being decoded.
pub(super) struct Current<'a> {
    pub(super) state: &'a mut State,
    pub(super) message: Message<'a>,
    pub(super) origin: Origin,
    pub(super) now: Ticks,
    pub(super) out: &'a mut Vec<Outgoing>,
    pub(super) stream: Option<StreamId>,
    pub(super) frame: Frame,
    pub(super) verdict: Verdict,
    pub(super) end: Option<ReplayEnd>,
}

impl Current<'_> {
    fn judge(&mut self, stream: StreamId) {
        let sequences = &mut self.state.sequences;
        let step = match self.origin {
            Origin::Judged => Step::default(),
            Origin::Live if self.message.sequence.is_some() => sequences.live(stream, self.frame, self.now),
            Origin::Live => {
                sequences.unnumbered(stream);
                self.state.map.set_fresh(stream, false);
                Step::default()
            }
            // An engine speaks for one rank; another one's batches are none of ours.
            Origin::Reply(_, wanted) if wanted != stream => Step { verdict: Verdict::Ignore, ..Step::default() },
            Origin::Reply(id, _) => {
                let (step, end) = sequences.reply(id, self.frame, self.now);
                self.end = end;
                step
            }
        };
        self.state.change(stream, &step, self.out);
        self.verdict = step.verdict;
    }
}

impl BatchSink for Current<'_> {
    fn batch(&mut self, head: BatchHead) {
        let (state, connection) = (&mut *self.state, self.message.connection);
        let stream = match self.origin {
            Origin::Reply(..) => state.map.known_stream(connection, head.rank),
            Origin::Live | Origin::Judged => {
                let (stream, new) = state.map.stream(connection, head.rank);
                if new {
                    state.sequences.add(connection);
                    state.histories.push(History { connection, rank: head.rank, ..History::default() });
                }
                Some(stream)
            }
        };
        self.frame.at = head.timestamp;
        self.stream = stream;
        if let Some(stream) = stream {
            self.judge(stream);
        }
    }

    fn wanted(&self) -> bool {
        self.verdict == Verdict::Apply
    }

    fn event(&mut self, event: Result<EngineEvent<'_>, Malformed>) {
        let (state, Some(stream)) = (&mut *self.state, self.stream) else { return };
        if self.verdict != Verdict::Apply {
            return;
        }
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
        state.push(self.frame.at, self.now, self.out);
    }
}
