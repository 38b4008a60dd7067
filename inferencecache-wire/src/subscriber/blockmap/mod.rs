//! From engine blocks to what the server should know: which digests are held, in which tier, for which adapter.
//!
//! ```text
//! event ──> group ──> adapter ──> parent ──> content ──> digests      a store either becomes indexed blocks …
//!             │          │          │           │
//!             └──────────┴──────────┴───────────┴──────> opaque       … or blocks that are only remembered
//!
//! blocks   (stream, group, engine hash) ──> copies per medium, pair       one per engine block
//! pairs    (adapter, digest)            ──> copies per tier, tokens       one per thing the server is told
//! ```
//!
//! 1. Opaque blocks are never reported, nor is anything that continues them. They exist so that their children are not
//!    taken for the beginning of a prompt.
//! 2. A pair is held while any block has a copy in a reportable tier, and its tier is the warmest of them.
//! 3. When nothing is left of a pair, exactly one eviction is emitted; when its tier falls, exactly one downgrade.
//! 4. Never more than `max_tracked_blocks` blocks, over all streams. The least recently stored go first, silently.
//! 5. One [`StreamId`] per publisher: engine hashes mean nothing across streams, pairs are shared by all.
//!
//! A pure machine: no clock, no I/O, no logging. What the operator should read comes out as [`Notice`]s.

mod adapters;
mod belief;
mod blocks;
mod clear;
mod delivery;
mod departed;
mod pairs;
mod places;
mod removed;
mod stored;
mod streams;
#[cfg(test)]
mod tests;
mod told;

pub use adapters::{AdapterId, Adapters, MAX_ADAPTER_NAME, MAX_ADAPTERS};
pub use belief::{AGE_STEPS, Doubt};
pub use delivery::Ticks;
pub use places::Tier;
pub use streams::StreamId;
pub use told::{Notice, Op, Outcome, Report, Tally};

use std::collections::HashSet;

use self::belief::Belief;
use self::blocks::{BlockId, Blocks};
use self::pairs::{PairId, Pairs};
use self::places::Places;
use self::streams::Streams;
use super::config::Rules;
use crate::kvevents::EngineEvent;

/// Ids of adapters that were warned about, at most; further ones are dropped silently.
const MAX_WARNED: usize = 1024;

/// What one engine replica holds.
#[derive(Debug)]
pub struct BlockMap {
    rules: Rules,
    blocks: Blocks,
    pairs: Pairs,
    places: Places,
    adapters: Adapters,
    streams: Streams,
    warned: HashSet<Option<i64>>,
    tally: Tally,
    belief: Belief,
    /// Digests whose base-model pair was evicted by the current event.
    wiped: Vec<u64>,
}

impl BlockMap {
    /// Knows nothing yet.
    #[must_use]
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            blocks: Blocks::default(),
            pairs: Pairs::default(),
            places: Places::default(),
            adapters: Adapters::default(),
            streams: Streams::default(),
            warned: HashSet::new(),
            tally: Tally::default(),
            belief: Belief::default(),
            wiped: Vec::new(),
        }
    }

    /// The stream of a publisher; `true` when it is new. At most 256 are told apart.
    pub fn stream(&mut self, connection: u16, rank: Option<i64>) -> (StreamId, bool) {
        self.streams.obtain(connection, rank)
    }

    /// Says that every event of the stream so far is known, so that a parent never seen marks the start of a prompt.
    pub fn set_fresh(&mut self, stream: StreamId, fresh: bool) {
        let state = self.streams.get_mut(stream);
        (state.fresh, state.complete) = (fresh, fresh);
    }

    /// Applies one event and appends what follows from it.
    pub fn apply(&mut self, stream: StreamId, event: &EngineEvent<'_>, out: &mut Outcome) {
        match event {
            EngineEvent::Stored(event) => self.stored(stream, event, out),
            EngineEvent::Removed(event) => self.removed(stream, event, &mut out.ops),
            EngineEvent::Cleared => self.cleared(stream, &mut out.ops),
            EngineEvent::Unknown => {}
        }
    }

    /// An event of the stream could not be read: from now on something may be missing.
    pub fn malformed(&mut self, stream: StreamId) {
        let state = self.streams.get_mut(stream);
        (state.fresh, state.complete) = (false, false);
    }

    /// The stream of a publisher that was heard before.
    #[must_use]
    pub fn known_stream(&self, connection: u16, rank: Option<i64>) -> Option<StreamId> {
        self.streams.find(connection, rank)
    }

    /// A whole batch of the connection was lost, of whichever stream: see [`unconfirm`](Self::unconfirm).
    pub fn lost_batch(&mut self, connection: u16) {
        for stream in self.streams.of_connection(connection) {
            self.unconfirm(stream);
        }
    }

    /// Something of the stream was lost. Whatever was known before may have been removed by it: those blocks are
    /// *unconfirmed* until they are stored again.
    pub fn unconfirm(&mut self, stream: StreamId) {
        let state = self.streams.get_mut(stream);
        (state.fresh, state.complete) = (false, false);
        if !std::mem::take(&mut state.confirmed) {
            return;
        }
        state.epoch = state.epoch.wrapping_add(1);
        if state.epoch == 0 {
            // So rare that walking all blocks is cheaper than a wider number in each of them.
            state.epoch = 1;
            let mut from = 0;
            while let Some((id, next)) = self.blocks.of_stream(stream.0, from) {
                self.blocks.set_epoch(id, 0);
                from = next;
            }
        }
    }

    /// Counts since the start.
    #[must_use]
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Blocks that are indexed, and blocks that are only remembered.
    #[must_use]
    pub fn tracked(&self) -> (usize, usize) {
        let indexed = self.blocks.indexed();
        (indexed, self.blocks.len() - indexed)
    }

    /// Streams of which nothing but groups that are not indexed was ever seen.
    #[must_use]
    pub fn only_ignored_groups(&self) -> bool {
        self.streams.only_ignored_groups()
    }

    /// The adapter names behind the ids.
    #[must_use]
    pub fn adapters(&self) -> &Adapters {
        &self.adapters
    }

    /// What is held of a pair now; `None` when it is not held in a reportable tier.
    #[must_use]
    pub fn held(&self, adapter: AdapterId, digest: u64) -> Option<Report> {
        self.pairs.report(self.pairs.find(adapter, digest)?)
    }

    /// Everything that is held in a reportable tier, in no particular order.
    #[must_use]
    pub fn all_held(&self) -> Vec<Report> {
        let mut out = Vec::new();
        self.pairs.sweep(0..self.pairs.slots(), &mut out);
        out
    }

    /// Everything that is held beyond doubt: some block of it is sound. A pair may come twice.
    pub fn confirmed(&self) -> impl Iterator<Item = Report> + '_ {
        self.blocks.iter().filter_map(|id| {
            if self.blocks.is_suspect(id) || !self.believed(id) {
                return None;
            }
            self.pairs.report(self.blocks.pair(id)?)
        })
    }

    /// Takes all copies of an indexed block out of its pair and leaves the block without one. Evictions go to `ops`,
    /// falls of tier to `cooler`.
    fn withdraw(&mut self, id: BlockId, pair: PairId, cooler: &mut Vec<Report>, ops: &mut Vec<Op>) {
        let before = self.pairs.report(pair);
        let sent = self.pairs.sent(pair);
        for place in self.blocks.places(id) {
            self.pairs.remove_copy(pair, self.places.tier(place));
        }
        self.blocks.take_copies(id);
        self.blocks.set_pair(id, None);
        let after = if self.pairs.remove_block(pair) { None } else { self.pairs.tier(pair) };
        match (before, after) {
            (Some(before), None) => self.evict(before, sent, ops),
            (Some(before), Some(tier)) if tier != before.tier => cooler.push(Report { tier, ..before }),
            _ => {}
        }
    }

    fn evict(&mut self, report: Report, sent: bool, ops: &mut Vec<Op>) {
        ops.push(Op::Evict { digest: report.digest, adapter: report.adapter, sent });
        if report.adapter == AdapterId::BASE {
            self.wiped.push(report.digest);
        }
    }

    /// Ends an event: falls of tier first, and after its evictions what they wiped without meaning to. The server drops
    /// a digest in every partition when the base model's is evicted.
    fn flush_cooler(&mut self, cooler: Vec<Report>, ops: &mut Vec<Op>) {
        if !cooler.is_empty() {
            // The evictions of this event are already in the list, but name other pairs.
            ops.push(Op::Downgrade(cooler));
        }
        for digest in self.wiped.drain(..) {
            ops.extend(self.pairs.siblings(AdapterId::BASE, digest).map(|report| Op::Add { report, again: true }));
        }
    }

    /// Makes room for one more block.
    fn make_room(&mut self) {
        while self.blocks.len() >= self.rules.max_tracked_blocks.max(1) {
            let Some(id) = self.blocks.oldest() else { return };
            if let Some(pair) = self.blocks.pair(id) {
                for place in self.blocks.places(id) {
                    self.pairs.remove_copy(pair, self.places.tier(place));
                }
                self.pairs.remove_block(pair);
            }
            // What continues it later will seem to continue nothing.
            self.streams.get_mut(StreamId(self.blocks.home(id).stream)).complete = false;
            self.drop_block(id);
            self.tally.map_evictions += 1;
        }
    }

    /// Forgets a block whose copies are settled.
    fn drop_block(&mut self, id: BlockId) {
        let stream = StreamId(self.blocks.home(id).stream);
        self.blocks.remove(id);
        self.streams.get_mut(stream).blocks -= 1;
    }
}
