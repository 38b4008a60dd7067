//! Which CacheBackend an object wakes, told by its metadata.
//!
//! A child wakes its controller. A wired Pod wakes the backend that its record names, in its own namespace only: a record is
//! text that whoever makes the Pod can write. Any other Pod wakes the backends whose selector names its cache domain.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::probing::Key;
use crate::api::names;
use crate::dns::is_dns_subdomain;

const KIND: &str = "CacheBackend";

/// The CacheBackend that controls the object.
pub(super) fn owner(meta: &ObjectMeta) -> Option<Key> {
    let owner = meta.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
    let ours = owner.kind == KIND && owner.api_version.split_once('/') == Some((names::GROUP, names::VERSION));
    ours.then(|| (meta.namespace.clone().unwrap_or_default(), owner.name.clone()))
}

/// The CacheBackend that wired the Pod, by its record.
pub(super) fn wired(meta: &ObjectMeta) -> Option<Key> {
    let annotation = |key: &str| meta.annotations.as_ref()?.get(key).map(String::as_str);
    let (namespace, name) = annotation(names::INJECTED_BY)?.split_once('/')?;
    let has_uid = annotation(names::INJECTED_BY_UID).is_some_and(|uid| !uid.is_empty());
    let here = meta.namespace.as_deref() == Some(namespace) && !namespace.is_empty();
    (has_uid && here && is_dns_subdomain(name)).then(|| (namespace.to_owned(), name.to_owned()))
}

/// Backends by namespace and cache domain. Every pass tells what it read, so nothing else has to watch for it; a backend has
/// one entry.
#[derive(Debug, Default)]
pub(super) struct Domains {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    backends: HashMap<Key, String>,
    members: BTreeMap<(String, String), BTreeSet<String>>,
}

impl Domains {
    /// The domain of a backend as it was read; `None` where it has none or is gone.
    pub(super) fn learn(&self, key: &Key, domain: Option<&str>) {
        let mut known = self.lock();
        if known.backends.get(key).map(String::as_str) == domain {
            return;
        }
        if let Some(old) = known.backends.remove(key) {
            let place = (key.0.clone(), old);
            if let Some(names) = known.members.get_mut(&place) {
                names.remove(&key.1);
                if names.is_empty() {
                    known.members.remove(&place);
                }
            }
        }
        if let Some(domain) = domain {
            known.backends.insert(key.clone(), domain.to_owned());
            known.members.entry((key.0.clone(), domain.to_owned())).or_default().insert(key.1.clone());
        }
    }

    /// The backends that a Pod wakes.
    pub(super) fn woken(&self, meta: &ObjectMeta) -> Vec<Key> {
        if let Some(key) = owner(meta).or_else(|| wired(meta)) {
            return vec![key];
        }
        let Some(domain) = meta.labels.as_ref().and_then(|labels| labels.get(names::CACHE_DOMAIN)) else {
            return Vec::new();
        };
        let namespace = meta.namespace.clone().unwrap_or_default();
        let place = (namespace, domain.clone());
        let known = self.lock();
        let names = known.members.get(&place).into_iter().flatten();
        names.map(|name| (place.0.clone(), name.clone())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn meta(value: Value) -> ObjectMeta {
        serde_json::from_value(value).expect("metadata")
    }

    fn key(name: &str) -> Key {
        ("ns".to_owned(), name.to_owned())
    }

    #[test]
    fn children_wake_their_controller() {
        let owned = |api: &str, kind: &str, controller: bool| {
            meta(json!({"namespace": "ns", "ownerReferences": [
                {"apiVersion": api, "kind": kind, "name": "cache", "uid": "u", "controller": controller},
            ]}))
        };
        assert_eq!(owner(&owned("inferencecache.io/v1alpha1", "CacheBackend", true)), Some(key("cache")));
        assert_eq!(owner(&owned("inferencecache.io/v1alpha1", "CacheBackend", false)), None);
        assert_eq!(owner(&owned("inferencecache.io/v1", "CacheBackend", true)), None);
        assert_eq!(owner(&owned("apps/v1", "ReplicaSet", true)), None);
    }

    /// controller:154 as a trigger.
    #[test]
    fn a_record_wakes_a_backend_of_its_own_namespace() {
        let pod = |by: &str, uid: &str| {
            meta(json!({"namespace": "ns", "annotations": {
                "inferencecache.io/injected-by": by, "inferencecache.io/injected-by-uid": uid,
            }}))
        };
        assert_eq!(wired(&pod("ns/cache.v1-a", "u")), Some(key("cache.v1-a")));
        for by in [
            "x",
            "/p",
            "ns/",
            "ns/p/q",
            "NS/p",
            "ns/P",
            "bad_ns/cb",
            "ns/-cb",
            "ns/cb-",
            "ns/a..b",
            "a.b/cb",
            "other/cache",
            "",
        ] {
            assert_eq!(wired(&pod(by, "u")), None, "{by}");
        }
        assert_eq!(wired(&pod("ns/cache", "")), None);
    }

    #[test]
    fn a_pod_without_a_record_wakes_its_domain() {
        let domains = Domains::default();
        let pod = |domain: &str| meta(json!({"namespace": "ns", "labels": {"inferencecache.io/cache-domain": domain}}));
        domains.learn(&key("a"), Some("d1"));
        domains.learn(&key("b"), Some("d1"));
        domains.learn(&("other".to_owned(), "c".to_owned()), Some("d1"));
        assert_eq!(domains.woken(&pod("d1")), [key("a"), key("b")]);
        domains.learn(&key("a"), Some("d2"));
        domains.learn(&key("b"), None);
        assert_eq!((domains.woken(&pod("d1")), domains.woken(&pod("d2"))), (vec![], vec![key("a")]));
        assert_eq!(domains.woken(&meta(json!({"namespace": "ns"}))), Vec::<Key>::new());
        domains.learn(&key("a"), None);
        let known = domains.lock();
        assert!(known.backends.len() == 1 && known.members.len() == 1, "the other namespace's is left");
    }
}
