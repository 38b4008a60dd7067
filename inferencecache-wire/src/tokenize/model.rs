//! One model: its encoder and its chat template, behind a wall that no panic passes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use inferencecache_core::time::Micros;
use inferencecache_core::tokenizer::TokenizeError;

use super::config::Config;
use super::discover::{Candidate, TIKTOKEN, TOKENIZER};
use super::hf::Hf;
use super::template::{ChatTemplate, TemplateError};
use super::tiktoken::{Tiktoken, VocabularyError};

/// Largest vocabulary file, in bytes. The largest in use have about 40 MB.
const MAX_VOCABULARY_BYTES: u64 = 256 << 20;
/// Largest of the other files, in bytes.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Turns text into token ids.
pub(super) trait Encoder: Send + Sync {
    /// Special tokens in `text` are recognised; `add_special` says whether some are added around it, too.
    ///
    /// # Errors
    /// [`TokenizeError::Failed`].
    fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizeError>;
}

/// A model in memory.
pub(super) struct Model {
    encoder: Box<dyn Encoder>,
    template: Option<ChatTemplate>,
}

/// Why a model was not loaded.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoadError {
    #[error("cannot read {file}")]
    Read {
        file: String,
        #[source]
        source: io::Error,
    },
    #[error("{file} has more than {limit} bytes")]
    TooLarge { file: String, limit: u64 },
    #[error("{file} is not the JSON expected")]
    Json {
        file: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("{TOKENIZER} cannot be used")]
    Tokenizer(#[source] tokenizers::Error),
    #[error("{file} cannot be used")]
    Vocabulary {
        file: String,
        #[source]
        source: VocabularyError,
    },
    #[error("the chat template cannot be used")]
    Template(#[from] TemplateError),
    #[error("neither {TOKENIZER} nor a {TIKTOKEN} file is left")]
    Gone,
    #[error("loading it panicked")]
    Panicked,
}

impl Model {
    /// Loads what the walk found, and tries its template at time `now`.
    ///
    /// # Errors
    /// [`LoadError`], also for a panic.
    pub(super) fn load(candidate: &Candidate, now: Micros) -> Result<Self, LoadError> {
        catch_unwind(AssertUnwindSafe(|| Self::load_unguarded(candidate, now))).unwrap_or(Err(LoadError::Panicked))
    }

    fn load_unguarded(candidate: &Candidate, now: Micros) -> Result<Self, LoadError> {
        let files = Files(&candidate.files);
        let config = match files.read("tokenizer_config.json", MAX_FILE_BYTES)? {
            Some(text) => Config::parse(&text).map_err(|source| json("tokenizer_config.json", source))?,
            None => Config::default(),
        };
        let encoder: Box<dyn Encoder> = if let Some(text) = files.read(TOKENIZER, MAX_VOCABULARY_BYTES)? {
            Box::new(Hf::load(&text, &config).map_err(LoadError::Tokenizer)?)
        } else if let Some(file) = candidate.files.keys().find(|name| name.ends_with(TIKTOKEN))
            && let Some(text) = files.read(file, MAX_VOCABULARY_BYTES)?
        {
            let vocabulary = Tiktoken::load(&text, &config);
            Box::new(vocabulary.map_err(|source| LoadError::Vocabulary { file: file.clone(), source })?)
        } else {
            return Err(LoadError::Gone);
        };
        let template = match files.template(&config)? {
            Some(source) => Some(ChatTemplate::compile(&source, &config, now)?),
            None => None,
        };
        Ok(Self { encoder, template })
    }

    /// A model made of parts.
    #[cfg(test)]
    pub(super) fn of(encoder: Box<dyn Encoder>, template: Option<ChatTemplate>) -> Self {
        Self { encoder, template }
    }

    /// Tokens of a chat of one user message, generation prompt on. The template writes the special tokens; none are added.
    ///
    /// # Errors
    /// [`TokenizeError::Failed`], also without a template and for a panic.
    pub(super) fn chat(&self, text: &str, now: Micros) -> Result<Vec<u32>, TokenizeError> {
        contained(|| {
            let template = self.template.as_ref().ok_or(TokenizeError::Failed)?;
            let prompt = template.render(text, now).map_err(|_| TokenizeError::Failed)?;
            self.encoder.encode(&prompt, false)
        })
    }

    /// Tokens of the text itself, with the special tokens that the tokenizer adds around it.
    ///
    /// # Errors
    /// [`TokenizeError::Failed`], also for a text with a NUL and for a panic.
    pub(super) fn plain(&self, text: &str) -> Result<Vec<u32>, TokenizeError> {
        if text.contains('\0') {
            return Err(TokenizeError::Failed);
        }
        contained(|| self.encoder.encode(text, true))
    }

    /// Whether chats can be encoded.
    pub(super) fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// Whether the template writes the time, or decides by it.
    pub(super) fn depends_on_time(&self, now: Micros) -> bool {
        let look = || Ok(self.template.as_ref().is_some_and(|template| template.depends_on_time(now)));
        contained(look).unwrap_or(false)
    }
}

fn contained<T>(work: impl FnOnce() -> Result<T, TokenizeError>) -> Result<T, TokenizeError> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(TokenizeError::Failed))
}

fn json(file: &str, source: serde_json::Error) -> LoadError {
    LoadError::Json { file: file.to_owned(), source }
}

/// The files of a model.
struct Files<'a>(&'a BTreeMap<String, PathBuf>);

impl Files<'_> {
    /// The file's bytes; `None` when there is no such file.
    fn read(&self, name: &str, limit: u64) -> Result<Option<Vec<u8>>, LoadError> {
        let Some(path) = self.0.get(name) else { return Ok(None) };
        let bytes = read(path, limit).map_err(|source| LoadError::Read { file: name.to_owned(), source })?;
        if bytes.len() as u64 > limit {
            return Err(LoadError::TooLarge { file: name.to_owned(), limit });
        }
        Ok(Some(bytes))
    }

    fn text(&self, name: &str) -> Result<Option<String>, LoadError> {
        let Some(bytes) = self.read(name, MAX_FILE_BYTES)? else { return Ok(None) };
        let text = String::from_utf8(bytes);
        let text = text.map_err(|error| LoadError::Read { file: name.to_owned(), source: io::Error::other(error) });
        text.map(Some)
    }

    /// The template's source: its own file, else the configuration's, else a JSON file, else any other template file.
    fn template(&self, config: &Config) -> Result<Option<String>, LoadError> {
        const OWN: &str = "chat_template.jinja";
        const JSON: &str = "chat_template.json";
        if let Some(source) = self.text(OWN)? {
            return Ok(Some(source));
        }
        if config.chat_template.is_some() {
            return Ok(config.chat_template.clone());
        }
        if let Some(text) = self.text(JSON)? {
            let value: serde_json::Value = serde_json::from_str(&text).map_err(|source| json(JSON, source))?;
            let source = value.as_str().or_else(|| value.get("chat_template")?.as_str());
            if let Some(source) = source {
                return Ok(Some(source.to_owned()));
            }
        }
        match self.0.keys().find(|name| name.ends_with(".jinja")) {
            Some(name) => self.text(name),
            None => Ok(None),
        }
    }
}

/// At most one byte more than `limit`.
fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
