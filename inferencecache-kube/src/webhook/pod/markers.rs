//! What a Pod says about itself afterwards. Only the linker writes these keys; what anybody else wrote under them goes.
//!
//! They show which backend wired the Pod. They prove nothing: uids are no secret. Readers compare the uid with the live one.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::api::backend::Topology;
use crate::api::names::{INJECT_SKIPPED, INJECTED_BY, INJECTED_BY_UID, INJECTED_GENERATION, MP_METRICS};
use crate::api::{CacheBackend, names};

const WIRED: [&str; 3] = [INJECTED_BY, INJECTED_BY_UID, INJECTED_GENERATION];

/// Takes away every marker, unless there are none but empty ones: the Pods of everybody else shall not be edited at all.
pub(super) fn scrub(meta: &mut ObjectMeta) {
    let set =
        |key: &str| meta.annotations.as_ref().and_then(|list| list.get(key)).is_some_and(|value| !value.is_empty());
    let marked = WIRED.iter().any(|key| set(key)) || set(INJECT_SKIPPED);
    let labelled = meta.labels.as_ref().is_some_and(|list| list.contains_key(MP_METRICS));
    if marked || labelled {
        remove(&mut meta.annotations, &WIRED);
        remove(&mut meta.annotations, &[INJECT_SKIPPED]);
        remove(&mut meta.labels, &[MP_METRICS]);
    }
}

/// Says that the Pod was left alone because it asked for that.
pub(super) fn stamp_skipped(meta: &mut ObjectMeta) {
    remove(&mut meta.annotations, &WIRED);
    remove(&mut meta.labels, &[MP_METRICS]);
    let list = meta.annotations.get_or_insert_default();
    list.insert(INJECT_SKIPPED.to_owned(), names::SKIPPED_BY_ANNOTATION.to_owned());
}

/// Says which backend wired the Pod, in which state of it, and whether there is an LMCache server to scrape.
pub(super) fn stamp_wired(meta: &mut ObjectMeta, backend: &CacheBackend, reference: &str) {
    remove(&mut meta.annotations, &[INJECT_SKIPPED]);
    let list = meta.annotations.get_or_insert_default();
    list.insert(INJECTED_BY.to_owned(), reference.to_owned());
    list.insert(INJECTED_BY_UID.to_owned(), backend.metadata.uid.clone().unwrap_or_default());
    list.insert(INJECTED_GENERATION.to_owned(), backend.metadata.generation.unwrap_or_default().to_string());
    if backend.spec.lm_cache.as_ref().is_some_and(|lm_cache| lm_cache.topology == Topology::PodLocal) {
        meta.labels.get_or_insert_default().insert(MP_METRICS.to_owned(), "true".to_owned());
    } else {
        remove(&mut meta.labels, &[MP_METRICS]);
    }
}

/// Takes keys out; a list that becomes empty goes.
fn remove(list: &mut Option<BTreeMap<String, String>>, keys: &[&str]) {
    if let Some(entries) = list {
        let before = entries.len();
        entries.retain(|key, _| !keys.contains(&key.as_str()));
        if entries.is_empty() && before > 0 {
            *list = None;
        }
    }
}
