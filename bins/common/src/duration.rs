//! Durations as Go spells them: `300ms`, `1.5h`, `2h45m`, `0`.

use std::time::Duration;

const NANOS_PER: [(&str, f64); 8] = [
    ("ns", 1.0),
    ("us", 1e3),
    ("\u{b5}s", 1e3),
    ("\u{3bc}s", 1e3),
    ("ms", 1e6),
    ("s", 1e9),
    ("m", 60.0 * 1e9),
    ("h", 3600.0 * 1e9),
];

/// Parses a non-negative duration.
///
/// # Errors
/// A sentence that says what is missing: a unit, a number, or a sign that makes no sense here.
pub fn parse(text: &str) -> Result<Duration, String> {
    let wrong = |why: &str| Err(format!("{why}; write a number and a unit, e.g. 100ms, 30s or 1m30s"));
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest.starts_with('-') {
        return wrong("a negative duration");
    }
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    if rest.is_empty() {
        return wrong("an empty duration");
    }
    let mut nanos = 0.0_f64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let Ok(number) = number.parse::<f64>() else {
            return wrong("a number is missing");
        };
        let unit = tail.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit);
        let Some((_, per)) = NANOS_PER.iter().find(|(name, _)| *name == unit) else {
            return wrong(if unit.is_empty() { "a unit is missing" } else { "an unknown unit" });
        };
        nanos += number * per;
        rest = tail;
    }
    // Go's durations are 63-bit nanoseconds; so are ours.
    #[expect(clippy::cast_precision_loss, reason = "the limit needs no precision")]
    let limit = i64::MAX as f64;
    if nanos >= limit {
        return wrong("a duration above 292 years");
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked: 0 <= nanos < 2^63")]
    let nanos = nanos.round() as u64;
    Ok(Duration::from_nanos(nanos))
}

#[cfg(test)]
mod tests {
    use super::parse;
    use std::time::Duration;

    #[test]
    fn go_forms_are_read() {
        for (text, nanos) in [
            ("0", 0),
            ("0s", 0),
            ("100ms", 100_000_000),
            ("1m30s", 90_000_000_000),
            ("1.5h", 5_400_000_000_000),
            ("+5s", 5_000_000_000),
            (".5s", 500_000_000),
            ("1us", 1_000),
            ("1\u{b5}s", 1_000),
            ("2h45m0.5s", 9_900_500_000_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_nanos(nanos)), "{text}");
        }
    }

    #[test]
    fn others_are_refused_with_an_example() {
        for text in ["", "5", "s", "1x", "-1s", "1s x", ".s", "1..5s", "300y", "3000000h", "1 s"] {
            let why = parse(text).expect_err(text);
            assert!(why.contains("100ms"), "{text}: {why}");
        }
    }
}
