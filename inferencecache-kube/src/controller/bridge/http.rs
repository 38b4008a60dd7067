//! One HTTP call: bounded in time and bytes.

use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::header::{self, HeaderValue};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use inferencecache_wire::tls::{ClientFiles, ClientTls, Connector, Reload, TlsError};
use tokio::time::timeout;

use super::error::BridgeError;

/// For one call, from dialling to the last byte of the answer.
pub const TIMEOUT: Duration = Duration::from_secs(5);
/// Connections kept for the next call, and for how long: the next server behind the same name is found soon.
const IDLE_CONNECTIONS: usize = 4;
const IDLE_TIME: Duration = Duration::from_secs(10);

/// Not an address that can be called.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not http://host:port/path or https://host:port/path")]
pub struct InvalidEndpoint(pub String);

/// An `http` or `https` address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    text: String,
    uri: Uri,
}

impl Endpoint {
    /// Reads one.
    ///
    /// # Errors
    /// [`InvalidEndpoint`].
    pub fn parse(text: &str) -> Result<Self, InvalidEndpoint> {
        let wrong = || InvalidEndpoint(text.to_owned());
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let known = matches!(uri.scheme_str(), Some("http" | "https"));
        if !known || uri.host().is_none_or(str::is_empty) {
            return Err(wrong());
        }
        Ok(Self { text: text.to_owned(), uri })
    }

    /// As it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Whether the server has to show a certificate.
    #[must_use]
    pub fn is_secure(&self) -> bool {
        self.uri.scheme_str() == Some("https")
    }
}

/// Both kinds of connections.
#[derive(Clone, Debug)]
pub(super) struct Http {
    plain: Client<HttpConnector, Full<Bytes>>,
    secure: Option<Client<Connector, Full<Bytes>>>,
}

impl Http {
    pub(super) async fn new(ca: Option<PathBuf>) -> Result<Self, TlsError> {
        let mut builder = Client::builder(TokioExecutor::new());
        builder.pool_timer(TokioTimer::new()).pool_max_idle_per_host(IDLE_CONNECTIONS).pool_idle_timeout(IDLE_TIME);
        let secure = match ca {
            None => None,
            Some(ca) => {
                let shown = ca.display().to_string();
                let files = ClientFiles { ca, identity: None, server_name: None };
                let tls = ClientTls::load(files, &[b"http/1.1"], move |reload| match reload {
                    Reload::Refused(why) => tracing::error!(error = why.full(), ca = shown, "server authorities"),
                    _ => tracing::info!(ca = shown, "server authorities replaced"),
                });
                Some(builder.build(tls.await?.connector()))
            }
        };
        let mut tcp = HttpConnector::new();
        tcp.set_nodelay(true);
        Ok(Self { plain: builder.build(tcp), secure })
    }

    /// Status and body of one call.
    pub(super) async fn call(
        &self,
        method: Method,
        endpoint: &Endpoint,
        token: Option<HeaderValue>,
        body: Option<Bytes>,
        limit: usize,
    ) -> Result<(StatusCode, Bytes), BridgeError> {
        let call = self.unbounded(method, endpoint, token, body, limit);
        timeout(TIMEOUT, call).await.unwrap_or(Err(BridgeError::Late))
    }

    async fn unbounded(
        &self,
        method: Method,
        endpoint: &Endpoint,
        token: Option<HeaderValue>,
        body: Option<Bytes>,
        limit: usize,
    ) -> Result<(StatusCode, Bytes), BridgeError> {
        let mut request = Request::builder()
            .method(method)
            .uri(endpoint.uri.clone())
            .header(header::USER_AGENT, "inferencecache-controller")
            .header(header::ACCEPT, "application/json");
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        if let Some(token) = token {
            request = request.header(header::AUTHORIZATION, token);
        }
        let request = request.body(Full::new(body.unwrap_or_default()));
        let request = request.map_err(|why| BridgeError::Unreachable(why.to_string()))?;
        let answer = match (&self.secure, endpoint.is_secure()) {
            (_, false) => self.plain.request(request).await,
            (Some(secure), true) => secure.request(request).await,
            (None, true) => {
                return Err(BridgeError::Unreachable("no authorities to verify the server with".to_owned()));
            }
        };
        let answer = answer.map_err(|why| BridgeError::Unreachable(causes(&why)))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), limit).collect().await.map_err(|why| {
            if why.is::<LengthLimitError>() {
                BridgeError::TooLong(limit)
            } else {
                BridgeError::Unreachable(format!("the answer broke off: {why}"))
            }
        })?;
        Ok((status, body.to_bytes()))
    }
}

/// An error and what caused it, in one line.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(next) = cause {
        text.push_str(": ");
        text.push_str(&next.to_string());
        cause = next.source();
    }
    text
}
