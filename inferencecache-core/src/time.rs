//! Time as the index sees it: wall-clock microseconds since the Unix epoch, injectable, saturating.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Microseconds since the Unix epoch. Negative before 1970.
pub type Micros = i64;

/// Where the index and the router read the time.
///
/// Implementers must answer without blocking; callers may ask on every operation.
pub trait Clock: Send + Sync + fmt::Debug + 'static {
    /// Wall-clock time, in microseconds since the Unix epoch.
    fn now(&self) -> Micros;
    /// A clock that never goes back, for deadlines, in microseconds since an arbitrary start.
    fn monotonic(&self) -> u64;
}

/// The system's clocks.
#[derive(Debug, Clone)]
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self { start: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Micros {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => i64::try_from(since.as_micros()).unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_micros()).map_or(i64::MIN, |us| -us),
        }
    }

    fn monotonic(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

/// A clock that stands still until it is moved; clones share the hands.
#[derive(Debug, Clone)]
pub struct ManualClock {
    now: Arc<AtomicI64>,
}

impl ManualClock {
    /// A clock that shows `now` microseconds since the Unix epoch.
    #[must_use]
    pub fn at(now: Micros) -> Self {
        Self { now: Arc::new(AtomicI64::new(now)) }
    }

    /// Moves the clock to `now`.
    pub fn set(&self, now: Micros) {
        self.now.store(now, Ordering::SeqCst);
    }

    /// Moves the clock forward.
    pub fn advance(&self, by: Duration) {
        self.now.fetch_add(i64::try_from(by.as_micros()).unwrap_or(i64::MAX), Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Micros {
        self.now.load(Ordering::SeqCst)
    }

    fn monotonic(&self) -> u64 {
        u64::try_from(self.now.load(Ordering::SeqCst)).unwrap_or(0)
    }
}
