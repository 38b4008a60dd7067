//! One counter out of a page of Prometheus text.

/// Longest line, in bytes.
const MAX_LINE_BYTES: usize = 1 << 20;

/// Why a counter has no value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CounterError {
    /// The page does not have it. That is not 0: the name may be wrong, or the engine may not count.
    #[error("there is no such counter")]
    Absent,
    /// One of its lines is not a name, labels and a number.
    #[error("a line of it makes no sense")]
    Malformed,
    /// A line has more than 1 MiB.
    #[error("a line has more than {MAX_LINE_BYTES} bytes")]
    LongLine,
}

/// The sum of all series with exactly this name.
///
/// # Errors
/// [`CounterError`].
pub fn counter(page: &[u8], name: &str) -> Result<f64, CounterError> {
    let mut sum = None;
    for line in page.split(|&byte| byte == b'\n') {
        if line.len() > MAX_LINE_BYTES {
            return Err(CounterError::LongLine);
        }
        let Some(rest) = line.strip_prefix(name.as_bytes()) else { continue };
        let rest = match rest.first() {
            Some(b'{') => behind_labels(rest).ok_or(CounterError::Malformed)?,
            Some(b' ' | b'\t') => rest,
            _ => continue, // a longer name
        };
        let value: Option<f64> =
            std::str::from_utf8(rest).ok().and_then(|rest| rest.split_ascii_whitespace().next()?.parse().ok());
        *sum.get_or_insert(0.0) += value.ok_or(CounterError::Malformed)?;
    }
    sum.ok_or(CounterError::Absent)
}

/// What follows the closing brace; braces in label values do not count.
fn behind_labels(labels: &[u8]) -> Option<&[u8]> {
    let (mut quoted, mut escaped) = (false, false);
    for (at, &byte) in labels.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'}' if !quoted => return Some(&labels[at + 1..]),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(page: &str, want: Result<f64, CounterError>) {
        assert_eq!(counter(page.as_bytes(), "a:b_total"), want, "{page}");
    }

    #[test]
    fn series_of_the_exact_name_are_added() {
        check("# TYPE a:b_total counter\na:b_total 1\na:b_total_created 9\na:b_total2 9\nxa:b_total 9\n", Ok(1.0));
        check("a:b_total{x=\"1\"} 1.5\r\na:b_total{x=\"2\"} 2 1700000000000\na:b_total\t4", Ok(7.5));
        check(r#"a:b_total{x="a } \" 5 \\",y="{"} 3"#, Ok(3.0));
        check("a:b_total{} 1e3\na:b_total 0", Ok(1000.0));
    }

    #[test]
    fn what_is_not_there_is_not_0() {
        check("", Err(CounterError::Absent));
        check("# a:b_total 1\na:b 1", Err(CounterError::Absent));
        check("a:b_total 0", Ok(0.0));
        check("a:b_total ", Err(CounterError::Malformed));
        check("a:b_total x", Err(CounterError::Malformed));
        check("a:b_total{x=\"} 1", Err(CounterError::Malformed));
        check(&"x".repeat(MAX_LINE_BYTES + 1), Err(CounterError::LongLine));
        check(&format!("a:b_total{{x=\"{}\"}} 1", "y".repeat(1000)), Ok(1.0));
    }

    proptest::proptest! {
        #[test]
        fn no_page_makes_it_panic(page in "(a:b_total)?[{}\"\\\\ \t\na-c0-9.=é]{0,60}") {
            let _ = counter(page.as_bytes(), "a:b_total");
        }
    }
}
