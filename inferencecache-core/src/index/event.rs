//! Events in: evictions, liveness, clears. They name no scheme and run neither quota nor cap.

use crate::index::Index;
use crate::index::books::Change;
use crate::index::replicas::StatRow;
use crate::index::report::Report;
use crate::update::{Event, EventKind};

/// Entries removed while the lock is held once.
const SLICE: u32 = 256;

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
        let mut change = Change::default();
        let mut writer = self.writer.lock();
        let places = writer.places(event.tenant, event.model, adapter, event.replica);
        for &(pid, slot) in places.get() {
            let Some(ledger) = writer.ledger(pid) else { continue };
            ledger.evict(event.prefix_hash, slot, &mut change);
            ledger.commit();
            if change.gone > 0 {
                let key = ledger.key.clone();
                writer.settle(&self.ground, &key, &mut change, report);
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
            .and_then(|member| member.stats());
        if let Some(row) = row {
            let row = StatRow { last_seen: seen, ..row };
            writer.set_stats(&self.ground, event.tenant, event.model, event.replica, Some(row));
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
        writer.set_stats(&self.ground, event.tenant, event.model, event.replica, None);
        let mut change = Change::default();
        for (pid, slot, shared) in cleared {
            // Between slices the partition may have gone with its last entry, and its number be another's.
            while let Some(ledger) = writer.same_ledger(pid, &shared) {
                let more = ledger.remove_some(slot, SLICE, &mut change);
                ledger.commit();
                let key = ledger.key.clone();
                writer.settle(&self.ground, &key, &mut change, report);
                writer.sync(&self.ground, pid);
                if !more {
                    break;
                }
                parking_lot::MutexGuard::bump(&mut writer);
            }
        }
    }
}
