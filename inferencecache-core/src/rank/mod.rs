//! From matches to scores: five factors, multiplied in f32, left to right.
//!
//! ```text
//! PREFIX_MATCH  matched_tokens × freshness × pressure_factor × slo_bias × distinguishing_power
//! TENANT_HOT    hit_rate       × recency   × pressure_factor × slo_bias
//! ```
//!
//! The tier is reported, never scored.

use std::cmp::Ordering;

use crate::query::Row;
use crate::time::Micros;

/// Weights and thresholds of the ranker.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RankConfig {
    /// How much a replica's pressure lowers its score; 0 disables. Default 1.
    pub pressure_weight: f32,
    /// Requests with a TTFT target below this many milliseconds are latency-tight; not above 0 disables. Default 200.
    pub slo_tight_ttft_ms: i32,
    /// How much freshness weighs for latency-tight requests; not above 0 disables. Default 1.
    pub slo_tight_bias: f32,
    /// Smallest hit rate of a TENANT_HOT candidate. Default 0.1.
    pub tenant_hot_min_hit_rate: f32,
    /// Age in microseconds at which a stats row no longer counts as warm; not above 0 disables TENANT_HOT. Default 5 min.
    pub tenant_hot_max_age: Micros,
}

impl Default for RankConfig {
    fn default() -> Self {
        Self {
            pressure_weight: 1.0,
            slo_tight_ttft_ms: 200,
            slo_tight_bias: 1.0,
            tenant_hot_min_hit_rate: 0.1,
            tenant_hot_max_age: 5 * 60 * 1_000_000,
        }
    }
}

/// Scores rows. Pure: holds nothing but its configuration.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Ranker {
    config: RankConfig,
}

impl Ranker {
    /// A ranker with this configuration.
    #[must_use]
    pub fn new(config: RankConfig) -> Self {
        Self { config }
    }

    /// Its configuration.
    #[must_use]
    pub fn config(&self) -> &RankConfig {
        &self.config
    }

    /// `1 − weight × pressure`, clamped to [0, 1].
    #[must_use]
    pub fn pressure_factor(&self, pressure: f32) -> f32 {
        (1.0 - self.config.pressure_weight * pressure).clamp(0.0, 1.0)
    }

    /// `1 + decay × bias` for a latency-tight request, else 1.
    #[must_use]
    pub fn slo_bias(&self, ttft_ms: i32, decay: f32) -> f32 {
        let RankConfig { slo_tight_ttft_ms: threshold, slo_tight_bias: bias, .. } = self.config;
        if bias > 0.0 && threshold > 0 && ttft_ms > 0 && ttft_ms < threshold { 1.0 + decay * bias } else { 1.0 }
    }

    /// Score of a prefix match. `matching` of `serving` replicas hold at least as much.
    #[must_use]
    pub fn prefix_score(
        &self,
        matched: i32,
        freshness: f32,
        pressure: f32,
        ttft_ms: i32,
        matching: usize,
        serving: usize,
    ) -> f32 {
        #[expect(clippy::cast_precision_loss, reason = "scores are single precision by contract")]
        let score = matched as f32 * freshness * self.pressure_factor(pressure) * self.slo_bias(ttft_ms, freshness);
        let power = distinguishing_power(matching, serving);
        if power == 1.0 { score } else { score * power }
    }

    /// Whether a stats row of this age and hit rate makes its replica a TENANT_HOT candidate.
    #[must_use]
    pub fn is_warm(&self, age: Micros, hit_rate: f32) -> bool {
        let max_age = self.config.tenant_hot_max_age;
        max_age > 0 && age < max_age && hit_rate >= self.config.tenant_hot_min_hit_rate
    }

    /// Score of a TENANT_HOT candidate whose stats were reported `age` microseconds ago.
    #[must_use]
    pub fn hot_score(&self, age: Micros, hit_rate: f32, pressure: f32, ttft_ms: i32) -> f32 {
        let recency = recency(age, self.config.tenant_hot_max_age);
        hit_rate * recency * self.pressure_factor(pressure) * self.slo_bias(ttft_ms, recency)
    }
}

/// Share of its lifetime that something last seen `now − seen` ago still has: 1 when not yet aged, 0 from the TTL on.
#[must_use]
pub fn freshness(now: Micros, seen: Micros, ttl: Micros) -> f32 {
    let age = now.saturating_sub(seen);
    if ttl <= 0 || age >= ttl {
        0.0
    } else if age <= 0 {
        1.0
    } else {
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            reason = "computed in f64, kept in f32"
        )]
        let fresh = (1.0 - age as f64 / ttl as f64) as f32;
        fresh
    }
}

/// Whether something last seen then is still fresh: its freshness is above 0.
#[must_use]
pub fn is_fresh(now: Micros, seen: Micros, ttl: Micros) -> bool {
    freshness(now, seen, ttl) > 0.0
}

/// `1 − age/max_age`, in f32, clamped to [0, 1].
#[must_use]
pub fn recency(age: Micros, max_age: Micros) -> f32 {
    if age <= 0 {
        1.0
    } else if age >= max_age {
        0.0
    } else {
        #[expect(clippy::cast_precision_loss, reason = "scores are single precision by contract")]
        let recency = 1.0 - (age.saturating_mul(1000)) as f32 / (max_age.saturating_mul(1000)) as f32;
        recency
    }
}

/// How much a match tells replicas apart: 1 when there is at most one replica, 0 when all hold it, else `1 − n/N`.
#[must_use]
pub fn distinguishing_power(matching: usize, serving: usize) -> f32 {
    if serving <= 1 {
        1.0
    } else if matching >= serving {
        0.0
    } else {
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            reason = "computed in f64, kept in f32"
        )]
        let power = (1.0 - matching as f64 / serving as f64) as f32;
        power
    }
}

/// The order of rows: score descending, then replica id ascending bytewise.
#[must_use]
pub fn row_order(a: &Row, b: &Row) -> Ordering {
    b.score.total_cmp(&a.score).then_with(|| a.replica.as_bytes().cmp(b.replica.as_bytes()))
}
