//! Events in: evictions, liveness, clears. They name no scheme and run neither quota nor cap.

use crate::index::Index;
use crate::index::ledger::Removed;
use crate::index::replicas::StatRow;
use crate::index::report::Report;
use crate::update::{Event, EventKind};

/// Entries removed while the lock is held once.
const SLICE: usize = 256;

impl Index {
    pub(super) fn event(&self, event: &Event<'_>) {
        let mut report = Report::default();
        match event.kind {
            EventKind::Unspecified | EventKind::PrefixAdded => return,
            EventKind::PrefixEvicted => self.evict_prefix(event, &mut report),
            EventKind::ReplicaUpdated => self.touch_replica(event),
            EventKind::AllCleared => self.clear_replica(event, &mut report),
        }
        self.tell(event.tenant, report);
    }

    fn evict_prefix(&self, event: &Event<'_>, report: &mut Report) {
        let adapter = (!event.adapter.is_empty()).then_some(event.adapter);
        let mut writer = self.writer.lock();
        for pid in writer.partitions_of(event.tenant, event.model, adapter) {
            let Some((ledger, op)) = writer.ledger_and_op(pid) else { continue };
            let removed = ledger.evict(op, event.prefix_hash, event.replica);
            op.commit();
            if let Some(removed) = removed {
                let key = ledger.key.clone();
                writer.settle(&self.ground, &key, &removed.replica, -1, -i64::from(removed.last), report);
                writer.sync(&self.ground, pid);
            }
        }
    }

    fn touch_replica(&self, event: &Event<'_>) {
        let seen = if event.timestamp == 0 { self.options.clock.now() } else { event.timestamp };
        let mut writer = self.writer.lock();
        let row = writer
            .tenants
            .get(event.tenant)
            .and_then(|tenant| tenant.models.get(event.model))
            .and_then(|model| model.members.get(event.replica))
            .and_then(|member| member.replica.stats());
        if let Some(row) = row {
            let row = StatRow { last_seen: seen, ..row };
            writer.set_stats(event.tenant, event.model, event.replica, Some(row));
        }
    }

    /// Hides the replica in every partition at once, then removes what it held in slices.
    fn clear_replica(&self, event: &Event<'_>, report: &mut Report) {
        let mut writer = self.writer.lock();
        let mut cleared = Vec::new();
        for pid in writer.partitions_of(event.tenant, event.model, None) {
            if let Some(ledger) = writer.ledger(pid)
                && let Some(slot) = ledger.clear(event.replica)
            {
                cleared.push((pid, slot, ledger.shared.clone()));
            }
        }
        writer.set_stats(event.tenant, event.model, event.replica, None);
        let mut gone: Vec<Removed> = Vec::new();
        for (pid, slot, shared) in cleared {
            loop {
                // Between slices the partition may have gone with its last entry, and its number be another's.
                let same = writer.ledger(pid).is_some_and(|ledger| std::sync::Arc::ptr_eq(&ledger.shared, &shared));
                let Some((ledger, op)) = writer.ledger_and_op(pid).filter(|_| same) else { break };
                let more = ledger.remove_some(op, slot, SLICE, |removed| gone.push(removed));
                op.commit();
                let key = ledger.key.clone();
                for removed in gone.drain(..) {
                    writer.settle(&self.ground, &key, &removed.replica, -1, -i64::from(removed.last), report);
                }
                writer.sync(&self.ground, pid);
                if !more {
                    break;
                }
                parking_lot::MutexGuard::bump(&mut writer);
            }
        }
    }
}
