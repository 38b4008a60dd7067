//! What is known of the order of one stream.

use std::collections::VecDeque;

use inferencecache_core::time::Micros;

use super::prints::Prints;
use super::{Frame, Held, ReplayId};
use crate::subscriber::blockmap::Ticks;

#[derive(Debug)]
pub(super) struct Stream {
    pub(super) connection: u16,
    /// Number of the last frame that was applied or given up.
    pub(super) last: Option<u64>,
    /// Time of the last frame that had one.
    pub(super) last_at: Micros,
    pub(super) prints: Prints,
    /// Something came without a number, which no replay can vouch for.
    pub(super) unnumbered: bool,
    /// When it was last heard, or something was last asked for it.
    pub(super) heard: Ticks,
    /// A replay showed that something was missed before a live frame could; that frame may show more of the same.
    pub(super) gap_told: bool,
    /// The silence since then has been looked into.
    pub(super) looked: bool,
    /// A frame that fell, and that differs from what came under its number.
    pub(super) fallen: Option<Held>,
    /// The publisher is known to be gone.
    pub(super) gone: bool,
    /// The replay that is waited for.
    pub(super) wait: Option<ReplayId>,
    /// The frame with which another publisher began, before those of `held`.
    pub(super) reborn: Option<Held>,
    /// Live frames that came since the replay was asked for, oldest first.
    pub(super) held: VecDeque<Held>,
}

impl Stream {
    pub(super) fn new(connection: u16) -> Self {
        Self {
            connection,
            last: None,
            last_at: 0,
            prints: Prints::default(),
            unnumbered: false,
            heard: 0,
            gap_told: false,
            looked: false,
            fallen: None,
            gone: false,
            wait: None,
            reborn: None,
            held: VecDeque::new(),
        }
    }

    pub(super) fn accept(&mut self, frame: &Frame) {
        self.last = Some(frame.sequence);
        if frame.at > 0 {
            self.last_at = frame.at;
        }
        self.prints.put(frame.sequence, frame.print);
    }

    /// Whether anything was applied.
    pub(super) fn is_known(&self) -> bool {
        self.last.is_some() || self.unnumbered
    }

    /// Number of the next live frame if nothing is missed.
    pub(super) fn expects(&self) -> Option<u64> {
        self.held.back().map(|held| held.frame.sequence).or(self.last)?.checked_add(1)
    }

    /// Whether a frame that fell proves by itself that another publisher speaks.
    pub(super) fn is_another_publisher(&self, frame: &Frame) -> bool {
        let Some(last) = self.last.filter(|&last| frame.sequence <= last) else { return false };
        let newer = if frame.at == 0 || self.last_at == 0 { frame.sequence < last } else { frame.at > self.last_at };
        let anew = frame.sequence == 0 && (last > 0 || self.prints.get(0) != Some(frame.print));
        newer || anew
    }

    /// Whether a frame is not known to be the one that came under its number.
    pub(super) fn differs(&self, frame: &Frame) -> bool {
        self.prints.get(frame.sequence) != Some(frame.print)
    }

    /// Whether a frame that fell and the one that follows it prove together that another publisher speaks.
    pub(super) fn are_another_publishers(&self, first: &Frame, second: &Frame) -> bool {
        if first.sequence.checked_add(1) != Some(second.sequence) {
            return false;
        }
        if self.last.is_some_and(|last| second.sequence <= last) {
            return self.differs(second);
        }
        // The second is in order. The first may be a late one that was given up, unless another came under its number.
        self.prints.get(first.sequence).is_some_and(|print| print != first.print)
    }
}
