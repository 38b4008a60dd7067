//! Asking for what was missed.

use inferencecache_core::time::Micros;

use super::proof::Anchor;
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
    /// First number that is not wanted any more: it came live. [`u64::MAX`] when everything is wanted.
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
    /// Number of the live frame that it leads to; [`u64::MAX`] while there is none.
    until: u64,
    /// Time of that frame; 0 when it has none.
    before: Micros,
    /// What it must begin with if the publisher is still the one that was heard. `None` once that is settled.
    anchor: Option<Anchor>,
    /// Nobody knows yet of anything that was missed: the first batch that is new shows it.
    probing: bool,
    begun: Ticks,
    heard: Ticks,
}

impl Replay {
    fn deadline(&self) -> Ticks {
        self.heard.saturating_add(SILENCE).min(self.begun.saturating_add(WHOLE))
    }

    /// A live frame waits for it, so nothing from that one on is wanted.
    pub(super) fn leads_to(&mut self, frame: &Frame, last: Option<u64>) {
        if self.until == u64::MAX && last.is_none_or(|last| frame.sequence > last) {
            (self.until, self.before) = (frame.sequence, frame.at);
        }
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
    /// Streams that come over it.
    pub(super) streams: usize,
    /// When the connection was lost that has not come back yet.
    pub(super) parted: Option<Ticks>,
    /// It has stayed away for so long that nothing is believed of it any more.
    pub(super) given_up: bool,
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

    /// When [`expired`](Self::expired) or [`look`](Self::look) has something to say.
    #[must_use]
    pub fn wake_at(&self) -> Option<Ticks> {
        let replays = self.links.values().filter_map(|link| Some(link.outstanding?.deadline()));
        replays.chain(self.doubts_at()).min()
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
        let mut unproven = false;
        if let Some(anchor) = replay.anchor {
            if frame.sequence < anchor.sequence {
                return (Step::IGNORE, None);
            }
            replay.anchor = None;
            if frame.sequence == anchor.sequence && frame.print != anchor.print {
                let stream = replay.stream;
                return (self.reborn(stream, now), None);
            }
            unproven = frame.sequence > anchor.sequence && anchor.parted;
        }
        let Some(stream) = self.streams.get_mut(replay.stream.index()) else { return (Step::IGNORE, None) };
        let news = stream.last.is_none_or(|last| frame.sequence > last) && frame.sequence < replay.until;
        let shows_gap = news && std::mem::take(&mut replay.probing);
        stream.gap_told |= shows_gap;
        let (replay, last) = (*replay, stream.last);
        self.tally.unproven += u64::from(unproven);
        self.tally.gaps += u64::from(shows_gap);
        let ignore = Step { unproven, ..Step::IGNORE };
        if frame.sequence >= replay.until {
            return (ignore, Some(ReplayEnd::Complete));
        }
        if replay.is_foreign(&frame) {
            return (ignore, Some(ReplayEnd::Failed));
        }
        let end = (frame.sequence + 1 == replay.until).then_some(ReplayEnd::Complete);
        let (missing, first) = match last {
            Some(last) if frame.sequence <= last => return (ignore, end),
            Some(last) => (frame.sequence - last - 1, false),
            None => (0, true),
        };
        self.tally.replayed += 1;
        let begins = first.then(|| self.begin(frame.sequence == 0));
        self.accept(replay.stream, &frame);
        let step = Step { begins, unproven, ..self.miss(missing) };
        (step, end)
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
        let mut unproven = false;
        if replay.anchor.is_some_and(|anchor| anchor.parted) {
            if end == ReplayEnd::Complete {
                // Whoever sent the last batch would have it.
                return Some((replay.stream, self.reborn(replay.stream, now)));
            }
            unproven = true;
            self.tally.unproven += 1;
        }
        let stream = self.streams.get_mut(replay.stream.index())?;
        let step = if replay.until == u64::MAX {
            Step::default()
        } else {
            match stream.last.replace(replay.until - 1) {
                None => Step { begins: Some(self.begin(false)), ..Step::default() },
                Some(last) => self.miss((replay.until - 1).saturating_sub(last)),
            }
        };
        Some((replay.stream, Step { unproven, verdict: Verdict::Ignore, ..step }))
    }

    /// Asks for the frames from `start` on that precede `frame`. `false` when there is nobody to ask, or not now.
    pub(super) fn ask(&mut self, id: StreamId, start: u64, frame: &Frame, now: Ticks) -> bool {
        let Some(link) = self.link_of(id) else { return false };
        if !link.replayable || link.barred || link.outstanding.is_some() || now < link.not_before {
            return false;
        }
        self.request(id, start, Some(frame), None, now);
        true
    }

    /// Asks for the frames from `start` on, up to one that came live if there is one.
    pub(super) fn request(
        &mut self,
        stream: StreamId,
        start: u64,
        before: Option<&Frame>,
        anchor: Option<Anchor>,
        now: Ticks,
    ) {
        let Some(state) = self.streams.get_mut(stream.index()) else { return };
        self.last_id += 1;
        let (id, connection) = (ReplayId(self.last_id), state.connection);
        let mut replay = Replay {
            id,
            stream,
            until: u64::MAX,
            before: 0,
            anchor,
            probing: anchor.is_some(),
            begun: now,
            heard: now,
        };
        if let Some(frame) = before.or(state.held.front().map(|held| &held.frame)) {
            replay.leads_to(frame, state.last);
        }
        (state.wait, state.heard) = (Some(id), now);
        self.links.entry(connection).or_default().outstanding = Some(replay);
        self.asked.push(Request { id, connection, start, until: replay.until });
    }

    pub(super) fn link_of(&mut self, id: StreamId) -> Option<&mut Link> {
        let connection = self.streams.get(id.index())?.connection;
        self.links.get_mut(&connection)
    }

    fn outstanding(&self, id: ReplayId) -> Option<Replay> {
        self.links.values().filter_map(|link| link.outstanding).find(|replay| replay.id == id)
    }
}
