//! Keys of objects that wait for a pass, and the workers that give them one.
//!
//! ```text
//!  watches ─ add ─▶ ┌ due now or later ┐ ─ next ─▶ worker ─ ends ─▶ again after a time
//!                   └ under way        ┘                           └ failed: backs off, capped
//! ```
//!
//! 1. One key is under way once at most. What is added meanwhile is due when the pass has ended.
//! 2. Adding is idempotent: a key waits once, for the earliest of its times.
//! 3. Passes of one key start at least [`Pace::spacing`] apart, so a storm of triggers costs one pass; after a failure at least
//!    the backoff apart, up to [`Pace::damping`], so that a failure that triggers itself does not spin.
//! 4. A failure forgets when the pass wanted to come again: the backoff says so alone.
//!
//! Memory is one entry for each key that waits or runs, or that failed last time.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

/// How often passes come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Least time between the starts of two passes of one key. Default 100 ms.
    pub spacing: Duration,
    /// How long a trigger waits for those that come with it, see [`Queue::gather`]. Default 200 ms.
    pub gathering: Duration,
    /// First wait after a failure; it doubles with each. Default 50 ms.
    pub first_retry: Duration,
    /// Longest wait after a failure. Default 30 s.
    pub last_retry: Duration,
    /// Longest time that a failure holds up a trigger. Default 1 s.
    pub damping: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            spacing: Duration::from_millis(100),
            gathering: Duration::from_millis(200),
            first_retry: Duration::from_millis(50),
            last_retry: Duration::from_secs(30),
            damping: Duration::from_secs(1),
        }
    }
}

impl Pace {
    fn retry(&self, failures: u32) -> Duration {
        let factor = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        self.first_retry.saturating_mul(factor).min(self.last_retry)
    }
}

/// How a pass ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Well, and nothing is due without a trigger.
    Done,
    /// Well, and it wants to come again.
    Again(Duration),
    /// Not well.
    Failed,
}

#[derive(Debug)]
struct Slot {
    due: Option<Instant>,
    running: bool,
    failures: u32,
    started: Option<Instant>,
    ended: Option<Instant>,
}

#[derive(Debug)]
struct State<K> {
    slots: HashMap<K, Slot>,
    /// Every slot with a time that is not under way.
    order: BTreeSet<(Instant, K)>,
}

/// Keys that wait. Clones share one queue.
#[derive(Debug)]
pub struct Queue<K> {
    state: Arc<Mutex<State<K>>>,
    changed: Arc<Notify>,
    pace: Pace,
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self { state: Arc::clone(&self.state), changed: Arc::clone(&self.changed), pace: self.pace }
    }
}

impl<K: Clone + Eq + Hash + Ord> Queue<K> {
    /// An empty one.
    #[must_use]
    pub fn new(pace: Pace) -> Self {
        let state = State { slots: HashMap::new(), order: BTreeSet::new() };
        Self { state: Arc::new(Mutex::new(state)), changed: Arc::new(Notify::new()), pace }
    }

    /// The key is due: something happened to it.
    pub fn add(&self, key: K) {
        self.add_after(key, Duration::ZERO);
    }

    /// The key is due in a moment: what happened seldom comes alone, and one pass is to see all of it. Half of a set of Pods
    /// would be judged as if it were all of them.
    pub fn gather(&self, key: K) {
        self.add_after(key, self.pace.gathering);
    }

    fn add_after(&self, key: K, after: Duration) {
        let now = Instant::now();
        let mut state = self.lock();
        let slot = state.slots.entry(key.clone()).or_insert_with(Slot::new);
        let due = self.earliest(slot, now).max(now + after);
        state.due(&key, due);
        drop(state);
        self.changed.notify_one();
    }

    /// How many wait or are under way.
    #[must_use]
    pub fn len(&self) -> usize {
        let state = self.lock();
        state.slots.values().filter(|slot| slot.running || slot.due.is_some()).count()
    }

    /// Whether nobody waits and nothing is under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The next key that is due, once one is.
    pub async fn next(&self) -> Lease<K> {
        loop {
            let changed = self.changed.notified();
            let first = match self.take(Instant::now()) {
                Ok(key) => {
                    // Another may be due too.
                    self.changed.notify_one();
                    return Lease { queue: self.clone(), key, ended: false };
                }
                Err(first) => first,
            };
            match first {
                Some(time) => tokio::select! { () = changed => {}, () = sleep_until(time) => {} },
                None => changed.await,
            }
        }
    }

    /// The first key that is due, or when one will be.
    fn take(&self, now: Instant) -> Result<K, Option<Instant>> {
        let mut state = self.lock();
        let Some((due, key)) = state.order.first().cloned() else { return Err(None) };
        if due > now {
            return Err(Some(due));
        }
        state.order.pop_first();
        if let Some(slot) = state.slots.get_mut(&key) {
            slot.due = None;
            slot.running = true;
            slot.started = Some(now);
        }
        Ok(key)
    }

    fn end(&self, key: &K, end: End) {
        let now = Instant::now();
        let mut state = self.lock();
        let Some(slot) = state.slots.get_mut(key) else { return };
        slot.running = false;
        slot.ended = Some(now);
        let triggered = slot.due.take().is_some();
        slot.failures = if end == End::Failed { slot.failures.saturating_add(1) } else { 0 };
        let wanted = match end {
            End::Done => None,
            End::Again(after) => Some(now + after),
            End::Failed => Some(now + self.pace.retry(slot.failures)),
        };
        let trigger = triggered.then(|| self.earliest(slot, now));
        match wanted.into_iter().chain(trigger).min() {
            Some(due) => state.due(key, due),
            None => {
                state.slots.remove(key);
            }
        }
        drop(state);
        self.changed.notify_one();
    }

    /// When a trigger that comes now takes effect.
    fn earliest(&self, slot: &Slot, now: Instant) -> Instant {
        let spaced = slot.started.map_or(now, |started| started + self.pace.spacing);
        let damped = match slot.ended {
            Some(ended) if slot.failures > 0 => ended + self.pace.retry(slot.failures).min(self.pace.damping),
            _ => now,
        };
        now.max(spaced).max(damped)
    }

    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives passes to keys that are due, `workers` at a time, until `stop`; then lets those under way finish, for `grace` at
    /// most. A pass that panics has failed.
    pub async fn work<F, P>(self, workers: usize, stop: &CancellationToken, grace: Duration, pass: F)
    where
        K: Send + Sync + 'static,
        F: Fn(K) -> P,
        P: Future<Output = End> + Send + 'static,
    {
        let room = Arc::new(Semaphore::new(workers.max(1)));
        let mut running = JoinSet::new();
        loop {
            let started = async {
                let permit = Arc::clone(&room).acquire_owned().await;
                (permit, self.next().await)
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(_) = running.join_next() => {}
                (permit, lease) = started => {
                    let pass = pass(lease.key().clone());
                    running.spawn(async move {
                        let _permit = permit;
                        let end = pass.await;
                        lease.end(end);
                    });
                }
            }
        }
        let rest = async { while running.join_next().await.is_some() {} };
        let _ = timeout(grace, rest).await;
    }
}

impl Slot {
    fn new() -> Self {
        Self { due: None, running: false, failures: 0, started: None, ended: None }
    }
}

impl<K: Clone + Eq + Hash + Ord> State<K> {
    /// Lets a key be due at that time, or earlier if it is already.
    fn due(&mut self, key: &K, at: Instant) {
        let Some(slot) = self.slots.get_mut(key) else { return };
        let before = slot.due;
        let due = before.map_or(at, |before| before.min(at));
        slot.due = Some(due);
        if !slot.running && before != Some(due) {
            if let Some(before) = before {
                self.order.remove(&(before, key.clone()));
            }
            self.order.insert((due, key.clone()));
        }
    }
}

/// A key whose pass is under way. Dropped without an end, the pass has failed.
#[derive(Debug)]
pub struct Lease<K: Clone + Eq + Hash + Ord> {
    queue: Queue<K>,
    key: K,
    ended: bool,
}

impl<K: Clone + Eq + Hash + Ord> Lease<K> {
    /// The key.
    #[must_use]
    pub fn key(&self) -> &K {
        &self.key
    }

    /// Ends the pass.
    pub fn end(mut self, end: End) {
        self.ended = true;
        self.queue.end(&self.key, end);
    }
}

impl<K: Clone + Eq + Hash + Ord> Drop for Lease<K> {
    fn drop(&mut self) {
        if !self.ended {
            self.queue.end(&self.key, End::Failed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn queue() -> Queue<&'static str> {
        Queue::new(Pace::default())
    }

    async fn waits(queue: &Queue<&'static str>) -> Duration {
        let start = Instant::now();
        let lease = queue.next().await;
        lease.end(End::Done);
        Instant::now() - start
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_waits_once_and_runs_once() {
        let queue = queue();
        queue.add("a");
        queue.add("a");
        let lease = queue.next().await;
        assert_eq!(queue.len(), 1);
        queue.add("a");
        queue.add("b");
        assert_eq!(*queue.next().await.key(), "b", "a is under way");
        assert!(timeout(SECOND, queue.next()).await.is_ok_and(|lease| *lease.key() == "b"), "dropped means failed");
        lease.end(End::Done);
        assert_eq!(*queue.next().await.key(), "a", "what was added meanwhile");
    }

    #[tokio::test(start_paused = true)]
    async fn passes_of_a_key_are_spaced_and_come_again_when_they_want() {
        let queue = queue();
        queue.add("a");
        queue.next().await.end(End::Again(SECOND));
        queue.add("a");
        assert_eq!(waits(&queue).await, Duration::from_millis(100), "the trigger is earlier, and spaced");
        assert!(timeout(SECOND * 60, queue.next()).await.is_err(), "each pass decides anew when to come again");
        queue.add("a");
        queue.next().await.end(End::Again(SECOND));
        assert_eq!(waits(&queue).await, SECOND);
        assert!(queue.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_together_costs_one_pass() {
        let queue = queue();
        let begun = Instant::now();
        queue.gather("a");
        tokio::time::advance(Duration::from_millis(150)).await;
        queue.gather("a");
        queue.next().await.end(End::Done);
        assert_eq!(Instant::now() - begun, Duration::from_millis(200), "the first of them counts");
        assert!(queue.is_empty());
        queue.gather("b");
        queue.add("b");
        assert_eq!(waits(&queue).await, Duration::ZERO, "others do not wait for it");
    }

    #[tokio::test(start_paused = true)]
    async fn failures_back_off_to_a_cap_and_damp_triggers() {
        let queue = queue();
        queue.add("a");
        let mut expected = Duration::from_millis(50);
        queue.next().await.end(End::Failed);
        for _ in 0..15 {
            let start = Instant::now();
            let lease = queue.next().await;
            assert_eq!(Instant::now() - start, expected);
            lease.end(End::Failed);
            expected = (expected * 2).min(Duration::from_secs(30));
        }
        queue.add("a");
        assert_eq!(waits(&queue).await, SECOND, "a trigger does not wait for the whole backoff");
        queue.add("a");
        assert_eq!(waits(&queue).await, Duration::from_millis(0), "and a good pass ends it");
    }

    #[tokio::test(start_paused = true)]
    async fn workers_run_apart_stop_when_told_and_survive_a_panic() {
        let queue = Queue::new(Pace::default());
        let stop = CancellationToken::new();
        let (most, now, passes) =
            (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        for key in 0..10 {
            queue.add(key);
        }
        let work = tokio::spawn({
            let (queue, stop) = (queue.clone(), stop.clone());
            let (most, now, passes) = (Arc::clone(&most), Arc::clone(&now), Arc::clone(&passes));
            async move {
                let pass = move |key: i32| {
                    let (most, now, passes) = (Arc::clone(&most), Arc::clone(&now), Arc::clone(&passes));
                    async move {
                        let first = passes.fetch_add(1, Ordering::SeqCst) == 0;
                        assert!(!first || key != 0, "the first pass of all panics");
                        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        tokio::time::sleep(SECOND).await;
                        now.fetch_sub(1, Ordering::SeqCst);
                        End::Done
                    }
                };
                queue.work(3, &stop, SECOND * 5, pass).await;
            }
        });
        while passes.load(Ordering::SeqCst) < 11 || !queue.is_empty() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(most.load(Ordering::SeqCst), 3);
        queue.add(1);
        while now.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        stop.cancel();
        work.await.expect("it ends");
        assert_eq!(now.load(Ordering::SeqCst), 0, "what was under way has finished");
    }
}
