//! Directories of models, with tokenizers made here.
#![allow(dead_code, reason = "each test binary uses its own part")]

use std::fs;

use inferencecache_wire::tokenize::Models;
use tempfile::TempDir;
use tokenizers::models::wordlevel::WordLevel;
use tokenizers::pre_tokenizers::whitespace::WhitespaceSplit;
use tokenizers::processors::template::TemplateProcessing;
use tokenizers::{AddedToken, PaddingParams, Tokenizer, TruncationParams};

pub(crate) const HELLO: u32 = 14990;
pub(crate) const WORLD: u32 = 1879;
pub(crate) const BOS: u32 = 1;
pub(crate) const GO: u32 = 2;

/// Prints the first token, the content, and a marker if a generation prompt is asked for.
pub(crate) const TEMPLATE: &str =
    "{{ bos_token }} {{ messages[0].content }}{% if add_generation_prompt %} <go>{% endif %}";
pub(crate) const CONFIG: &str = r#"{"bos_token": {"content": "<s>"}}"#;

/// Two words, split on blanks. It was saved by somebody who trained on short texts, and adds a first token if asked to.
pub(crate) fn toy() -> Tokenizer {
    let words = [("<unk>", 0), ("<s>", BOS), ("<go>", GO), ("hello", HELLO), ("world", WORLD)];
    let vocab = words.map(|(word, id)| (word.to_owned(), id)).into_iter().collect();
    let model = WordLevel::builder().vocab(vocab).unk_token("<unk>".to_owned()).build().unwrap();
    let mut tokenizer = Tokenizer::new(model);
    let first = TemplateProcessing::builder().try_single("<s> $0").unwrap().special_tokens(vec![("<s>", BOS)]).build();
    tokenizer.with_pre_tokenizer(Some(WhitespaceSplit)).with_post_processor(Some(first.unwrap()));
    tokenizer.add_special_tokens([AddedToken::from("<s>", true), AddedToken::from("<go>", true)]).unwrap();
    tokenizer.with_truncation(Some(TruncationParams { max_length: 2, ..TruncationParams::default() })).unwrap();
    tokenizer.with_padding(Some(PaddingParams::default()));
    tokenizer
}

/// A directory of models.
pub(crate) struct Dir(pub(crate) TempDir);

impl Dir {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn with(self, file: &str, text: &str) -> Self {
        let path = self.0.path().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
        self
    }

    pub(crate) fn toy(self, model: &str) -> Self {
        let text = toy().to_string(false).unwrap();
        self.with(&format!("{model}/tokenizer.json"), &text)
    }

    pub(crate) fn chat(self, model: &str) -> Self {
        let config = format!("{model}/tokenizer_config.json");
        self.toy(model).with(&config, CONFIG).with(&format!("{model}/chat_template.jinja"), TEMPLATE)
    }

    pub(crate) fn load(&self) -> Models {
        Models::load(self.0.path())
    }
}
