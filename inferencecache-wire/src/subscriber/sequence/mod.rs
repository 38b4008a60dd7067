//! What the number of a batch says about those before it.
//!
//! ```text
//!               next number            apply
//!   number ──>  a number was left out  gap: ask for a replay, hold live frames meanwhile; else lost
//!               fell                   restart, or a duplicate
//!               the first of all       known from the beginning when it is 0, or when a replay begins there
//! ```
//!
//! A machine per stream, that is per (connection, rank); a rank that batches do not name is a stream of its own. It owns
//! neither sockets nor clock: frames, replies and the time come in, a [`Step`] says what to do with the frame and what has
//! happened to the stream before it.
//!
//! 1. Every number is applied at most once between two restarts, in rising order.
//! 2. What may have been missed is said ([`Step::lost`]) before anything that came after it is applied.
//! 3. At most one replay is outstanding per connection, and after one that failed none is asked for during 5 s.
//! 4. Replies to a request that was given up are ignored.
//! 5. Frames that wait, and what is remembered of frames that were applied, are bounded.
//!
//! Two publishers cannot be told apart by number and time alone when a clock was set back. So a frame 0 after another one
//! is always a restart, and so are two frames in a row of which the first fell and differs from what came under its number,
//! and the second continues it and is no duplicate either. A refused dial after a connection that stood is proof: the next
//! frame is a restart whatever it says ([`Sequences::gone`]). A connection that comes back proves nothing: there the publisher
//! is asked for the last frame that was heard, and without an answer what is known stays in doubt ([`Sequences::rejoined`]).

mod held;
mod prints;
mod proof;
mod replay;
mod stream;

pub use held::{Held, MAX_HELD_BYTES};
pub use proof::{AWAY, QUIET};
pub use replay::{PAUSE, ReplayEnd, ReplayId, Request, SILENCE, WHOLE};

use std::collections::BTreeMap;

use inferencecache_core::time::Micros;

use self::held::Budget;
use self::replay::Link;
use self::stream::Stream;
use super::blockmap::{StreamId, Ticks};

/// A numbered frame, as far as its order goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Its number.
    pub sequence: u64,
    /// Its time; 0 when it has none.
    pub at: Micros,
    /// Fingerprint of its payload.
    pub print: u64,
}

/// What to do with a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Verdict {
    /// Apply it now.
    #[default]
    Apply,
    /// Give it to [`Sequences::hold`]: it waits for a replay.
    Hold,
    /// Give it to [`Sequences::suspect`]: a duplicate, or the first of another publisher.
    Suspect,
    /// Drop it.
    Ignore,
}

/// How a stream begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beginning {
    /// Tell the server to forget what an earlier process reported for this replica.
    pub clear: bool,
    /// Every event of the stream from its beginning is known from now on.
    pub fresh: bool,
}

/// What a frame, a reply or the end of a replay leads to. The parts come before the frame, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Step {
    /// The engine is another one: all that was known of the stream is void.
    pub restarted: bool,
    /// The stream begins, or begins again.
    pub begins: Option<Beginning>,
    /// Batches that are missing for good. What was known before may have been removed by them.
    pub lost: u64,
    /// The publisher may be another one than was heard. What was known before is in doubt.
    pub unproven: bool,
    /// What to do with the frame.
    pub verdict: Verdict,
}

impl Step {
    const IGNORE: Self = Self { restarted: false, begins: None, lost: 0, unproven: false, verdict: Verdict::Ignore };
}

/// Counts since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SequenceTally {
    /// Times that numbers were left out.
    pub gaps: u64,
    /// Batches that were missed for good.
    pub lost: u64,
    /// Batches that came through a replay.
    pub replayed: u64,
    /// Frames that were seen before.
    pub duplicates: u64,
    /// Publishers that turned out to be new ones.
    pub restarts: u64,
    /// Times that a stream was in doubt because its connection had been lost and nothing showed whose it was afterwards.
    pub unproven: u64,
    /// Live frames dropped because too much was waiting for a replay.
    pub dropped: u64,
}

/// The machines of all streams of one process.
#[derive(Debug)]
pub struct Sequences {
    streams: Vec<Stream>,
    links: BTreeMap<u16, Link>,
    /// Whether the server is still to be told to forget what an earlier process reported. Not once anything was applied:
    /// a later clear would wipe what other ranks hold.
    clear_due: bool,
    last_id: u64,
    asked: Vec<Request>,
    budget: Budget,
    tally: SequenceTally,
}

impl Sequences {
    /// `startup_clear`: whether a process whose first stream is known from its beginning begins with a clear.
    #[must_use]
    pub fn new(startup_clear: bool) -> Self {
        Self {
            streams: Vec::new(),
            links: BTreeMap::new(),
            clear_due: startup_clear,
            last_id: 0,
            asked: Vec::new(),
            budget: Budget::default(),
            tally: SequenceTally::default(),
        }
    }

    /// Says that missed batches of a connection can be asked for.
    pub fn replayable(&mut self, connection: u16) {
        self.links.entry(connection).or_default().replayable = true;
    }

    /// Adds the stream that the map has just created: they are numbered alike.
    pub fn add(&mut self, connection: u16) {
        self.links.entry(connection).or_default().streams += 1;
        self.streams.push(Stream::new(connection));
    }

    /// Counts since the start.
    #[must_use]
    pub fn tally(&self) -> &SequenceTally {
        &self.tally
    }

    /// Ends what is waited for on a connection whose process is gone; see [`gone`](Self::gone), which comes next.
    pub fn cancel(&mut self, connection: u16) -> Option<ReplayId> {
        let link = self.links.entry(connection).or_default();
        link.barred = true;
        link.outstanding.map(|replay| replay.id)
    }

    /// The process behind a connection is gone: it refuses what it accepted before. The next frame of each of its streams
    /// is that of another one. Returns them: until then their content is in doubt.
    pub fn gone(&mut self, connection: u16) -> Vec<StreamId> {
        let link = self.links.entry(connection).or_default();
        (link.barred, link.not_before) = (false, 0);
        let mine = StreamId::all().zip(&mut self.streams).filter(|(_, stream)| stream.connection == connection);
        mine.filter(|(_, stream)| stream.last.is_some())
            .map(|(id, stream)| {
                stream.gone = true;
                id
            })
            .collect()
    }

    // === live frames ===

    /// Judges a live frame. Afterwards [`next_held`](Self::next_held) may have something.
    pub fn live(&mut self, id: StreamId, frame: Frame, now: Ticks) -> Step {
        let Some(stream) = self.streams.get_mut(id.index()) else { return Step::default() };
        (stream.heard, stream.looked) = (now, false);
        match stream.wait {
            Some(_) => Step { verdict: Verdict::Hold, ..Step::default() },
            None => self.judge(id, frame, now),
        }
    }

    /// Judges a live frame that nobody can read. It is taken for a duplicate when it fell: only 0 proves a restart.
    pub fn unreadable(&mut self, id: StreamId, frame: Frame, now: Ticks) -> Step {
        let Some(stream) = self.streams.get(id.index()) else { return Step::IGNORE };
        let fell = stream.wait.is_none() && stream.last.is_some_and(|last| frame.sequence <= last);
        if fell && frame.sequence > 0 && !stream.gone { Step::IGNORE } else { self.live(id, frame, now) }
    }

    /// The stream of the connection that a frame nobody can read belongs to: the only one, or the only one that expects its
    /// number. `None` when that is not certain.
    #[must_use]
    pub fn owner(&self, connection: u16, sequence: u64) -> Option<StreamId> {
        let mine = || StreamId::all().zip(&self.streams).filter(|(_, stream)| stream.connection == connection);
        let only = |streams: Vec<StreamId>| if let [id] = streams[..] { Some(id) } else { None };
        only(mine().map(|(id, _)| id).collect()).or_else(|| {
            only(mine().filter(|(_, stream)| stream.expects() == Some(sequence)).map(|(id, _)| id).collect())
        })
    }

    /// Keeps a frame until the replay has ended. When there is no room it is dropped, and becomes a gap.
    pub fn hold(&mut self, id: StreamId, held: Held) {
        let Some(stream) = self.streams.get_mut(id.index()) else { return };
        if self.budget.take(&held) {
            let link = self.links.get_mut(&stream.connection);
            if let Some(replay) = link.and_then(|link| link.outstanding.as_mut()).filter(|r| Some(r.id) == stream.wait)
            {
                replay.leads_to(&held.frame, stream.last);
            }
            stream.held.push_back(held);
        } else {
            self.tally.dropped += 1;
        }
    }

    /// Keeps a frame until the next one shows what it was.
    pub fn suspect(&mut self, id: StreamId, held: Held) {
        let Some(stream) = self.streams.get_mut(id.index()) else { return };
        if self.budget.take(&held) {
            stream.fallen = Some(held);
        } else {
            self.tally.duplicates += 1;
        }
    }

    /// Judges the oldest frame that was held, unless a replay is waited for.
    pub fn next_held(&mut self, id: StreamId, now: Ticks) -> Option<(Held, Step)> {
        let stream = self.streams.get_mut(id.index()).filter(|stream| stream.wait.is_none())?;
        let held = stream.reborn.take().or_else(|| stream.held.pop_front())?;
        self.budget.release(&held);
        let step = self.judge(id, held.frame, now);
        Some((held, step))
    }

    /// Puts back what [`next_held`](Self::next_held) has returned with the verdict [`Hold`](Verdict::Hold).
    pub fn hold_again(&mut self, id: StreamId, held: Held) {
        if let Some(stream) = self.streams.get_mut(id.index()) {
            self.budget.put_back(&held);
            stream.held.push_front(held);
        }
    }

    /// Something without a number was applied.
    pub fn unnumbered(&mut self, id: StreamId) {
        self.clear_due = false;
        if let Some(stream) = self.streams.get_mut(id.index()) {
            stream.unnumbered = true;
        }
    }

    fn judge(&mut self, id: StreamId, frame: Frame, now: Ticks) -> Step {
        let Some(stream) = self.streams.get_mut(id.index()) else { return Step::default() };
        let fallen = stream.fallen.take();
        if let Some(held) = &fallen {
            self.budget.release(held);
        }
        let Some(last) = stream.last else { return self.first(id, frame, now) };
        if stream.gone || stream.is_another_publisher(&frame) {
            self.tally.duplicates += u64::from(fallen.is_some());
            return Step { restarted: true, ..self.restart(id, frame, now) };
        }
        let fallen = match fallen {
            Some(before) if stream.are_another_publishers(&before.frame, &frame) => {
                self.budget.put_back(&before);
                self.renew(id, Some(before));
                return Step { restarted: true, verdict: Verdict::Hold, ..Step::default() };
            }
            fallen => fallen,
        };
        self.tally.duplicates += u64::from(fallen.is_some());
        let Some(missing) = frame.sequence.checked_sub(last).and_then(|ahead| ahead.checked_sub(1)) else {
            return self.fell(id, &frame);
        };
        let told = self.streams.get_mut(id.index()).is_some_and(|stream| std::mem::take(&mut stream.gap_told));
        if missing > 0 {
            self.tally.gaps += u64::from(!told);
            if self.ask(id, last + 1, &frame, now) {
                return Step { verdict: Verdict::Hold, ..Step::default() };
            }
        }
        self.accept(id, &frame);
        self.miss(missing)
    }

    /// The first frame of a publisher.
    fn first(&mut self, id: StreamId, frame: Frame, now: Ticks) -> Step {
        if frame.sequence > 0 && self.ask(id, 0, &frame, now) {
            return Step { verdict: Verdict::Hold, ..Step::default() };
        }
        let begins = Some(self.begin(frame.sequence == 0));
        self.accept(id, &frame);
        Step { begins, ..Step::default() }
    }

    /// A frame whose number is not above the last one, and that proves nothing by itself.
    fn fell(&mut self, id: StreamId, frame: &Frame) -> Step {
        let differs = self.streams.get(id.index()).is_some_and(|stream| stream.differs(frame));
        self.tally.duplicates += u64::from(!differs);
        Step { verdict: if differs { Verdict::Suspect } else { Verdict::Ignore }, ..Step::default() }
    }

    fn restart(&mut self, id: StreamId, frame: Frame, now: Ticks) -> Step {
        self.renew(id, None);
        self.first(id, frame, now)
    }

    /// Forgets everything about a stream but the frames that wait. `reborn` comes before them.
    fn renew(&mut self, id: StreamId, reborn: Option<Held>) {
        self.tally.restarts += 1;
        self.clear_due = false;
        if let Some(stream) = self.streams.get_mut(id.index()) {
            let held = std::mem::take(&mut stream.held);
            *stream = Stream { held, reborn, ..Stream::new(stream.connection) };
        }
    }

    fn begin(&mut self, fresh: bool) -> Beginning {
        Beginning { clear: fresh && std::mem::take(&mut self.clear_due), fresh }
    }

    fn accept(&mut self, id: StreamId, frame: &Frame) {
        self.clear_due = false;
        if let Some(stream) = self.streams.get_mut(id.index()) {
            stream.accept(frame);
        }
    }

    fn miss(&mut self, lost: u64) -> Step {
        self.tally.lost = self.tally.lost.saturating_add(lost);
        Step { lost, ..Step::default() }
    }
}
