//! What policy makes of the index's answer: switches, floors, and the downgrade to none.

use crate::policy::Effective;
use crate::query::{Lookup, Strategy};

/// What is left of the index's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It stands.
    Stands,
    /// Nothing; another way of answering may be tried.
    Nothing,
    /// Nothing, and that is final.
    NoHint,
}

/// Whether a request that covers `tokens` is too short for a positive hint.
pub(super) fn is_short(policy: &Effective, tokens: i64) -> bool {
    policy.minimum_prefix_tokens > 0 && tokens < i64::from(policy.minimum_prefix_tokens)
}

/// Applies `policy` to the index's answer to a request that covers `tokens`. What is dropped loses its credits as well.
pub(super) fn judge(policy: &Effective, tokens: i64, lookup: &mut Lookup) -> Verdict {
    // A tenant that switched warm replicas off wants no substitute for them either, so this one is final.
    if lookup.strategy == Strategy::TenantHot && !policy.enable_tenant_hot {
        lookup.clear();
        return Verdict::NoHint;
    }
    let stands = match lookup.strategy {
        Strategy::None => false,
        Strategy::PrefixMatch => !is_short(policy, tokens) && clears_floors(policy, lookup),
        Strategy::TenantHot => !is_short(policy, tokens),
        // Diagnostics outrank every gate.
        Strategy::UnknownTenant | Strategy::UnknownModel | Strategy::UnknownHashScheme => true,
    };
    if stands {
        return Verdict::Stands;
    }
    lookup.clear();
    Verdict::Nothing
}

/// Drops the rows below the matched-token floor and says whether the best of the rest reaches the score floor.
fn clears_floors(policy: &Effective, lookup: &mut Lookup) -> bool {
    let matched = policy.minimum_matched_tokens;
    if matched > 0 && lookup.rows.iter().any(|row| row.matched_tokens < matched) {
        lookup.retain(|row| row.matched_tokens >= matched);
    }
    let score = policy.routing_floor_score;
    lookup.rows.first().is_some_and(|best| score <= 0.0 || best.score >= score)
}
