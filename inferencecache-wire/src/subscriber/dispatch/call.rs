//! Calls to the server, as the machine that starts them sees them.

use std::sync::Arc;
use std::time::Instant;

use inferencecache_core::time::Micros;

use crate::subscriber::blockmap::{AdapterId, Report, Ticks};

/// One call to the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    /// `ReportCacheState`.
    Report {
        /// Time of the update; 0 is the server's now.
        at: Micros,
        /// Its entries; any number.
        entries: Arc<Vec<Report>>,
    },
    /// `PublishEvent` of `PREFIX_EVICTED`.
    Evict {
        /// Time of the event.
        at: Micros,
        /// Digest of the pair.
        digest: u64,
        /// Partition of the pair.
        adapter: AdapterId,
    },
    /// `PublishEvent` of `ALL_CLEARED`.
    Clear {
        /// Time of the event.
        at: Micros,
    },
}

/// Names a call between its start and its end.
pub type CallId = u64;

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The server has accepted it.
    Accepted,
    /// It failed, but may have reached the server.
    Failed,
    /// It failed, and there was no connection at any time.
    NeverSent,
}

/// The moment, on the three clocks that matter.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// For waits.
    pub instant: Instant,
    /// For reports made from the map.
    pub wall: Micros,
    /// For [`BlockMap::repeats`](crate::subscriber::blockmap::BlockMap::repeats).
    pub ticks: Ticks,
}
