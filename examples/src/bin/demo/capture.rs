//! What a recording says beside its frames: the prompts, what the engine reused, and how the engine was set up.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use inferencecache_wire::kvevents::{BatchHead, BatchSink, EngineDecoder, EngineEvent, Malformed, MsgpackDecoder};
use inferencecache_wire::testkit::capture as recording;

/// One recorded prompt.
pub(crate) struct Prompt {
    pub(crate) model: String,
    pub(crate) token_ids: Vec<u32>,
    /// Tokens that the engine itself took from its cache.
    pub(crate) cached_tokens: u32,
    /// Sequence of the last frame before it; none before the first frame.
    pub(crate) after: Option<u64>,
    /// An operator cleared the cache and the engine has not said so yet.
    pub(crate) unannounced_reset: bool,
}

/// One recording.
pub(crate) struct Capture {
    pub(crate) path: PathBuf,
    /// The engine family, which is also the hash scheme: the beginning of the file's name.
    pub(crate) engine: String,
    pub(crate) topic: String,
    pub(crate) frames: usize,
    pub(crate) prompts: Vec<Prompt>,
    events: Events,
}

/// What the store events say.
#[derive(Default)]
struct Events {
    block_size: u32,
    adapters: BTreeSet<String>,
}

impl Capture {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let name = path.file_name().and_then(|name| name.to_str()).context("a capture needs a file name")?;
        let rows = recording::Capture::load(path).map_err(|why| match why {
            recording::CaptureError::File { .. } => anyhow::Error::new(why), // names the file itself
            _ => anyhow::Error::new(why).context(format!("in {name}")),
        })?;
        let mut capture = Self {
            path: path.to_owned(),
            engine: name.split('-').next().unwrap_or_default().to_owned(),
            topic: String::new(),
            frames: 0,
            prompts: Vec::new(),
            events: Events::default(),
        };
        let (mut after, mut unannounced_reset) = (None, false);
        for row in rows.rows {
            match row {
                recording::Row::Frame(frame) => {
                    capture.topic = String::from_utf8_lossy(&frame.topic).into_owned();
                    capture.frames += 1;
                    after = Some(frame.sequence);
                    unannounced_reset = false;
                    // An undecodable payload is the subscriber's affair; it tells us nothing here.
                    let _ = MsgpackDecoder::default().decode(&frame.payload, &mut capture.events);
                }
                recording::Row::Reset => unannounced_reset = true,
                recording::Row::Prompt(prompt) => capture.prompts.push(Prompt {
                    model: prompt.model,
                    token_ids: prompt.token_ids,
                    cached_tokens: prompt.cached_tokens,
                    after,
                    unannounced_reset,
                }),
            }
        }
        if capture.events.block_size == 0 {
            bail!("{name} holds no store event, so its block size is unknown");
        }
        Ok(capture)
    }

    /// Tokens of one block.
    pub(crate) fn block_size(&self) -> u32 {
        self.events.block_size
    }

    /// The adapter that a request's model name stands for; empty for the base model.
    pub(crate) fn adapter<'a>(&self, model: &'a str) -> &'a str {
        if self.events.adapters.contains(model) { model } else { "" }
    }
}

impl BatchSink for Events {
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
