//! Protobuf messages to core's values and back, with the published limits. The only place that knows both.
//!
//! ```text
//! LookupRouteRequest ──question──> Question      Answer ────────lookup_response──> LookupRouteResponse
//! CacheStateUpdate ────update────> Update        CacheState ────cache_state──────> GetCacheStateResponse
//! CacheEvent ──────────event─────> Event
//! ```
//!
//! 1. What comes out borrows from the message; nothing is copied.
//! 2. An entry beyond a limit is dropped alone; an update whose own keys are beyond it is dropped whole. Both are counted.
//! 3. Entries that are malformed in other ways pass: the index refuses and counts them.
//!
//! The limits of lookups are the router's, since what they lead to depends on policy and deadline.

use std::time::Duration;

use inferencecache_core::index::CacheState;
use inferencecache_core::route::{Answer, MAX_BLOCKS, MAX_HASH_BYTES, MAX_ID_BYTES};
use inferencecache_core::time::Micros;
use inferencecache_core::{Entry, Event, EventKind, HashList, Question, Row, Stats, Update};

use crate::pb;

/// How far ahead of the server's clock a stamp may lie before it is replaced by now: 5 s.
pub const MAX_AHEAD: Micros = 5_000_000;

/// What was refused or corrected on the way in, for counting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Refused {
    /// Updates and events with a replica, tenant, model, scheme or adapter that is too long.
    pub oversized_key: u32,
    /// Entries with too many blocks.
    pub oversized_chain: u32,
    /// Entries and events with a hash that is too long.
    pub oversized_hash: u32,
    /// Entries whose adapter, own or inherited, is too long.
    pub oversized_adapter: u32,
    /// Whether the stamp was too far ahead.
    pub clamped: bool,
}

impl Refused {
    /// Each cause with its label.
    pub fn causes(&self) -> [(&'static str, u32); 4] {
        [
            ("oversized_key", self.oversized_key),
            ("oversized_chain", self.oversized_chain),
            ("oversized_hash", self.oversized_hash),
            ("oversized_adapter", self.oversized_adapter),
        ]
    }
}

/// A question as it came over the wire.
#[must_use]
pub fn question(request: &pb::LookupRouteRequest) -> Question<'_> {
    Question {
        tenant: &request.tenant_id,
        model: &request.model_id,
        scheme: &request.hash_scheme,
        adapter: &request.adapter_id,
        prefix_hash: &request.prefix_hash,
        prefix_token_count: request.prefix_token_count,
        block_hashes: HashList::Vecs(&request.block_hashes),
        block_token_counts: &request.block_token_counts,
        token_ids: &request.token_ids,
        prompt_text: &request.prompt_text,
        ttft_ms: request.slo.as_ref().map_or(0, |slo| slo.ttft_ms),
    }
}

/// An answer as it goes over the wire. The adapter is echoed if its partition was consulted.
#[must_use]
pub fn lookup_response(answer: &Answer, adapter: &str, latency: Duration) -> pb::LookupRouteResponse {
    pb::LookupRouteResponse {
        replica_scores: answer.rows().iter().map(score).collect(),
        reason_code: answer.reason.as_str().to_owned(),
        lookup_latency_us: i64::try_from(latency.as_micros()).unwrap_or(i64::MAX),
        token_ids: answer.tokens.clone(),
        adapter_id: if answer.consulted { adapter.to_owned() } else { String::new() },
    }
}

fn score(row: &Row) -> pb::ReplicaScore {
    pb::ReplicaScore {
        replica_id: row.replica.as_ref().to_owned(),
        score: row.score,
        matched_tokens: row.matched_tokens,
        estimated_cache_hit_prob: row.hit_prob,
        tier: tier(row.tier),
    }
}

/// The published tier of a stored one: what lies beyond T3, and what no tier is known for, is unspecified.
pub(crate) fn tier(stored: i32) -> i32 {
    if (1..=3).contains(&stored) { stored } else { 0 }
}

/// An update within the limits, its entries in `entries`, or `None` when it is dropped whole.
pub fn update<'a, 'm: 'a>(
    message: &'m pb::CacheStateUpdate,
    now: Micros,
    entries: &'a mut Vec<Entry<'m>>,
    refused: &mut Refused,
) -> Option<Update<'a>> {
    let keys = [&message.replica_id, &message.tenant_id, &message.model_id, &message.hash_scheme];
    if keys.iter().any(|key| key.len() > MAX_ID_BYTES) {
        refused.oversized_key += 1;
        return None;
    }
    let timestamp = stamp(message.timestamp_us, now, refused);
    entries.reserve(message.prefixes.len());
    for prefix in &message.prefixes {
        let adapter = if prefix.adapter_id.is_empty() { &message.adapter_id } else { &prefix.adapter_id };
        let cause = if adapter.len() > MAX_ID_BYTES {
            &mut refused.oversized_adapter
        } else if prefix.block_hashes.len().max(prefix.block_token_counts.len()) > MAX_BLOCKS {
            &mut refused.oversized_chain
        } else if prefix.prefix_hash.len() > MAX_HASH_BYTES
            || prefix.block_hashes.iter().any(|h| h.len() > MAX_HASH_BYTES)
        {
            &mut refused.oversized_hash
        } else {
            entries.push(entry(prefix, adapter));
            continue;
        };
        *cause += 1;
    }
    Some(Update {
        replica: &message.replica_id,
        model: &message.model_id,
        tenant: &message.tenant_id,
        scheme: &message.hash_scheme,
        adapter: "", // already handed down to the entries
        timestamp,
        entries,
        stats: message.stats.as_ref().map(stats),
    })
}

fn entry<'a>(prefix: &'a pb::PrefixEntry, adapter: &'a str) -> Entry<'a> {
    Entry {
        adapter,
        tier: prefix.tier,
        prefix_hash: &prefix.prefix_hash,
        token_count: prefix.token_count,
        block_hashes: HashList::Vecs(&prefix.block_hashes),
        block_token_counts: &prefix.block_token_counts,
    }
}

fn stats(stats: &pb::ReplicaStats) -> Stats {
    Stats {
        cache_memory_bytes: stats.cache_memory_bytes,
        hit_rate: stats.hit_rate,
        pressure: stats.pressure,
        t2_hit_tokens: stats.t2_hit_tokens,
        t2_query_tokens: stats.t2_query_tokens,
    }
}

/// An event within the limits, or `None`.
pub fn event<'a>(message: &'a pb::CacheEvent, now: Micros, refused: &mut Refused) -> Option<Event<'a>> {
    let keys = [&message.replica_id, &message.tenant_id, &message.model_id, &message.adapter_id];
    if keys.iter().any(|key| key.len() > MAX_ID_BYTES) {
        refused.oversized_key += 1;
        return None;
    }
    if message.prefix_hash.len() > MAX_HASH_BYTES {
        refused.oversized_hash += 1;
        return None;
    }
    Some(Event {
        kind: event_kind(message.r#type),
        replica: &message.replica_id,
        model: &message.model_id,
        tenant: &message.tenant_id,
        prefix_hash: &message.prefix_hash,
        adapter: &message.adapter_id,
        timestamp: stamp(message.timestamp_us, now, refused),
    })
}

fn event_kind(number: i32) -> EventKind {
    use pb::cache_event::Type;
    match Type::try_from(number) {
        Ok(Type::PrefixAdded) => EventKind::PrefixAdded,
        Ok(Type::PrefixEvicted) => EventKind::PrefixEvicted,
        Ok(Type::ReplicaUpdated) => EventKind::ReplicaUpdated,
        Ok(Type::AllCleared) => EventKind::AllCleared,
        Ok(Type::Unspecified) | Err(_) => EventKind::Unspecified,
    }
}

/// The label under which an event is counted.
#[must_use]
pub fn event_label(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Unspecified => "unspecified",
        EventKind::PrefixAdded => "prefix_added",
        EventKind::PrefixEvicted => "prefix_evicted",
        EventKind::ReplicaUpdated => "replica_updated",
        EventKind::AllCleared => "all_cleared",
    }
}

pub(crate) fn stamp(stamp: Micros, now: Micros, refused: &mut Refused) -> Micros {
    if stamp.saturating_sub(now) > MAX_AHEAD {
        refused.clamped = true;
        now
    } else {
        stamp
    }
}

/// The state of one (tenant, model) as it goes over the wire.
#[must_use]
pub fn cache_state(state: CacheState) -> pb::GetCacheStateResponse {
    let replicas = state.replicas.into_iter().map(|(replica, stats)| pb::ReplicaStats {
        replica_id: replica.as_ref().to_owned(),
        cache_memory_bytes: stats.cache_memory_bytes,
        hit_rate: stats.hit_rate,
        pressure: stats.pressure,
        client_version: String::new(),
        t2_hit_tokens: stats.t2_hit_tokens,
        t2_query_tokens: stats.t2_query_tokens,
    });
    let total_prefixes = i64::try_from(state.total_prefixes).unwrap_or(i64::MAX);
    pb::GetCacheStateResponse {
        replicas: replicas.collect(),
        summary: Some(pb::CacheSummary { total_prefixes, hot_prefixes: 0 }),
    }
}

/// An empty list that keeps the memory of a used one, whatever that borrowed from.
#[must_use]
#[expect(clippy::unnecessary_filter_map, reason = "a filter would keep the old lifetime")]
pub fn recycled<'a>(mut used: Vec<Entry<'_>>) -> Vec<Entry<'a>> {
    used.clear();
    // Collecting an empty list of one layout into another of the same reuses the allocation.
    used.into_iter().filter_map(|_| None).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Micros = 1_700_000_000_000_000;

    fn entry_of(hash: &[u8]) -> pb::PrefixEntry {
        pb::PrefixEntry { prefix_hash: hash.to_vec(), token_count: 16, ..Default::default() }
    }

    fn report(prefixes: Vec<pb::PrefixEntry>) -> pb::CacheStateUpdate {
        pb::CacheStateUpdate {
            replica_id: "r".to_owned(),
            model_id: "m".to_owned(),
            tenant_id: "t".to_owned(),
            hash_scheme: "vllm".to_owned(),
            prefixes,
            ..Default::default()
        }
    }

    fn kept(message: &pb::CacheStateUpdate) -> (Option<usize>, Refused) {
        let mut refused = Refused::default();
        let mut entries = Vec::new();
        let kept = update(message, NOW, &mut entries, &mut refused).map(|update| update.entries.len());
        (kept, refused)
    }

    /// server:108c
    #[test]
    fn entries_beyond_a_limit_are_dropped_one_by_one() {
        let long_chain = pb::PrefixEntry {
            block_hashes: vec![vec![1]; MAX_BLOCKS + 1],
            block_token_counts: vec![1; MAX_BLOCKS + 1],
            ..Default::default()
        };
        let long_hash = pb::PrefixEntry {
            block_hashes: vec![vec![1; 64], vec![1; 65]],
            block_token_counts: vec![16, 16],
            ..Default::default()
        };
        let long_adapter = pb::PrefixEntry { adapter_id: "a".repeat(513), ..entry_of(b"p") };
        let message = report(vec![long_chain, entry_of(&[1; 64]), long_hash, entry_of(&[1; 65]), long_adapter]);
        let want = Refused { oversized_chain: 1, oversized_hash: 2, oversized_adapter: 1, ..Refused::default() };
        assert_eq!(kept(&message), (Some(1), want));
    }

    /// server:108c
    #[test]
    fn an_update_with_keys_beyond_the_limit_is_dropped_whole() {
        let long = "x".repeat(513);
        for change in [
            |m: &mut pb::CacheStateUpdate, long: &str| long.clone_into(&mut m.replica_id),
            |m: &mut pb::CacheStateUpdate, long: &str| long.clone_into(&mut m.tenant_id),
            |m: &mut pb::CacheStateUpdate, long: &str| long.clone_into(&mut m.model_id),
            |m: &mut pb::CacheStateUpdate, long: &str| long.clone_into(&mut m.hash_scheme),
        ] {
            let mut message = report(vec![entry_of(b"p")]);
            change(&mut message, &long[1..]);
            assert_eq!(kept(&message), (Some(1), Refused::default()));
            change(&mut message, &long);
            assert_eq!(kept(&message), (None, Refused { oversized_key: 1, ..Refused::default() }));
        }
    }

    #[test]
    fn an_adapter_beyond_the_limit_drops_what_inherits_it() {
        let own = pb::PrefixEntry { adapter_id: "own".to_owned(), ..entry_of(b"q") };
        let message = pb::CacheStateUpdate { adapter_id: "a".repeat(513), ..report(vec![entry_of(b"p"), own]) };
        assert_eq!(kept(&message), (Some(1), Refused { oversized_adapter: 1, ..Refused::default() }));
    }

    /// server:95
    #[test]
    fn entries_inherit_the_adapter() {
        let own = pb::PrefixEntry { adapter_id: "own".to_owned(), ..entry_of(b"q") };
        let message = pb::CacheStateUpdate { adapter_id: "a".to_owned(), ..report(vec![entry_of(b"p"), own]) };
        let mut entries = Vec::new();
        let update = update(&message, NOW, &mut entries, &mut Refused::default()).expect("kept");
        assert_eq!(update.entries.iter().map(|entry| entry.adapter).collect::<Vec<_>>(), ["a", "own"]);
    }

    /// server:108d
    #[test]
    fn stamps_far_ahead_become_now() {
        for (ahead, want) in [(-7, NOW - 7), (4_000_000, NOW + 4_000_000), (MAX_AHEAD, NOW + MAX_AHEAD)] {
            let mut refused = Refused::default();
            assert_eq!(stamp(NOW + ahead, NOW, &mut refused), want);
            assert!(!refused.clamped);
        }
        for stamped in [NOW + 6_000_000, NOW + 3_600_000_000, i64::MAX] {
            let mut refused = Refused::default();
            assert_eq!(stamp(stamped, NOW, &mut refused), NOW);
            assert!(refused.clamped);
        }
        let mut refused = Refused::default();
        assert_eq!(stamp(0, NOW, &mut refused), 0, "0 stays the index's now");
        assert_eq!(stamp(i64::MIN, NOW, &mut refused), i64::MIN);
        assert_eq!(stamp(i64::MIN, i64::MAX, &mut refused), i64::MIN);
        assert!(!refused.clamped);
    }

    /// server:91
    #[test]
    fn tiers_beyond_the_published_ones_are_unspecified() {
        assert_eq!([0, 1, 2, 3, 4, 99, -1].map(tier), [0, 1, 2, 3, 0, 0, 0]);
    }

    #[test]
    fn events_within_the_limits_pass() {
        let message = pb::CacheEvent { r#type: 2, prefix_hash: vec![1; 64], ..Default::default() };
        let mut refused = Refused::default();
        assert_eq!(event(&message, NOW, &mut refused).map(|event| event.kind), Some(EventKind::PrefixEvicted));
        let long = pb::CacheEvent { prefix_hash: vec![1; 65], ..message.clone() };
        assert!(event(&long, NOW, &mut refused).is_none());
        let long = pb::CacheEvent { adapter_id: "a".repeat(513), ..message };
        assert!(event(&long, NOW, &mut refused).is_none());
        assert_eq!((refused.oversized_hash, refused.oversized_key), (1, 1));
        assert_eq!(event_kind(77), EventKind::Unspecified);
    }
}
