//! What reviews have found lately, by token: acceptances and refusals apart, each bounded and each with its own time.

use std::collections::HashMap;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

/// SHA-256 of a token, in hexadecimal: what a token is known by here, so that none is kept.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct TokenKey(Box<str>);

/// What a review came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The account that was asked for.
    Accepted,
    /// Not genuine, not in time, or not for this audience.
    NotAuthenticated,
    /// Another account.
    SomebodyElse,
}

/// Verdicts of one authenticator.
#[derive(Debug)]
pub(super) struct Verdicts {
    good: Kept,
    bad: Kept,
}

/// Verdicts of one kind.
#[derive(Debug)]
struct Kept {
    limit: usize,
    ttl: u64,
    /// With the time, in microseconds, at which each is no longer true.
    entries: HashMap<TokenKey, (Verdict, u64)>,
}

impl TokenKey {
    pub(super) fn of(token: &str) -> Self {
        use std::fmt::Write as _;
        let mut hex = String::with_capacity(64);
        for byte in Sha256::digest(token) {
            let _ = write!(hex, "{byte:02x}");
        }
        Self(hex.into())
    }
}

impl Verdicts {
    /// Keeps at most `limit` acceptances for `good` each, and at most `limit` refusals for `bad` each.
    pub(super) fn new(limit: usize, good: Duration, bad: Duration) -> Self {
        let kept = |ttl: Duration| Kept {
            limit,
            ttl: u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX),
            entries: HashMap::new(),
        };
        Self { good: kept(good), bad: kept(bad) }
    }

    /// What is known of a token at `now`.
    pub(super) fn get(&self, token: &TokenKey, now: u64) -> Option<Verdict> {
        self.good.get(token, now).or_else(|| self.bad.get(token, now))
    }

    /// Remembers a verdict, which replaces what was known of the token.
    pub(super) fn put(&mut self, token: TokenKey, verdict: Verdict, now: u64) {
        let (into, other) = match verdict {
            Verdict::Accepted => (&mut self.good, &mut self.bad),
            Verdict::NotAuthenticated | Verdict::SomebodyElse => (&mut self.bad, &mut self.good),
        };
        other.entries.remove(&token);
        into.put(token, verdict, now);
    }
}

impl Kept {
    fn get(&self, token: &TokenKey, now: u64) -> Option<Verdict> {
        self.entries.get(token).filter(|(_, until)| now < *until).map(|(verdict, _)| *verdict)
    }

    fn put(&mut self, token: TokenKey, verdict: Verdict, now: u64) {
        if self.limit == 0 {
            return;
        }
        if self.entries.len() >= self.limit && !self.entries.contains_key(&token) {
            self.entries.retain(|_, (_, until)| now < *until);
        }
        while self.entries.len() >= self.limit && !self.entries.contains_key(&token) {
            let soonest = self.entries.iter().min_by_key(|(_, (_, until))| *until).map(|(token, _)| token.clone());
            let Some(soonest) = soonest else { return };
            self.entries.remove(&soonest);
        }
        self.entries.insert(token, (verdict, now.saturating_add(self.ttl)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Verdict::{Accepted, NotAuthenticated, SomebodyElse};

    const SECOND: u64 = 1_000_000;

    fn verdicts(limit: usize) -> Verdicts {
        Verdicts::new(limit, Duration::from_secs(30), Duration::from_secs(10))
    }

    #[test]
    fn a_key_is_the_sha256_of_the_token_in_hexadecimal() {
        assert_eq!(&*TokenKey::of("abc").0, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn each_kind_ends_exactly_at_its_time_and_is_not_extended_by_use() {
        for (verdict, ttl) in [(Accepted, 30), (NotAuthenticated, 10), (SomebodyElse, 10)] {
            let mut known = verdicts(32);
            let token = TokenKey::of("t");
            known.put(token.clone(), verdict, 5 * SECOND);
            for at in [5 * SECOND, (5 + ttl - 1) * SECOND, (5 + ttl) * SECOND - 1] {
                assert_eq!(known.get(&token, at), Some(verdict));
            }
            assert_eq!(known.get(&token, (5 + ttl) * SECOND), None);
        }
    }

    #[test]
    fn a_full_cache_drops_the_expired_and_then_the_soonest_to_expire() {
        // server:129
        let mut known = verdicts(2);
        let token = |n: u64| TokenKey::of(&n.to_string());
        for n in 1..=3 {
            known.put(token(n), Accepted, n * SECOND);
            assert!(known.good.entries.len() <= 2);
        }
        assert_eq!([1, 2, 3].map(|n| known.get(&token(n), 4 * SECOND).is_some()), [false, true, true]);
        known.put(token(4), Accepted, 33 * SECOND); // 2 and 3 expired at 32 and 33
        assert_eq!(known.good.entries.len(), 1);
        known.put(token(4), Accepted, 34 * SECOND);
        known.put(token(5), Accepted, 35 * SECOND);
        assert_eq!(known.good.entries.len(), 2, "putting one again needs no room");
    }

    #[test]
    fn junk_cannot_push_out_what_was_accepted() {
        let mut known = verdicts(32);
        let good = TokenKey::of("good");
        known.put(good.clone(), Accepted, 0);
        for n in 0..1000 {
            known.put(TokenKey::of(&format!("junk {n}")), NotAuthenticated, n);
        }
        assert_eq!(known.get(&good, SECOND), Some(Accepted));
        assert_eq!(known.bad.entries.len(), 32);
    }

    #[test]
    fn a_later_verdict_replaces_an_earlier_one() {
        let mut known = verdicts(32);
        let token = TokenKey::of("t");
        for verdict in [Accepted, SomebodyElse, Accepted, NotAuthenticated] {
            known.put(token.clone(), verdict, 0);
            assert_eq!(known.get(&token, 1), Some(verdict));
        }
        assert_eq!(known.good.entries.len() + known.bad.entries.len(), 1);
    }
}
