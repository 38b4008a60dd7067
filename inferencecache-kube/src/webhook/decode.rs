//! From JSON to typed objects, as strict as the API is about its texts.
//!
//! The types read anything that was ever stored. Admission is stricter: a quantity or a duration that cannot be parsed makes
//! the object undecodable, which is a fault of the request and no violation of a field.

use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::api::{Amount, CacheBackend, CachePolicy, CacheTenant, GoDuration};

/// An object that is not what its kind says.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the object cannot be decoded: {0}")]
pub struct Undecodable(String);

/// A kind that can be decoded strictly.
pub(super) trait Strict: DeserializeOwned {
    /// Checks the texts that serde leaves alone.
    fn texts(&self, check: &mut Texts);
}

/// Decodes an object. A null counts as absent, whatever the field.
pub(super) fn decode<K: Strict>(object: &Value) -> Result<K, Undecodable> {
    let typed: K = serde_json::from_value(without_nulls(object)).map_err(|why| Undecodable(why.to_string()))?;
    let mut check = Texts::default();
    typed.texts(&mut check);
    match check.first {
        Some(why) => Err(Undecodable(why)),
        None => Ok(typed),
    }
}

/// The object without its null members; lists keep their length.
pub(super) fn without_nulls(object: &Value) -> Value {
    let mut object = object.clone();
    strip_nulls(&mut object);
    object
}

fn strip_nulls(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(strip_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(strip_nulls),
        _ => {}
    }
}

/// Collects the first text that is not what it should be.
#[derive(Default)]
pub(super) struct Texts {
    first: Option<String>,
}

impl Texts {
    fn duration(&mut self, path: &str, duration: Option<&GoDuration>) {
        if let Some(duration) = duration
            && let Err(why) = duration.nanos()
        {
            self.say(path, duration.as_str(), &format!("{why}; write a Go duration such as 90s, 5m or 1h30m"));
        }
    }

    fn quantity(&mut self, path: &str, quantity: &Quantity) {
        // What is missing is an empty text, and the rules have their say about that.
        if !quantity.0.is_empty()
            && let Err(why) = Amount::of(quantity)
        {
            self.say(path, &quantity.0, &format!("{why}; write a quantity such as 4Gi, 500m or 2"));
        }
    }

    fn resources(&mut self, path: &str, resources: Option<&ResourceRequirements>) {
        let Some(resources) = resources else { return };
        for (list, amounts) in [("requests", &resources.requests), ("limits", &resources.limits)] {
            for (name, quantity) in amounts.iter().flatten() {
                self.quantity(&format!("{path}.{list}[{name}]"), quantity);
            }
        }
    }

    fn say(&mut self, path: &str, value: &str, why: &str) {
        self.first.get_or_insert_with(|| format!("{path}: {value:?}: {why}"));
    }
}

impl Strict for CacheBackend {
    fn texts(&self, check: &mut Texts) {
        let spec = &self.spec;
        let observation = spec.observation.as_ref();
        check.duration("spec.observation.firstEventTimeout", observation.and_then(|o| o.first_event_timeout.as_ref()));
        let lm_cache = spec.lm_cache.as_ref();
        if let Some(server) = lm_cache.and_then(|l| l.pod_local.as_ref()).and_then(|p| p.server.as_ref()) {
            check.quantity("spec.lmCache.podLocal.server.l1Capacity", &server.l1_capacity);
            check.resources("spec.lmCache.podLocal.server.resources", Some(&server.resources));
        }
        if let Some(server) = lm_cache.and_then(|l| l.node_local.as_ref()).and_then(|n| n.server.as_ref()) {
            check.quantity("spec.lmCache.nodeLocal.server.l1Capacity", &server.l1_capacity);
            check.resources("spec.lmCache.nodeLocal.server.resources", Some(&server.resources));
        }
        let redis = spec.remote_storage.as_ref().and_then(|r| r.redis.as_ref());
        check.resources("spec.remoteStorage.redis.resources", redis.and_then(|r| r.resources.as_ref()));
        let overrides = spec.integration.as_ref().and_then(|i| i.engine_overrides.as_ref());
        for (index, variable) in overrides.and_then(|o| o.env.as_ref()).into_iter().flatten().enumerate() {
            let field = variable.value_from.as_ref().and_then(|source| source.resource_field_ref.as_ref());
            if let Some(divisor) = field.and_then(|field| field.divisor.as_ref()) {
                let path = format!("spec.integration.engineOverrides.env[{index}].valueFrom.resourceFieldRef.divisor");
                check.quantity(&path, divisor);
            }
        }
    }
}

impl Strict for CachePolicy {
    fn texts(&self, check: &mut Texts) {
        check.duration("spec.evictionTTL", self.spec.eviction_ttl.as_ref());
    }
}

impl Strict for CacheTenant {
    fn texts(&self, _: &mut Texts) {}
}
