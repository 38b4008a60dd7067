//! Producers' calls: ReportCacheState, one message at a time, and PublishEvent.
//!
//! Nothing is ever refused to the producer: what cannot be used is dropped, counted by cause, and the `Ack` is positive.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use inferencecache_core::update::Dropped;
use inferencecache_core::{Clock, Entry, IndexApi, RESERVED_TENANT};

use super::blocksize::{BlockSizes, Scope};
use crate::convert::{self, Refused};
use crate::hot::Report;
use crate::metrics::Metrics;
use crate::pb;

/// Applies what producers say.
#[derive(Debug)]
pub(super) struct Reports<I: ?Sized> {
    pub(super) index: Arc<I>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) sizes: BlockSizes,
}

/// What one stream carries from message to message.
#[derive(Debug, Default)]
pub(super) struct Carried {
    entries: Vec<Entry<'static>>,
    scope: Option<Arc<Scope>>,
}

impl<I: IndexApi + ?Sized> Reports<I> {
    /// Applies one message of a stream.
    pub(super) fn ingest(&self, report: &Report, carried: &mut Carried) {
        self.guarded("ReportCacheState", || {
            if report.tenant() == RESERVED_TENANT {
                return;
            }
            let mut refused = Refused::default();
            let mut entries = convert::recycled(std::mem::take(&mut carried.entries));
            if let Some(update) = report.update(self.clock.now(), &mut entries, &mut refused) {
                if self.sizes.is_mismatch(&update, &mut carried.scope) {
                    self.metrics.block_size_mismatch(update.model);
                }
                let dropped = self.index.ingest(&update);
                self.metrics.update_ingested(update.entries.len());
                self.count_dropped(&dropped);
            }
            carried.entries = convert::recycled(entries);
            self.count_refused(&refused);
        });
    }

    /// Applies one event.
    pub(super) fn publish(&self, message: &pb::CacheEvent) {
        self.guarded("PublishEvent", || {
            if message.tenant_id == RESERVED_TENANT {
                return;
            }
            let mut refused = Refused::default();
            if let Some(event) = convert::event(message, self.clock.now(), &mut refused) {
                self.index.apply_event(&event);
                self.metrics.event(convert::event_label(event.kind));
            }
            self.count_refused(&refused);
        });
    }

    fn guarded(&self, rpc: &str, work: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            self.metrics.handler_panic(rpc);
        }
    }

    fn count_refused(&self, refused: &Refused) {
        for (cause, number) in refused.causes() {
            self.metrics.dropped(cause, number);
        }
        if refused.clamped {
            self.metrics.timestamp_clamped();
        }
    }

    fn count_dropped(&self, dropped: &Dropped) {
        if dropped.total() > 0 {
            for (cause, number) in [
                ("no_replica", dropped.no_replica),
                ("no_scheme", dropped.no_scheme),
                ("unbalanced", dropped.unbalanced),
                ("empty_hash", dropped.empty_hash),
                ("negative_count", dropped.negative_count),
                ("no_room", dropped.no_room),
            ] {
                self.metrics.dropped(cause, number);
            }
        }
    }
}
