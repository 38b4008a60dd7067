//! How the index of one run is built.

use std::sync::Arc;

use rand::Rng;
use rand::seq::IndexedRandom;

use super::names::Shape;
use crate::RESERVED_TENANT;
use crate::index::{DEFAULT_TTL, IndexOptions};
use crate::metrics::MetricsSink;
use crate::rank::RankConfig;
use crate::resolve::Resolvers;
use crate::testkit::doubles::PolicyTable;
use crate::time::{Clock, Micros};

/// One minute.
pub const MINUTE: Micros = 60_000_000;

/// Where the clock of a run starts: a day in 2023, on a full minute.
pub const EPOCH: Micros = 1_700_000_040_000_000;

/// The options of one run, without what is shared with the outside.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Which alphabet.
    pub shape: Shape,
    /// Global TTL.
    pub ttl: Micros,
    /// Cap on storage entries.
    pub max_entries: u64,
    /// Cap on stats rows.
    pub max_stats: u64,
    /// Ranker.
    pub rank: RankConfig,
    /// Hidden tenants.
    pub reserved: Vec<String>,
    /// Whether the policy keeps its revision to itself.
    pub secretive: bool,
}

impl Setup {
    /// A random setup.
    #[must_use]
    pub fn random(rng: &mut impl Rng) -> Self {
        let shape = match rng.random_range(0..100) {
            0..88 => Shape::Small,
            88..95 => Shape::Chains,
            _ => Shape::Crowd,
        };
        let caps: &[u64] = match shape {
            Shape::Small => &[0, 0, 1, 5, 20, 60],
            Shape::Chains => &[0, 30, 150, 400],
            Shape::Crowd => &[0, 70, 300],
        };
        let ttls = [DEFAULT_TTL, 10 * MINUTE, 0, 7 * MINUTE + 13_000_001];
        let mut pick = |from: &[u64]| from.choose(rng).copied().unwrap_or_default();
        let (max_entries, max_stats) = (pick(caps), pick(&[0, 1, 3, 65_536]));
        let ttl = ttls[rng.random_range(0..ttls.len())];
        let rank = if rng.random() { RankConfig::default() } else { random_rank(rng) };
        let reserved = match rng.random_range(0..4) {
            0 => vec![],
            1 => vec![String::new(), RESERVED_TENANT.to_owned()],
            _ => vec![RESERVED_TENANT.to_owned()],
        };
        Self { shape, ttl, max_entries, max_stats, rank, reserved, secretive: rng.random() }
    }

    /// The options, around these.
    #[must_use]
    pub fn options(
        &self,
        clock: Arc<dyn Clock>,
        policy: &Arc<PolicyTable>,
        sink: Arc<dyn MetricsSink>,
    ) -> IndexOptions {
        IndexOptions {
            ttl: self.ttl,
            max_entries: self.max_entries,
            max_stats: self.max_stats,
            rank: self.rank,
            resolvers: Resolvers::all(policy),
            sink,
            clock,
            reserved: self.reserved.clone(),
        }
    }
}

fn random_rank(rng: &mut impl Rng) -> RankConfig {
    fn any<T: Copy>(rng: &mut impl Rng, from: &[T]) -> T {
        from[rng.random_range(0..from.len())]
    }
    RankConfig {
        pressure_weight: any(rng, &[0.0, 1.0, 0.3, 4.0, -1.0]),
        slo_tight_ttft_ms: any(rng, &[200, 100, 0, -1]),
        slo_tight_bias: any(rng, &[1.0, 0.3, 5.0, 0.0, -2.0]),
        tenant_hot_min_hit_rate: any(rng, &[0.1, 0.0, 0.5]),
        tenant_hot_max_age: any(rng, &[5 * MINUTE, MINUTE, 60 * MINUTE, 0]),
    }
}
