//! What engines call their figures. The only place that spells the names.
//!
//! Some exporters rewrite the colon behind the prefix to an underscore, in samples, in comments or in both. Both spellings
//! are one name here: what follows the prefix and either sign.

/// One figure of an engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Figure {
    Running,
    Waiting,
    UsageKv,
    UsageGpu,
    UsageCpu,
    /// Tokens found in the cache.
    Hits,
    /// Tokens looked for.
    Queries,
    /// A ready-made hit rate.
    Rate,
    SecondTierHits,
    SecondTierQueries,
    PromptTokens,
    /// 1 for the state that the label `sleep_state` names.
    SleepState,
    /// Configuration in labels.
    CacheConfig,
    CapacityTokens,
    PageSize,
}

/// What kind of family a figure is read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Gauge,
    Counter,
}

/// One row: figure, name behind the prefix (without `_total`), kind, and whether it shows that the engine is this one.
type Row = (Figure, &'static str, Kind, bool);

const VLLM: &[Row] = &[
    (Figure::Running, "num_requests_running", Kind::Gauge, true),
    (Figure::Waiting, "num_requests_waiting", Kind::Gauge, true),
    (Figure::UsageKv, "kv_cache_usage_perc", Kind::Gauge, true),
    (Figure::UsageGpu, "gpu_cache_usage_perc", Kind::Gauge, true),
    (Figure::UsageCpu, "cpu_cache_usage_perc", Kind::Gauge, true),
    (Figure::Hits, "prefix_cache_hits", Kind::Counter, true),
    (Figure::Queries, "prefix_cache_queries", Kind::Counter, true),
    (Figure::SecondTierHits, "external_prefix_cache_hits", Kind::Counter, true),
    (Figure::SecondTierQueries, "external_prefix_cache_queries", Kind::Counter, true),
    (Figure::PromptTokens, "prompt_tokens", Kind::Counter, false),
    (Figure::SleepState, "engine_sleep_state", Kind::Gauge, false),
    (Figure::CacheConfig, "cache_config_info", Kind::Gauge, false),
];

const SGLANG: &[Row] = &[
    (Figure::Running, "num_running_reqs", Kind::Gauge, true),
    (Figure::Waiting, "num_queue_reqs", Kind::Gauge, true),
    (Figure::UsageKv, "token_usage", Kind::Gauge, true),
    (Figure::Rate, "cache_hit_rate", Kind::Gauge, true),
    (Figure::Hits, "cached_tokens", Kind::Counter, false),
    (Figure::PromptTokens, "prompt_tokens", Kind::Counter, false),
    (Figure::CapacityTokens, "max_total_num_tokens", Kind::Gauge, false),
    (Figure::PageSize, "page_size", Kind::Gauge, false),
    (Figure::CacheConfig, "cache_config_info", Kind::Gauge, false),
];

/// The names of one engine family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Profile {
    /// vLLM, today's names and the older ones.
    #[default]
    Vllm,
    /// SGLang.
    Sglang,
}

/// A name that was recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) figure: Figure,
    pub(super) kind: Kind,
    /// The name carries the suffix `_total`.
    pub(super) total: bool,
    pub(super) telling: bool,
}

impl Profile {
    /// The profile of a hash scheme, and whether the scheme is one that has a profile of its own.
    #[must_use]
    pub fn of(hash_scheme: &str) -> (Self, bool) {
        match hash_scheme {
            "sglang" => (Self::Sglang, true),
            "vllm" => (Self::Vllm, true),
            _ => (Self::Vllm, false),
        }
    }

    /// What the prefix of its names is.
    #[must_use]
    pub fn prefix(self) -> &'static str {
        match self {
            Self::Vllm => "vllm",
            Self::Sglang => "sglang",
        }
    }

    /// What a name stands for, in either spelling.
    pub(super) fn known(self, name: &str) -> Option<Known> {
        let name = name.strip_prefix(self.prefix())?.strip_prefix([':', '_'])?;
        let rows = match self {
            Self::Vllm => VLLM,
            Self::Sglang => SGLANG,
        };
        rows.iter().find_map(|&(figure, row, kind, telling)| {
            let total = match name.strip_prefix(row)? {
                "" => false,
                "_total" if kind == Kind::Counter => true,
                _ => return None,
            };
            Some(Known { figure, kind, total, telling })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_whole_and_both_spellings_count() {
        let figure = |profile: Profile, name| profile.known(name).map(|known| (known.figure, known.total));
        assert_eq!(figure(Profile::Vllm, "vllm:num_requests_waiting"), Some((Figure::Waiting, false)));
        assert_eq!(figure(Profile::Vllm, "vllm_num_requests_waiting"), Some((Figure::Waiting, false)));
        assert_eq!(figure(Profile::Vllm, "vllm:prefix_cache_hits_total"), Some((Figure::Hits, true)));
        assert_eq!(figure(Profile::Sglang, "sglang_cached_tokens_total"), Some((Figure::Hits, true)));
        for name in [
            "vllm:num_requests_waiting_by_reason",
            "vllm:num_requests_waiting_total",
            "vllm:prefix_cache_hits_created",
            "vllmnum_requests_waiting",
            "num_requests_waiting",
            "sglang:num_queue_reqs",
        ] {
            assert_eq!(figure(Profile::Vllm, name), None, "{name}");
        }
        assert_eq!(Profile::of("sglang-custom"), (Profile::Vllm, false));
    }
}
