//! Fingerprints of the frames that were applied last.

/// Frames that are remembered; a power of two.
const REMEMBERED: u64 = 512;

/// A table in which a number finds its frame by its lowest bits.
#[derive(Debug, Default)]
pub(super) struct Prints(Vec<Option<(u64, u64)>>);

impl Prints {
    /// What came under a number, if that is still known.
    pub(super) fn get(&self, sequence: u64) -> Option<u64> {
        self.0.get(slot(sequence)).copied().flatten().filter(|&(known, _)| known == sequence).map(|(_, print)| print)
    }

    pub(super) fn put(&mut self, sequence: u64, print: u64) {
        let slot = slot(sequence);
        if self.0.len() <= slot {
            self.0.resize(slot + 1, None);
        }
        self.0[slot] = Some((sequence, print));
    }
}

fn slot(sequence: u64) -> usize {
    usize::try_from(sequence % REMEMBERED).unwrap_or_default()
}
