//! Writes: updates and events.

use std::sync::Arc;

use super::formula::stored_tier;
use super::{Held, Inner, Key, StatRow, State, Tally};
use crate::metrics::EvictionCause;
use crate::time::Micros;
use crate::update::{Dropped, Entry, Event, EventKind, Update};

/// Why an entry was refused. Checked in this order; the first that applies is the one counted.
enum Refusal {
    Unbalanced,
    EmptyHash,
    NegativeCount,
}

impl Inner {
    pub(super) fn ingest(&self, update: &Update<'_>) -> Dropped {
        let mut dropped = Dropped::default();
        if update.replica.is_empty() {
            dropped.no_replica = 1;
            return dropped;
        }
        let now = self.now();
        let stamp = if update.timestamp == 0 { now } else { update.timestamp };
        let quota = self.options.resolvers.quota.as_ref().and_then(|resolver| resolver.quota(update.tenant));

        let mut tally = Tally::default();
        {
            let mut state = self.state.lock();
            for entry in update.entries {
                if update.scheme.is_empty() {
                    dropped.no_scheme += 1;
                    continue;
                }
                match refuse(entry) {
                    None => state.store_entry(update, entry, stamp),
                    Some(Refusal::Unbalanced) => dropped.unbalanced += 1,
                    Some(Refusal::EmptyHash) => dropped.empty_hash += 1,
                    Some(Refusal::NegativeCount) => dropped.negative_count += 1,
                }
            }
            if update.stats.is_some() {
                state.store_stats(update, stamp);
                self.cap_stats(&mut state);
            }
            if let Some(budget) = quota.filter(|&budget| budget >= 0) {
                tally.over_quota = state.enforce_quota(update.tenant, budget);
            }
            self.enforce_cap(&mut state, &mut tally);
        }
        self.report(Some(update.tenant), &tally, EvictionCause::Cap);
        dropped
    }

    pub(super) fn apply_event(&self, event: &Event<'_>) {
        let stamp = if event.timestamp == 0 { self.now() } else { event.timestamp };
        {
            let mut state = self.state.lock();
            match event.kind {
                EventKind::Unspecified | EventKind::PrefixAdded => {}
                EventKind::PrefixEvicted => state.entries.retain(|held| {
                    let hit = held.is_of(event)
                        && *held.key.hash == *event.prefix_hash
                        && (event.adapter.is_empty() || *held.key.adapter == *event.adapter);
                    !hit
                }),
                EventKind::ReplicaUpdated => {
                    if let Some(row) = state.row_mut(event.tenant, event.model, event.replica) {
                        row.last_seen = stamp;
                    }
                }
                EventKind::AllCleared => {
                    state.entries.retain(|held| !held.is_of(event));
                    state.rows.retain(|row| {
                        !(*row.tenant == *event.tenant && *row.model == *event.model && *row.replica == *event.replica)
                    });
                }
            }
        }
        self.report(None, &Tally::default(), EvictionCause::Cap);
    }
}

fn refuse(entry: &Entry<'_>) -> Option<Refusal> {
    let chain = !entry.block_hashes.is_empty() || !entry.block_token_counts.is_empty();
    if chain && entry.block_hashes.len() != entry.block_token_counts.len() {
        return Some(Refusal::Unbalanced);
    }
    if !chain && entry.prefix_hash.is_empty() || entry.block_hashes.iter().any(<[u8]>::is_empty) {
        return Some(Refusal::EmptyHash);
    }
    if entry.token_count < 0 || entry.block_token_counts.iter().any(|&count| count < 0) {
        return Some(Refusal::NegativeCount);
    }
    None
}

impl Held {
    /// Whether this is what the event's replica holds of the event's tenant and model.
    fn is_of(&self, event: &Event<'_>) -> bool {
        *self.replica == *event.replica && *self.key.tenant == *event.tenant && *self.key.model == *event.model
    }
}

impl State {
    /// Every block of a chain on its own with the tokens up to it, then the single key if there is one.
    fn store_entry(&mut self, update: &Update<'_>, entry: &Entry<'_>, stamp: Micros) {
        let mut sum: i32 = 0;
        for (hash, &count) in entry.block_hashes.iter().zip(entry.block_token_counts) {
            sum = sum.saturating_add(count);
            self.store_hold(update, entry, hash, sum, stamp);
        }
        if !entry.prefix_hash.is_empty() {
            self.store_hold(update, entry, entry.prefix_hash, entry.token_count, stamp);
        }
    }

    fn store_hold(&mut self, update: &Update<'_>, entry: &Entry<'_>, hash: &[u8], tokens: i32, stamp: Micros) {
        let adapter = if entry.adapter.is_empty() { update.adapter } else { entry.adapter };
        let tier = stored_tier(entry.tier);
        let existing = self.entries.iter_mut().find(|held| {
            *held.key.hash == *hash
                && *held.replica == *update.replica
                && *held.key.tenant == *update.tenant
                && *held.key.model == *update.model
                && *held.key.scheme == *update.scheme
                && *held.key.adapter == *adapter
        });
        if let Some(held) = existing {
            held.token_count = tokens;
            held.tier = tier;
            held.last_seen = stamp;
            return;
        }
        let id = self.next_id;
        self.next_id += 1;
        self.entries.push(Held {
            id,
            key: Key {
                tenant: update.tenant.into(),
                model: update.model.into(),
                scheme: update.scheme.into(),
                adapter: adapter.into(),
                hash: hash.into(),
            },
            replica: update.replica.into(),
            token_count: tokens,
            last_seen: stamp,
            tier,
            access_count: 0,
        });
    }

    fn store_stats(&mut self, update: &Update<'_>, stamp: Micros) {
        let Some(mut stats) = update.stats else { return };
        if !stats.hit_rate.is_finite() {
            stats.hit_rate = 0.0;
        }
        if !stats.pressure.is_finite() {
            stats.pressure = 0.0;
        }
        if let Some(row) = self.row_mut(update.tenant, update.model, update.replica) {
            row.stats = stats;
            row.last_seen = stamp;
            row.stats_reported = stamp;
            return;
        }
        self.rows.push(StatRow {
            tenant: Arc::from(update.tenant),
            model: Arc::from(update.model),
            replica: Arc::from(update.replica),
            stats,
            last_seen: stamp,
            stats_reported: stamp,
        });
    }
}
