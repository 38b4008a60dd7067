//! The rules for `BlockStored`, in the order in which they apply.

use inferencecache_core::fingerprint::Roll;

use super::blocks::{BlockId, Home};
use super::places::Place;
use super::streams::StreamId;
use super::{AdapterId, BlockMap, MAX_WARNED, Notice, Op, Outcome, Report, Tier};
use crate::kvevents::{BlockHash, BlockStored};
use crate::subscriber::config::UnknownParent;
use crate::subscriber::content::identified_by_tokens;

/// Token counts saturate at what the wire carries.
const MAX_TOKEN_COUNT: u32 = i32::MAX.cast_unsigned();

/// Where the blocks of an event come from.
#[derive(Debug, Clone, Copy)]
struct Origin {
    home: Home,
    place: Place,
    tier: Tier,
    adapter: AdapterId,
    block_size: u32,
}

/// A prefix that grows block by block.
#[derive(Debug, Clone, Copy)]
struct Prefix {
    roll: Roll,
    tokens: u32,
}

impl Prefix {
    const EMPTY: Self = Self { roll: Roll::new(), tokens: 0 };
}

impl BlockMap {
    pub(super) fn stored(&mut self, stream: StreamId, event: &BlockStored<'_>, out: &mut Outcome) {
        let hashes = event.hashes.len();
        let (place, strange) = self.places.of_store(event.medium, event.locality);
        if strange {
            out.notices.push(Notice::UnknownMedium { medium: event.medium.unwrap_or_default().to_owned() });
        }
        let state = self.streams.get_mut(stream);
        state.note_place(place);
        let Some(group) = state.group_of_store(event.group, event.kind, self.rules.index_group) else {
            self.tally.group += count(hashes);
            return;
        };
        let first = std::mem::take(&mut state.fresh);
        let home = Home { stream: stream.0, group };

        let Some(adapter) = self.adapter(event) else {
            self.tally.lora += count(hashes);
            let known = self.warned.contains(&event.lora_id);
            if !known && self.warned.len() < MAX_WARNED {
                self.warned.insert(event.lora_id);
                out.notices.push(Notice::UnnamedAdapter { lora_id: event.lora_id });
            }
            return self.all_opaque(home, place, event.hashes.iter());
        };
        let origin = Origin { home, place, tier: self.places.tier(place), adapter, block_size: event.block_size };

        if event.tokens.is_empty() {
            return self.placeholder(origin, event, out);
        }
        // Widening is free of loss: block sizes are checked to fit 21 bits, and are not 0 beside tokens.
        let size = event.block_size.max(1) as usize;
        if event.tokens.len() / size != hashes {
            self.tally.mismatch += 1;
            out.notices.push(nothing_indexed(event));
            return self.all_opaque(home, place, event.hashes.iter());
        }
        let Some(mut prefix) = self.prefix_before(origin, event.parent, first) else {
            self.tally.parent += count(hashes);
            return self.all_opaque(home, place, event.hashes.iter());
        };

        let identified = if self.rules.index_salted { hashes } else { identified_by_tokens(event) };
        self.tally.salt += count(hashes - identified);
        let mut mismatch = false;
        for ((i, hash), tokens) in event.hashes.iter().enumerate().zip(event.tokens.chunks_exact(size)) {
            if i < identified {
                mismatch |= !self.index(origin, hash, tokens, &mut prefix, out);
            } else {
                self.opaque(home, place, hash);
            }
        }
        self.tally.mismatch += u64::from(mismatch);
        self.flush_cooler(Vec::new(), &mut out.ops);
    }

    /// The partition of a store; `None` when the adapter has no name that may be used. A number is never turned into a
    /// name: the order of loading differs between replicas.
    fn adapter(&mut self, event: &BlockStored<'_>) -> Option<AdapterId> {
        let name = match (event.lora_id, event.lora_name) {
            (None, None) => return Some(AdapterId::BASE),
            (Some(id), _) if self.rules.lora_adapter_names.contains_key(&id) => &self.rules.lora_adapter_names[&id],
            (_, Some(name)) if self.rules.lora_name_from_events => name,
            _ => return None,
        };
        self.adapters.intern(name)
    }

    /// A store that only names blocks: offload connectors announce copies in other tiers this way.
    fn placeholder(&mut self, origin: Origin, event: &BlockStored<'_>, out: &mut Outcome) {
        let mut unknown = false;
        for hash in event.hashes.iter() {
            let Some(id) = self.blocks.find(origin.home, hash) else {
                if origin.tier == Tier::T1 {
                    unknown = true;
                    self.tally.no_tokens += 1;
                    self.opaque(origin.home, origin.place, hash);
                } else {
                    self.tally.unresolved += 1;
                }
                continue;
            };
            if let Some(pair) = self.blocks.pair(id) {
                self.one_more(id, pair, origin, out);
            } else {
                // Counted, so that the removal of this copy is not taken for that of the last one.
                self.tally.unresolved += 1;
                self.opaque(origin.home, origin.place, hash);
            }
        }
        self.flush_cooler(Vec::new(), &mut out.ops);
        if unknown {
            out.notices.push(nothing_indexed(event));
        }
    }

    /// The prefix that a store continues; `None` when that is not known.
    fn prefix_before(&mut self, origin: Origin, parent: Option<BlockHash<'_>>, first: bool) -> Option<Prefix> {
        let Some(parent) = parent else { return Some(Prefix::EMPTY) };
        let stream = self.streams.get_mut(StreamId(origin.home.stream));
        if stream.is_root(parent) {
            return Some(Prefix::EMPTY);
        }
        if let Some(id) = self.blocks.find(origin.home, parent) {
            let pair = self.blocks.pair(id)?;
            return (self.blocks.block_size(id) == origin.block_size).then(|| self.prefix_of(pair));
        }
        match self.rules.unknown_parent {
            UnknownParent::Root => Some(Prefix::EMPTY),
            // Nothing was missed and nothing was stored: what the first block continues can only be "nothing".
            UnknownParent::Drop if first => {
                stream.learn_root(parent);
                Some(Prefix::EMPTY)
            }
            UnknownParent::Drop => {
                if origin.tier == Tier::T1 && stream.proves_loss(origin.home.group, parent, origin.block_size) {
                    self.tally.unnumbered_losses += 1;
                    self.unconfirm(StreamId(origin.home.stream));
                }
                None
            }
        }
    }

    fn prefix_of(&self, pair: super::PairId) -> Prefix {
        Prefix { roll: Roll::after(Some(self.pairs.digest(pair))), tokens: self.pairs.tokens(pair) }
    }

    /// Indexes one block. Returns `false` when the store contradicts what device memory said about the hash.
    fn index(
        &mut self,
        origin: Origin,
        hash: BlockHash<'_>,
        tokens: &[u32],
        prefix: &mut Prefix,
        out: &mut Outcome,
    ) -> bool {
        let digest = prefix.roll.push(tokens);
        prefix.tokens = prefix.tokens.saturating_add(origin.block_size).min(MAX_TOKEN_COUNT);
        let mut agrees = true;
        let mut copies = 1;
        let id = match self.blocks.find(origin.home, hash) {
            None => {
                self.make_room();
                let Some(id) = self.insert(origin.home, hash) else { return true };
                id
            }
            Some(id) => {
                if let Some(pair) = self.blocks.pair(id) {
                    let same = self.pairs.digest(pair) == digest && self.pairs.adapter(pair) == origin.adapter;
                    if same || origin.tier != Tier::T1 {
                        // An engine hash names its whole chain, and device memory is the better witness of it: another
                        // tier may announce the end of a prompt as if it were a prompt of its own.
                        if !same {
                            agrees = false;
                            *prefix = self.prefix_of(pair);
                        }
                        self.one_more(id, pair, origin, out);
                        return agrees;
                    }
                    let mut cooler = Vec::new();
                    self.withdraw(id, pair, &mut cooler, &mut out.ops);
                    if !cooler.is_empty() {
                        out.ops.push(Op::Downgrade(cooler));
                    }
                } else {
                    // The copies that were counted without being understood are copies of this block.
                    copies += std::mem::take(self.blocks.opaque_copies(id)).min(u16::MAX - 1);
                }
                id
            }
        };
        let Some(pair) = self.pairs.obtain(origin.adapter, digest, prefix.tokens) else { return agrees };
        self.pairs.add_block(pair);
        self.blocks.set_pair(id, Some(pair));
        self.blocks.set_block_size(id, origin.block_size);
        if origin.tier == Tier::T1 {
            self.streams.get_mut(StreamId(origin.home.stream)).note_size(origin.home.group, origin.block_size);
        }
        self.blocks.add_copies(id, origin.place, copies);
        self.pairs.add_copy(pair, origin.tier);
        self.confirm(id);
        self.report(pair, origin.tier, out);
        agrees
    }

    /// One more copy of an indexed block. The copies counted before a batch was lost may be gone: beside the one that was
    /// just stored, they would be believed as long as it is.
    fn one_more(&mut self, id: BlockId, pair: super::PairId, origin: Origin, out: &mut Outcome) {
        let before = self.pairs.report(pair);
        if self.blocks.epoch(id) != self.streams.get(StreamId(origin.home.stream)).epoch {
            for place in self.blocks.places(id) {
                self.pairs.remove_copy(pair, self.places.tier(place));
            }
            self.blocks.take_copies(id);
        }
        if self.blocks.add_copies(id, origin.place, 1) {
            self.pairs.add_copy(pair, origin.tier);
        }
        self.confirm(id);
        match (before, self.pairs.tier(pair)) {
            (Some(before), None) => {
                let sent = self.pairs.sent(pair);
                self.evict(before, sent, &mut out.ops);
            }
            (Some(before), Some(tier)) if tier > before.tier => {
                out.ops.push(Op::Downgrade(vec![Report { tier, ..before }]));
            }
            _ => self.report(pair, origin.tier, out),
        }
    }

    fn all_opaque<'p>(&mut self, home: Home, place: Place, hashes: impl Iterator<Item = BlockHash<'p>>) {
        for hash in hashes {
            self.opaque(home, place, hash);
        }
    }

    /// Remembers a block that must not be indexed. When its hash is indexed already, this is one more copy under that
    /// hash and nothing else: removals do not say which of the two they mean.
    fn opaque(&mut self, home: Home, place: Place, hash: BlockHash<'_>) {
        match self.blocks.find(home, hash) {
            Some(id) => match self.blocks.pair(id) {
                Some(pair) => {
                    if self.blocks.add_copies(id, place, 1) {
                        self.pairs.add_copy(pair, self.places.tier(place));
                    }
                }
                None => {
                    let copies = self.blocks.opaque_copies(id);
                    *copies = copies.saturating_add(1);
                    self.confirm(id);
                }
            },
            None => {
                self.make_room();
                if let Some(id) = self.insert(home, hash) {
                    *self.blocks.opaque_copies(id) = 1;
                }
            }
        }
    }

    fn insert(&mut self, home: Home, hash: BlockHash<'_>) -> Option<BlockId> {
        let id = self.blocks.insert(home, hash)?;
        self.streams.get_mut(StreamId(home.stream)).blocks += 1;
        Some(id)
    }

    fn confirm(&mut self, id: BlockId) {
        let stream = self.streams.get_mut(StreamId(self.blocks.home(id).stream));
        stream.confirmed = true;
        self.blocks.confirm(id, stream.epoch);
    }

    /// Emits the pair when the tier of this store is the one it is known by.
    fn report(&self, pair: super::PairId, tier: Tier, out: &mut Outcome) {
        if let Some(report) = self.pairs.report(pair).filter(|report: &Report| report.tier == tier) {
            out.ops.push(Op::Add { report, again: false });
        }
    }
}

fn nothing_indexed(event: &BlockStored<'_>) -> Notice {
    Notice::NothingIndexed { hashes: event.hashes.len(), tokens: event.tokens.len(), block_size: event.block_size }
}

fn count(blocks: usize) -> u64 {
    u64::try_from(blocks).unwrap_or(u64::MAX)
}
