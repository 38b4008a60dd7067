//! Rules of CachePolicy.

use crate::api::CachePolicy;
use crate::webhook::field::FieldError;

/// C1 and C2: what a policy may say, whatever else there is.
#[must_use]
pub fn validate(policy: &CachePolicy) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let spec = &policy.spec;
    if let Some(ttl) = &spec.eviction_ttl
        && ttl.nanos().is_ok_and(|nanos| nanos <= 0)
    {
        errors.push(FieldError::invalid("spec.evictionTTL", ttl.as_str(), "must be greater than zero"));
    }
    if let Some(strategy) = &spec.strategy
        && strategy.enable_chain_matching == Some(false)
        && strategy.require_chain == Some(true)
    {
        let detail = "strategy.requireChain requires strategy.enableChainMatching: a chain cannot be required of lookups that \
                      ignore it";
        errors.push(FieldError::invalid("spec.strategy.requireChain", true, detail));
    }
    errors
}

/// C3: one policy per namespace. `others` are the names of the policies that are stored in it.
#[must_use]
pub fn only_one<'a>(namespace: &str, own: &str, others: impl Iterator<Item = &'a str>) -> Option<FieldError> {
    let first = others.filter(|name| *name != own).min()?;
    let detail = format!(
        "namespace {namespace:?} already has CachePolicy {first:?}, and only one per namespace is in force; edit or delete that one"
    );
    Some(FieldError::forbidden("metadata.name", detail))
}
