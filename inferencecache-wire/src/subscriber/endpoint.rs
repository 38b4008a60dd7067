//! What an engine endpoint says: who dials whom.
//!
//! An engine's publisher listens when its own endpoint has a wildcard host and dials otherwise. We do the opposite: a
//! wildcard on our side means that the engine will come to us.

use std::io::ErrorKind;
use std::net::{IpAddr, TcpStream, ToSocketAddrs as _};
use std::time::Duration;

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

/// The endpoint of a rank, given that of rank 0: the port plus the rank, or the suffix `_dp` and the rank where there are no
/// ports. `None` when the port is too large. A port that the system chooses stays one.
#[must_use]
pub fn of_rank(endpoint: &str, rank: u16) -> Option<String> {
    match tcp(endpoint) {
        _ if rank == 0 => Some(endpoint.to_owned()),
        Some((_, "*")) => Some(endpoint.to_owned()),
        Some((host, port)) => {
            let port = port.parse::<u16>().ok()?.checked_add(rank)?;
            Some(format!("tcp://{host}:{port}"))
        }
        None => Some(format!("{endpoint}_dp{rank}")),
    }
}

/// How long a refusal may take.
const REFUSAL: Duration = Duration::from_millis(250);

/// Whether nobody listens at an endpoint where an attempt has just failed, or somebody has begun to only now. Blocks for a
/// moment.
pub(super) fn refuses(endpoint: &str) -> bool {
    let Some((host, port)) = tcp(endpoint) else { return refuses_local(endpoint) };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let Ok(port) = port.parse::<u16>() else { return false };
    let Some(address) = (host, port).to_socket_addrs().ok().and_then(|mut addresses| addresses.next()) else {
        return false;
    };
    TcpStream::connect_timeout(&address, REFUSAL).map_or_else(|error| is_refusal(error.kind()), |_| true)
}

#[cfg(unix)]
fn refuses_local(endpoint: &str) -> bool {
    let Some(path) = endpoint.strip_prefix("ipc://") else { return false };
    std::os::unix::net::UnixStream::connect(path).map_or_else(|error| is_refusal(error.kind()), |_| true)
}

#[cfg(not(unix))]
fn refuses_local(_endpoint: &str) -> bool {
    false
}

fn is_refusal(error: ErrorKind) -> bool {
    matches!(error, ErrorKind::ConnectionRefused | ErrorKind::NotFound)
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
    fn a_rank_has_the_next_port_or_a_suffix() {
        for (endpoint, rank, expected) in [
            ("tcp://127.0.0.1:5557", 0, Some("tcp://127.0.0.1:5557")),
            ("tcp://127.0.0.1:5557", 9, Some("tcp://127.0.0.1:5566")),
            ("tcp://*:5557", 1, Some("tcp://*:5558")),
            ("tcp://[::1]:5557", 1, Some("tcp://[::1]:5558")),
            ("tcp://127.0.0.1:*", 1, Some("tcp://127.0.0.1:*")),
            ("tcp://127.0.0.1:65535", 1, None),
            ("ipc:///run/engine", 2, Some("ipc:///run/engine_dp2")),
            ("inproc://engine", 1, Some("inproc://engine_dp1")),
        ] {
            assert_eq!(of_rank(endpoint, rank).as_deref(), expected, "{endpoint} {rank}");
        }
    }

    #[test]
    fn a_port_at_which_nobody_listens_refuses() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
        drop(listener);
        assert!(refuses(&endpoint));
        assert!(refuses("ipc:///nowhere/at/all") && !refuses("inproc://x") && !refuses("tcp://127.0.0.1:*"));
    }

    #[test]
    fn ipv6_is_used_where_it_is_written() {
        assert!(wants_ipv6("tcp://[::1]:5557") && wants_ipv6("tcp://*:5557"));
        assert!(!wants_ipv6("tcp://127.0.0.1:5557") && !wants_ipv6("ipc:///run/engine"));
    }
}
