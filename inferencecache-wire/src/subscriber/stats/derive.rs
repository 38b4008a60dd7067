//! From readings to what the server is told.
//!
//! Rates need two readings: the baseline of the last one is kept here, and it moves by the rules of each engine family.

use super::profile::Profile;
use super::reading::Reading;

/// What the server is told about the load of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Load {
    /// Bytes of the cache in use; 0 when the capacity or the usage is not known.
    pub memory_bytes: i64,
    /// Share of looked-up tokens that were found, since the reading before.
    pub hit_rate: f32,
    /// Requests against the ceiling, 0 to 1.
    pub pressure: f32,
    /// Cumulative tokens found in the second tier.
    pub second_tier_hits: i64,
    /// Cumulative tokens looked for there.
    pub second_tier_queries: i64,
}

/// What figures are measured against.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Limits {
    /// Capacity of the cache, in bytes; 0 when not known.
    pub capacity_bytes: i64,
    /// Requests at which the engine counts as fully loaded.
    pub ceiling: f64,
}

/// Derives loads from one reading after the other.
#[derive(Debug, Clone, Default)]
pub struct Deriver {
    profile: Profile,
    /// Hits and queries of the last reading that had both.
    baseline: Option<(f64, f64)>,
    /// The last rate, for intervals in which nothing was looked up.
    rate: f64,
}

impl Deriver {
    /// Knows no earlier reading.
    #[must_use]
    pub fn new(profile: Profile) -> Self {
        Self { profile, baseline: None, rate: 0.0 }
    }

    /// Takes the next reading.
    pub fn load(&mut self, reading: &Reading, limits: Limits) -> Load {
        let requests = reading.running + reading.waiting;
        let pressure = if limits.ceiling > 0.0 && requests > 0.0 { requests / limits.ceiling } else { 0.0 };
        let bytes = match reading.usage {
            #[expect(clippy::cast_precision_loss, reason = "capacities stay below 2^53 bytes")]
            Some(usage) if limits.capacity_bytes > 0 => usage * limits.capacity_bytes as f64,
            _ => 0.0,
        };
        self.rate = match self.profile {
            Profile::Vllm => self.vllm_rate(reading),
            Profile::Sglang => self.sglang_rate(reading),
        };
        let (hits, queries) = reading.second_tier;
        Load {
            memory_bytes: integer(bytes),
            hit_rate: single(self.rate),
            pressure: single(share(pressure)),
            second_tier_hits: integer(hits),
            second_tier_queries: integer(queries),
        }
    }

    fn vllm_rate(&mut self, reading: &Reading) -> f64 {
        match self.moved(reading) {
            Some((hits, queries)) if hits >= 0.0 && queries > 0.0 => share(hits / queries),
            _ => 0.0,
        }
    }

    /// The gauge is the figure of the last batch alone, and so only better than nothing.
    fn sglang_rate(&mut self, reading: &Reading) -> f64 {
        let gauge = share(reading.rate.unwrap_or_default());
        match self.moved(reading) {
            Some((hits, queries)) if hits >= 0.0 && queries > 0.0 => share(hits / queries),
            Some((0.0.., 0.0)) => self.rate,
            _ => gauge,
        }
    }

    /// What both counters have gained since the baseline, which moves. `None`, and a baseline that stays, when one of them is
    /// missing; `None` at the first reading.
    fn moved(&mut self, reading: &Reading) -> Option<(f64, f64)> {
        let (hits, queries) = (reading.hits?, reading.queries?);
        let (old_hits, old_queries) = self.baseline.replace((hits, queries))?;
        Some((hits - old_hits, queries - old_queries))
    }
}

/// Within 0 and 1; what is no number is 0.
fn share(value: f64) -> f64 {
    if value.is_nan() { 0.0 } else { value.clamp(0.0, 1.0) }
}

#[expect(clippy::cast_possible_truncation, reason = "truncation is the rule, and the cast saturates")]
fn integer(value: f64) -> i64 {
    value as i64
}

#[expect(clippy::cast_possible_truncation, reason = "single precision is what the wire carries")]
fn single(value: f64) -> f32 {
    value as f32
}
