//! Token reviews over HTTPS: `authentication.k8s.io/v1` TokenReview, asked of a Kubernetes API server.
//!
//! 1. The own token and the authorities are read from their files again and again: replacing them needs no restart.
//! 2. Whatever is not a review (a refusal of our own token, an error page, silence) is [`ReviewUnavailable`] and never a verdict
//!    on the token that was to be reviewed.
//! 3. What the server says is read up to 1 MiB.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderValue, Method, Request, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use serde::{Deserialize, Serialize};

use crate::auth::{PendingReview, Review, ReviewUnavailable, TokenReviewer};
use crate::chain::chain;
use crate::tls::{ClientFiles, ClientTls, Connector, Reload, TlsError};

/// Where a pod finds its own token and the authorities of its API server.
pub const SERVICE_ACCOUNT_DIR: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// For one review. The bearer guard's own limit is not longer.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Most that is read of an answer, in bytes.
const MAX_ANSWER: usize = 1024 * 1024;
/// Connections kept for the next review, and for how long.
const IDLE_CONNECTIONS: usize = 4;
const IDLE_TIME: Duration = Duration::from_secs(60);

/// An API server and who we are to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiServer {
    /// `https://host:port`, without a path.
    pub url: String,
    /// PEM bundle that its certificate must come from.
    pub ca_file: PathBuf,
    /// Our own token, which must be allowed to create TokenReviews.
    pub token_file: PathBuf,
}

/// Why there is no reviewer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoReviewer {
    /// This process does not run in a cluster.
    #[error("not in a cluster: {0}")]
    NotInCluster(String),
    /// Not an `https` URL of a host.
    #[error("{0:?} is not https://host:port")]
    Url(String),
    /// The authorities cannot be used.
    #[error("cannot verify the API server")]
    Tls(#[from] TlsError),
}

impl ApiServer {
    /// The API server of the cluster that this pod runs in. `host` and `port` are `KUBERNETES_SERVICE_HOST` and
    /// `KUBERNETES_SERVICE_PORT`, `dir` is [`SERVICE_ACCOUNT_DIR`].
    ///
    /// # Errors
    /// [`NoReviewer::NotInCluster`] when one of them is missing.
    pub fn in_cluster(host: Option<&str>, port: Option<&str>, dir: &Path) -> Result<Self, NoReviewer> {
        let missing = |name: &str| NoReviewer::NotInCluster(format!("{name} is not set"));
        let host = host.filter(|host| !host.is_empty()).ok_or_else(|| missing("KUBERNETES_SERVICE_HOST"))?;
        let port = port.filter(|port| !port.is_empty()).ok_or_else(|| missing("KUBERNETES_SERVICE_PORT"))?;
        let token_file = dir.join("token");
        if let Err(why) = std::fs::read(&token_file) {
            return Err(NoReviewer::NotInCluster(format!("cannot read {}: {why}", token_file.display())));
        }
        let url =
            if host.contains(':') { format!("https://[{host}]:{port}") } else { format!("https://{host}:{port}") };
        Ok(Self { url, ca_file: dir.join("ca.crt"), token_file })
    }
}

/// Asks an API server.
pub struct HttpTokenReviewer {
    client: Client<Connector, Full<Bytes>>,
    url: Uri,
    token_file: PathBuf,
}

impl HttpTokenReviewer {
    /// A reviewer that connects when first asked.
    ///
    /// # Errors
    /// [`NoReviewer`] when it could never connect.
    pub async fn new(server: ApiServer) -> Result<Self, NoReviewer> {
        let ApiServer { url, ca_file, token_file } = server;
        let uri: Uri = format!("{}/apis/authentication.k8s.io/v1/tokenreviews", url.trim_end_matches('/'))
            .parse()
            .map_err(|_| NoReviewer::Url(url.clone()))?;
        if uri.scheme_str() != Some("https") || uri.host().is_none_or(str::is_empty) {
            return Err(NoReviewer::Url(url));
        }
        let shown = ca_file.display().to_string();
        let files = ClientFiles { ca: ca_file, identity: None, server_name: None };
        let tls = ClientTls::load(files, &[b"http/1.1"], move |reload| match reload {
            Reload::Refused(why) => tracing::error!(err = why.full(), ca_file = shown, "kube_client_ca_reload"),
            _ => tracing::info!(ca_file = shown, "kube_client_ca_reloaded"),
        });
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_max_idle_per_host(IDLE_CONNECTIONS)
            .pool_idle_timeout(IDLE_TIME)
            .build(tls.await?.connector());
        Ok(Self { client, url: uri, token_file })
    }

    async fn ask(&self, token: &str, audience: &str) -> Result<Review, ReviewUnavailable> {
        let own = self.token_file.clone();
        let own = tokio::task::spawn_blocking(move || std::fs::read_to_string(&own)).await;
        let own = own.map_err(|_| unavailable("the server is ending"))?;
        let own = own.map_err(|why| unavailable(format!("cannot read {}: {why}", self.token_file.display())))?;
        let question = Question {
            api_version: "authentication.k8s.io/v1",
            kind: "TokenReview",
            spec: Spec { token, audiences: (!audience.is_empty()).then_some([audience]) },
        };
        let body = serde_json::to_vec(&question).map_err(|why| unavailable(why.to_string()))?;
        // Not said why it is none: that would tell it.
        let mut bearer = HeaderValue::from_maybe_shared(Bytes::from(format!("Bearer {}", own.trim())))
            .map_err(|_| unavailable(format!("{} holds no token", self.token_file.display())))?;
        bearer.set_sensitive(true);
        let request = Request::builder()
            .method(Method::POST)
            .uri(self.url.clone())
            .header(header::AUTHORIZATION, bearer)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json")
            .header(header::USER_AGENT, "inferencecache-server")
            .body(Full::new(body.into()))
            .map_err(|why| unavailable(why.to_string()))?;
        let answer = self.client.request(request).await.map_err(|why| unavailable(chain(&why)))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
        let body = body.map_err(|why| unavailable(format!("the answer broke off: {why}")))?.to_bytes();
        if !status.is_success() {
            let said: Failure = serde_json::from_slice(&body).unwrap_or_default();
            return Err(unavailable(format!("the API server answers {status}: {}", said.message)));
        }
        let answer: Answer = serde_json::from_slice(&body)
            .map_err(|why| unavailable(format!("the answer is not a TokenReview: {why}")))?;
        let found = answer.status.ok_or_else(|| unavailable("the answer has no status"))?;
        Ok(Review {
            authenticated: found.authenticated,
            username: found.user.unwrap_or_default().username,
            audiences: found.audiences.unwrap_or_default(),
            error: found.error.unwrap_or_default(),
        })
    }
}

impl TokenReviewer for HttpTokenReviewer {
    fn review<'a>(&'a self, token: &'a str, audience: &'a str) -> PendingReview<'a> {
        Box::pin(async move {
            match tokio::time::timeout(TIMEOUT, self.ask(token, audience)).await {
                Ok(answer) => answer,
                Err(_) => Err(unavailable(format!("the API server did not answer within {TIMEOUT:?}"))),
            }
        })
    }
}

impl fmt::Debug for HttpTokenReviewer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpTokenReviewer").field("url", &self.url).finish_non_exhaustive()
    }
}

fn unavailable(why: impl Into<String>) -> ReviewUnavailable {
    ReviewUnavailable(why.into())
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Question<'a> {
    api_version: &'static str,
    kind: &'static str,
    spec: Spec<'a>,
}

#[derive(Serialize)]
struct Spec<'a> {
    token: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    audiences: Option<[&'a str; 1]>,
}

#[derive(Deserialize)]
struct Answer {
    status: Option<Found>,
}

#[derive(Deserialize)]
struct Found {
    #[serde(default)]
    authenticated: bool,
    user: Option<User>,
    audiences: Option<Vec<String>>,
    error: Option<String>,
}

#[derive(Default, Deserialize)]
struct User {
    #[serde(default)]
    username: String,
}

/// A Kubernetes `Status`, of which only the sentence is of interest.
#[derive(Default, Deserialize)]
struct Failure {
    #[serde(default)]
    message: String,
}
