//! Who probes now: one at a time per backend.
//!
//! Only what runs is remembered, so the set is as large as the number of probes under way and no larger. Those who wait
//! are counted, and wait no longer than they say.

use std::collections::HashSet;
use std::fmt;
use std::time::Duration;

use foldhash::fast::RandomState;
use parking_lot::{Condvar, Mutex};

/// Most probes at a time, those that wait for their turn included.
pub const MAX_PROBES: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Turns {
    state: Mutex<State>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    running: HashSet<Box<str>, RandomState>,
    /// Those that run and those that wait.
    present: usize,
}

/// The right to probe a backend, given back when dropped.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    backend: Box<str>,
}

/// Why there is no turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoTurn {
    Crowded,
    Busy(Duration),
}

impl fmt::Display for NoTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Crowded => write!(f, "{MAX_PROBES} probes are under way already"),
            Self::Busy(patience) => write!(f, "an earlier probe of the same backend was not done within {patience:?}"),
        }
    }
}

impl Turns {
    /// Waits until nobody else probes `backend`, but no longer than `patience`.
    pub(super) fn take(&self, backend: &str, patience: Duration) -> Result<Turn<'_>, NoTurn> {
        let mut state = self.state.lock();
        if state.present >= MAX_PROBES {
            return Err(NoTurn::Crowded);
        }
        state.present += 1;
        self.freed.wait_while_for(&mut state, |state| state.running.contains(backend), patience);
        // Asked of the set and not of the clock: a turn that came free at the last moment is a turn.
        if state.running.contains(backend) {
            state.present -= 1;
            return Err(NoTurn::Busy(patience));
        }
        let backend: Box<str> = backend.into();
        state.running.insert(backend.clone());
        Ok(Turn { turns: self, backend })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.state.lock();
        state.running.remove(&self.backend);
        state.present -= 1;
        self.turns.freed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(5);
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_backend_has_one_turn_and_gives_it_back() {
        let turns = Turns::default();
        let first = turns.take("blue", SOON).expect("nobody is there");
        let other = turns.take("green", SOON).expect("another backend");
        assert_eq!(turns.take("blue", SOON).expect_err("taken"), NoTurn::Busy(SOON));
        drop(first);
        let again = turns.take("blue", SOON).expect("given back");
        drop((again, other));
        let state = turns.state.lock();
        assert_eq!((state.running.len(), state.present), (0, 0), "nothing is remembered");
    }

    #[test]
    fn whoever_waits_gets_it_when_it_is_free() {
        let turns = Turns::default();
        let first = turns.take("blue", SOON).expect("nobody is there");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| turns.take("blue", LONG).is_ok());
            while turns.state.lock().present < 2 {
                std::thread::yield_now();
            }
            drop(first);
            assert!(waiting.join().expect("it does not panic"));
        });
        assert_eq!(turns.state.lock().present, 0);
    }

    #[test]
    fn the_crowd_is_bounded() {
        let turns = Turns::default();
        let mut held: Vec<_> =
            (0..MAX_PROBES).map(|n| turns.take(&n.to_string(), SOON).expect("there is room")).collect();
        assert_eq!(turns.take("one more", LONG).expect_err("no room"), NoTurn::Crowded);
        held.pop();
        assert!(turns.take("one more", SOON).is_ok());
    }
}
