//! Whether the publisher is still the one that was heard.
//!
//! ```text
//!   lost ──> back      replay from the last frame on, it included
//!                        the same frame     the same publisher, and nothing is missed
//!                        another, or none   another publisher: a restart
//!                        a later one first  it is not kept any more: in doubt
//!                        no answer          in doubt
//!   lost ──> 30 s      in doubt
//!   lost               in doubt at once, where there is nobody to ask
//! ```
//!
//! A new process may have passed the last number by the time we are back, and a dial is refused only if it falls between the
//! two. Behind a connection that carries several streams nobody knows whose replays are given, so they are in doubt.
//!
//! A publisher that has fallen silent is asked in the same way, once in a silence: what it said last may have been lost,
//! and no number shows that. Its connection stands, so an answer that says nothing means nothing.

use super::{Sequences, Step, Verdict};
use crate::subscriber::blockmap::{StreamId, Ticks};

/// A publisher that said nothing for so long is asked whether that is all.
pub const QUIET: Ticks = 100;
/// A connection that stays away for so long leaves what came over it in doubt.
pub const AWAY: Ticks = 300;

/// The frame by which a publisher is known again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Anchor {
    pub(super) sequence: u64,
    pub(super) print: u64,
    /// The connection was lost since; otherwise it only was silent.
    pub(super) parted: bool,
}

impl Sequences {
    /// A connection was lost. Returns the streams that are in doubt.
    pub fn parted(&mut self, connection: u16, now: Ticks) -> Vec<StreamId> {
        let link = self.links.entry(connection).or_default();
        (link.parted, link.given_up) = (Some(now), false);
        let numbered = !self.streams.iter().any(|stream| stream.connection == connection && stream.unnumbered);
        let provable = numbered && link.replayable && link.streams == 1;
        if provable { Vec::new() } else { self.in_doubt(connection) }
    }

    /// A connection was made. If it is one that was lost, its publisher is asked whether it is the same. Returns the streams
    /// that are in doubt.
    pub fn rejoined(&mut self, connection: u16, now: Ticks) -> Vec<StreamId> {
        let link = self.links.entry(connection).or_default();
        if link.parted.take().is_none() || !link.replayable || link.streams != 1 {
            return Vec::new();
        }
        // Whatever was asked before may have reached either.
        (link.outstanding, link.barred, link.not_before) = (None, false, 0);
        let sole = StreamId::all().zip(&mut self.streams).find(|(_, stream)| stream.connection == connection);
        let Some((id, stream)) = sole.filter(|(_, stream)| !stream.gone) else { return Vec::new() };
        let waited = stream.wait.take().is_some();
        let Some(last) = stream.last else {
            if waited {
                self.drop_held(id);
                self.request(id, 0, None, None, now);
            }
            return Vec::new();
        };
        let Some(print) = stream.prints.get(last) else {
            self.request(id, last.saturating_add(1), None, None, now);
            return self.in_doubt(connection);
        };
        self.request(id, last, None, Some(Anchor { sequence: last, print, parted: true }), now);
        Vec::new()
    }

    /// Looks at what only time brings about: publishers that have fallen silent are asked, and streams of which nothing came
    /// back are returned, as being in doubt.
    pub fn look(&mut self, now: Ticks) -> Vec<StreamId> {
        for id in StreamId::all().take(self.streams.len()) {
            if self.quiet_since(id).is_some_and(|at| at <= now)
                && let Some(stream) = self.streams.get_mut(id.index())
                && let Some((sequence, print)) = stream.last.and_then(|last| Some((last, stream.prints.get(last)?)))
            {
                stream.looked = true;
                self.request(id, sequence, None, Some(Anchor { sequence, print, parted: false }), now);
            }
        }
        let mut doubted = Vec::new();
        let away: Vec<u16> =
            self.links.iter().filter(|(_, l)| l.away_at().is_some_and(|at| at <= now)).map(|(c, _)| *c).collect();
        for connection in away {
            self.links.entry(connection).or_default().given_up = true;
            doubted.append(&mut self.in_doubt(connection));
        }
        doubted
    }

    /// The times at which [`look`](Self::look) has something to do.
    pub(super) fn doubts_at(&self) -> impl Iterator<Item = Ticks> + '_ {
        let quiet = StreamId::all().take(self.streams.len()).filter_map(|id| self.quiet_since(id));
        quiet.chain(self.links.values().filter_map(super::replay::Link::away_at))
    }

    /// When a stream will have been silent for so long that it is asked about.
    fn quiet_since(&self, id: StreamId) -> Option<Ticks> {
        let stream = self.streams.get(id.index())?;
        let link = self.links.get(&stream.connection)?;
        let asks = link.replayable && link.streams == 1 && !link.barred && link.parted.is_none();
        let known = stream.last.is_some_and(|last| stream.prints.get(last).is_some());
        let idle = stream.wait.is_none() && link.outstanding.is_none() && !stream.looked && !stream.gone;
        (asks && known && idle).then(|| stream.heard.saturating_add(QUIET).max(link.not_before))
    }

    /// The streams of a connection whose publisher may be another one.
    fn in_doubt(&mut self, connection: u16) -> Vec<StreamId> {
        let mine = StreamId::all().zip(&self.streams).filter(|(_, stream)| stream.connection == connection);
        let known: Vec<StreamId> =
            mine.filter(|(_, stream)| stream.is_known() && !stream.gone).map(|(id, _)| id).collect();
        self.tally.unproven += known.len() as u64;
        known
    }

    /// Another publisher answers than the one that was heard. What waits may be either's, so it is dropped: a replay from the
    /// beginning brings back what is the new one's.
    pub(super) fn reborn(&mut self, id: StreamId, now: Ticks) -> Step {
        self.drop_held(id);
        self.renew(id, None);
        if let Some(link) = self.link_of(id) {
            link.outstanding = None;
        }
        self.request(id, 0, None, None, now);
        Step { restarted: true, verdict: Verdict::Ignore, ..Step::default() }
    }

    fn drop_held(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(id.index()) else { return };
        let waiting = stream.held.drain(..).chain(stream.reborn.take()).chain(stream.fallen.take());
        waiting.for_each(|held| self.budget.release(&held));
    }
}

impl super::replay::Link {
    fn away_at(&self) -> Option<Ticks> {
        self.parted.filter(|_| !self.given_up).map(|since| since.saturating_add(AWAY))
    }
}
