//! Counts above the partitions: who keeps them, and what an operation has to settle by name.
//!
//! Whatever a hold or a key counts towards is reached through pointers, so that booking one costs no look-up. Only where a
//! count leaves 0 or comes back to it does anything else change, and then [`Change`] says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::index::replicas::Replica;

/// A number that only the holder of the writer's lock changes, and anybody reads.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Says whether it began or ceased to be 0.
    pub(super) fn add(&self, change: i64) -> bool {
        // Relaxed, and no read-modify-write: there is one writer.
        let was = self.get();
        let is = was.saturating_add_signed(change);
        self.0.store(is, Ordering::Relaxed);
        (was == 0) != (is == 0)
    }
}

/// The counts of the whole index.
#[derive(Debug, Default)]
pub(super) struct Totals {
    /// Distinct keys outside reserved tenants.
    pub(super) real_keys: Count,
    /// Storage entries.
    pub(super) entries: Count,
    /// Those of reserved tenants.
    pub(super) reserved: Count,
}

/// The counts of one (tenant, model).
#[derive(Debug, Default)]
pub(super) struct ModelCounts {
    pub(super) keys: Count,
    pub(super) partitions: Count,
}

/// Where a partition books its keys and holds.
#[derive(Debug)]
pub(super) struct Books {
    /// Whether its tenant is reserved.
    pub(super) reserved: bool,
    pub(super) totals: Arc<Totals>,
    pub(super) tenant: Arc<Count>,
    pub(super) model: Arc<ModelCounts>,
}

/// What an operation changed in counts above its partition.
#[derive(Debug, Default)]
pub(super) struct Change {
    /// Holds that went.
    pub(super) gone: u32,
    /// Blocks for which there was no room; kept until somebody takes the number.
    pub(super) no_room: u32,
    pub(super) keys: i64,
    /// Whether the tenant or the model began or ceased to have keys.
    pub(super) levels: bool,
    /// Replicas that began or ceased to hold anything, of the scope or at all, with their count in the scope.
    pub(super) turned: Vec<(Arc<Replica>, Arc<Count>)>,
}

impl Books {
    /// Books holds and keys of one replica, whose holds in the scope are `served`.
    pub(super) fn book(&self, replica: &Arc<Replica>, served: &Arc<Count>, holds: i64, keys: i64, change: &mut Change) {
        self.totals.entries.add(holds);
        if self.reserved {
            self.totals.reserved.add(holds);
        } else {
            self.totals.real_keys.add(keys);
        }
        if keys != 0 {
            change.keys += keys;
            change.levels |= self.tenant.add(keys);
            change.levels |= self.model.keys.add(keys);
        }
        let (serving, member) = (served.add(holds), replica.holds.add(holds));
        if serving || member {
            change.turned.push((replica.clone(), served.clone()));
        }
        if holds < 0 {
            change.gone += u32::try_from(holds.unsigned_abs()).unwrap_or(u32::MAX);
        }
    }
}
