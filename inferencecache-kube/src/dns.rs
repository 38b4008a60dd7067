//! Names as DNS has them, which Kubernetes gives to objects.

/// Whether this is a DNS label: at most 63 of lower-case letters, digits and `-`, beginning and ending with a letter or digit.
pub(crate) fn is_dns_label(text: &str) -> bool {
    is_label(text, 63)
}

/// Whether this is a DNS name: labels with dots between, at most 253.
pub(crate) fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(|label| is_label(label, 253))
}

fn is_label(text: &str, most: usize) -> bool {
    let plain = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let bytes = text.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else { return false };
    bytes.len() <= most && plain(first) && plain(last) && bytes.iter().all(|b| plain(b) || *b == b'-')
}
