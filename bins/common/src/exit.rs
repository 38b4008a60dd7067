//! How a process ends other than well: a sentence for the reader and a code for the supervisor.

use std::process::ExitCode;

/// A refusal or a failure. Its code belongs to it, so `main` never decides.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Exit {
    /// Process exit code.
    pub code: u8,
    /// What was wrong and what to do next.
    pub message: String,
}

impl Exit {
    /// The command line asks for something that cannot be: exit code 2.
    #[must_use]
    pub fn usage(message: impl Into<String>) -> Self {
        Self { code: 2, message: message.into() }
    }

    /// The command line is fine, the world is not: exit code 1.
    #[must_use]
    pub fn failure(message: impl Into<String>) -> Self {
        Self { code: 1, message: message.into() }
    }

    /// Says why on stderr and gives the code.
    #[must_use]
    pub fn report(&self) -> ExitCode {
        eprintln!("error: {}", self.message);
        ExitCode::from(self.code)
    }
}
