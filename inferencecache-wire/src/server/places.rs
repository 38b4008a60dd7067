//! Who holds the places of a listener, and who gives one up when all are taken.
//!
//! ```text
//! accepted ──take──> Place ──dropped──> free again
//!              └─ none free: the connection that has been idle longest is asked to leave, and its place is taken
//! ```
//!
//! 1. A connection with work under way never has to leave. If all have, the newcomer is turned away.
//! 2. So peers that connect and stay silent cost each other their places, and nobody else's.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// The places of one listener.
#[derive(Debug)]
pub(super) struct Places {
    limit: usize,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    next: u64,
    by: HashMap<u64, Arc<Activity>>,
}

/// The place of one connection, for as long as it lives.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
    pub(super) activity: Arc<Activity>,
}

/// What a connection is at. The counts only steer; no data hangs on them: relaxed.
#[derive(Debug)]
pub(super) struct Activity {
    opened: Instant,
    /// Pieces of work under way.
    busy: AtomicUsize,
    /// Microseconds after `opened` at which the last piece ended.
    ended: AtomicU64,
    /// Answers that are complete and that the peer has not taken yet.
    untaken: AtomicUsize,
    /// Answers that have been taken, or given up.
    taken: AtomicU64,
    /// Fired when the place is wanted by somebody else.
    pub(super) leave: CancellationToken,
}

/// One piece of work of a connection.
#[derive(Debug)]
pub(super) struct Work {
    activity: Arc<Activity>,
    answered: bool,
}

impl Places {
    pub(super) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, held: Mutex::default() })
    }

    /// A place, and whether somebody has to leave for it. `None` while everybody is busy.
    pub(super) fn take(self: &Arc<Self>) -> Option<(Place, bool)> {
        let mut held = self.held.lock();
        let full = held.by.len() >= self.limit;
        if full && !held.dismiss() {
            return None;
        }
        let number = held.next;
        held.next += 1;
        let activity = Arc::new(Activity::new());
        held.by.insert(number, activity.clone());
        Some((Place { places: self.clone(), number, activity }, full))
    }

    /// Asks the connection that has been idle longest to leave. False when none is idle.
    pub(super) fn dismiss(&self) -> bool {
        self.held.lock().dismiss()
    }
}

impl Held {
    fn dismiss(&mut self) -> bool {
        let idle = self.by.iter().filter_map(|(number, activity)| Some((activity.idle_since()?, *number)));
        let Some(activity) = idle.min().and_then(|(_, number)| self.by.remove(&number)) else { return false };
        activity.leave.cancel();
        true
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.held.lock().by.remove(&self.number);
    }
}

impl Activity {
    pub(super) fn new() -> Self {
        Self {
            opened: Instant::now(),
            busy: AtomicUsize::new(0),
            ended: AtomicU64::new(0),
            untaken: AtomicUsize::new(0),
            taken: AtomicU64::new(0),
            leave: CancellationToken::new(),
        }
    }

    /// Begins a piece of work, which lasts until what is returned is dropped.
    pub(super) fn begin(self: &Arc<Self>) -> Work {
        self.busy.fetch_add(1, Ordering::Relaxed);
        Work { activity: self.clone(), answered: false }
    }

    /// Since when there is nothing to do; `None` while there is.
    fn idle_since(&self) -> Option<Instant> {
        let ended = Duration::from_micros(self.ended.load(Ordering::Relaxed));
        (self.busy.load(Ordering::Relaxed) == 0).then(|| self.opened + ended)
    }

    /// How many answers have been taken so far, if some wait to be. The same number twice means that none was in between.
    pub(super) fn awaits_reader(&self) -> Option<u64> {
        (self.untaken.load(Ordering::Relaxed) > 0).then(|| self.taken.load(Ordering::Relaxed))
    }
}

impl Work {
    /// The answer is there; the rest is up to the peer.
    pub(super) fn answered(&mut self) {
        self.answered = true;
        self.activity.untaken.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        let activity = &self.activity;
        if self.answered {
            activity.taken.fetch_add(1, Ordering::Relaxed);
            activity.untaken.fetch_sub(1, Ordering::Relaxed);
        }
        let now = u64::try_from(activity.opened.elapsed().as_micros()).unwrap_or(u64::MAX);
        activity.ended.store(now, Ordering::Relaxed);
        activity.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(places: &Arc<Places>) -> (Place, bool) {
        places.take().expect("a place")
    }

    /// Sets the time of the last piece of work.
    fn ended(place: &Place, us: u64) {
        place.activity.ended.store(us, Ordering::Relaxed);
    }

    #[test]
    fn the_one_idle_longest_leaves() {
        let places = Places::new(3);
        let [(a, _), (b, _), (c, full)] = [(); 3].map(|()| take(&places));
        assert!(!full);
        for (place, us) in [(&a, 20_000_000), (&b, 10_000_000), (&c, 30_000_000)] {
            ended(place, us);
        }
        let (d, full) = take(&places);
        let asked = |place: &Place| place.activity.leave.is_cancelled();
        assert_eq!((full, asked(&a), asked(&b), asked(&c), asked(&d)), (true, false, true, false, false));
        drop(b); // its place is taken already and is not given back a second time
        assert!(take(&places).1);
    }

    #[test]
    fn who_is_busy_stays() {
        let places = Places::new(2);
        let [(a, _), (b, _)] = [(); 2].map(|()| take(&places));
        let work = [a.activity.begin(), b.activity.begin()];
        assert!(places.take().is_none() && !places.dismiss());
        drop(work);
        assert!(places.dismiss());
        let (_c, full) = take(&places);
        assert!(!full, "one has left");
        drop((a, b));
        assert!(!take(&places).1);
    }

    #[test]
    fn an_answer_waits_until_it_is_taken() {
        let activity = Arc::new(Activity::new());
        assert_eq!(activity.awaits_reader(), None);
        let [mut first, mut second] = [activity.begin(), activity.begin()];
        assert_eq!(activity.awaits_reader(), None, "no answer yet");
        first.answered();
        second.answered();
        assert_eq!(activity.awaits_reader(), Some(0));
        drop(first);
        assert_eq!(activity.awaits_reader(), Some(1));
        drop(second);
        assert_eq!(activity.awaits_reader(), None);
    }
}
