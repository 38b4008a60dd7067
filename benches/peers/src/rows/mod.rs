//! The rows, one question each.

mod capacity;
mod churn;
mod codec;
mod disk;
mod growth;
mod lookup;
mod memory;
mod store;
mod wide;

use crate::measure::Effort;
use crate::report::Outcome;

/// A question and what answers it.
pub type Row = (&'static str, fn(Effort) -> Vec<Outcome>);

/// All of them in the order of the table.
pub const ROWS: &[Row] = &[
    ("P1", memory::private),
    ("P2", memory::shared),
    ("P3", memory::left),
    ("P4", lookup::middle),
    ("P5", lookup::short),
    ("P6", lookup::long),
    ("P7", wide::wide),
    ("P8", lookup::miss),
    ("P9", store::fresh),
    ("P10", store::known),
    ("P11", store::decode),
    ("P12", store::remove),
    ("P13", capacity::at_the_cap),
    ("P14", churn::reading_while_writing),
    ("P15", codec::lookup_route),
    ("P16", codec::report_cache_state),
    ("P17", disk::restart),
    ("P19", growth::growth),
];

pub use memory::one as one_memory_cell;

const EXACT_PEERS: [&str; 3] = ["kv-index", "smg-radix-tree", "crtc"];
const OURS: [&str; 2] = ["ours, single", "ours, chain"];

fn subjects(peers: &[&'static str]) -> Vec<&'static str> {
    OURS.iter().chain(peers).copied().collect()
}
