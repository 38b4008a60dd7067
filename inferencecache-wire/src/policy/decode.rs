//! Bytes to [`Snapshot`], strictly.

use serde::de::{Error as _, MapAccess};
use serde_json::value::RawValue;

use super::schema::{Policy, Snapshot, Strategy, Tenant};
use super::{Oddities, PolicyError};
use crate::strict::{Members, Object, flag, integer, shorten, text};

/// Reads a whole body; blanks may follow the value, nothing else.
pub(super) fn snapshot(body: &[u8]) -> Result<(Snapshot, Oddities), PolicyError> {
    match serde_json::from_slice(body) {
        Ok(Object { value, notes }) => Ok((value, notes)),
        Err(error) => Err(PolicyError::Malformed(shorten(error.to_string()))),
    }
}

// === members ===

impl Members for Snapshot {
    type Notes = Oddities;

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
    type Notes = Oddities;

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
    type Notes = Oddities;

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
    type Notes = Oddities;

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

// === values ===

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

fn list<'de, A, T>(map: &mut A, oddities: &mut Oddities) -> Result<Vec<T>, A::Error>
where
    A: MapAccess<'de>,
    T: Members<Notes = Oddities>,
{
    let objects = map.next_value::<Option<Vec<Object<T>>>>()?.unwrap_or_default();
    let value = |object: Object<T>| {
        oddities.vanishing_floors += object.notes.vanishing_floors;
        object.value
    };
    Ok(objects.into_iter().map(value).collect())
}
