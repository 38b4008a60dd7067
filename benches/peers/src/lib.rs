//! The index side by side with its peers.
//!
//! ```text
//! workload ──ops──> subjects (ours and peers) ──figures──> rows ──verdicts──> report
//! ```
//!
//! * Every subject gets the same operations, made native before the clock starts.
//! * Every figure is taken only after the answers were checked.
//! * A row counts the worst form of ours against the best figure of the named peer, in the same process run.

pub mod measure;
pub mod report;
pub mod rows;
pub mod subjects;
pub mod workload;
