//! Whose an object is.
//!
//! The controller reference decides, by uid: names are used again, uids never. An object without a controller may be adopted
//! where it already is what would have been created (see [`workload`](super::workload)); one with another controller is left
//! alone, down to the last field.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::Resource as _;

use crate::adapters::AdapterError;
use crate::api::CacheBackend;

/// What an object is to a CacheBackend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// The CacheBackend controls it.
    Ours,
    /// Nobody controls it.
    Unowned,
    /// Something else does; its kind and name.
    Foreign(String),
}

/// What an object is to the CacheBackend.
#[must_use]
pub fn standing(object: &ObjectMeta, backend: &CacheBackend) -> Standing {
    let references = object.owner_references.as_deref().unwrap_or_default();
    match references.iter().find(|reference| reference.controller == Some(true)) {
        None => Standing::Unowned,
        Some(owner) if Some(owner.uid.as_str()) == uid(backend) => Standing::Ours,
        Some(owner) => Standing::Foreign(format!("{} {:?}", owner.kind, owner.name)),
    }
}

/// Whether the CacheBackend controls the object.
#[must_use]
pub fn is_ours(object: &ObjectMeta, backend: &CacheBackend) -> bool {
    standing(object, backend) == Standing::Ours
}

/// The reference that makes the CacheBackend an object's controller and lets it wait for the object in a foreground deletion.
///
/// # Errors
/// The CacheBackend was not read from an API server: it has no uid or no name.
pub fn reference(backend: &CacheBackend) -> Result<OwnerReference, AdapterError> {
    let reference = uid(backend).and_then(|_| backend.controller_owner_ref(&()));
    reference
        .map(|reference| OwnerReference { block_owner_deletion: Some(true), ..reference })
        .ok_or_else(|| AdapterError::backend("metadata.uid", "is missing; a stored object has one"))
}

/// Makes `reference` the object's controller, which has none or the same one. Says whether anything changed.
pub(super) fn take(object: &mut ObjectMeta, reference: &OwnerReference) -> bool {
    let list = object.owner_references.get_or_insert_default();
    match list.iter_mut().find(|other| other.controller == Some(true) || other.uid == reference.uid) {
        Some(other) if other == reference => false,
        Some(other) => {
            *other = reference.clone();
            true
        }
        None => {
            list.push(reference.clone());
            true
        }
    }
}

fn uid(backend: &CacheBackend) -> Option<&str> {
    backend.metadata.uid.as_deref().filter(|uid| !uid.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn backend() -> CacheBackend {
        serde_json::from_value(json!({"metadata": {"name": "cache", "namespace": "ns", "uid": "u1"}}))
            .expect("a backend")
    }

    fn owned_by(references: Value) -> ObjectMeta {
        serde_json::from_value(json!({"ownerReferences": references})).expect("metadata")
    }

    #[test]
    fn the_controllers_uid_decides() {
        let refer = |uid: &str, controller: bool| {
            json!({"apiVersion": "inferencecache.io/v1alpha1", "kind": "CacheBackend", "name": "cache", "uid": uid,
                "controller": controller})
        };
        for (references, standing_of) in [
            (json!([]), Standing::Unowned),
            (json!([refer("u1", true)]), Standing::Ours),
            (json!([refer("u1", false)]), Standing::Unowned),
            (json!([refer("u1", false), refer("u2", true)]), Standing::Foreign("CacheBackend \"cache\"".to_owned())),
            (json!([refer("", true)]), Standing::Foreign("CacheBackend \"cache\"".to_owned())),
        ] {
            assert_eq!(standing(&owned_by(references.clone()), &backend()), standing_of, "{references}");
        }
        let nobody = CacheBackend::default();
        assert!(!is_ours(&owned_by(json!([refer("", true)])), &nobody));
        assert!(reference(&nobody).is_err());
    }

    #[test]
    fn taking_keeps_other_owners_and_settles() {
        let wanted = reference(&backend()).expect("a reference");
        let mut object = owned_by(json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": "u9"}]));
        assert!(take(&mut object, &wanted));
        assert!(!take(&mut object, &wanted));
        let list = object.owner_references.expect("references");
        assert_eq!((list.len(), &list[1]), (2, &wanted));
        assert_eq!(wanted.block_owner_deletion, Some(true));
    }
}
