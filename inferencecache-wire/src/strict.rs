//! JSON objects read strictly: every key known, spelled exactly, and given once.
//!
//! Derived decoders are too kind: they take an array for an object, and see a number only after it has passed through a
//! double. Here an object takes its own keys, and a number is read from its own text. `null` stands for whatever is absent.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Longest explanation in bytes; whatever is longer quotes the sender at length.
const MAX_EXPLANATION: usize = 400;

/// A value with known members.
pub(crate) trait Members: Default {
    /// What is noted about a value beside the value.
    type Notes: Default;

    /// Reads the member `key` from `map`. `false`, and nothing read, when there is no such member.
    fn member<'de, A>(&mut self, key: &str, map: &mut A, notes: &mut Self::Notes) -> Result<bool, A::Error>
    where
        A: MapAccess<'de>;
}

/// A JSON object as the value it stands for. `null` stands for the empty object.
#[derive(Default)]
pub(crate) struct Object<T: Members> {
    pub(crate) value: T,
    pub(crate) notes: T::Notes,
}

// === values; each takes `null` for absent ===

pub(crate) fn text<'de, A: MapAccess<'de>>(map: &mut A) -> Result<String, A::Error> {
    Ok(map.next_value::<Option<String>>()?.unwrap_or_default())
}

pub(crate) fn flag<'de, A: MapAccess<'de>>(map: &mut A) -> Result<Option<bool>, A::Error> {
    match map.next_value::<&RawValue>()?.get() {
        "null" => Ok(None),
        "true" => Ok(Some(true)),
        "false" => Ok(Some(false)),
        _ => Err(A::Error::custom("expected true or false")),
    }
}

/// A number without fraction and exponent, also when their value is 0.
pub(crate) fn integer<'de, A: MapAccess<'de>, T: FromStr>(map: &mut A) -> Result<Option<T>, A::Error> {
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
        Ok(Object::default())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Object<T>, A::Error> {
        let mut object: Object<T> = Object::default();
        // Keys as they are once escapes are undone: the same key in another spelling is the same key.
        let mut seen: Vec<Cow<'de, str>> = Vec::new();
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            if seen.contains(&key) {
                return Err(A::Error::custom(format_args!("duplicate field {key:?}")));
            }
            match object.value.member(&key, &mut map, &mut object.notes) {
                Ok(true) => seen.push(key),
                Ok(false) => return Err(A::Error::custom(format_args!("unknown field {key:?}"))),
                // The innermost place in the text stays at the end; the keys on the way to it come first.
                Err(error) => return Err(A::Error::custom(format_args!("{key}: {error}"))),
            }
        }
        Ok(object)
    }
}

/// Cuts an explanation to a bearable length.
pub(crate) fn shorten(mut text: String) -> String {
    if text.len() > MAX_EXPLANATION {
        text.truncate(text.floor_char_boundary(MAX_EXPLANATION));
        text.push('…');
    }
    text
}
