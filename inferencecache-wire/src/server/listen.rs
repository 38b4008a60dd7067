//! Binding listeners, in the address forms of Go.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;

/// An address cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address:?}: {reason}")]
pub struct BindError {
    /// As it was given.
    pub address: String,
    /// Why, and what to do about it.
    reason: String,
}

/// Binds `host:port`. An empty host is all interfaces, IPv4 and IPv6; a name is resolved; port 0 is any free one.
pub(super) async fn bind(address: &str) -> Result<TcpListener, BindError> {
    let error = |reason: String| BindError { address: address.to_owned(), reason };
    let candidates = candidates(address).await.map_err(error)?;
    let mut why = "the name has no address".to_owned();
    for candidate in candidates {
        match listener(candidate) {
            Ok(listener) => return Ok(listener),
            // To go on after any other failure would be to serve half of what was asked for, and not to say so.
            Err(failure) if !is_absent(&failure) => return Err(error(failure.to_string())),
            Err(failure) => why = failure.to_string(),
        }
    }
    Err(error(why))
}

/// Whether this system has no such address at all, as one without IPv6, so that the next may be tried.
fn is_absent(why: &io::Error) -> bool {
    const FAMILY_NOT_SUPPORTED: i32 = 97;
    matches!(why.kind(), io::ErrorKind::AddrNotAvailable | io::ErrorKind::Unsupported)
        || why.raw_os_error() == Some(FAMILY_NOT_SUPPORTED)
}

/// Whether `address` has the form that [`Addresses`](super::Addresses) take; whether it can be bound is another matter.
///
/// # Errors
/// [`BindError`], with a next step.
pub fn check_address(address: &str) -> Result<(), BindError> {
    split(address).map(drop).map_err(|reason| BindError { address: address.to_owned(), reason })
}

/// Host, which may be empty, and port.
fn split(address: &str) -> Result<(&str, u16), String> {
    let malformed = || "write host:port, e.g. :9090 or 127.0.0.1:9090".to_owned();
    let (host, port) = address.rsplit_once(':').ok_or_else(malformed)?;
    let port: u16 = port.parse().map_err(|_| malformed())?;
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    // Colons inside of a host are IPv6, which needs its brackets.
    if bare.is_none() && host.contains([':', '[', ']', ' ', '/']) {
        return Err(malformed());
    }
    Ok((bare.unwrap_or(host), port))
}

/// Where to try, in order.
async fn candidates(address: &str) -> Result<Vec<SocketAddr>, String> {
    let (host, port) = split(address)?;
    if host.is_empty() {
        return Ok(vec![(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()]);
    }
    let resolved = tokio::net::lookup_host((host, port)).await.map_err(|why| why.to_string())?;
    let mut resolved: Vec<SocketAddr> = resolved.collect();
    resolved.sort_by_key(SocketAddr::is_ipv6); // a name means its IPv4 address if it has one, as in Go
    Ok(resolved)
}

fn listener(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        // [::] takes IPv4 as well, whatever the system's default is.
        socket.set_only_v6(!address.ip().is_unspecified())?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    TcpListener::from_std(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_form_of_address_is_bound() {
        for address in [":0", "127.0.0.1:0", "localhost:0", "[::]:0"] {
            let listener = bind(address).await.unwrap_or_else(|why| panic!("{why}"));
            assert_ne!(listener.local_addr().expect("bound").port(), 0);
        }
    }

    #[test]
    fn the_form_is_checked_without_binding() {
        for address in [":9090", "127.0.0.1:0", "localhost:1", "[::1]:65535", "no.such.host.invalid:1"] {
            check_address(address).expect(address);
        }
        for address in ["", "9090", "x", ":", ":http", ":70000", "::1:80", "a b:1", "http://a:1", "[::1:80"] {
            assert!(check_address(address).expect_err(address).to_string().contains("write host:port"), "{address}");
        }
    }

    #[tokio::test]
    async fn an_empty_host_takes_ipv4() {
        let listener = bind(":0").await.expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        tokio::net::TcpStream::connect(("127.0.0.1", port)).await.expect("IPv4 is served");
    }

    /// server:160. The other half of the port is free, and is not taken for the whole.
    #[tokio::test]
    async fn a_port_that_is_taken_in_one_family_is_taken() {
        let Ok(taken) = listener(([0, 0, 0, 0, 0, 0, 0, 1], 0).into()) else { return }; // no IPv6 here
        drop(taken);
        let six = Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP)).expect("a socket");
        six.set_only_v6(true).expect("set");
        six.bind(&SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)).into()).expect("a free port");
        six.listen(1).expect("listens");
        let port = six.local_addr().ok().and_then(|address| address.as_socket()).expect("bound").port();
        let why = bind(&format!(":{port}")).await.expect_err("half of it is taken").to_string();
        assert!(why.contains("in use"), "{why}");
    }

    #[test]
    fn only_an_address_that_the_system_lacks_is_passed_over() {
        use std::io::ErrorKind::{AddrInUse, AddrNotAvailable, PermissionDenied, Unsupported};
        let absent = [Unsupported, AddrInUse, AddrNotAvailable, PermissionDenied].map(|kind| is_absent(&kind.into()));
        assert_eq!(absent, [true, false, true, false]);
    }

    #[tokio::test]
    async fn what_cannot_be_bound_is_named() {
        let taken = bind("127.0.0.1:0").await.expect("a free port");
        let taken = taken.local_addr().expect("bound").to_string();
        for address in ["9090", "127.0.0.1", ":http", ":70000", "", "no.such.host.invalid:1", taken.as_str()] {
            let why = bind(address).await.expect_err(address).to_string();
            assert!(why.contains(&format!("{address:?}")), "{why}");
        }
    }
}
