//! A client of an engine's completions: plain HTTP, token ids in, bounded answers out.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, LengthLimitError, Limited};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request, Response, Uri};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::DEFAULT_TIMEOUT;

/// Most bytes read of an answer to a completion.
const MAX_ANSWER_BYTES: usize = 1 << 20;
/// Most bytes read of a page of metrics.
const MAX_METRICS_BYTES: usize = 8 << 20;

/// An engine that speaks the completions protocol over HTTP without TLS.
#[derive(Debug, Clone)]
pub struct Engine {
    endpoint: String,
    timeout: Duration,
}

/// A prompt of token ids. It is sent to `/v1/completions`: the chat endpoint would put it into the template once more.
#[derive(Debug, Clone, Copy)]
pub struct Completion<'a> {
    /// The model's name at the engine.
    pub model: &'a str,
    /// Its token ids.
    pub prompt: &'a [u32],
    /// Most tokens to answer with; 0 leaves it to the engine.
    pub max_tokens: u32,
    /// Sampling temperature.
    pub temperature: f64,
}

/// The first choice of the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completed {
    /// What the model wrote.
    pub text: String,
    /// Why it stopped; empty when the engine did not say.
    pub finish_reason: String,
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Tokens of the text.
    pub completion_tokens: u64,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The address is not one that can be dialled.
    #[error("expected http://host:port")]
    Address,
    /// Nobody answered.
    #[error("the connection failed")]
    Connection(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// It took too long.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The engine refused.
    #[error("status {status}: {body}")]
    Status {
        /// HTTP status.
        status: u16,
        /// What the engine said.
        body: String,
    },
    /// The answer is longer than is read: 1 MiB, for metrics 8 MiB.
    #[error("the answer has more than {0} bytes")]
    TooLarge(usize),
    /// The answer is not a completion.
    #[error("the answer is not a completion")]
    Answer(#[source] serde_json::Error),
    /// The answer has no choice.
    #[error("the answer has no choices")]
    NoChoices,
}

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    prompt: &'a [u32],
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u32>,
    temperature: f64,
    stream: bool,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<Usage>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    text: String,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
}

impl Engine {
    /// An engine at `endpoint`, such as `http://10.0.0.7:8000`. Slashes at its end do not matter. Nothing is connected yet.
    ///
    /// # Errors
    /// [`EngineError::Address`].
    pub fn new(endpoint: &str) -> Result<Self, EngineError> {
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        target(&endpoint)?;
        Ok(Self { endpoint, timeout: DEFAULT_TIMEOUT })
    }

    /// Gives one request so much time, from connecting to the last byte. Default [`DEFAULT_TIMEOUT`].
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sends a prompt and waits for its completion.
    ///
    /// # Errors
    /// [`EngineError`].
    pub async fn complete(&self, completion: &Completion<'_>) -> Result<Completed, EngineError> {
        let Completion { model, prompt, max_tokens, temperature } = *completion;
        let max_tokens = (max_tokens > 0).then_some(max_tokens);
        let body = Body { model, prompt, max_tokens, temperature, stream: false };
        let body = serde_json::to_vec(&body).map_err(EngineError::Answer)?;
        let url = format!("{}/v1/completions", self.endpoint);
        let answer = self.exchange(Method::POST, &url, body, MAX_ANSWER_BYTES).await?;
        let answer: Answer = serde_json::from_slice(&answer).map_err(EngineError::Answer)?;
        let usage = answer.usage.unwrap_or_default();
        let choice = answer.choices.into_iter().next().ok_or(EngineError::NoChoices)?;
        Ok(Completed {
            text: choice.text,
            finish_reason: choice.finish_reason.unwrap_or_default(),
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
        })
    }

    /// A page of metrics: the engine's own, or the one at `url`.
    ///
    /// # Errors
    /// [`EngineError`].
    pub async fn metrics(&self, url: Option<&str>) -> Result<Bytes, EngineError> {
        let own = format!("{}/metrics", self.endpoint);
        self.exchange(Method::GET, url.unwrap_or(&own), Vec::new(), MAX_METRICS_BYTES).await
    }

    async fn exchange(&self, method: Method, url: &str, body: Vec<u8>, limit: usize) -> Result<Bytes, EngineError> {
        let exchange = exchange(method, url, body, limit);
        tokio::time::timeout(self.timeout, exchange).await.unwrap_or(Err(EngineError::Timeout(self.timeout)))
    }
}

/// The parts of an address that are needed to dial it.
fn target(url: &str) -> Result<(Uri, String, u16), EngineError> {
    let uri: Uri = url.parse().map_err(|_| EngineError::Address)?;
    let host = uri.host().filter(|_| uri.scheme_str() == Some("http")).ok_or(EngineError::Address)?;
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let port = uri.port_u16().unwrap_or(80);
    Ok((uri, host, port))
}

/// One request on a connection of its own.
async fn exchange(method: Method, url: &str, body: Vec<u8>, limit: usize) -> Result<Bytes, EngineError> {
    let (uri, host, port) = target(url)?;
    let authority = uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let request = Request::builder().method(method).uri(path).header(HOST, authority);
    let request = request.header(CONTENT_TYPE, "application/json").body(Full::new(Bytes::from(body)));
    let request = request.map_err(|_| EngineError::Address)?;

    let stream = TcpStream::connect((host, port)).await.map_err(failed)?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    // Dropped, and so ended, with this call.
    let mut driver = JoinSet::new();
    driver.spawn(connection);
    let response = sender.send_request(request).await.map_err(failed)?;
    let status = response.status();
    let answer = read(response, limit).await;
    if !status.is_success() {
        let body = answer.map(|body| String::from_utf8_lossy(&body).into_owned()).unwrap_or_default();
        return Err(EngineError::Status { status: status.as_u16(), body });
    }
    answer
}

async fn read(response: Response<hyper::body::Incoming>, limit: usize) -> Result<Bytes, EngineError> {
    match Limited::new(response.into_body(), limit).collect().await {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(EngineError::TooLarge(limit)),
        Err(error) => Err(EngineError::Connection(error)),
    }
}

fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> EngineError {
    EngineError::Connection(error.into())
}
