//! Why a call brought nothing.

use std::path::PathBuf;

use hyper::StatusCode;

use super::super::fence::Deposed;
use super::super::text;
use super::MAX_QUOTED;
use super::http::TIMEOUT;

/// Why a call brought nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BridgeError {
    /// The token file is there and cannot be used.
    #[error("cannot read the token in {}: {why}", path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// What is wrong with it; never what it holds.
        why: String,
    },
    /// No connection, or it broke.
    #[error("{0}")]
    Unreachable(String),
    /// No whole answer in time.
    #[error("no answer within {TIMEOUT:?}")]
    Late,
    /// An answer that is no success.
    #[error("the server answers {status}{}", after_colon(.said))]
    Refused {
        /// Its status.
        status: StatusCode,
        /// The beginning of its body.
        said: String,
    },
    /// A longer answer than is read.
    #[error("the answer is longer than {0} bytes")]
    TooLong(usize),
    /// An answer that is not what it should be.
    #[error("the answer cannot be read: {0}")]
    Unreadable(String),
    /// An answer about something else.
    #[error("asked about backend {asked:?}, answered about {answered:?}")]
    Echo {
        /// Whom we asked about.
        asked: String,
        /// Whom the answer is about.
        answered: String,
    },
    /// This process does not lead.
    #[error(transparent)]
    Deposed(#[from] Deposed),
}

/// A quote, if there is one.
pub(super) fn after_colon(said: &str) -> String {
    if said.is_empty() { String::new() } else { format!(": {said}") }
}

impl BridgeError {
    pub(super) fn refused(status: StatusCode, body: &[u8]) -> Self {
        let start = body.get(..MAX_QUOTED.min(body.len())).unwrap_or_default();
        let said = String::from_utf8_lossy(start);
        Self::Refused { status, said: text::cut(said.trim(), MAX_QUOTED) }
    }

    /// As the label `result` has it.
    #[must_use]
    pub fn result(&self) -> &'static str {
        match self {
            Self::Token { .. } => "token",
            Self::Unreachable(_) => "unreachable",
            Self::Late => "timeout",
            Self::Refused { .. } => "refused",
            Self::TooLong(_) | Self::Unreadable(_) | Self::Echo { .. } => "unreadable",
            Self::Deposed(_) => "deposed",
        }
    }
}
