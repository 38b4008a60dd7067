//! What the sequence number of a batch says about those before it.
//!
//! So far only the start is judged: a stream whose first batch has number 0 is known from its beginning. Gaps, duplicates
//! and restarts will be told apart here, by (connection, rank), between the socket and the decoder.

/// What to do before a batch is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Verdict {
    /// Tell the server to forget what an earlier process reported for this replica.
    pub clear: bool,
    /// Every event of the stream from its beginning is known from now on.
    pub fresh: bool,
}

/// Judges the frames of all streams of one process.
#[derive(Debug)]
pub struct SequenceTracker {
    startup_clear: bool,
    started: bool,
}

impl SequenceTracker {
    /// `startup_clear`: whether a stream known from its beginning begins with a clear.
    #[must_use]
    pub fn new(startup_clear: bool) -> Self {
        Self { startup_clear, started: false }
    }

    /// Judges the first batch of a stream. There is at most one clear per process, before anything was reported: a later
    /// one would wipe what other ranks hold.
    pub fn first(&mut self, sequence: Option<u64>) -> Verdict {
        let first_of_all = !std::mem::replace(&mut self.started, true);
        let fresh = sequence == Some(0);
        Verdict { clear: fresh && first_of_all && self.startup_clear, fresh }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_stream_clears_and_only_from_number_zero() {
        for (startup_clear, sequences, expected) in [
            (true, &[Some(0), Some(0)][..], &[(true, true), (false, true)][..]),
            (true, &[Some(5), Some(0)], &[(false, false), (false, true)]),
            (true, &[None], &[(false, false)]),
            (false, &[Some(0)], &[(false, true)]),
        ] {
            let mut tracker = SequenceTracker::new(startup_clear);
            let verdicts: Vec<(bool, bool)> = sequences
                .iter()
                .map(|&sequence| tracker.first(sequence))
                .map(|verdict| (verdict.clear, verdict.fresh))
                .collect();
            assert_eq!(verdicts, expected);
        }
    }
}
