//! Asking for what was missed.

use inferencecache_core::time::Micros;

use super::{Frame, Sequences, Step, Verdict};
use crate::subscriber::blockmap::{StreamId, Ticks};

/// A replay is given up when nothing came for so long.
pub const SILENCE: Ticks = 20;
/// Longest time for one replay as a whole.
pub const WHOLE: Ticks = 300;
/// No replay is asked for so long after one that failed.
pub const PAUSE: Ticks = 50;

/// Number of a replay within the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReplayId(pub u64);

/// Batches that are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Which replay.
    pub id: ReplayId,
    /// At whose publisher.
    pub connection: u16,
    /// First number.
    pub start: u64,
    /// First number that is not wanted any more: it came live.
    pub until: u64,
}

/// How a replay ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayEnd {
    /// The publisher sent all that it has.
    Complete,
    /// It did not answer, or not to the end, or with what cannot be right.
    Failed,
    /// Nobody is interested any more.
    Cancelled,
}

/// A replay that is waited for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Replay {
    pub(super) id: ReplayId,
    stream: StreamId,
    until: u64,
    /// Time of the live frame that it leads to; 0 when that has none.
    before: Micros,
    begun: Ticks,
    heard: Ticks,
}

impl Replay {
    fn deadline(&self) -> Ticks {
        self.heard.saturating_add(SILENCE).min(self.begun.saturating_add(WHOLE))
    }

    /// Whether a reply cannot come from the publisher that was asked: it was made after the frame it should precede.
    fn is_foreign(&self, reply: &Frame) -> bool {
        reply.at > 0 && self.before > 0 && reply.at > self.before
    }
}

/// The replay side of a connection.
#[derive(Debug, Default)]
pub(super) struct Link {
    pub(super) replayable: bool,
    /// Nothing is asked for now.
    pub(super) barred: bool,
    pub(super) not_before: Ticks,
    pub(super) outstanding: Option<Replay>,
}

impl Sequences {
    /// The next replay to ask for.
    pub fn next_request(&mut self) -> Option<Request> {
        while let Some(request) = self.asked.pop() {
            if self.is_wanted(request.id) {
                return Some(request);
            }
        }
        None
    }

    /// Whether a replay is still waited for; whoever runs one that is not may stop.
    #[must_use]
    pub fn is_wanted(&self, id: ReplayId) -> bool {
        self.outstanding(id).is_some()
    }

    /// When [`expired`](Self::expired) has something to say.
    #[must_use]
    pub fn wake_at(&self) -> Option<Ticks> {
        self.links.values().filter_map(|link| Some(link.outstanding?.deadline())).min()
    }

    /// A replay whose time is over, to be [`ended`](Self::ended) as failed.
    #[must_use]
    pub fn expired(&self, now: Ticks) -> Option<ReplayId> {
        let mut outstanding = self.links.values().filter_map(|link| link.outstanding);
        outstanding.find(|replay| replay.deadline() <= now).map(|replay| replay.id)
    }

    /// The stream that waits for a replay.
    #[must_use]
    pub fn waiting_for(&self, id: ReplayId) -> Option<StreamId> {
        self.outstanding(id).map(|replay| replay.stream)
    }

    /// Judges a reply, and says how the replay ends when it ends with it. A reply to a replay that was given up, or one that
    /// is not the next, is ignored.
    pub fn reply(&mut self, id: ReplayId, frame: Frame, now: Ticks) -> (Step, Option<ReplayEnd>) {
        let Some(replay) = self.links.values_mut().find_map(|link| link.outstanding.as_mut().filter(|r| r.id == id))
        else {
            return (Step::IGNORE, None);
        };
        replay.heard = now;
        let replay = *replay;
        let Some(stream) = self.streams.get_mut(replay.stream.index()) else { return (Step::IGNORE, None) };
        if frame.sequence >= replay.until {
            return (Step::IGNORE, Some(ReplayEnd::Complete));
        }
        if replay.is_foreign(&frame) {
            return (Step::IGNORE, Some(ReplayEnd::Failed));
        }
        let (missing, first) = match stream.last {
            Some(last) if frame.sequence <= last => return (Step::IGNORE, None),
            Some(last) => (frame.sequence - last - 1, false),
            None => (0, true),
        };
        self.tally.replayed += 1;
        let begins = first.then(|| self.begin(frame.sequence == 0));
        self.accept(replay.stream, &frame);
        let step = Step { begins, ..self.miss(missing) };
        (step, (frame.sequence + 1 == replay.until).then_some(ReplayEnd::Complete))
    }

    /// Ends a replay. What it did not bring is lost; the frames that were held go on with
    /// [`next_held`](Self::next_held).
    pub fn ended(&mut self, id: ReplayId, end: ReplayEnd, now: Ticks) -> Option<(StreamId, Step)> {
        let replay = self.outstanding(id)?;
        let link = self.links.values_mut().find(|link| link.outstanding.is_some_and(|replay| replay.id == id))?;
        link.outstanding = None;
        if end == ReplayEnd::Failed {
            link.not_before = now.saturating_add(PAUSE);
        }
        let stream = self.streams.get_mut(replay.stream.index())?;
        stream.wait = None;
        let last = stream.last.replace(replay.until - 1);
        let step = match last {
            None => Step { begins: Some(self.begin(false)), ..Step::default() },
            Some(last) => self.miss(replay.until - 1 - last),
        };
        Some((replay.stream, Step { verdict: Verdict::Ignore, ..step }))
    }

    /// Asks for the frames from `start` on that precede `frame`. `false` when there is nobody to ask, or not now.
    pub(super) fn ask(&mut self, id: StreamId, start: u64, frame: &Frame, now: Ticks) -> bool {
        let Some(stream) = self.streams.get_mut(id.index()) else { return false };
        let connection = stream.connection;
        let Some(link) = self.links.get_mut(&connection) else { return false };
        if !link.replayable || link.barred || link.outstanding.is_some() || now < link.not_before {
            return false;
        }
        self.last_id += 1;
        let (id, stream_id, until) = (ReplayId(self.last_id), id, frame.sequence);
        stream.wait = Some(id);
        link.outstanding = Some(Replay { id, stream: stream_id, until, before: frame.at, begun: now, heard: now });
        self.asked.push(Request { id, connection, start, until });
        true
    }

    fn outstanding(&self, id: ReplayId) -> Option<Replay> {
        self.links.values().filter_map(|link| link.outstanding).find(|replay| replay.id == id)
    }
}
