//! What the map remembers about the delivery of each pair, so that a retry needs no queue: the map itself is what should
//! be on the server.

use super::{AdapterId, BlockMap, Report};

/// Tenths of a second on the caller's clock: 13 years fit.
pub type Ticks = u32;

impl BlockMap {
    /// Whether a report would only repeat one that the server has acknowledged within the last `interval`.
    #[must_use]
    pub fn repeats(&self, report: &Report, now: Ticks, interval: Ticks) -> bool {
        self.pairs
            .find(report.adapter, report.digest)
            .and_then(|pair| self.pairs.acknowledged(pair, report.tier))
            .is_some_and(|at| now.saturating_sub(at) < interval)
    }

    /// A report is on its way to the server.
    pub fn hand_on(&mut self, report: &Report) {
        if let Some(pair) = self.pairs.find(report.adapter, report.digest) {
            self.pairs.hand_on(pair, report.tier);
        }
    }

    /// A report may have reached the server.
    pub fn mark_sent(&mut self, adapter: AdapterId, digest: u64) {
        if let Some(pair) = self.pairs.find(adapter, digest) {
            self.pairs.mark_sent(pair);
        }
    }

    /// A call with a report of the pair starts.
    pub fn begin_sending(&mut self, adapter: AdapterId, digest: u64) {
        if let Some(pair) = self.pairs.find(adapter, digest) {
            self.pairs.set_sending(pair, true);
        }
    }

    /// The call has ended. `arrived`: the report may have reached the server.
    pub fn end_sending(&mut self, adapter: AdapterId, digest: u64, arrived: bool) {
        if let Some(pair) = self.pairs.find(adapter, digest) {
            self.pairs.set_sending(pair, false);
            if arrived {
                self.pairs.mark_sent(pair);
            }
        }
    }

    /// The server has acknowledged a report.
    pub fn acknowledge(&mut self, report: &Report, now: Ticks) {
        if let Some(pair) = self.pairs.find(report.adapter, report.digest) {
            self.pairs.acknowledge(pair, report.tier, now);
        }
    }

    /// The pair must be reported again, as it is by then. Nothing happens when it is not held.
    pub fn mark_dirty(&mut self, adapter: AdapterId, digest: u64) {
        if let Some(pair) = self.pairs.find(adapter, digest) {
            self.pairs.mark_dirty(pair);
        }
    }

    /// Pairs that wait to be reported again.
    #[must_use]
    pub fn dirty(&self) -> usize {
        self.pairs.dirty()
    }

    /// Marks the other adapters' pairs of a digest: an eviction for the base model wipes them on the server.
    pub fn mark_siblings_dirty(&mut self, digest: u64) {
        let siblings: Vec<Report> = self.pairs.siblings(AdapterId::BASE, digest).collect();
        for report in siblings {
            self.mark_dirty(report.adapter, report.digest);
        }
    }
}
