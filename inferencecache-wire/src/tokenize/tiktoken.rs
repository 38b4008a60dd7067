//! The encoder of `*.tiktoken`: a vocabulary of byte strings by rank, split by the pattern of `cl100k_base`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use inferencecache_core::tokenizer::TokenizeError;
use rustc_hash::{FxHashMap, FxHashSet};
use tiktoken_rs::CoreBPE;

use super::config::Config;
use super::model::Encoder;

/// How text is split before it is encoded: contractions, words, up to three digits, punctuation, line ends, blanks.
const PATTERN: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
    r"|\s+(?!\S)|\s+",
);

/// Byte-pair encoding by rank. It has no rule for adding special tokens, only for recognising them.
pub(super) struct Tiktoken {
    encoder: CoreBPE,
    has_special: bool,
}

/// A vocabulary that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum VocabularyError {
    #[error("line {0} is not base64, a blank and a rank")]
    Line(usize),
    #[error("line {0} repeats a token or a rank")]
    Repeated(usize),
    #[error("there is no token")]
    Empty,
    #[error("the special tokens cannot be searched for: {0}")]
    Special(String),
}

impl Tiktoken {
    /// Reads the vocabulary; special tokens come from the configuration.
    ///
    /// # Errors
    /// [`VocabularyError`] for the first line that makes no sense.
    pub(super) fn load(text: &[u8], config: &Config) -> Result<Self, VocabularyError> {
        let mut ranks = FxHashMap::default();
        let mut taken = FxHashSet::default();
        for (number, line) in text.split(|&byte| byte == b'\n').enumerate() {
            let line = line.trim_ascii();
            if line.is_empty() {
                continue;
            }
            let (token, rank) = parse(line).ok_or(VocabularyError::Line(number + 1))?;
            // The library panics on these.
            if !taken.insert(rank) || ranks.insert(token, rank).is_some() {
                return Err(VocabularyError::Repeated(number + 1));
            }
        }
        if ranks.is_empty() {
            return Err(VocabularyError::Empty);
        }
        let special: FxHashMap<String, u32> = config
            .added
            .iter()
            .map(|(id, token)| (token.content.clone(), *id))
            .filter(|(s, _)| !s.is_empty())
            .collect();
        let has_special = !special.is_empty();
        let encoder =
            CoreBPE::new(ranks, special, PATTERN).map_err(|error| VocabularyError::Special(error.to_string()))?;
        Ok(Self { encoder, has_special })
    }
}

impl Encoder for Tiktoken {
    fn encode(&self, text: &str, _add_special: bool) -> Result<Vec<u32>, TokenizeError> {
        if !self.has_special {
            // The search for special tokens, of which there are none, would stop at each byte.
            return Ok(self.encoder.encode_ordinary(text));
        }
        let special = self.encoder.special_tokens();
        self.encoder.encode(text, &special).map(|(ids, _)| ids).map_err(|_| TokenizeError::Failed)
    }
}

fn parse(line: &[u8]) -> Option<(Vec<u8>, u32)> {
    let blank = line.iter().position(|&byte| byte == b' ')?;
    let token = STANDARD.decode(&line[..blank]).ok().filter(|token| !token.is_empty())?;
    let rank = std::str::from_utf8(&line[blank + 1..]).ok()?.trim().parse().ok()?;
    Some((token, rank))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All single bytes by their value, then `pairs` from rank 256 on.
    fn vocabulary(pairs: &[&str]) -> String {
        let bytes = (0..=255_u8).map(|byte| vec![byte]);
        let tokens = bytes.chain(pairs.iter().map(|pair| pair.as_bytes().to_vec()));
        tokens.enumerate().map(|(rank, token)| format!("{} {rank}\n", STANDARD.encode(token))).collect()
    }

    #[test]
    fn ranks_decide_what_is_merged() {
        let encoder =
            Tiktoken::load(vocabulary(&["ll", "he", "hell", "hello", " w"]).as_bytes(), &Config::default()).unwrap();
        let encode = |text| encoder.encode(text, false).unwrap();
        assert_eq!(encode("hello world"), [259, 260, 111, 114, 108, 100]);
        assert_eq!(encode("héllo"), [104, 195, 169, 256, 111], "not across bytes that make no token");
        assert_eq!(encode("<s>"), [60, 115, 62]);
        assert_eq!(encode("1234"), [49, 50, 51, 52]);
        assert_eq!(encode("").len(), 0);
    }

    #[test]
    fn special_tokens_come_from_the_configuration() {
        let config =
            Config::parse(br#"{"added_tokens_decoder": {"300": {"content": "<s>", "special": true}}}"#).unwrap();
        let encoder = Tiktoken::load(vocabulary(&[]).as_bytes(), &config).unwrap();
        assert_eq!(encoder.encode("<s>\u{e9}<s", true).unwrap(), [300, 195, 169, 60, 115]);
    }

    #[test]
    fn broken_vocabularies_are_refused() {
        for (text, want) in [
            ("", "there is no token"),
            ("IQ== 0\nIg==", "line 2 is not base64, a blank and a rank"),
            ("IQ== x", "line 1 is not base64, a blank and a rank"),
            ("!!!! 1", "line 1 is not base64, a blank and a rank"),
            ("IQ== 0\n\nIg== 0", "line 3 repeats a token or a rank"),
            ("IQ== 0\nIQ== 1", "line 2 repeats a token or a rank"),
        ] {
            let error = Tiktoken::load(text.as_bytes(), &Config::default()).err().unwrap();
            assert_eq!(error.to_string(), want, "{text:?}");
        }
    }
}
