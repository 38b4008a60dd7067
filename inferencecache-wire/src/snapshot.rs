//! The JSON body of `GET /snapshot`: everything the index publishes, in the published shape.
//!
//! Written by hand, because the shape is exact where a derived writer is not: key order, numbers without a needless
//! fraction, and time stamps that can be written whatever they are. Writing cannot fail.

use std::fmt::Write as _;

use inferencecache_core::index::{ReplicaRow, Snapshot, TenantRow};
use inferencecache_core::time::Micros;

/// What an absent time looks like.
const ZERO_INSTANT: &str = "0001-01-01T00:00:00Z";

/// 0001-01-01T00:00:00.000001Z, just after the zero instant.
const FIRST: Micros = -62_135_596_800_000_000 + 1;
/// 9999-12-31T23:59:59.999999Z, the last that RFC 3339 can say.
const LAST: Micros = 253_402_300_799_999_999;

const MICROS_PER_SECOND: i64 = 1_000_000;
const SECONDS_PER_DAY: i64 = 86_400;

/// The body, with a line feed at its end.
#[must_use]
pub fn json(snapshot: &Snapshot) -> String {
    let mut out = String::with_capacity(128 + 256 * snapshot.replicas.len() + 128 * snapshot.tenants.len());
    out.push_str("{\"replicas\":[");
    for (i, row) in snapshot.replicas.iter().enumerate() {
        separate(&mut out, i);
        replica(&mut out, row);
    }
    out.push_str("],\"tenants\":[");
    for (i, row) in snapshot.tenants.iter().enumerate() {
        separate(&mut out, i);
        tenant(&mut out, row);
    }
    let _ = writeln!(out, "],\"totalPrefixes\":{},\"hotPrefixes\":0}}", snapshot.total_prefixes);
    out
}

fn replica(out: &mut String, row: &ReplicaRow) {
    out.push_str("{\"replicaId\":");
    string(out, &row.replica);
    if !row.tenant.is_empty() {
        out.push_str(",\"tenant\":");
        string(out, &row.tenant);
    }
    let (stats, last_update) = row.stats.unzip();
    let figures = stats.unwrap_or_default();
    let _ = write!(out, ",\"cacheMemoryBytes\":{},\"hitRate\":", figures.cache_memory_bytes);
    float(out, figures.hit_rate);
    out.push_str(",\"pressure\":");
    float(out, figures.pressure);
    out.push_str(",\"lastUpdate\":");
    time(out, last_update);
    let _ = write!(out, ",\"prefixCount\":{},\"lastEventAt\":", row.prefix_count);
    time(out, row.last_event_at);
    if stats.is_some() {
        out.push_str(",\"statsReported\":true");
    }
    for (key, tokens) in [("t2HitTokens", figures.t2_hit_tokens), ("t2QueryTokens", figures.t2_query_tokens)] {
        if tokens != 0 {
            let _ = write!(out, ",\"{key}\":{tokens}");
        }
    }
    out.push('}');
}

fn tenant(out: &mut String, row: &TenantRow) {
    out.push_str("{\"tenantId\":");
    string(out, &row.tenant);
    let _ = write!(out, ",\"indexEntries\":{},\"hitRate\":", row.index_entries);
    float(out, row.hit_rate.unwrap_or_default());
    if row.hit_rate.is_some() {
        out.push_str(",\"hitRateReported\":true");
    }
    out.push_str(",\"memoryUsed\":0}");
}

fn separate(out: &mut String, i: usize) {
    if i > 0 {
        out.push(',');
    }
}

fn string(out: &mut String, text: &str) {
    let _ = write!(out, "{}", serde_json::Value::from(text));
}

/// The shortest digits that give the same single-precision number back, in the notation Go uses.
fn float(out: &mut String, value: f32) {
    let size = value.abs();
    let _ = if !value.is_finite() || value == 0.0 {
        write!(out, "0") // there is no other JSON for what is no number
    } else if (1e-6..1e21).contains(&size) {
        write!(out, "{value}")
    } else {
        let scientific = format!("{value:e}");
        write!(out, "{}", if size >= 1e21 { scientific.replace('e', "e+") } else { scientific })
    };
}

/// RFC 3339 in UTC, microseconds with trailing zeros trimmed. What lies outside its four-digit years is moved to the nearest
/// instant inside.
fn time(out: &mut String, at: Option<Micros>) {
    let Some(at) = at else {
        let _ = write!(out, "\"{ZERO_INSTANT}\"");
        return;
    };
    let at = at.clamp(FIRST, LAST);
    let (seconds, micros) = (at.div_euclid(MICROS_PER_SECOND), at.rem_euclid(MICROS_PER_SECOND));
    let (days, second) = (seconds.div_euclid(SECONDS_PER_DAY), seconds.rem_euclid(SECONDS_PER_DAY));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let _ = write!(out, "\"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}");
    if micros != 0 {
        let fraction = format!(".{micros:06}");
        out.push_str(fraction.trim_end_matches('0'));
    }
    out.push_str("Z\"");
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar.
///
/// Counts in eras of 400 years from 0000-03-01, so that the leap day is the last of its year.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153; // 0 is March
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use inferencecache_core::Stats;

    fn written(at: Option<Micros>) -> String {
        let mut out = String::new();
        time(&mut out, at);
        out.trim_matches('"').to_owned()
    }

    fn number(value: f32) -> String {
        let mut out = String::new();
        float(&mut out, value);
        out
    }

    /// server:112
    #[test]
    fn an_empty_index_has_empty_arrays() {
        let body = "{\"replicas\":[],\"tenants\":[],\"totalPrefixes\":0,\"hotPrefixes\":0}\n";
        assert_eq!(json(&Snapshot::default()), body);
    }

    /// server:113 server:114
    #[test]
    fn rows_have_the_published_shape() {
        let row = ReplicaRow {
            tenant: "t".into(),
            replica: "r1".into(),
            stats: None,
            prefix_count: 1,
            last_event_at: Some(1_700_000_000_123_456),
        };
        let tenant = TenantRow { tenant: "t".into(), index_entries: 1, hit_rate: None };
        let mut snapshot = Snapshot { replicas: vec![row], tenants: vec![tenant], total_prefixes: 1 };
        assert_eq!(
            json(&snapshot),
            concat!(
                r#"{"replicas":[{"replicaId":"r1","tenant":"t","cacheMemoryBytes":0,"hitRate":0,"pressure":0,"#,
                r#""lastUpdate":"0001-01-01T00:00:00Z","prefixCount":1,"lastEventAt":"2023-11-14T22:13:20.123456Z"}],"#,
                r#""tenants":[{"tenantId":"t","indexEntries":1,"hitRate":0,"memoryUsed":0}],"totalPrefixes":1,"hotPrefixes":0}"#,
                "\n"
            )
        );
        let stats = Stats { hit_rate: 0.75, t2_query_tokens: 9, ..Stats::default() };
        snapshot.replicas[0].stats = Some((stats, 1_700_000_000_500_000));
        snapshot.tenants[0].hit_rate = Some(0.75);
        let body = json(&snapshot);
        assert!(body.contains(r#""hitRate":0.75,"pressure":0,"lastUpdate":"2023-11-14T22:13:20.5Z""#), "{body}");
        assert!(body.contains(r#""statsReported":true,"t2QueryTokens":9}"#), "{body}");
        assert!(body.contains(r#""hitRate":0.75,"hitRateReported":true,"memoryUsed":0}"#), "{body}");
    }

    #[test]
    fn odd_names_stay_json() {
        let row = ReplicaRow {
            tenant: "".into(),
            replica: "a\"b\\c\n\u{1}\u{e4}".into(),
            stats: None,
            prefix_count: 0,
            last_event_at: None,
        };
        let body = json(&Snapshot { replicas: vec![row], ..Snapshot::default() });
        let parsed: serde_json::Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(parsed["replicas"][0]["replicaId"], "a\"b\\c\n\u{1}\u{e4}");
        assert!(parsed["replicas"][0].get("tenant").is_none());
    }

    #[test]
    fn every_stamp_can_be_written() {
        for (at, want) in [
            (None, ZERO_INSTANT),
            (Some(0), "1970-01-01T00:00:00Z"),
            (Some(-1), "1969-12-31T23:59:59.999999Z"),
            (Some(951_782_400_000_000), "2000-02-29T00:00:00Z"),
            (Some(1_700_000_000_120_000), "2023-11-14T22:13:20.12Z"),
            (Some(4_107_542_399_000_001), "2100-02-28T23:59:59.000001Z"),
            (Some(i64::MIN), "0001-01-01T00:00:00.000001Z"),
            (Some(i64::MAX), "9999-12-31T23:59:59.999999Z"),
            (Some(LAST), "9999-12-31T23:59:59.999999Z"),
            (Some(-62_135_596_799_000_000), "0001-01-01T00:00:01Z"),
        ] {
            assert_eq!(written(at), want, "{at:?}");
        }
    }

    #[test]
    fn numbers_have_the_fewest_digits() {
        for (value, want) in [
            (0.0, "0"),
            (-0.0, "0"),
            (1.0, "1"),
            (0.1, "0.1"),
            (0.333_333_34, "0.33333334"),
            (16_777_216.0, "16777216"),
            (1e-6, "0.000001"),
            (1e-7, "1e-7"),
            (1.5e-9, "1.5e-9"),
            (1e21, "1e+21"),
            (-2.5e30, "-2.5e+30"),
            (f32::NAN, "0"),
            (f32::INFINITY, "0"),
        ] {
            assert_eq!(number(value), want);
            assert!(serde_json::from_str::<f64>(want).is_ok());
        }
    }
}
