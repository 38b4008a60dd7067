//! What is compared: ours and its peers, behind one face.
//!
//! Input is made native before the clock starts; a run ends when a reader can see its work.

mod crtc;
mod kv_index;
mod ours;
mod positional;
mod smg;

use std::time::Instant;

use crate::workload::{Op, Workload};

pub use ours::Form;

/// The best replica of an answer and how many blocks of the chain it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Best {
    /// Depth in blocks; 0 is a miss.
    pub depth: u32,
    /// Replicas in the answer.
    pub scored: u32,
}

/// Asks; may run on a thread of its own while the subject is written to.
pub trait Reader: Send {
    /// Makes the questions native.
    fn prepare(&mut self, queries: &[&[u64]]);
    /// Touches the hashes of a question, so that its own memory is warm.
    fn touch(&self, query: usize) -> u64;
    /// Asks one.
    fn ask(&mut self, query: usize) -> Best;
}

/// One structure under test.
pub trait Subject {
    /// Its name in tables.
    fn name(&self) -> &'static str;
    /// Makes the operations native.
    fn prepare(&mut self, workload: &Workload, ops: &[Op]);
    /// Applies what was prepared and returns the nanoseconds until all of it could be read.
    fn run(&mut self) -> u64;
    /// The same, with the nanoseconds of each operation, where operations are applied on this thread.
    fn run_each(&mut self) -> Option<Vec<u64>> {
        None
    }
    /// A reader.
    fn reader(&self) -> Box<dyn Reader>;
    /// Whether readers may run beside the writer.
    fn concurrent(&self) -> bool {
        true
    }
}

/// Names that select a subject.
pub const NAMES: [&str; 6] = ["ours, single", "ours, chain", "kv-index", "smg-radix-tree", "crtc", "positional"];

/// Makes one by name, for up to `replicas` replicas.
///
/// # Panics
/// When there is no such subject.
#[must_use]
pub fn make(name: &str, replicas: u32) -> Box<dyn Subject> {
    match name {
        "ours, single" => Box::new(ours::Ours::new(replicas, Form::Single, 0)),
        "ours, chain" => Box::new(ours::Ours::new(replicas, Form::Chain, 0)),
        "kv-index" => Box::new(kv_index::KvIndex::new(replicas)),
        "smg-radix-tree" => Box::new(smg::Smg::new(replicas)),
        "crtc" => Box::new(crtc::Crtc::new()),
        "positional" => Box::new(positional::Positional::new()),
        _ => panic!("no subject {name:?}; there are {NAMES:?}"),
    }
}

/// Ours with a cap on its entries.
#[must_use]
pub fn capped(replicas: u32, cap: u64) -> Box<dyn Subject> {
    Box::new(ours::Ours::new(replicas, Form::Single, cap))
}

fn nanos(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}
