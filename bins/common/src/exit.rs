//! How a process ends other than well: a sentence for the reader and a code for the supervisor.

use std::process::ExitCode;

/// A refusal or a failure. Its code belongs to it, so `main` never decides.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Exit {
    /// Process exit code.
    pub code: u8,
    /// What was wrong and what to do next. Empty when the log has already said so.
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

    /// A failure that has been logged and shall not be told twice: exit code 1.
    #[must_use]
    pub fn logged() -> Self {
        Self { code: 1, message: String::new() }
    }

    /// Says why on stderr and gives the code.
    #[must_use]
    pub fn report(&self) -> ExitCode {
        if !self.message.is_empty() {
            eprintln!("error: {}", self.message);
        }
        ExitCode::from(self.code)
    }
}
