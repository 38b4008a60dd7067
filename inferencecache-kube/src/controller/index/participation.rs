//! Whose replica is whose: from rows, Pods and backends to each backend's part of the index.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;

use super::snapshot::{ReplicaRow, rate};
use crate::api::backend::IndexParticipation;
use crate::api::{CacheBackend, names};
use crate::controller::text::stamp;

/// Namespace and name.
pub type Key = (String, String);

/// What is known of the Pods of the rows.
#[derive(Debug, Default)]
pub struct Pods {
    /// Those that exist.
    pub found: HashMap<Key, ObjectMeta>,
    /// Namespaces whose Pods could not be read.
    pub tainted: BTreeSet<String>,
}

/// A backend's sums.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sums {
    /// Prefixes.
    pub prefixes: i64,
    /// The latest event.
    pub last_event: Option<Timestamp>,
    /// Tokens that the shared tier had.
    pub hits: i64,
    /// Tokens that it was asked for.
    pub queries: i64,
}

impl Sums {
    fn add(&mut self, row: &ReplicaRow) {
        self.prefixes = self.prefixes.saturating_add(row.prefix_count.max(0));
        self.last_event = self.last_event.max(row.last_event_at);
        self.hits = self.hits.saturating_add(row.t2_hit_tokens.max(0));
        self.queries = self.queries.saturating_add(row.t2_query_tokens.max(0));
    }

    /// Hits by queries, 0 to 1; nothing while nobody asked.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "a ratio needs no more")]
    pub fn ratio(&self) -> Option<f64> {
        (self.queries > 0).then(|| (self.hits as f64 / self.queries as f64).clamp(0.0, 1.0))
    }

    /// As the status has it.
    #[must_use]
    pub fn participation(&self) -> IndexParticipation {
        #[expect(clippy::cast_possible_truncation, reason = "published in single precision")]
        let t2_hit_rate = self.ratio().map(|ratio| rate(ratio as f32));
        IndexParticipation {
            prefix_count: self.prefixes,
            last_event_at: self.last_event.map(stamp),
            hit_rate: None,
            t2_hit_rate,
        }
    }
}

/// Sums of every backend that owns a row.
#[must_use]
pub fn attribute(rows: &[ReplicaRow], pods: &Pods, backends: &[CacheBackend]) -> HashMap<Key, Sums> {
    let mut namespaces: BTreeMap<&str, BTreeMap<&str, &CacheBackend>> = BTreeMap::new();
    for backend in backends {
        let (namespace, name) = names_of(&backend.metadata);
        namespaces.entry(namespace).or_default().insert(name, backend);
    }
    let mut sums: HashMap<Key, Sums> = HashMap::new();
    for row in rows.iter().filter(|row| is_of_a_pod(row)) {
        let Some(pod) = pods.found.get(&(row.tenant.clone(), row.replica_id.clone())) else { continue };
        let Some(siblings) = namespaces.get(row.tenant.as_str()) else { continue };
        if let Some(name) = owner(pod, &row.tenant, siblings) {
            sums.entry((row.tenant.clone(), name.to_owned())).or_default().add(row);
        }
    }
    sums
}

/// Whether a row names a Pod.
#[must_use]
pub fn is_of_a_pod(row: &ReplicaRow) -> bool {
    !row.tenant.is_empty() && !row.replica_id.is_empty()
}

/// The backend that a Pod counts for. A record of injection decides alone, even where it leads to nobody.
fn owner<'a>(pod: &ObjectMeta, namespace: &str, siblings: &BTreeMap<&'a str, &CacheBackend>) -> Option<&'a str> {
    let annotation = |key: &str| pod.annotations.as_ref().and_then(|all| all.get(key)).map(String::as_str);
    let record = annotation(names::INJECTED_BY).and_then(|by| by.split_once('/'));
    if let Some((by, name)) = record
        && by == namespace
        && !name.is_empty()
        && !name.contains('/')
    {
        let (name, backend) = siblings.get_key_value(name)?;
        let uid = annotation(names::INJECTED_BY_UID).filter(|uid| !uid.is_empty());
        // One that was made again under the same name is another one.
        return uid.is_none_or(|uid| backend.metadata.uid.as_deref() == Some(uid)).then_some(*name);
    }
    let carries = |key: &String, value: &String| pod.labels.as_ref().and_then(|labels| labels.get(key)) == Some(value);
    let selected = siblings.iter().find(|(_, backend)| {
        backend.spec.selector().is_some_and(|wanted| wanted.iter().all(|(key, value)| carries(key, value)))
    });
    selected.map(|(name, _)| *name)
}

/// What to write into a backend's status, or nothing.
#[must_use]
pub fn changed(backend: &CacheBackend, sums: Sums) -> Option<IndexParticipation> {
    let wanted = sums.participation();
    let published = backend.status.as_ref().and_then(|status| status.index_participation.as_ref());
    match published {
        Some(published) if *published == wanted => None,
        None if backend.spec.selector().is_none() && wanted == IndexParticipation::default() => None,
        _ => Some(wanted),
    }
}

/// Namespace and name of an object.
#[must_use]
pub fn names_of(meta: &ObjectMeta) -> (&str, &str) {
    (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default())
}
