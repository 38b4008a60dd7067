//! Whether an object that nobody controls may become ours.
//!
//! Only one that already is what would have been created in everything that cannot be changed later or that others depend
//! on. A Deployment of another selector would run Pods that the Service never finds; a Service of another selector is
//! somebody's address for something else.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use kube::api::DynamicObject;

use super::super::engines::carries;

/// What keeps a Deployment from being adopted.
pub(in super::super) fn deployment(live: &DynamicObject, desired: &Deployment) -> Option<&'static str> {
    let spec = live.clone().try_parse::<Deployment>().ok().and_then(|live| live.spec);
    let (Some(live), Some(desired)) = (spec, desired.spec.as_ref()) else { return Some("it cannot be read") };
    if live.selector != desired.selector {
        return Some("its selector is another one");
    }
    let labels = live.template.metadata.and_then(|meta| meta.labels);
    let wanted = desired.template.metadata.as_ref().and_then(|meta| meta.labels.as_ref());
    let fits = wanted.is_none_or(|wanted| carries(labels.as_ref(), wanted));
    (!fits).then_some("its Pods have other labels")
}

/// What keeps a Service from being adopted.
pub(in super::super) fn service(live: &DynamicObject, desired: &Service) -> Option<&'static str> {
    let spec = live.clone().try_parse::<Service>().ok().and_then(|live| live.spec);
    let fits = spec.and_then(|spec| spec.selector) == desired.spec.as_ref().and_then(|spec| spec.selector.clone());
    (!fits).then_some("its selector is another one")
}

#[cfg(test)]
mod tests {
    use super::super::super::samples::{backend, merge};
    use super::super::render::render;
    use super::*;
    use crate::adapters::{ManagedRedis, StorageProvider as _};
    use serde_json::{Value, json};

    #[test]
    fn only_what_would_have_been_created_is_adopted() {
        let backend = backend("managed", &json!({}));
        let desired = render(&backend, ManagedRedis.render(&backend).expect("a store")).expect("children");
        let more = json!({"spec": {"replicas": 2, "template": {"metadata": {"labels": {"more": "x"}}}}});
        let labels =
            json!({"spec": {"template": {"metadata": {"labels": {"inferencecache.io/backend-type": "Other"}}}}});
        for (patch, adopted) in [
            (json!({}), true),
            (more, true),
            (labels, false),
            (json!({"spec": {"selector": {"matchLabels": {"app.kubernetes.io/name": null}}}}), false),
            (json!({"spec": {"selector": {"matchLabels": {"app": "x"}}}}), false),
        ] {
            let mut live: Value = serde_json::to_value(&desired.deployment).expect("JSON");
            merge(&mut live, &patch);
            let live = serde_json::from_value(live).expect("an object");
            assert_eq!(deployment(&live, &desired.deployment).is_none(), adopted, "{patch}");
        }
        for (patch, adopted) in [
            (json!({"spec": {"ports": null}}), true),
            (json!({"spec": {"selector": {"app": "x"}}}), false),
            (json!({"spec": {"selector": null}}), false),
        ] {
            let mut live: Value = serde_json::to_value(&desired.service).expect("JSON");
            merge(&mut live, &patch);
            let live = serde_json::from_value(live).expect("an object");
            assert_eq!(service(&live, &desired.service).is_none(), adopted, "{patch}");
        }
    }
}
