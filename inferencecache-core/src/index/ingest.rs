//! Updates in: what is refused, and how the rest is applied.
//!
//! The blocks of an update are applied in list order, partition by partition, in operations of at most 256 blocks, so
//! that the writer's lock is never held for long and a smaller update is one operation in each partition.

use crate::index::Index;
use crate::index::books::Change;
use crate::index::ledger::Block;
use crate::index::replicas::StatRow;
use crate::index::report::Report;
use crate::time::Micros;
use crate::update::{Dropped, Entry, Stats, Update};

/// Blocks of one operation.
const SLICE: usize = 256;
/// Fewer blocks than this are not gathered on the heap.
const FEW: usize = 4;

impl Index {
    pub(super) fn ingest_update(&self, update: &Update<'_>) -> Dropped {
        let mut dropped = Dropped::default();
        if update.replica.is_empty() {
            dropped.no_replica = 1;
            return dropped;
        }
        let seen = if update.timestamp == 0 { self.options.clock.now() } else { update.timestamp };
        let quota = self.ground.resolvers.quota(update.tenant);
        let mut report = Report::default();
        if update.scheme.is_empty() {
            dropped.no_scheme = u32::try_from(update.entries.len()).unwrap_or(u32::MAX);
        } else {
            let (first, others) = adapters(update, &mut dropped);
            for adapter in first.into_iter().chain(others) {
                let clean = dropped.total() == 0;
                dropped.no_room += self.store(update, adapter, (seen, clean), &mut report);
            }
        }
        if let Some(stats) = update.stats {
            self.store_stats(update, stats.sanitised(), seen);
        }
        self.enforce_quota(update.tenant, quota, &mut report);
        self.enforce_cap(&mut report);
        self.tell(update.tenant, report);
        dropped
    }

    /// Stores what goes to one adapter. Says for how many blocks there was no room.
    fn store(&self, update: &Update<'_>, adapter: &str, (seen, clean): (Micros, bool), report: &mut Report) -> u32 {
        let names = (update.tenant, update.model, update.scheme, adapter);
        let mut change = Change::default();
        let mut blocks = Blocks { update, adapter, clean, entry: 0, block: 0, tokens: 0 };
        // What an engine reports while it decodes needs no memory.
        let mut few = [Block::default(); FEW];
        let mut many = Vec::with_capacity(if update.entries.len() > FEW { update.entries.len().min(SLICE) } else { 0 });
        loop {
            let number = few.iter_mut().zip(blocks.by_ref()).map(|(to, block)| *to = block).count();
            let slice = if number < FEW {
                &few[..number]
            } else {
                many.clear();
                many.extend_from_slice(&few);
                many.extend(blocks.by_ref().take(SLICE - FEW));
                &many[..]
            };
            if slice.is_empty() {
                return change.no_room;
            }
            let mut writer = self.writer.lock();
            let (pid, slot) = writer.place(&self.ground, names, update.replica);
            let Some(ledger) = writer.ledger(pid) else { return change.no_room };
            ledger.store(slot, seen, slice, &mut change);
            ledger.commit();
            let key = ledger.key.clone();
            writer.settle(&self.ground, &key, &mut change, report);
            writer.sync(&self.ground, pid);
        }
    }

    fn store_stats(&self, update: &Update<'_>, stats: Stats, seen: Micros) {
        let mut writer = self.writer.lock();
        writer.member(&self.ground, update.tenant, update.model, update.replica);
        let row = StatRow { stats, last_seen: seen, reported: seen };
        writer.set_stats(&self.ground, update.tenant, update.model, update.replica, Some(row));
        drop(writer);
        self.trim_stats();
    }

    /// Forgets the stalest stats rows until no more than allowed remain.
    pub(super) fn trim_stats(&self) {
        let mut writer = self.writer.lock();
        while self.options.max_stats > 0 && writer.real_stats > self.options.max_stats {
            let Some(oldest) = writer.stat_order.first().cloned() else { break };
            writer.set_stats(&self.ground, &oldest.tenant, &oldest.model, &oldest.replica, None);
        }
    }
}

/// The partitions that an update's good entries go to, in order of first appearance; the others are counted.
fn adapters<'a>(update: &Update<'a>, dropped: &mut Dropped) -> (Option<&'a str>, Vec<&'a str>) {
    let (mut first, mut others) = (None, Vec::new());
    for entry in update.entries {
        let refused = match fault(entry) {
            None => {
                let adapter = adapter_of(update, entry);
                if *first.get_or_insert(adapter) != adapter && !others.contains(&adapter) {
                    others.push(adapter);
                }
                continue;
            }
            Some(Fault::Unbalanced) => &mut dropped.unbalanced,
            Some(Fault::EmptyHash) => &mut dropped.empty_hash,
            Some(Fault::NegativeCount) => &mut dropped.negative_count,
        };
        *refused += 1;
    }
    (first, others)
}

fn adapter_of<'a>(update: &Update<'a>, entry: &Entry<'a>) -> &'a str {
    if entry.adapter.is_empty() { update.adapter } else { entry.adapter }
}

enum Fault {
    Unbalanced,
    EmptyHash,
    NegativeCount,
}

fn is_chain(entry: &Entry<'_>) -> bool {
    !entry.block_hashes.is_empty() || !entry.block_token_counts.is_empty()
}

/// Why an entry is refused whole, if it is.
fn fault(entry: &Entry<'_>) -> Option<Fault> {
    if entry.block_hashes.len() != entry.block_token_counts.len() {
        Some(Fault::Unbalanced)
    } else if (!is_chain(entry) && entry.prefix_hash.is_empty()) || entry.block_hashes.iter().any(<[u8]>::is_empty) {
        Some(Fault::EmptyHash)
    } else if entry.token_count < 0 || entry.block_token_counts.iter().any(|&count| count < 0) {
        Some(Fault::NegativeCount)
    } else {
        None
    }
}

/// The stored form of a wire tier: 0 is T1, negative is the coldest there is.
fn stored_tier(tier: i32) -> i32 {
    match tier {
        0 => 1,
        tier if tier < 0 => i32::MAX,
        tier => tier,
    }
}

/// The blocks of one adapter in list order: each block of a chain with its cumulative tokens, then the co-set key.
struct Blocks<'u, 'a> {
    update: &'u Update<'a>,
    adapter: &'u str,
    /// No entry is refused.
    clean: bool,
    entry: usize,
    block: usize,
    tokens: i32,
}

impl<'a> Iterator for Blocks<'_, 'a> {
    type Item = Block<'a>;

    fn next(&mut self) -> Option<Block<'a>> {
        loop {
            let entry = self.update.entries.get(self.entry)?;
            let refused = |entry| !self.clean && fault(entry).is_some();
            if self.block == 0 && (adapter_of(self.update, entry) != self.adapter || refused(entry)) {
                self.entry += 1;
                continue;
            }
            let tier = stored_tier(entry.tier);
            if let Some(&count) = entry.block_token_counts.get(self.block) {
                let hash = entry.block_hashes.get(self.block);
                self.block += 1;
                self.tokens = self.tokens.saturating_add(count);
                return Some(Block { hash, tokens: self.tokens, tier });
            }
            (self.entry, self.block, self.tokens) = (self.entry + 1, 0, 0);
            if !entry.prefix_hash.is_empty() {
                return Some(Block { hash: entry.prefix_hash, tokens: entry.token_count, tier });
            }
        }
    }
}

#[cfg(all(test, feature = "testkit"))]
mod tests {
    use std::ops::Range;

    use crate::index::page::{MAX_PAGES, POSITIONS};
    use crate::index::{Index, IndexApi, IndexOptions};
    use crate::update::{Entry, Event, EventKind, Update};

    fn hash(number: u32) -> [u8; 8] {
        u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
    }

    /// Stores these blocks and says how many were refused.
    fn store(index: &Index, numbers: Range<u32>, adapter: &str) -> u32 {
        let blocks: Vec<([u8; 8], i32)> = numbers.zip(1..).map(|(number, tokens)| (hash(number), tokens)).collect();
        let entries: Vec<Entry<'_>> = blocks
            .iter()
            .map(|(hash, tokens)| Entry { prefix_hash: hash, token_count: *tokens, ..Entry::default() })
            .collect();
        let update = Update {
            replica: "r",
            model: "m",
            tenant: "t",
            scheme: "s",
            adapter,
            entries: &entries,
            ..Update::default()
        };
        let dropped = index.ingest(&update);
        assert_eq!(dropped.total(), dropped.no_room);
        dropped.no_room
    }

    #[test]
    fn a_full_partition_refuses_and_counts_and_goes_on_when_there_is_room() {
        let index = Index::new(IndexOptions { max_entries: 0, ..IndexOptions::default() });
        let all = (MAX_PAGES + 16) * POSITIONS;
        let refused = store(&index, 0..all, "");
        assert!((16 * POSITIONS..32 * POSITIONS).contains(&refused), "{refused}");
        assert_eq!(index.storage_entries().0, u64::from(all - refused));
        index.check().expect("sound");
        assert_eq!(store(&index, all..all + 1000, ""), 1000, "it stays full");
        assert_eq!(store(&index, 0..1000, "another"), 0, "the limit is a partition's");
        index.check().expect("sound");
        for number in 0..10 * POSITIONS {
            let (kind, hash) = (EventKind::PrefixEvicted, hash(number));
            let event = Event { kind, replica: "r", model: "m", tenant: "t", prefix_hash: &hash, ..Event::default() };
            index.apply_event(&event);
        }
        assert_eq!(store(&index, all..all + 5 * POSITIONS, ""), 0, "what was given back is used again");
        index.check().expect("sound");
    }
}
