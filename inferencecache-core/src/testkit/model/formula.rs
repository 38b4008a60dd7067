//! The scoring rules written out once more, from the text and not from `rank`, so that a slip there shows up here.

use crate::rank::RankConfig;
use crate::time::Micros;

/// Share of its lifetime left to something last seen at `seen`.
pub(super) fn freshness(now: Micros, seen: Micros, ttl: Micros) -> f32 {
    if ttl <= 0 {
        return 0.0;
    }
    let age = age(now, seen);
    if age <= 0 {
        return 1.0;
    }
    if age >= ttl {
        return 0.0;
    }
    let share = age as f64 / ttl as f64;
    (1.0_f64 - share) as f32
}

/// Saturating age.
pub(super) fn age(now: Micros, seen: Micros) -> Micros {
    let exact = i128::from(now) - i128::from(seen);
    if exact > i128::from(i64::MAX) {
        i64::MAX
    } else if exact < i128::from(i64::MIN) {
        i64::MIN
    } else {
        exact as i64
    }
}

/// Share of the warmth window left.
fn recency(age: Micros, max_age: Micros) -> f32 {
    if age <= 0 {
        return 1.0;
    }
    if age >= max_age {
        return 0.0;
    }
    let age_ns = i128::from(age) * 1000;
    let max_ns = i128::from(max_age) * 1000;
    1.0_f32 - age_ns as f32 / max_ns as f32
}

fn pressure_factor(config: &RankConfig, pressure: f32) -> f32 {
    (1.0_f32 - config.pressure_weight * pressure).clamp(0.0, 1.0)
}

fn slo_bias(config: &RankConfig, ttft_ms: i32, decay: f32) -> f32 {
    let enabled = config.slo_tight_bias > 0.0 && config.slo_tight_ttft_ms > 0;
    let tight = 0 < ttft_ms && ttft_ms < config.slo_tight_ttft_ms;
    if enabled && tight { 1.0_f32 + decay * config.slo_tight_bias } else { 1.0 }
}

/// `matching` of `serving` replicas hold at least as much.
pub(super) struct Crowd {
    pub(super) matching: usize,
    pub(super) serving: usize,
}

/// Score of a prefix match.
pub(super) fn prefix_score(
    config: &RankConfig,
    matched: i32,
    fresh: f32,
    pressure: f32,
    ttft_ms: i32,
    crowd: &Crowd,
) -> f32 {
    let mut score = matched as f32;
    score *= fresh;
    score *= pressure_factor(config, pressure);
    score *= slo_bias(config, ttft_ms, fresh);
    if crowd.serving <= 1 {
        score
    } else if crowd.matching >= crowd.serving {
        score * 0.0
    } else {
        let share = crowd.matching as f64 / crowd.serving as f64;
        score * (1.0_f64 - share) as f32
    }
}

/// Score of a warm replica.
pub(super) fn hot_score(config: &RankConfig, age: Micros, hit_rate: f32, pressure: f32, ttft_ms: i32) -> f32 {
    let recency = recency(age, config.tenant_hot_max_age);
    let mut score = hit_rate;
    score *= recency;
    score *= pressure_factor(config, pressure);
    score *= slo_bias(config, ttft_ms, recency);
    score
}

/// Coldest of two tiers; unspecified wins over everything.
pub(super) fn fold_tier(a: i32, b: i32) -> i32 {
    if a == 0 || b == 0 { 0 } else { a.max(b) }
}

/// Tier as stored: unset is the engine's own cache, negative the coldest there is.
pub(super) fn stored_tier(wire: i32) -> i32 {
    match wire {
        0 => 1,
        i32::MIN..0 => i32::MAX,
        _ => wire,
    }
}
