//! What a recording says beside its frames: the prompts, what the engine reused, and how the engine was set up.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use inferencecache_wire::kvevents::{BatchHead, BatchSink, EngineDecoder, EngineEvent, Malformed, MsgpackDecoder};
use serde::Deserialize;

/// One recorded prompt.
pub(crate) struct Prompt {
    pub(crate) model: String,
    pub(crate) token_ids: Vec<u32>,
    /// Tokens that the engine itself took from its cache.
    pub(crate) cached_tokens: u32,
    /// Frames of the recording that come before it.
    pub(crate) frames_before: usize,
    /// An operator cleared the cache and the engine has not said so yet.
    pub(crate) unannounced_reset: bool,
}

/// One recording.
pub(crate) struct Capture {
    pub(crate) path: PathBuf,
    /// The engine family, which is also the hash scheme: the beginning of the file's name.
    pub(crate) engine: String,
    pub(crate) topic: String,
    pub(crate) block_size: u32,
    /// Sequence number of each frame.
    pub(crate) sequences: Vec<u64>,
    pub(crate) prompts: Vec<Prompt>,
    adapters: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Line {
    frame: Option<Vec<String>>,
    request: Option<Request>,
    reset: Option<bool>,
}

#[derive(Deserialize)]
struct Request {
    model: String,
    token_ids: Vec<u32>,
    cached_tokens: u32,
}

impl Capture {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let name = path.file_name().and_then(|name| name.to_str()).context("a capture needs a file name")?;
        let engine = name.split('-').next().unwrap_or_default().to_owned();
        let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let mut capture = Self {
            path: path.to_owned(),
            engine,
            topic: String::new(),
            block_size: 0,
            sequences: Vec::new(),
            prompts: Vec::new(),
            adapters: BTreeSet::new(),
        };
        let mut unannounced_reset = false;
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let at = || format!("{name}, line {}", number + 1);
            let line: Line = serde_json::from_str(line).with_context(at)?;
            if let Some(frame) = line.frame {
                capture.frame(&frame).with_context(at)?;
                unannounced_reset = false;
            }
            unannounced_reset |= line.reset.unwrap_or(false);
            if let Some(request) = line.request {
                capture.prompts.push(Prompt {
                    model: request.model,
                    token_ids: request.token_ids,
                    cached_tokens: request.cached_tokens,
                    frames_before: capture.sequences.len(),
                    unannounced_reset,
                });
            }
        }
        if capture.block_size == 0 {
            bail!("{name} holds no store event, so its block size is unknown");
        }
        Ok(capture)
    }

    /// The adapter that a request's model name stands for; empty for the base model.
    pub(crate) fn adapter<'a>(&self, model: &'a str) -> &'a str {
        if self.adapters.contains(model) { model } else { "" }
    }

    fn frame(&mut self, parts: &[String]) -> Result<()> {
        let [topic, sequence, payload] = parts else { bail!("a frame has three parts, this one {}", parts.len()) };
        self.topic = String::from_utf8(unhex(topic)?)?;
        self.sequences.push(u64::from_str_radix(sequence, 16).context("sequence")?);
        // An undecodable payload is the subscriber's affair; it tells us nothing here.
        let _ = MsgpackDecoder::default().decode(&unhex(payload)?, self);
        Ok(())
    }
}

impl BatchSink for Capture {
    fn batch(&mut self, _head: BatchHead) {}

    fn event(&mut self, event: Result<EngineEvent<'_>, Malformed>) {
        if let Ok(EngineEvent::Stored(stored)) = event {
            let device = stored.medium.is_none_or(|medium| medium.eq_ignore_ascii_case("GPU"));
            let whole = stored.kind.is_none_or(|kind| kind.ends_with("full_attention") || kind == "mla_attention");
            if self.block_size == 0 && device && whole {
                self.block_size = stored.block_size;
            }
            self.adapters.extend(stored.lora_name.map(str::to_owned));
        }
    }
}

fn unhex(text: &str) -> Result<Vec<u8>> {
    let digits = text.as_bytes().chunks(2);
    digits
        .map(|pair| {
            let pair = std::str::from_utf8(pair)?;
            u8::from_str_radix(pair, 16).with_context(|| format!("`{pair}` is not hex"))
        })
        .collect()
}
