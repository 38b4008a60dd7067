//! What a probe found, stage by stage.

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Longest text in bytes that is taken over from a client of the second tier.
pub const MAX_FOREIGN_TEXT: usize = 400;

/// What came of a probe. [`Default`]: nothing was run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProbeOutcome {
    /// Whether a direct lookup finds what was ingested.
    pub ingest: StageResult,
    /// Whether the orchestrated lookup finds it.
    pub routing: StageResult,
    /// Whether the second tier gives back what was put there.
    pub t2: StageResult,
    /// One for each stage that failed.
    pub errors: Vec<ProbeFault>,
    /// Whether a stage failed by panicking.
    pub panicked: bool,
}

/// What came of one stage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum StageResult {
    /// It passed.
    Ok,
    /// It did not.
    Failed,
    /// It was not run.
    #[default]
    Skipped,
}

/// A stage, in the order in which they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProbeStage {
    /// Writing into the index and reading it directly.
    Ingest,
    /// The lookup that routes are made of.
    Routing,
    /// The second tier.
    T2,
}

/// Why a stage failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeFault {
    /// Which one.
    pub stage: ProbeStage,
    /// Why, for people.
    pub message: String,
}

// === impl ProbeOutcome ===

impl ProbeOutcome {
    /// Runs a stage and notes what came of it; says whether it passed.
    pub(super) fn attempt(&mut self, stage: ProbeStage, run: impl FnOnce() -> Result<(), String>) -> bool {
        let result = catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
            self.panicked = true;
            Err("panicked".to_owned())
        });
        self.record(stage, result)
    }

    pub(super) fn record(&mut self, stage: ProbeStage, result: Result<(), String>) -> bool {
        let noted = match stage {
            ProbeStage::Ingest => &mut self.ingest,
            ProbeStage::Routing => &mut self.routing,
            ProbeStage::T2 => &mut self.t2,
        };
        let passed = result.is_ok();
        *noted = if passed { StageResult::Ok } else { StageResult::Failed };
        self.errors.extend(result.err().map(|message| ProbeFault { stage, message }));
        passed
    }
}

// === impl StageResult ===

impl StageResult {
    /// The published spelling.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }
}

// === impl ProbeStage ===

impl ProbeStage {
    /// The published spelling.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ingest => "ingest",
            Self::Routing => "routing",
            Self::T2 => "t2",
        }
    }
}

/// Cuts a text from outside to [`MAX_FOREIGN_TEXT`] bytes.
pub(super) fn shorten(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(MAX_FOREIGN_TEXT));
    text
}
