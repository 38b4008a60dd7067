//! R1 and X1: a selector is exactly one cache domain, and a domain has one owner in its namespace.

use crate::api::CacheBackend;
use crate::api::names::CACHE_DOMAIN;
use crate::webhook::field::FieldError;
use crate::webhook::syntax::is_label_value;

const LABELS: &str = "spec.engineSelector.matchLabels";

fn path() -> String {
    format!("{LABELS}[{CACHE_DOMAIN}]")
}

/// R1: nothing, or the one label with a value. The first mistake is told.
#[must_use]
pub fn selector(backend: &CacheBackend) -> Vec<FieldError> {
    let Some(labels) = backend.spec.selector() else {
        return Vec::new();
    };
    let error = match labels.get(CACHE_DOMAIN).map(String::as_str) {
        None | Some("") => {
            let detail = format!("engine Pods are selected by label {CACHE_DOMAIN} with a value, and by nothing else");
            FieldError::required(path(), detail)
        }
        Some(domain) if !is_label_value(domain) => {
            let detail = "is no label value: at most 63 letters, digits, '-', '_' and '.', beginning and ending with a letter or \
                          digit";
            FieldError::invalid(path(), domain, detail)
        }
        Some(_) if labels.len() > 1 => {
            let others: Vec<&str> = labels.keys().map(String::as_str).filter(|key| *key != CACHE_DOMAIN).collect();
            let detail = format!("{CACHE_DOMAIN} is the only allowed key; remove {}", others.join(", "));
            FieldError::forbidden(LABELS, detail)
        }
        Some(_) => return Vec::new(),
    };
    vec![error]
}

/// X1: the first of the stored objects, by name, that holds the same domain. `others` are their names and domains.
#[must_use]
pub fn conflict<'a>(
    namespace: &str,
    own: &str,
    backend: &CacheBackend,
    others: impl Iterator<Item = (&'a str, &'a str)>,
) -> Option<FieldError> {
    let domain = backend.spec.domain()?;
    let owner = others.filter(|(name, held)| *name != own && *held == domain).map(|(name, _)| name).min()?;
    let detail = format!(
        "cache domain {domain:?} already belongs to CacheBackend {owner:?} in namespace {namespace:?}; a domain has one owner in \
         a namespace"
    );
    Some(FieldError::forbidden(path(), detail))
}
