//! Errors as one line.

/// An error with its causes, outermost first.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        // Some libraries already print their cause.
        if !text.ends_with(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

/// Why a call failed: the transport's reasons where there are any, otherwise the server's words.
#[cfg(feature = "client")]
pub(crate) fn said(status: &tonic::Status) -> String {
    std::error::Error::source(status).map_or_else(|| status.message().to_owned(), chain)
}

#[cfg(test)]
mod tests {
    use super::chain;

    #[derive(Debug, thiserror::Error)]
    #[error("outer")]
    struct Outer(#[source] Inner);

    #[derive(Debug, thiserror::Error)]
    #[error("inner: {0}")]
    struct Inner(#[source] std::io::Error);

    #[test]
    fn causes_follow_and_none_is_told_twice() {
        let error = Outer(Inner(std::io::Error::other("cause")));
        assert_eq!(chain(&error), "outer: inner: cause");
    }
}
