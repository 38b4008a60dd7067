//! The caller's time limit, as the gRPC protocol spells it.

use std::time::Duration;

use tonic::codegen::http::HeaderMap;

/// Header that carries it.
pub(super) const HEADER: &str = "grpc-timeout";

/// The limit of a call; `None` without one.
pub(super) fn of(headers: &HeaderMap) -> Option<Duration> {
    headers.get(HEADER).and_then(|value| parse(value.as_bytes()))
}

/// Parses `100m`, `5S`: at most eight digits and a unit. `None` for anything else, which is refused.
pub(super) fn parse(value: &[u8]) -> Option<Duration> {
    let (unit, digits) = value.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = digits.iter().fold(0_u64, |number, digit| number * 10 + u64::from(digit - b'0'));
    Some(match unit {
        b'H' => Duration::from_secs(number * 3600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::parse;
    use std::time::Duration;

    #[test]
    fn every_unit_is_read_and_the_rest_is_not() {
        for (text, want) in [
            ("3H", Some(Duration::from_secs(10_800))),
            ("1M", Some(Duration::from_secs(60))),
            ("42S", Some(Duration::from_secs(42))),
            ("13m", Some(Duration::from_millis(13))),
            ("2u", Some(Duration::from_micros(2))),
            ("0n", Some(Duration::ZERO)),
            ("99999999H", Some(Duration::from_secs(99_999_999 * 3600))),
            ("123456789m", None),
            ("m", None),
            ("", None),
            ("5", None),
            ("-5m", None),
            ("5x", None),
            ("\u{e4}m", None),
        ] {
            assert_eq!(parse(text.as_bytes()), want, "{text}");
        }
    }
}
