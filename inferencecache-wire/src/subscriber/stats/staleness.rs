//! How loudly a missed tick is told.
//!
//! ```text
//! miss 1, 2: WARN ──> miss 3: ERROR, once ──> further: DEBUG ──> first success: INFO
//! ```
//!
//! A tick succeeds only when the server has accepted its sample.

/// Misses in a row after which the load at the server counts as stale.
const STALE: u32 = 3;

/// What to say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Say {
    /// Nothing.
    Nothing,
    /// A miss that may pass.
    Missed,
    /// The third miss in a row.
    Stale {
        /// Some tick has succeeded since the start.
        delivered_before: bool,
    },
    /// A miss after that.
    StillStale,
    /// The first success after that.
    Recovered {
        /// Misses until then.
        after: u32,
    },
}

/// Counts misses in a row.
#[derive(Debug, Clone, Copy, Default)]
pub struct Staleness {
    misses: u32,
    delivered: bool,
}

impl Staleness {
    /// Misses in a row so far.
    #[must_use]
    pub fn misses(&self) -> u32 {
        self.misses
    }

    /// Whether the load counts as stale.
    #[must_use]
    pub fn is_stale(&self) -> bool {
        self.misses >= STALE
    }

    /// Takes a miss.
    pub fn missed(&mut self) -> Say {
        self.misses = self.misses.saturating_add(1);
        match self.misses {
            ..STALE => Say::Missed,
            STALE => Say::Stale { delivered_before: self.delivered },
            _ => Say::StillStale,
        }
    }

    /// Takes a success.
    pub fn delivered(&mut self) -> Say {
        self.delivered = true;
        match std::mem::take(&mut self.misses) {
            after if after >= STALE => Say::Recovered { after },
            _ => Say::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // subscriber:139
    #[test]
    fn misses_get_louder_once_and_the_recovery_is_told() {
        let mut staleness = Staleness::default();
        assert_eq!(staleness.delivered(), Say::Nothing);
        let said: Vec<Say> = (0..5).map(|_| staleness.missed()).collect();
        let stale = Say::Stale { delivered_before: true };
        assert_eq!(said, [Say::Missed, Say::Missed, stale, Say::StillStale, Say::StillStale]);
        assert!(staleness.is_stale());
        assert_eq!(staleness.delivered(), Say::Recovered { after: 5 });
        assert!(!staleness.is_stale());
        assert_eq!((staleness.missed(), staleness.delivered()), (Say::Missed, Say::Nothing));
    }

    #[test]
    fn what_was_never_delivered_is_told_apart() {
        let mut staleness = Staleness::default();
        let third = (0..3).map(|_| staleness.missed()).last();
        assert_eq!(third, Some(Say::Stale { delivered_before: false }));
    }
}
