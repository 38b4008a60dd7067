//! Room for connections. Whoever says nothing gives way to whoever comes.
//!
//! ```text
//!  newcomer ──> a place is free?  ──yes──> it has it
//!                    │no
//!                    └──> the one that has been idle longest is told to go ──> it waits for that place
//!                                         none is idle ──> it is closed
//! ```
//!
//! Anybody who reaches the port could otherwise hold every place with connections that never ask anything, and the API server
//! would find none.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// All places of a listener.
#[derive(Debug)]
pub(super) struct Places {
    free: Arc<Semaphore>,
    /// Connections without a request under way, in the order in which they became idle.
    idle: Mutex<Idle>,
}

#[derive(Debug, Default)]
struct Idle {
    next: u64,
    order: BTreeMap<u64, CancellationToken>,
}

/// A place that will be had, or is.
#[derive(Debug)]
pub(super) enum Place {
    /// It is there.
    Free(OwnedSemaphorePermit),
    /// Somebody is on the way out.
    Soon(Arc<Semaphore>),
}

impl Places {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { free: Arc::new(Semaphore::new(most)), idle: Mutex::default() })
    }

    /// A place for a newcomer; none when nobody is idle.
    pub(super) fn take(&self) -> Option<Place> {
        if let Ok(place) = self.free.clone().try_acquire_owned() {
            return Some(Place::Free(place));
        }
        let (_, leaves) = self.idle.lock().unwrap_or_else(PoisonError::into_inner).order.pop_first()?;
        leaves.cancel();
        Some(Place::Soon(self.free.clone()))
    }

    /// Remembers that a connection has nothing under way; `leave` tells it to go.
    pub(super) fn idles(self: &Arc<Self>, leave: &CancellationToken) -> Idling {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let at = idle.next;
        idle.next += 1;
        idle.order.insert(at, leave.clone());
        Idling { places: self.clone(), at }
    }
}

impl Place {
    /// The place; waits for whoever is on the way out.
    pub(super) async fn had(self) -> Option<OwnedSemaphorePermit> {
        match self {
            Self::Free(place) => Some(place),
            Self::Soon(free) => free.acquire_owned().await.ok(),
        }
    }
}

/// A connection is idle for as long as this lives.
#[derive(Debug)]
pub(super) struct Idling {
    places: Arc<Places>,
    at: u64,
}

impl Drop for Idling {
    fn drop(&mut self) {
        self.places.idle.lock().unwrap_or_else(PoisonError::into_inner).order.remove(&self.at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_has_been_idle_longest_gives_way_and_who_works_does_not() {
        let places = Places::new(2);
        let [first, second] = [(); 2].map(|()| CancellationToken::new());
        let held = [places.take().expect("free").had().await, places.take().expect("free").had().await];
        assert!(places.take().is_none(), "both work");
        let (one, _two) = (places.idles(&first), places.idles(&second));
        drop(one);
        let _one = places.idles(&first);
        let place = places.take().expect("the second gives way");
        assert!(second.is_cancelled() && !first.is_cancelled());
        drop(held);
        assert!(place.had().await.is_some());
    }
}
