//! Words of others without what differs each time they are said.

/// The text with every word that holds a digit as `#`: ports, addresses, times and ids change from call to call, and a
/// condition that repeats them would be written anew each time.
pub(super) fn steady(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while !rest.is_empty() {
        let is_word = |c: char| c.is_alphanumeric() || c == '.';
        let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let (word, tail) = rest.split_at(end);
        out.push_str(if word.contains(|c: char| c.is_ascii_digit()) { "#" } else { word });
        let end = tail.find(is_word).unwrap_or(tail.len());
        let (between, tail) = tail.split_at(end);
        out.push_str(between);
        rest = tail;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::steady;

    /// field:57
    #[test]
    fn what_differs_each_time_is_left_out() {
        for (first, second) in [
            ("read tcp 10.0.0.7:49152->10.0.0.9:8081: reset", "read tcp 10.0.0.8:49153->10.0.0.9:8081: reset"),
            ("at 2026-01-02T03:04:05Z: no", "at 2026-01-02T13:14:15.5Z: no"),
            ("request 1f3a-99 failed", "request 2b4c-17 failed"),
        ] {
            assert_eq!(steady(first), steady(second));
        }
        assert_eq!(steady("connection refused (os error 111)"), "connection refused (os error #)");
        assert_eq!(steady(""), "");
    }
}
