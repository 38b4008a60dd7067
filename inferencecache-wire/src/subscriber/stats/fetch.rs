//! One page of metrics over plain HTTP: a connection of its own, a limit on time and size, and no redirects.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty, LengthLimitError, Limited};
use hyper::header::{ACCEPT, CONNECTION, HOST, USER_AGENT};
use hyper::{Request, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::chain::chain;

/// From dialling to the last byte.
pub const TIMEOUT: Duration = Duration::from_secs(5);
/// Longest page that is read, in bytes.
pub const MAX_PAGE: usize = 16 << 20;

/// The address cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{url:?} is not http://host:port/path; engines serve their metrics without TLS")]
pub struct BadUrl {
    url: String,
}

/// Why there is no page.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FetchError {
    /// Nobody answers, or the answer broke off.
    #[error("no answer: {0}")]
    Unreachable(String),
    /// It took more than [`TIMEOUT`].
    #[error("no whole answer within {TIMEOUT:?}")]
    Timeout,
    /// Any status but 200; redirects are not followed.
    #[error("status {0}")]
    Status(u16),
    /// More than [`MAX_PAGE`].
    #[error("the page has more than {MAX_PAGE} bytes")]
    TooLarge,
}

/// Where a page is.
#[derive(Debug, Clone)]
pub struct Target {
    host: String,
    port: u16,
    authority: Arc<str>,
    path: Arc<str>,
}

impl Target {
    /// Understands `http://host[:port]/path`.
    ///
    /// # Errors
    ///
    /// [`BadUrl`].
    pub fn new(url: &str) -> Result<Self, BadUrl> {
        let bad = || BadUrl { url: url.to_owned() };
        let uri: Uri = url.parse().map_err(|_| bad())?;
        let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http")).ok_or_else(bad)?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        // What the authority says behind the host must be a port, or nothing.
        let port = match authority.as_str().strip_prefix(authority.host()).ok_or_else(bad)? {
            "" => 80,
            _ => authority.port_u16().filter(|&port| port > 0).ok_or_else(bad)?,
        };
        if host.is_empty() {
            return Err(bad());
        }
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        Ok(Self { host: host.to_owned(), port, authority: authority.as_str().into(), path: path.into() })
    }

    /// Fetches the page. The name is resolved anew each time.
    ///
    /// # Errors
    ///
    /// [`FetchError`].
    pub async fn fetch(&self) -> Result<Bytes, FetchError> {
        timeout(TIMEOUT, self.exchange()).await.unwrap_or(Err(FetchError::Timeout))
    }

    async fn exchange(&self) -> Result<Bytes, FetchError> {
        let request = Request::get(&*self.path)
            .header(HOST, &*self.authority)
            .header(ACCEPT, "text/plain;version=0.0.4")
            .header(USER_AGENT, "kvevent-subscriber")
            .header(CONNECTION, "close")
            .body(Empty::<Bytes>::new())
            .map_err(|error| FetchError::Unreachable(error.to_string()))?;
        let stream = TcpStream::connect((&*self.host, self.port)).await.map_err(|error| unreachable(&error))?;
        let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = handshake.map_err(|error| unreachable(&error))?;
        // Dropped, and so ended, with this call.
        let mut driver = JoinSet::new();
        driver.spawn(connection);
        let response = sender.send_request(request).await.map_err(|error| unreachable(&error))?;
        if response.status() != StatusCode::OK {
            return Err(FetchError::Status(response.status().as_u16()));
        }
        match Limited::new(response.into_body(), MAX_PAGE).collect().await {
            Ok(body) => Ok(body.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => Err(FetchError::TooLarge),
            Err(error) => Err(unreachable(&*error)),
        }
    }
}

fn unreachable(error: &(dyn std::error::Error + 'static)) -> FetchError {
    FetchError::Unreachable(chain(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_plain_http_with_a_host() {
        for (url, host, port, path) in [
            ("http://127.0.0.1:8000/metrics", "127.0.0.1", 8000, "/metrics"),
            ("http://[::1]:30000/metrics?x=1", "::1", 30_000, "/metrics?x=1"),
            ("http://engine", "engine", 80, "/"),
        ] {
            let target = Target::new(url).unwrap();
            assert_eq!((&*target.host, target.port, &*target.path), (host, port, path), "{url}");
        }
        for url in [
            "",
            "metrics",
            "/metrics",
            "127.0.0.1:8000",
            "https://h/metrics",
            "http://:80/",
            "http://h:0/",
            "http://h:99999/",
            "http://u@h/",
        ] {
            assert!(Target::new(url).is_err(), "{url}");
        }
    }
}
