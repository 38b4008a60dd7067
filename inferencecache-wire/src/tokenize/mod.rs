//! Tokens for requests that carry text: tokenizers and chat templates from one directory, loaded once.
//!
//! ```text
//! Models::load ──> discover    which directories are models, links and names checked
//!                  config      special tokens
//!                  hf, tiktoken  the encoder
//!                  template    the chat template, tried once
//! encode_chat ──> template ──> encoder      both bounded, both behind catch_unwind
//! ```
//!
//! 1. Everything is read at start. A request reads no file; its model id is only compared with those that were loaded.
//! 2. Nothing is kept of a text: neither the text nor its tokens, not even pieces of it.
//! 3. A model that cannot be loaded is left out, and the others work. Whatever fails or panics later fails open.
//! 4. Equal text gives equal tokens, unless the template depends on the time: such models are reported.
//! 5. Nothing is logged but the loading.
//!
//! Not here: permits, threads and deadlines. They are the gRPC service's.

mod config;
mod discover;
mod extras;
mod hf;
mod model;
mod template;
mod tiktoken;
mod tojson;

use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use inferencecache_core::Clock;
use inferencecache_core::time::{Micros, SystemClock};
use inferencecache_core::tokenizer::{TokenizeError, Tokenizer};

use self::discover::Candidate;
use self::model::{LoadError, Model};

pub use self::discover::{SkipReason, Skipped, is_safe_model_id};

/// Most models that are read at the same time.
const MAX_LOADERS: usize = 4;
/// Most log lines about what was skipped; the total is always logged.
const MAX_SKIP_LINES: usize = 100;

/// The models of one directory, ready to encode. Share it by [`Arc`].
///
/// ```no_run
/// use std::{path::Path, sync::Arc};
/// use inferencecache_core::tokenizer::Tokenizer;
/// use inferencecache_wire::tokenize::Models;
///
/// let models = Models::load(Path::new("/models"));
/// models.report().log();
/// let tokens = models.encode_chat("Qwen/Qwen2.5-0.5B-Instruct", "hello");
/// # let _ = tokens;
/// ```
pub struct Models {
    models: HashMap<String, Model>,
    clock: Arc<dyn Clock>,
    report: LoadReport,
}

/// What became of a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LoadReport {
    /// The directory, as given.
    pub dir: String,
    /// Why the directory as a whole could not be read.
    pub unreadable: Option<String>,
    /// Models that can be used, in the order of their ids.
    pub loaded: Vec<Loaded>,
    /// Models that cannot, in the order of their ids.
    pub failed: Vec<Failed>,
    /// What was passed over.
    pub skipped: Vec<Skipped>,
}

/// A model that can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Loaded {
    /// Its id.
    pub model: String,
    /// Whether it has a chat template. Without one, every request with text fails open.
    pub chat: bool,
    /// Whether its prompts change with the time. Then they match an engine's only as long as both have the same date and
    /// time zone.
    pub depends_on_time: bool,
    /// How long loading took.
    pub took: Duration,
}

/// A model that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Failed {
    /// Its id.
    pub model: String,
    /// Why, with causes.
    pub error: String,
}

// === impl Models ===

impl Models {
    /// Loads every model below `dir`. Blocks for as long as that takes: up to seconds for each large vocabulary.
    ///
    /// Cannot fail: what cannot be read or used is in the [report](Self::report), and the rest works.
    #[must_use]
    pub fn load(dir: &Path) -> Self {
        Self::load_at(dir, Arc::new(SystemClock::default()))
    }

    /// Loads every model below `dir`; templates take the time from `clock`.
    #[must_use]
    pub fn load_at(dir: &Path, clock: Arc<dyn Clock>) -> Self {
        let mut report = LoadReport { dir: dir.display().to_string(), ..LoadReport::default() };
        let found = match discover::discover(dir) {
            Ok(found) => found,
            Err(error) => {
                report.unreadable = Some(error.to_string());
                return Self { models: HashMap::new(), clock, report };
            }
        };
        report.skipped = found.skipped;
        let mut models = HashMap::with_capacity(found.models.len());
        for (id, outcome) in load_all(&found.models, clock.now()) {
            match outcome {
                Ok((model, loaded)) => {
                    models.insert(id.to_owned(), model);
                    report.loaded.push(loaded);
                }
                Err(error) => report.failed.push(Failed { model: id.to_owned(), error: with_causes(&error) }),
            }
        }
        Self { models, clock, report }
    }

    /// What became of the directory.
    #[must_use]
    pub fn report(&self) -> &LoadReport {
        &self.report
    }

    /// How many models can be used.
    #[must_use]
    pub fn len(&self) -> usize {
        self.models.len()
    }

    /// Whether no model can be used.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.models.is_empty()
    }

    /// Token ids of the text itself, without a chat template and with the special tokens that the tokenizer adds, such as a
    /// first token. For base models and tests; no request leads here.
    ///
    /// # Errors
    /// [`TokenizeError`] when the model is unknown, or the text has a NUL or cannot be encoded.
    pub fn encode_plain(&self, model: &str, text: &str) -> Result<Vec<u32>, TokenizeError> {
        self.model(model)?.plain(text)
    }

    fn model(&self, id: &str) -> Result<&Model, TokenizeError> {
        if !is_safe_model_id(id) {
            return Err(TokenizeError::UnsafeModelId);
        }
        self.models.get(id).ok_or(TokenizeError::Unavailable)
    }
}

impl Tokenizer for Models {
    fn encode_chat(&self, model: &str, text: &str) -> Result<Vec<u32>, TokenizeError> {
        self.model(model)?.chat(text, self.clock.now())
    }
}

impl fmt::Debug for Models {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Models").field("report", &self.report).finish_non_exhaustive()
    }
}

// === impl LoadReport ===

impl LoadReport {
    /// Models in the directory, usable or not.
    #[must_use]
    pub fn found(&self) -> usize {
        self.loaded.len() + self.failed.len()
    }

    /// Writes it as log events: one for each model, one for each thing passed over (up to 100), and a summary.
    pub fn log(&self) {
        if let Some(err) = &self.unreadable {
            tracing::warn!(
                tokenizer_models_dir = self.dir,
                err,
                effect = "requests that carry only prompt_text are answered NO_HINT",
                "tokenizer_models_dir_unreadable"
            );
            return;
        }
        for Skipped { path, reason } in self.skipped.iter().take(MAX_SKIP_LINES) {
            tracing::warn!(path, reason = %reason, "tokenizer_model_skipped");
        }
        for Failed { model, error } in &self.failed {
            tracing::warn!(model, err = error, "tokenizer_model_failed");
        }
        for Loaded { model, chat, depends_on_time, took } in &self.loaded {
            let millis = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
            tracing::info!(model, chat_template = chat, millis, "tokenizer_model_loaded");
            if !chat {
                tracing::warn!(model, "tokenizer_model_without_chat_template");
            }
            if *depends_on_time {
                tracing::warn!(
                    model,
                    effect = "its prompts match the engine's only while both have the same date and time zone",
                    "tokenizer_model_date_dependent"
                );
            }
        }
        tracing::info!(
            tokenizer_models_dir = self.dir,
            found = self.found(),
            loaded = self.loaded.len(),
            failed = self.failed.len(),
            skipped = self.skipped.len(),
            "tokenizer_models_loaded"
        );
    }
}

// === loading ===

type Outcome = Result<(Model, Loaded), LoadError>;

/// Loads the candidates on a few threads; the outcomes are in the order of the ids.
fn load_all(candidates: &[Candidate], now: Micros) -> Vec<(&str, Outcome)> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut outcomes = Vec::new();
        while let Some(candidate) = candidates.get(next.fetch_add(1, Ordering::Relaxed)) {
            outcomes.push((&*candidate.id, load_one(candidate, now)));
        }
        outcomes
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(MAX_LOADERS).min(candidates.len());
    let mut outcomes: Vec<(&str, Outcome)> = thread::scope(|scope| {
        // This thread takes part, so that a system without further threads loads them as well.
        let others: Vec<_> =
            (1..threads).filter_map(|_| thread::Builder::new().spawn_scoped(scope, work).ok()).collect();
        let mine = work();
        others.into_iter().filter_map(|thread| thread.join().ok()).flatten().chain(mine).collect()
    });
    outcomes.sort_by_key(|(id, _)| *id);
    outcomes
}

fn load_one(candidate: &Candidate, now: Micros) -> Outcome {
    let start = Instant::now();
    let model = Model::load(candidate, now)?;
    let loaded = Loaded {
        model: candidate.id.clone(),
        chat: model.has_template(),
        depends_on_time: model.depends_on_time(now),
        took: start.elapsed(),
    };
    Ok((model, loaded))
}

fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests;
