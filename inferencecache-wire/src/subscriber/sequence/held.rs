//! Live frames that wait.

use super::Frame;

/// Bytes that may wait in all streams together. Beyond it the newest frames are dropped.
pub const MAX_HELD_BYTES: usize = 16 << 20;
/// What a waiting frame is taken to cost beside its payload.
const OVERHEAD: usize = 96;

/// A frame that waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// Its place in the order.
    pub frame: Frame,
    /// The encoded batch; `None` for one that nobody can read.
    pub payload: Option<Vec<u8>>,
}

impl Held {
    fn cost(&self) -> usize {
        OVERHEAD + self.payload.as_ref().map_or(0, Vec::len)
    }
}

/// Bytes that wait.
#[derive(Debug, Default)]
pub(super) struct Budget(usize);

impl Budget {
    /// Room for a frame, unless there is none left.
    pub(super) fn take(&mut self, held: &Held) -> bool {
        let fits = self.0 + held.cost() <= MAX_HELD_BYTES;
        if fits {
            self.0 += held.cost();
        }
        fits
    }

    /// Room for a frame that was released a moment ago.
    pub(super) fn put_back(&mut self, held: &Held) {
        self.0 += held.cost();
    }

    pub(super) fn release(&mut self, held: &Held) {
        self.0 = self.0.saturating_sub(held.cost());
    }
}
