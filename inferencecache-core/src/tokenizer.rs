//! The seam for turning text into tokens. Core has no tokenizer of its own.

use std::fmt;

/// Why a prompt was not tokenised. All of them fail open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenizeError {
    /// No tokenizer for this model.
    Unavailable,
    /// The model id can be no model's.
    UnsafeModelId,
    /// The tokenizer or its chat template failed.
    Failed,
}

/// Renders one user message through a model's chat template and encodes it.
///
/// May block for as long as an encode takes; callers run it off their executor and bound its concurrency. Implementers
/// must not panic and must not keep the text.
pub trait Tokenizer: Send + Sync + fmt::Debug + 'static {
    /// Token ids of one chat message with role `user` and content `text`, generation prompt on.
    ///
    /// # Errors
    /// [`TokenizeError`] when the model is unknown, or its id can be no model's, or encoding fails.
    fn encode_chat(&self, model: &str, text: &str) -> Result<Vec<u32>, TokenizeError>;
}
