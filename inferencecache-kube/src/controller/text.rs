//! Times and texts as objects carry them.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;

/// A time as a status carries it: whole seconds. What is finer would differ from what comes back.
#[must_use]
pub fn stamp(now: Timestamp) -> Time {
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

/// At most `bytes` of a text; what was cut ends in three dots.
#[must_use]
pub fn cut(text: &str, bytes: usize) -> String {
    if text.len() <= bytes {
        return text.to_owned();
    }
    let dots = "...";
    let mut end = bytes.saturating_sub(dots.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{dots}", text.get(..end).unwrap_or_default())
}

/// A duration as Go prints it: `300ms`, `5m0s`, `1h30m0s`, `1.5s`.
#[must_use]
pub fn go_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let nanos = duration.subsec_nanos();
    if seconds == 0 {
        let (unit, per) = match nanos {
            0 => return "0s".to_owned(),
            1..1_000 => ("ns", 1),
            1_000..1_000_000 => ("\u{b5}s", 1_000),
            _ => ("ms", 1_000_000),
        };
        return format!("{}{unit}", decimal(u64::from(nanos / per), nanos % per, per));
    }
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let rest = decimal(seconds % 60, nanos, 1_000_000_000);
    match (hours, minutes) {
        (0, 0) => format!("{rest}s"),
        (0, _) => format!("{minutes}m{rest}s"),
        _ => format!("{hours}h{minutes}m{rest}s"),
    }
}

/// `whole + part / per`, without zeros at the end; `per` is a power of ten.
fn decimal(whole: u64, part: u32, per: u32) -> String {
    if part == 0 {
        return whole.to_string();
    }
    let width = per.ilog10() as usize;
    format!("{whole}.{part:0width$}").trim_end_matches('0').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_go_prints_them() {
        for (nanos, text) in [
            (0, "0s"),
            (7, "7ns"),
            (1_500, "1.5\u{b5}s"),
            (300_000_000, "300ms"),
            (1_500_000_000, "1.5s"),
            (2_000_000_000, "2s"),
            (300_000_000_000, "5m0s"),
            (5_400_000_000_000, "1h30m0s"),
            (3_600_000_000_000, "1h0m0s"),
            (3_661_000_000_001, "1h1m1.000000001s"),
        ] {
            assert_eq!(go_duration(Duration::from_nanos(nanos)), text);
        }
    }

    #[test]
    fn a_cut_text_ends_in_dots_and_whole_characters() {
        assert_eq!(cut("short", 5), "short");
        assert_eq!(cut("longer", 5), "lo...");
        assert_eq!(cut("a\u{e4}\u{e4}\u{e4}", 6), "a\u{e4}...");
        assert_eq!(cut(&"x".repeat(600), 512).len(), 512);
    }

    #[test]
    fn a_stamp_has_whole_seconds() {
        let now: Timestamp = "2026-01-02T03:04:05.678Z".parse().expect("a time");
        assert_eq!(stamp(now).0.to_string(), "2026-01-02T03:04:05Z");
    }
}
