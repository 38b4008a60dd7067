//! Names and texts that Kubernetes gives a form to.

pub(super) use crate::dns::{is_dns_label, is_dns_subdomain};

const SHA256_HEX: usize = 64;

/// Whether this may be the value of a label: at most 63 of letters, digits, `-`, `_`, `.`, beginning and ending with a letter
/// or digit; or empty.
pub(super) fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_name(text, 63, |b| b.is_ascii_alphanumeric(), |b| matches!(b, b'-' | b'_' | b'.'))
}

/// Whether this is `PREFIX/NAME` or `NAME` as labels and resources have them.
pub(super) fn is_qualified_name(text: &str) -> bool {
    let name = match text.split_once('/') {
        Some((prefix, _)) if !is_dns_subdomain(prefix) => return false,
        Some((_, name)) => name,
        None => text,
    };
    !name.is_empty() && is_label_value(name)
}

/// Whether this may be a key of a Secret: at most 253 of letters, digits, `-`, `_`, `.`, and no path step.
pub(super) fn is_secret_key(text: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    !text.is_empty() && text.len() <= 253 && text.bytes().all(plain) && text != "." && !text.starts_with("..")
}

/// Whether this may name a variable: letters, digits, `-`, `_`, `.`, not beginning with a digit, and no path step.
pub(super) fn is_variable_name(text: &str) -> bool {
    is_secret_key(text) && !text.starts_with(|c: char| c.is_ascii_digit())
}

/// Whether this is `IMAGE@sha256:DIGEST`, with or without a tag before the digest.
pub(super) fn is_pinned_image(text: &str) -> bool {
    let Some((name, digest)) = text.split_once("@sha256:") else {
        return false;
    };
    let named = !name.is_empty() && !name.contains(|c: char| c == '@' || c.is_whitespace());
    named && digest.len() == SHA256_HEX && digest.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// The namespace of an in-cluster name of a Service or Pod; `None` for every other host.
pub(super) fn namespace_of_host(endpoint: &str) -> Option<String> {
    let lower = endpoint.trim().to_lowercase();
    let host = lower.split_once("://").map_or(lower.as_str(), |(_, rest)| rest);
    let host = host.split(['/', '?']).next().unwrap_or_default();
    let host = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let host = host.strip_suffix('.').unwrap_or(host);
    let host = host.strip_suffix(".cluster.local").unwrap_or(host);
    let labels: Vec<&str> = host.strip_suffix(".svc")?.split('.').collect();
    if labels.len() < 2 { None } else { labels.last().map(|label| (*label).to_owned()) }
}

/// A finite number above zero in the usual forms, underscores between digits included; no blanks, no hexadecimal.
pub(super) fn is_positive_number(text: &str) -> bool {
    let digit = |at: Option<usize>| at.and_then(|at| text.as_bytes().get(at)).is_some_and(u8::is_ascii_digit);
    if text.match_indices('_').any(|(at, _)| !digit(at.checked_sub(1)) || !digit(at.checked_add(1))) {
        return false;
    }
    let text = text.replace('_', "");
    let digits = text.bytes().any(|b| b.is_ascii_digit());
    digits && text.parse::<f64>().is_ok_and(|number| number.is_finite() && number > 0.0)
}

fn is_name(text: &str, most: usize, edge: impl Fn(u8) -> bool, inner: impl Fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else {
        return false;
    };
    bytes.len() <= most && edge(*first) && edge(*last) && bytes.iter().all(|b| edge(*b) || inner(*b))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A form, texts of that form, and others.
    type Row<'a> = (fn(&str) -> bool, &'a [&'a str], &'a [&'a str]);

    #[test]
    fn names_have_their_forms() {
        let table: [Row<'_>; 6] = [
            (is_label_value, &["", "a", "A.b_c-1", "rag.mistral-24b_v2"], &["zai/glm", "-a", "a-", "a b", "é"]),
            (is_dns_label, &["a", "1a", "a-b"], &["", "a.b", "A", "-a", "a-", "a_b"]),
            (is_dns_subdomain, &["a", "a.b-c", "1.2"], &["", "Bad_Name", "a..b", ".a", "a."]),
            (
                is_qualified_name,
                &["nvidia.com/gpu", "cpu", "a.b/C_d"],
                &["example.com/_x", "Ex.com/x", "a/", "/a", "a/b/c"],
            ),
            (is_secret_key, &["a", "A_b.c-1", ".a", "1"], &["", "a/b", ".", "..", "..a", "a b"]),
            (is_variable_name, &["A", "a.b-c", "_x"], &["", "A=B", "1A", "..", "A B"]),
        ];
        for (is, yes, no) in table {
            for text in yes {
                assert!(is(text), "{text:?}");
            }
            for text in no {
                assert!(!is(text), "{text:?}");
            }
        }
        assert!(is_label_value(&"a".repeat(63)) && !is_label_value(&"a".repeat(64)));
        assert!(is_secret_key(&"k".repeat(253)) && !is_secret_key(&"k".repeat(254)));
    }

    #[test]
    fn images_are_pinned_by_a_digest_of_lower_case() {
        let digest = "0".repeat(64);
        for image in [format!("r/lm@sha256:{digest}"), format!("r:5000/lm:v1@sha256:{digest}")] {
            assert!(is_pinned_image(&image), "{image}");
        }
        for image in [
            "r/lm:1".to_owned(),
            format!("@sha256:{digest}"),
            format!("r/lm@sha256:{}", "0".repeat(63)),
            format!("r/lm@sha256:{}", "A".repeat(64)),
            format!("r/lm@x@sha256:{digest}"),
            format!("r/l m@sha256:{digest}"),
            format!("r/lm@sha256:{digest}@sha256:{digest}"),
        ] {
            assert!(!is_pinned_image(&image), "{image}");
        }
    }

    #[test]
    fn only_names_inside_the_cluster_have_a_namespace() {
        for (host, namespace) in [
            ("redis.other.svc:6379", Some("other")),
            ("REDIS.Other.SVC.cluster.local.:6379", Some("other")),
            ("p-0.redis.other.svc:6379", Some("other")),
            (" redis://redis.other.svc/0 ", Some("other")),
            ("redis.other.svc.example.com:6379", None),
            ("other.svc:6379", None),
            ("10.0.0.1:6379", None),
            ("[::1]:6379", None),
            ("", None),
        ] {
            assert_eq!(namespace_of_host(host).as_deref(), namespace, "{host}");
        }
    }

    #[test]
    fn ratios_are_finite_and_above_zero() {
        for text in ["1e-1", "2", "+3", ".5", "1e1", "1_0"] {
            assert!(is_positive_number(text), "{text}");
        }
        for text in [
            "0", "-1", "NaN", "inf", "Inf", "infinity", "abc", " 2", "2 ", "", "1e999", "1e-999", "_1", "1_", "1__0",
            "1_.5",
        ] {
            assert!(!is_positive_number(text), "{text}");
        }
    }
}
