//! How many reviews of unknown tokens each source may cause, so that none can use up what the others need.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};

/// What one source may cause.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Allowance {
    /// At once, after a quiet time.
    pub(super) burst: u32,
    /// Per second, after that.
    pub(super) per_second: u32,
    /// Sources told apart; beyond that, the new ones share one allowance.
    pub(super) sources: usize,
}

/// What is left of the allowances.
#[derive(Debug)]
pub(super) struct Budget {
    allowance: Allowance,
    buckets: HashMap<Option<IpAddr>, Bucket>,
}

#[derive(Debug, Clone, Copy)]
struct Bucket {
    left: f64,
    at: u64,
}

impl Budget {
    pub(super) fn new(allowance: Allowance) -> Self {
        Self { allowance, buckets: HashMap::new() }
    }

    /// Takes one review from what `source` has left at `now` (microseconds); false if that is nothing.
    pub(super) fn take(&mut self, source: Option<IpAddr>, now: u64) -> bool {
        let mut source = source.map(block);
        let allowance = self.allowance;
        if !self.buckets.contains_key(&source) && self.buckets.len() >= allowance.sources {
            // A source that has its whole allowance is as good as unheard of.
            self.buckets.retain(|_, bucket| bucket.refilled(allowance, now).left < f64::from(allowance.burst));
            if self.buckets.len() >= allowance.sources {
                source = None;
            }
        }
        let full = Bucket { left: f64::from(allowance.burst), at: now };
        let bucket = self.buckets.entry(source).or_insert(full);
        *bucket = bucket.refilled(allowance, now);
        if bucket.left < 1.0 {
            return false;
        }
        bucket.left -= 1.0;
        true
    }
}

impl Bucket {
    fn refilled(self, allowance: Allowance, now: u64) -> Self {
        let seconds = now.saturating_sub(self.at) as f64 / 1e6;
        let left = seconds.mul_add(f64::from(allowance.per_second), self.left).min(f64::from(allowance.burst));
        Self { left, at: now }
    }
}

/// The source that an address stands for: in IPv6, everybody has at least 64 bits to themselves.
fn block(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(six) => {
            let [a, b, c, d, ..] = six.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
        four => four,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;
    const ALLOWANCE: Allowance = Allowance { burst: 3, per_second: 2, sources: 4 };

    fn v4(last: u8) -> Option<IpAddr> {
        Some([10, 0, 0, last].into())
    }

    #[test]
    fn a_source_has_its_burst_and_then_its_rate() {
        let mut budget = Budget::new(ALLOWANCE);
        assert_eq!([0; 4].map(|now| budget.take(v4(1), now)), [true, true, true, false]);
        assert!(budget.take(v4(2), 0), "another source has its own");
        assert_eq!([1; 3].map(|now| budget.take(v4(1), now * SECOND)), [true, true, false]);
        assert_eq!([100; 4].map(|now| budget.take(v4(1), now * SECOND)), [true, true, true, false]);
    }

    #[test]
    fn many_sources_share_one_allowance_and_those_known_keep_theirs() {
        let mut budget = Budget::new(ALLOWANCE);
        for last in 1..=4 {
            assert!(budget.take(v4(last), 0));
        }
        let strangers = (5..=15).filter(|last| budget.take(v4(*last), 0)).count();
        assert_eq!(strangers, 3);
        assert!(budget.take(v4(1), 0));
        assert!(budget.buckets.len() <= 5);
        assert!(budget.take(v4(16), 100 * SECOND), "quiet sources are forgotten");
        assert_eq!(budget.buckets.len(), 1);
    }

    #[test]
    fn one_network_of_ipv6_is_one_source_and_mapped_ipv4_is_ipv4() {
        let mut budget = Budget::new(ALLOWANCE);
        let six = |text: &str| Some(text.parse().expect("an address"));
        let taken =
            ["2001:db8::1", "2001:db8::2", "2001:db8:0:0:ffff::", "2001:db8::4"].map(|a| budget.take(six(a), 0));
        assert_eq!(taken, [true, true, true, false]);
        assert!(budget.take(six("2001:db8:0:1::1"), 0));
        let taken = ["::ffff:10.0.0.1", "10.0.0.1", "::ffff:10.0.0.1", "10.0.0.1"].map(|a| budget.take(six(a), 0));
        assert_eq!(taken, [true, true, true, false]);
    }
}
