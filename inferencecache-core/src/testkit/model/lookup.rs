//! Reads that rank: exact and chain matches, warm replicas, the miss class, affinity.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::formula::{self, Crowd};
use super::{Held, Inner, StatRow, State};
use crate::query::{Capture, Lookup, Query, Row, Strategy};
use crate::resolve::Eviction;
use crate::time::Micros;

/// What one replica matched, before ranking.
struct Match {
    replica: Arc<str>,
    matched: i32,
    /// Stamp of the stalest entry it rests on.
    oldest: Micros,
    tier: i32,
    /// Entries to credit.
    ids: Vec<u64>,
}

/// What one lookup knows throughout.
struct View<'a> {
    query: &'a Query<'a>,
    state: &'a State,
    now: Micros,
    ttl: Micros,
}

impl Inner {
    pub(super) fn raw_lookup(self: &Arc<Self>, query: &Query<'_>, out: &mut Lookup) {
        let state = self.state.lock();
        self.match_prefix(&state, query, out);
    }

    pub(super) fn lookup_route(self: &Arc<Self>, query: &Query<'_>, out: &mut Lookup) {
        if query.tenant.is_empty() || query.model.is_empty() || query.scheme.is_empty() || malformed(query) {
            return;
        }
        let state = self.state.lock();
        self.match_prefix(&state, query, out);
        if out.rows.is_empty() && !chain_form(query) {
            self.tenant_hot(&state, query, out);
        }
        if out.rows.is_empty() {
            out.strategy = self.classify(&state, query);
        }
    }

    fn match_prefix(self: &Arc<Self>, state: &State, query: &Query<'_>, out: &mut Lookup) {
        if query.scheme.is_empty() || malformed(query) {
            return;
        }
        let view = View { query, state, now: self.now(), ttl: self.ttl(query.tenant) };
        let matches = if chain_form(query) { view.chain() } else { view.exact() };
        if matches.is_empty() {
            return;
        }
        let serving = state.serving(query.tenant, query.model, query.scheme).len();
        let mut ranked: Vec<(Row, Vec<u64>)> = Vec::new();
        for found in &matches {
            let matching = if chain_form(query) {
                matches.iter().filter(|other| other.matched >= found.matched).count()
            } else {
                matches.len()
            };
            let fresh = formula::freshness(view.now, found.oldest, view.ttl);
            let pressure = view.pressure(&found.replica);
            let crowd = Crowd { matching, serving };
            let config = &self.options.rank;
            let score = formula::prefix_score(config, found.matched, fresh, pressure, query.ttft_ms, &crowd);
            let row = Row {
                replica: found.replica.clone(),
                score,
                matched_tokens: found.matched,
                hit_prob: fresh,
                tier: found.tier,
            };
            ranked.push((row, found.ids.clone()));
        }
        ranked.sort_by(|(a, _), (b, _)| b.score.total_cmp(&a.score).then(a.replica.cmp(&b.replica)));

        let credits = self.eviction(query.tenant) == Eviction::Lfu;
        for (position, (row, ids)) in ranked.into_iter().enumerate() {
            out.rows.push(row);
            if credits {
                out.captures.extend(ids.into_iter().map(|id| Capture {
                    row: position as u32,
                    slot: id as u32,
                    generation: (id >> 32) as u32,
                }));
            }
        }
        if credits {
            out.target = Some(self.clone());
        }
        out.strategy = Strategy::PrefixMatch;
    }

    fn tenant_hot(&self, state: &State, query: &Query<'_>, out: &mut Lookup) {
        let config = &self.options.rank;
        if config.tenant_hot_max_age <= 0 {
            return;
        }
        let now = self.now();
        let serving = state.serving(query.tenant, query.model, query.scheme);
        let warm = |row: &&StatRow| {
            *row.tenant == *query.tenant
                && *row.model == *query.model
                && formula::age(now, row.stats_reported) < config.tenant_hot_max_age
                && row.stats.hit_rate >= config.tenant_hot_min_hit_rate
                && serving.contains(&row.replica)
        };
        for row in state.rows.iter().filter(warm) {
            let age = formula::age(now, row.stats_reported);
            let score = formula::hot_score(config, age, row.stats.hit_rate, row.stats.pressure, query.ttft_ms);
            out.rows.push(Row {
                replica: row.replica.clone(),
                score,
                matched_tokens: 0,
                hit_prob: row.stats.hit_rate,
                tier: 0,
            });
        }
        out.rows.sort_by(|a, b| b.score.total_cmp(&a.score).then(a.replica.cmp(&b.replica)));
        if !out.rows.is_empty() {
            out.strategy = Strategy::TenantHot;
        }
    }

    fn classify(&self, state: &State, query: &Query<'_>) -> Strategy {
        let any = |wanted: &dyn Fn(&Held) -> bool| state.entries.iter().any(wanted);
        let tenant = |held: &Held| *held.key.tenant == *query.tenant;
        let model = |held: &Held| tenant(held) && *held.key.model == *query.model;
        let scheme = |held: &Held| model(held) && *held.key.scheme == *query.scheme;
        if !any(&|held| !self.is_reserved(&held.key.tenant)) {
            Strategy::None
        } else if !any(&tenant) {
            Strategy::UnknownTenant
        } else if !any(&model) {
            Strategy::UnknownModel
        } else if !any(&scheme) {
            Strategy::UnknownHashScheme
        } else {
            Strategy::None
        }
    }

    pub(super) fn affinity_hint(&self, tenant: &str, model: &str, scheme: &str, seed: &[u8]) -> Option<Arc<str>> {
        if seed.is_empty() || scheme.is_empty() {
            return None;
        }
        // A BTreeSet of strings iterates bytewise.
        let set: Vec<Arc<str>> = self.state.lock().serving(tenant, model, scheme).into_iter().collect();
        if set.is_empty() {
            return None;
        }
        let digest = Sha256::digest(seed);
        let mut value: u64 = 0;
        for &byte in digest.iter().take(8) {
            value = value << 8 | u64::from(byte);
        }
        set.get((value % set.len() as u64) as usize).cloned()
    }
}

impl View<'_> {
    /// The holders of `hash` in the query's partition that are fresh.
    fn fresh_holders(&self, hash: &[u8]) -> Vec<&Held> {
        self.state
            .entries
            .iter()
            .filter(|held| *held.key.hash == *hash)
            .filter(|held| *held.key.tenant == *self.query.tenant && *held.key.model == *self.query.model)
            .filter(|held| *held.key.scheme == *self.query.scheme && *held.key.adapter == *self.query.adapter)
            .filter(|held| formula::freshness(self.now, held.last_seen, self.ttl) > 0.0)
            .collect()
    }

    fn exact(&self) -> Vec<Match> {
        let holders = self.fresh_holders(self.query.prefix_hash).into_iter();
        holders
            .map(|held| Match {
                replica: held.replica.clone(),
                matched: held.token_count,
                oldest: held.last_seen,
                tier: held.tier,
                ids: if held.token_count > 0 { vec![held.id] } else { Vec::new() },
            })
            .collect()
    }

    fn chain(&self) -> Vec<Match> {
        let mut running: Vec<Match> = Vec::new();
        let mut finished: Vec<Match> = Vec::new();
        for (i, hash) in self.query.block_hashes.iter().enumerate() {
            let count = self.query.block_token_counts[i];
            let holders = self.fresh_holders(hash);
            if i == 0 {
                running = holders
                    .into_iter()
                    .map(|held| Match {
                        replica: held.replica.clone(),
                        matched: count,
                        oldest: held.last_seen,
                        tier: held.tier,
                        ids: vec![held.id],
                    })
                    .collect();
                continue;
            }
            let mut survivors = Vec::new();
            for mut run in running {
                match holders.iter().find(|held| held.replica == run.replica) {
                    None => finished.push(run),
                    Some(held) => {
                        run.matched = run.matched.saturating_add(count);
                        run.oldest = run.oldest.min(held.last_seen);
                        run.tier = formula::fold_tier(run.tier, held.tier);
                        run.ids.push(held.id);
                        survivors.push(run);
                    }
                }
            }
            running = survivors;
        }
        finished.extend(running);
        finished.retain(|run| run.matched > 0);
        finished
    }

    fn pressure(&self, replica: &str) -> f32 {
        match self.state.row(self.query.tenant, self.query.model, replica) {
            Some(row) if formula::freshness(self.now, row.stats_reported, self.ttl) > 0.0 => row.stats.pressure,
            _ => 0.0,
        }
    }
}

fn chain_form(query: &Query<'_>) -> bool {
    !query.block_hashes.is_empty() || !query.block_token_counts.is_empty()
}

fn malformed(query: &Query<'_>) -> bool {
    chain_form(query)
        && (query.block_hashes.len() != query.block_token_counts.len()
            || query.block_token_counts.iter().any(|&count| count < 0))
}
