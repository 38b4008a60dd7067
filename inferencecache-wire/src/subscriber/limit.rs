//! Warnings that repeat: one per message and minute, with a count of those left out.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long a message stays silent after it was written.
const PERIOD: Duration = Duration::from_secs(60);

/// What was written when. Keys are the messages themselves, so there are only as many as the program has.
#[derive(Debug, Default)]
pub(super) struct Limiter {
    messages: HashMap<&'static str, (Instant, u64)>,
}

impl Limiter {
    /// Whether to write the message now; with the number of times it was left out since.
    pub(super) fn pass(&mut self, message: &'static str, now: Instant) -> Option<u64> {
        match self.messages.get_mut(message) {
            Some((last, suppressed)) if now.duration_since(*last) < PERIOD => {
                *suppressed += 1;
                None
            }
            Some((last, suppressed)) => {
                *last = now;
                Some(std::mem::take(suppressed))
            }
            None => {
                self.messages.insert(message, (now, 0));
                Some(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_written_once_a_minute_with_what_was_left_out() {
        let (mut limiter, start) = (Limiter::default(), Instant::now());
        assert_eq!(limiter.pass("a", start), Some(0));
        assert_eq!(limiter.pass("b", start), Some(0));
        for second in 1..60 {
            assert_eq!(limiter.pass("a", start + Duration::from_secs(second)), None);
        }
        assert_eq!(limiter.pass("a", start + Duration::from_secs(60)), Some(59));
        assert_eq!(limiter.pass("a", start + Duration::from_secs(120)), Some(0));
    }
}
