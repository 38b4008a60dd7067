//! The rules for `BlockRemoved`.

use super::blocks::{Copies, Home};
use super::streams::StreamId;
use super::{BlockMap, Op, Report, Tier};
use crate::kvevents::BlockRemoved;
use crate::subscriber::config::RemovalPolicy;

impl BlockMap {
    pub(super) fn removed(&mut self, stream: StreamId, event: &BlockRemoved<'_>, ops: &mut Vec<Op>) {
        let state = self.streams.get(stream);
        let inferring = self.rules.ignore_block_removed && !state.names_tiers;
        let group = state.group_of_removal(event.group);
        let places = self.places.of_removal(event.medium, event.locality);
        let mut remaining =
            event.remaining.filter(|remaining| remaining.len() == event.hashes.len()).map(|remaining| remaining.iter());
        let mut cooler = Vec::new();
        for hash in event.hashes.iter() {
            // A count that does not fit has lost its meaning long before.
            let left = remaining.as_mut().and_then(Iterator::next).map(|left| u16::try_from(left).unwrap_or(u16::MAX));
            if let Some((group, _)) = group {
                self.streams.get_mut(stream).note_departure(group, hash);
            }
            let found = group.and_then(|(group, _)| self.blocks.find(Home { stream: stream.0, group }, hash));
            let Some(id) = found else {
                self.count_unknown(group.is_none_or(|(_, indexable)| indexable));
                continue;
            };
            let Some(pair) = self.blocks.pair(id) else {
                let copies = self.blocks.opaque_copies(id);
                *copies = left.unwrap_or(copies.saturating_sub(1));
                if *copies == 0 {
                    self.drop_block(id);
                }
                continue;
            };
            let left = match (left, self.rules.removal_policy) {
                (None, RemovalPolicy::First) => Some(0),
                (left, _) => left,
            };
            let place = match self.blocks.remove_copy(id, places, left) {
                Copies::None => continue,
                Copies::Remain => {
                    self.blocks.set_suspect(id);
                    continue;
                }
                Copies::LastIn(place) => place,
            };
            let (before, sent) = (self.pairs.report(pair), self.pairs.sent(pair));
            let tier = self.places.tier(place);
            self.pairs.remove_copy(pair, tier);
            let mut after = self.pairs.tier(pair);
            if self.blocks.places(id).next().is_none() {
                if self.pairs.remove_block(pair) {
                    after = None;
                }
                self.drop_block(id);
            }
            match (before, after) {
                // With a second tier that announces nothing, leaving device memory means "moved".
                (Some(before), None) if inferring && tier == Tier::T1 => {
                    cooler.push(Report { tier: Tier::T2, ..before });
                }
                (Some(before), None) => self.evict(before, sent, ops),
                (Some(before), Some(tier)) if tier != before.tier => cooler.push(Report { tier, ..before }),
                _ => {}
            }
        }
        self.flush_cooler(cooler, ops);
    }

    fn count_unknown(&mut self, indexable: bool) {
        if indexable {
            self.tally.unknown_removals += 1;
        } else {
            self.tally.group += 1;
        }
    }
}
