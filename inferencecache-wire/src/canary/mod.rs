//! Does an engine reuse the KV of a prompt that it was sent as token ids? Asked by sending one twice.
//!
//! ```text
//! send ──> read counters ──> send again ──> read counters      the hits must have risen
//! ```
//!
//! This is for people who set an engine up, and for tests against live ones; the server never talks to engines.

mod counter;
mod engine;

use std::time::Duration;

pub use self::counter::{CounterError, counter};
pub use self::engine::{Completed, Completion, Engine, EngineError};

/// vLLM's count of tokens found in its prefix cache.
pub const HITS: &str = "vllm:prefix_cache_hits_total";
/// vLLM's count of tokens looked for in its prefix cache.
pub const QUERIES: &str = "vllm:prefix_cache_queries_total";

/// Time for one request to an engine unless set otherwise: a minute.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// The two-send check.
///
/// ```no_run
/// use inferencecache_wire::canary::{Canary, Engine, prompt};
///
/// # async fn check() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = Engine::new("http://127.0.0.1:8000")?;
/// let report = Canary::new(engine).run("Qwen/Qwen2.5-0.5B-Instruct", &prompt(2048, 256)).await?;
/// assert!(report.hit());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Canary {
    engine: Engine,
    metrics: Option<String>,
    hits: String,
    queries: String,
}

/// The two counters around the second send.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Report {
    /// Hits before and after.
    pub hits: [f64; 2],
    /// Queries before and after.
    pub queries: [f64; 2],
}

/// Why the check came to no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CanaryError {
    /// The engine could not be asked.
    #[error("the engine could not be asked")]
    Engine(#[from] EngineError),
    /// A counter could not be read.
    #[error("{name} could not be read")]
    Counter {
        /// Its name.
        name: String,
        /// Why.
        #[source]
        source: CounterError,
    },
}

/// `tokens` token ids that any model with a vocabulary of `vocabulary` ids knows: 1, 2, … and again from 1 at its end.
#[must_use]
pub fn prompt(tokens: u32, vocabulary: u32) -> Vec<u32> {
    let distinct = vocabulary.saturating_sub(1).max(1);
    (0..tokens).map(|i| 1 + i % distinct).collect()
}

impl Canary {
    /// A check of `engine`, by vLLM's counters from its own `/metrics`.
    #[must_use]
    pub fn new(engine: Engine) -> Self {
        Self { engine, metrics: None, hits: HITS.to_owned(), queries: QUERIES.to_owned() }
    }

    /// Reads the counters from this address instead of the engine's own.
    #[must_use]
    pub fn metrics(mut self, url: &str) -> Self {
        self.metrics = Some(url.to_owned());
        self
    }

    /// Reads counters of these names. Default [`HITS`] and [`QUERIES`].
    #[must_use]
    pub fn counters(mut self, hits: &str, queries: &str) -> Self {
        hits.clone_into(&mut self.hits);
        queries.clone_into(&mut self.queries);
        self
    }

    /// Sends `prompt` twice, one output token each, and reads the counters around the second.
    ///
    /// # Errors
    /// [`CanaryError`] when the engine does not answer, or a counter is not there.
    pub async fn run(&self, model: &str, prompt: &[u32]) -> Result<Report, CanaryError> {
        let completion = Completion { model, prompt, max_tokens: 1, temperature: 0.0 };
        self.engine.complete(&completion).await?;
        let [hits, queries] = self.read().await?;
        self.engine.complete(&completion).await?;
        let [hits_after, queries_after] = self.read().await?;
        Ok(Report { hits: [hits, hits_after], queries: [queries, queries_after] })
    }

    async fn read(&self) -> Result<[f64; 2], CanaryError> {
        let text = self.engine.metrics(self.metrics.as_deref()).await?;
        let read =
            |name: &String| counter(&text, name).map_err(|source| CanaryError::Counter { name: name.clone(), source });
        Ok([read(&self.hits)?, read(&self.queries)?])
    }
}

impl Report {
    /// Whether the engine reused what it had: the hits rose with the second send.
    #[must_use]
    pub fn hit(&self) -> bool {
        self.hits[1] > self.hits[0]
    }
}
