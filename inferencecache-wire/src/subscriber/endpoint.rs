//! What an engine endpoint says: who dials whom.
//!
//! An engine's publisher listens when its own endpoint has a wildcard host and dials otherwise. We do the opposite: a
//! wildcard on our side means that the engine will come to us.

use std::net::{IpAddr, ToSocketAddrs as _};

/// Who opens the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// We dial the engine.
    Connect,
    /// The engine dials us.
    Bind,
}

/// Which side an endpoint puts us on: `*`, `0.0.0.0` and `[::]` are listened on, everything else is dialled.
#[must_use]
pub fn side(endpoint: &str) -> Side {
    match tcp(endpoint) {
        Some(("*" | "0.0.0.0" | "[::]", _)) => Side::Bind,
        _ => Side::Connect,
    }
}

/// Whether libzmq should use IPv6 for an endpoint. It takes the first address of a name only, so a name with an IPv4
/// address is taken as that. Blocks while a name is resolved.
pub(super) fn wants_ipv6(endpoint: &str) -> bool {
    let Some((host, port)) = tcp(endpoint) else { return false };
    if host.starts_with('[') || host == "*" {
        return true;
    }
    if host.parse::<IpAddr>().is_ok() {
        return false;
    }
    let Ok(port) = port.parse::<u16>() else { return false };
    (host, port).to_socket_addrs().is_ok_and(|mut addresses| addresses.all(|address| address.is_ipv6()))
}

/// Host and port of a TCP endpoint.
fn tcp(endpoint: &str) -> Option<(&str, &str)> {
    endpoint.strip_prefix("tcp://")?.rsplit_once(':')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wildcard_host_is_listened_on() {
        for endpoint in ["tcp://*:5557", "tcp://0.0.0.0:5557", "tcp://[::]:5557"] {
            assert_eq!(side(endpoint), Side::Bind, "{endpoint}");
        }
        for endpoint in [
            "tcp://127.0.0.1:5557",
            "tcp://[::1]:5557",
            "tcp://engine:5557",
            "ipc:///run/engine",
            "inproc://x",
            "nonsense",
        ] {
            assert_eq!(side(endpoint), Side::Connect, "{endpoint}");
        }
    }

    #[test]
    fn ipv6_is_used_where_it_is_written() {
        assert!(wants_ipv6("tcp://[::1]:5557") && wants_ipv6("tcp://*:5557"));
        assert!(!wants_ipv6("tcp://127.0.0.1:5557") && !wants_ipv6("ipc:///run/engine"));
    }
}
