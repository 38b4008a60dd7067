//! Durations as Go writes them: `90s`, `1h30m`, `1.5h`, `-3s`, `0`.

use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A duration as its author wrote it. Compare by [`GoDuration::nanos`], not by text: `90s` is `1m30s`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct GoDuration(String);

/// Why a text is no duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DurationError {
    /// Nothing was given.
    #[error("an empty duration")]
    Empty,
    /// A number is missing before a unit, or is no decimal number.
    #[error("a number is missing")]
    Number,
    /// A number without a unit.
    #[error("a unit is missing")]
    Unit,
    /// A unit that is none of `ns`, `us`, `µs`, `ms`, `s`, `m`, `h`.
    #[error("an unknown unit")]
    UnknownUnit,
    /// More than 2^63-1 nanoseconds, which is 292 years.
    #[error("more than 292 years")]
    TooLong,
}

const UNITS: [(&str, u64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60 * 1_000_000_000),
    ("h", 3600 * 1_000_000_000),
];

impl GoDuration {
    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The duration in nanoseconds; it may be negative.
    ///
    /// # Errors
    /// The text is not a duration.
    pub fn nanos(&self) -> Result<i64, DurationError> {
        parse(&self.0)
    }
}

impl From<&str> for GoDuration {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl JsonSchema for GoDuration {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "GoDuration".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"type": "string"})
    }
}

fn parse(text: &str) -> Result<i64, DurationError> {
    let (negative, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (true, text.get(1..).unwrap_or_default()),
        Some(b'+') => (false, text.get(1..).unwrap_or_default()),
        _ => (false, text),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(DurationError::Empty);
    }
    let mut total: u64 = 0;
    while !rest.is_empty() {
        let (number, tail) = split(rest, |c| c == '.' || c.is_ascii_digit());
        let (unit, tail) = split(tail, |c| c != '.' && !c.is_ascii_digit());
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return Err(DurationError::Number);
        }
        if unit.is_empty() {
            return Err(DurationError::Unit);
        }
        let Some((_, per)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(DurationError::UnknownUnit);
        };
        let whole = if whole.is_empty() { 0 } else { whole.parse::<u64>().map_err(|_| DurationError::TooLong)? };
        total = whole
            .checked_mul(*per)
            .and_then(|nanos| nanos.checked_add(share(fraction, *per)))
            .and_then(|nanos| total.checked_add(nanos))
            .filter(|nanos| *nanos <= 1 << 63)
            .ok_or(DurationError::TooLong)?;
        rest = tail;
    }
    match (negative, i64::try_from(total)) {
        (true, _) if total == 1 << 63 => Ok(i64::MIN),
        (true, Ok(nanos)) => Ok(-nanos),
        (false, Ok(nanos)) => Ok(nanos),
        (_, Err(_)) => Err(DurationError::TooLong),
    }
}

/// `0.FRACTION` of a unit. Go computes it in floating point, and so is it here, or equal texts would differ by a nanosecond.
/// Digits that no longer fit 63 bits are dropped.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the published rounding; the product is below one unit"
)]
fn share(fraction: &str, per: u64) -> u64 {
    let (mut value, mut scale) = (0_u64, 1.0_f64);
    for digit in fraction.bytes() {
        if value > (1 << 63) / 10 {
            break;
        }
        value = value * 10 + u64::from(digit - b'0');
        scale *= 10.0;
    }
    (value as f64 * (per as f64 / scale)) as u64
}

fn split(text: &str, inside: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !inside(c)).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::{DurationError, GoDuration};

    fn nanos(text: &str) -> Result<i64, DurationError> {
        GoDuration::from(text).nanos()
    }

    #[test]
    fn what_go_reads_is_read() {
        for (text, value) in [
            ("0", 0),
            ("-0", 0),
            ("0s", 0),
            ("1ns", 1),
            ("90s", 90_000_000_000),
            ("1m30s", 90_000_000_000),
            ("1.5h", 5_400_000_000_000),
            ("-1h30m", -5_400_000_000_000),
            ("+5s", 5_000_000_000),
            (".5s", 500_000_000),
            ("1.s", 1_000_000_000),
            ("1us", 1_000),
            ("1\u{b5}s", 1_000),
            ("1\u{3bc}s", 1_000),
            ("0.3333333333333333333h", 1_200_000_000_000),
            ("9223372036854775807ns", i64::MAX),
            ("-9223372036854775808ns", i64::MIN),
        ] {
            assert_eq!(nanos(text), Ok(value), "{text}");
        }
    }

    #[test]
    fn what_go_refuses_is_refused() {
        for text in [
            "",
            "-",
            "5",
            "s",
            ".s",
            "1..5s",
            "1d",
            " 1s",
            "1s ",
            "1 s",
            "soon",
            "5 minutes",
            "9223372036854775808ns",
            "3000000h",
        ] {
            assert!(nanos(text).is_err(), "{text}");
        }
    }
}
