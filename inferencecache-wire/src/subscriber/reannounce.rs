//! When which part of the map is reported again.
//!
//! ```text
//! places   ├──────────────────────────────┤   once in each interval, evenly: place p of n at p/n of it
//! calls      │    │    │    │    │    │        at most one a second, of at most 5000 places
//! ```
//!
//! A map that is too large for its interval takes longer; nothing is left out. Pure: time is passed in.

use std::ops::Range;
use std::time::{Duration, Instant};

/// Shortest time between two parts.
const PACE: Duration = Duration::from_secs(1);
/// Most places of one part, and so most entries in a second.
pub(super) const MAX_PART: usize = 5000;

/// The walk over the map, round after round.
#[derive(Debug)]
pub(super) struct Schedule {
    interval: Duration,
    /// When this round began; `None` before the first.
    began: Option<Instant>,
    /// The first place that this round has not covered.
    next: usize,
    not_before: Option<Instant>,
    wake: Option<Instant>,
}

/// What is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) places: Range<usize>,
    /// It is the first one of its round.
    pub(super) first: bool,
}

impl Schedule {
    /// A round each `interval`, which must not be 0.
    pub(super) fn new(interval: Duration) -> Self {
        Self { interval, began: None, next: 0, not_before: None, wake: None }
    }

    /// Everything was just reported: the next round begins now.
    pub(super) fn restart(&mut self) {
        (self.began, self.next) = (None, 0);
    }

    /// What is due of a map with so many places.
    pub(super) fn part(&mut self, places: usize, now: Instant) -> Option<Part> {
        let mut began = *self.began.get_or_insert(now);
        if now.saturating_duration_since(began) >= self.interval && self.next >= places {
            // A round that took too long is not caught up with.
            let ideal = began + self.interval;
            began = if now.saturating_duration_since(ideal) >= self.interval { now } else { ideal };
            (self.began, self.next) = (Some(began), 0);
        }
        let nanos = self.interval.as_nanos();
        let elapsed = now.saturating_duration_since(began).as_nanos().min(nanos);
        let due = usize::try_from(places as u128 * elapsed / nanos).unwrap_or(places);
        let end = due.min(self.next + MAX_PART);
        let early = self.not_before.is_some_and(|at| now < at);
        let part = (end > self.next && !early).then_some(Part { places: self.next..end, first: self.next == 0 });
        if part.is_some() {
            self.next = end;
            self.not_before = Some(now + PACE);
        }
        // When the next place is due, or the next round.
        let share = if self.next < places { self.next as u128 + 1 } else { places.max(1) as u128 };
        let wait = (nanos * share).div_ceil(places.max(1) as u128);
        let at = began + Duration::from_nanos(u64::try_from(wait).unwrap_or(u64::MAX));
        self.wake = Some(self.not_before.map_or(at, |earliest| at.max(earliest)));
        part
    }

    /// When to ask again, as far as the last answer knew.
    pub(super) fn wake(&self) -> Option<Instant> {
        self.wake
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a schedule and returns the seconds and places of each part.
    fn run(schedule: &mut Schedule, places: usize, seconds: u64) -> Vec<(f64, Range<usize>)> {
        let start = Instant::now();
        let (mut now, mut parts) = (start, Vec::new());
        while now < start + Duration::from_secs(seconds) {
            if let Some(part) = schedule.part(places, now) {
                assert_eq!(part.first, part.places.start == 0);
                parts.push(((now - start).as_secs_f64(), part.places));
            }
            let wake = schedule.wake().expect("asked");
            assert!(wake > now, "the schedule does not spin");
            now = wake;
        }
        parts
    }

    #[test]
    fn every_place_comes_once_in_each_interval_and_evenly() {
        for places in [1, 7, 1000, 100_000] {
            let parts = run(&mut Schedule::new(Duration::from_secs(300)), places, 901);
            let mut times = vec![Vec::new(); places];
            for (at, range) in &parts {
                assert!(range.len() <= MAX_PART.min(places / 300 + 2), "{range:?}");
                range.clone().for_each(|place| times[place].push(*at));
            }
            for times in times {
                assert_eq!(times.len(), 3);
                assert!(times.windows(2).all(|two| two[1] - two[0] <= 302.0), "{times:?}");
            }
        }
    }

    #[test]
    fn no_more_than_five_thousand_a_second_even_if_the_round_takes_longer() {
        let parts = run(&mut Schedule::new(Duration::from_secs(5)), 100_000, 60);
        assert!(parts.windows(2).all(|two| two[1].0 - two[0].0 >= 0.999));
        assert!(parts.iter().all(|(_, range)| range.len() <= MAX_PART));
        let covered: usize = parts.iter().take(30).map(|(_, range)| range.len()).sum();
        assert!(covered >= 100_000, "{covered}");
    }

    #[test]
    fn an_empty_map_and_a_long_sleep_cost_nothing() {
        let mut schedule = Schedule::new(Duration::from_secs(5));
        let start = Instant::now();
        assert_eq!(schedule.part(0, start), None);
        assert_eq!(schedule.wake(), Some(start + Duration::from_secs(5)));
        let later = start + Duration::from_secs(3600);
        assert_eq!(schedule.part(0, later), None);
        assert_eq!(schedule.wake(), Some(later + Duration::from_secs(5)));
    }
}
