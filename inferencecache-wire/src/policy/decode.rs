//! Bytes to [`Snapshot`], strictly.
//!
//! Derived decoders are too kind for this body: they take an array for an object, and see a number only after it has
//! passed through a double. Here an object takes its own keys, once each, and a number is read from its own text.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::schema::{Policy, Snapshot, Strategy, Tenant};
use super::{Oddities, PolicyError};

/// Longest explanation in bytes; whatever is longer quotes the sender at length.
const MAX_EXPLANATION: usize = 400;

/// Reads a whole body; blanks may follow the value, nothing else.
pub(super) fn snapshot(body: &[u8]) -> Result<(Snapshot, Oddities), PolicyError> {
    match serde_json::from_slice(body) {
        Ok(Object { value, oddities }) => Ok((value, oddities)),
        Err(error) => Err(PolicyError::Malformed(shorten(error.to_string()))),
    }
}

/// A value with known members.
trait Members: Default {
    /// Reads the member `key` from `map`. `false`, and nothing read, when there is no such member.
    fn member<'de, A>(&mut self, key: &str, map: &mut A, oddities: &mut Oddities) -> Result<bool, A::Error>
    where
        A: MapAccess<'de>;
}

/// A JSON object as the value it stands for. `null` stands for the empty object.
#[derive(Default)]
struct Object<T> {
    value: T,
    oddities: Oddities,
}

// === members ===

impl Members for Snapshot {
    fn member<'de, A>(&mut self, key: &str, map: &mut A, oddities: &mut Oddities) -> Result<bool, A::Error>
    where
        A: MapAccess<'de>,
    {
        match key {
            "version" => self.version = integer(map)?.unwrap_or(0),
            "policies" => self.policies = list(map, oddities)?,
            "tenants" => self.tenants = list(map, oddities)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl Members for Policy {
    fn member<'de, A>(&mut self, key: &str, map: &mut A, oddities: &mut Oddities) -> Result<bool, A::Error>
    where
        A: MapAccess<'de>,
    {
        match key {
            "namespace" => self.namespace = text(map)?,
            "evictionTTL" => self.eviction_ttl = integer(map)?.unwrap_or(0),
            "minimumPrefixTokens" => self.minimum_prefix_tokens = integer(map)?.unwrap_or(0),
            "minimumMatchedTokens" => self.minimum_matched_tokens = integer(map)?,
            "routingFloorScore" => self.routing_floor_score = number(map, &mut oddities.vanishing_floors)?,
            "lookupTimeoutMs" => self.lookup_timeout_ms = integer(map)?.unwrap_or(0),
            "affinityRouting" => self.affinity_routing = flag(map)?,
            "eviction" => self.eviction = text(map)?,
            "strategy" => {
                let strategy: Option<Object<Strategy>> = map.next_value()?;
                self.strategy = strategy.map(|object| object.value);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl Members for Strategy {
    fn member<'de, A>(&mut self, key: &str, map: &mut A, _oddities: &mut Oddities) -> Result<bool, A::Error>
    where
        A: MapAccess<'de>,
    {
        match key {
            "enableChainMatching" => self.enable_chain_matching = flag(map)?,
            "requireChain" => self.require_chain = flag(map)?,
            "enableTenantHot" => self.enable_tenant_hot = flag(map)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl Members for Tenant {
    fn member<'de, A>(&mut self, key: &str, map: &mut A, _oddities: &mut Oddities) -> Result<bool, A::Error>
    where
        A: MapAccess<'de>,
    {
        match key {
            "tenantID" => self.tenant_id = text(map)?,
            "maxIndexEntries" => self.max_index_entries = integer(map)?,
            "isolationMode" => self.isolation_mode = text(map)?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

// === values; each takes `null` for absent ===

fn text<'de, A: MapAccess<'de>>(map: &mut A) -> Result<String, A::Error> {
    Ok(map.next_value::<Option<String>>()?.unwrap_or_default())
}

fn flag<'de, A: MapAccess<'de>>(map: &mut A) -> Result<Option<bool>, A::Error> {
    match map.next_value::<&RawValue>()?.get() {
        "null" => Ok(None),
        "true" => Ok(Some(true)),
        "false" => Ok(Some(false)),
        _ => Err(A::Error::custom("expected true or false")),
    }
}

/// A number without fraction and exponent, also when their value is 0.
fn integer<'de, A: MapAccess<'de>, T: FromStr>(map: &mut A) -> Result<Option<T>, A::Error> {
    let raw = map.next_value::<&RawValue>()?.get();
    if raw == "null" {
        return Ok(None);
    }
    if !raw.bytes().enumerate().all(|(i, byte)| byte.is_ascii_digit() || (i == 0 && byte == b'-')) {
        return Err(A::Error::custom("expected an integer"));
    }
    let bits = 8 * size_of::<T>();
    raw.parse().map(Some).map_err(|_| A::Error::custom(format_args!("expected an integer of {bits} bits")))
}

/// Any number that single precision can hold. One that comes to 0 without being 0 is counted.
fn number<'de, A: MapAccess<'de>>(map: &mut A, vanished: &mut u32) -> Result<Option<f32>, A::Error> {
    let raw = map.next_value::<&RawValue>()?.get();
    if raw == "null" {
        return Ok(None);
    }
    let number: f32 = match raw.as_bytes() {
        [b'-' | b'0'..=b'9', ..] => raw.parse().map_err(|_| A::Error::custom("expected a number"))?,
        _ => return Err(A::Error::custom("expected a number")),
    };
    if number.is_infinite() {
        return Err(A::Error::custom("expected a number of single precision"));
    }
    let digits = raw.split(['e', 'E']).next().unwrap_or_default();
    if number == 0.0 && !raw.starts_with('-') && digits.contains(|digit| matches!(digit, '1'..='9')) {
        *vanished += 1;
    }
    Ok(Some(number))
}

fn list<'de, A: MapAccess<'de>, T: Members>(map: &mut A, oddities: &mut Oddities) -> Result<Vec<T>, A::Error> {
    let objects = map.next_value::<Option<Vec<Object<T>>>>()?.unwrap_or_default();
    let value = |object: Object<T>| {
        oddities.vanishing_floors += object.oddities.vanishing_floors;
        object.value
    };
    Ok(objects.into_iter().map(value).collect())
}

// === impl Object ===

impl<'de, T: Members> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ObjectVisitor(PhantomData))
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Members> Visitor<'de> for ObjectVisitor<T> {
    type Value = Object<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_unit<E>(self) -> Result<Object<T>, E> {
        Ok(Object { value: T::default(), oddities: Oddities::default() })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object<T>, A::Error> {
        let mut object = Object { value: T::default(), oddities: Oddities::default() };
        // Keys as they are once escapes are undone: the same key in another spelling is the same key.
        let mut seen: Vec<Cow<'de, str>> = Vec::new();
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            if seen.contains(&key) {
                return Err(A::Error::custom(format_args!("duplicate field {key:?}")));
            }
            match object.value.member(&key, &mut map, &mut object.oddities) {
                Ok(true) => seen.push(key),
                Ok(false) => return Err(A::Error::custom(format_args!("unknown field {key:?}"))),
                // The innermost place in the text stays at the end; the keys on the way to it come first.
                Err(error) => return Err(A::Error::custom(format_args!("{key}: {error}"))),
            }
        }
        Ok(object)
    }
}

fn shorten(mut text: String) -> String {
    if text.len() > MAX_EXPLANATION {
        text.truncate(text.floor_char_boundary(MAX_EXPLANATION));
        text.push('…');
    }
    text
}
