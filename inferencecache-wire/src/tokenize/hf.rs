//! The encoder of `tokenizer.json`.
//!
//! Set up as the engines set theirs up: nothing is cut, nothing is padded, and the tokens that `tokenizer_config.json` adds
//! are added, in the same order and so with the same ids.

use std::collections::HashSet;

use inferencecache_core::tokenizer::TokenizeError;
use tokenizers::{AddedToken, Tokenizer};

use super::config::{Config, Token};
use super::model::Encoder;

/// A tokenizer that keeps nothing of what it encodes.
pub(super) struct Hf(Tokenizer);

impl Hf {
    /// Reads `tokenizer.json`.
    ///
    /// # Errors
    /// What the library says.
    pub(super) fn load(text: &[u8], config: &Config) -> Result<Self, tokenizers::Error> {
        let mut tokenizer = Tokenizer::from_bytes(text)?;
        tokenizer.with_truncation(None)?;
        tokenizer.with_padding(None);
        // The library remembers pieces of text, for each thread anew: that would retain prompts, and up to 10 000 pieces a
        // thread and model.
        let mut model = tokenizer.get_model().clone();
        model.resize_cache(0);
        tokenizer.with_model(model);
        add_tokens(&mut tokenizer, config)?;
        Ok(Self(tokenizer))
    }
}

impl Encoder for Hf {
    fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TokenizeError> {
        let encoding = self.0.encode_fast(text, add_special).map_err(|_| TokenizeError::Failed)?;
        Ok(encoding.get_ids().to_vec())
    }
}

/// Adds the tokens that only the configuration names. One that is known already keeps its id and takes the given flags.
fn add_tokens(tokenizer: &mut Tokenizer, config: &Config) -> tokenizers::Result<()> {
    let special: HashSet<&str> = config.special().map(|token| &*token.content).collect();
    let mut known: HashSet<String> = tokenizer.get_added_vocabulary().get_vocab().keys().cloned().collect();
    let mut tokens = Vec::new();
    for (_, token) in &config.added {
        known.insert(token.content.clone());
        tokens.push(added(token).special(token.special || special.contains(&*token.content)));
    }
    for token in config.special() {
        if known.insert(token.content.clone()) {
            tokens.push(added(token));
        }
    }
    if !tokens.is_empty() {
        tokenizer.add_tokens(tokens)?;
    }
    Ok(())
}

fn added(token: &Token) -> AddedToken {
    AddedToken::from(token.content.clone(), token.special)
        .single_word(token.single_word)
        .lstrip(token.lstrip)
        .rstrip(token.rstrip)
        .normalized(token.normalized)
}
