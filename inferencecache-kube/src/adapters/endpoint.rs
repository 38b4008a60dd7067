//! `host:port` of a store that somebody else runs: shape only. Nothing is looked up and nobody is called.

use super::error::AdapterError;

/// Splits `host:port` or `[v6]:port` into the bare host and the port.
///
/// # Errors
/// Names what the shape lacks: an empty text, a scheme, white space, no port, an unbracketed IPv6 address, a port that is
/// not a decimal number from 1 to 65535.
pub fn host_port(endpoint: &str) -> Result<(&str, u16), AdapterError> {
    let fail = |problem| Err(AdapterError::Endpoint { endpoint: endpoint.to_owned(), problem });
    if endpoint.is_empty() {
        return fail("is empty; give host:port");
    }
    if endpoint.contains("://") {
        return fail("has a scheme; give host:port alone");
    }
    if endpoint.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return fail("has white space or control characters in it");
    }
    let Some((host, port)) = split(endpoint) else {
        return fail("is not host:port; an IPv6 address needs brackets, as in [fd00::7]:6379");
    };
    if host.is_empty() {
        return fail("has no host");
    }
    // `parse` alone takes a sign.
    if port.is_empty() || !port.bytes().all(|b| b.is_ascii_digit()) {
        return fail("has no decimal port");
    }
    match port.parse() {
        Ok(number @ 1..) => Ok((host, number)),
        _ => fail("has a port outside 1-65535"),
    }
}

/// The two sides, unjudged.
fn split(endpoint: &str) -> Option<(&str, &str)> {
    let (host, port) = if let Some(rest) = endpoint.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        (host, rest.strip_prefix(':')?)
    } else {
        let (host, port) = endpoint.rsplit_once(':')?;
        if host.contains(':') {
            return None;
        }
        (host, port)
    };
    let stray = |text: &str| text.contains(['[', ']']);
    (!stray(host) && !stray(port) && !port.contains(':')).then_some((host, port))
}

#[cfg(test)]
mod tests {
    use super::host_port;

    /// adapters:D10
    #[test]
    fn well_formed_endpoints_are_taken_apart() {
        for (text, host, port) in [
            ("cache:6379", "cache", 6379),
            ("[fd00::7]:6379", "fd00::7", 6379),
            ("h:06379", "h", 6379),
            ("u@c.example:6379", "u@c.example", 6379),
            ("h:65535", "h", 65535),
        ] {
            assert_eq!(host_port(text), Ok((host, port)), "{text}");
        }
    }

    /// adapters:D11
    #[test]
    fn malformed_endpoints_are_named() {
        for text in [
            "",
            " ",
            "redis://h:1",
            "h\t:1",
            "a b:1",
            "fd00::7:6379",
            "h:+1",
            "h:",
            ":1",
            "h",
            "h:0",
            "h:65536",
            "h:6379/0",
            "[fd00::7]",
            "[fd00::7]6379",
            "[]:1",
            "h:１",
        ] {
            let error = host_port(text).expect_err(text).to_string();
            assert!(error.contains(&format!("{text:?}")), "{text}: {error}");
        }
    }
}
