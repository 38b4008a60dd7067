//! Everything of a stream goes at once.

use super::streams::StreamId;
use super::{BlockMap, Doubt, Op, Outcome};

/// Evictions that the clear of one stream among several becomes at most.
const MAX_WITHDRAWN: usize = 4096;

impl BlockMap {
    /// The publisher of the stream is another one: nothing of what it held is left.
    pub fn forget(&mut self, stream: StreamId, out: &mut Outcome) {
        self.streams.get_mut(stream).renew();
        self.cleared(stream, &mut out.ops);
    }

    /// Takes all blocks of one stream out. When no other stream has any, that is a clear. Otherwise what no other stream
    /// holds is withdrawn; when that is much, by a clear after which the rest is reported again.
    pub(super) fn cleared(&mut self, stream: StreamId, ops: &mut Vec<Op>) {
        self.note_departures(stream);
        if !self.streams.others_have_blocks(stream) {
            self.forget_all();
            ops.push(Op::Clear);
            return;
        }
        let (mut from, mut cooler, mut withdrawn) = (0, Vec::new(), Vec::new());
        while let Some((id, next)) = self.blocks.of_stream(stream.0, from) {
            from = next;
            if let Some(pair) = self.blocks.pair(id) {
                self.withdraw(id, pair, &mut cooler, &mut withdrawn);
            }
            self.drop_block(id);
        }
        if withdrawn.len() <= MAX_WITHDRAWN {
            ops.append(&mut withdrawn);
            return self.flush_cooler(cooler, ops);
        }
        self.wiped.clear();
        ops.push(Op::Clear);
        let mut rest = Vec::new();
        self.begin_round();
        self.repeat(0..self.places(), Doubt::Suspect, &mut rest);
        ops.extend(rest.into_iter().map(|report| Op::Add { report, again: true }));
    }

    /// Remembers the blocks of a stream as departed.
    pub(super) fn note_departures(&mut self, stream: StreamId) {
        if !self.streams.get(stream).complete {
            return;
        }
        let mut from = 0;
        while let Some((id, next)) = self.blocks.of_stream(stream.0, from) {
            from = next;
            let group = self.blocks.home(id).group;
            self.streams.get_mut(stream).note_departure(group, self.blocks.hash(id));
        }
    }

    /// Forgets every block; streams keep what they have learned.
    pub(super) fn forget_all(&mut self) {
        self.blocks.clear();
        self.pairs.clear();
        self.streams.no_blocks();
    }
}
