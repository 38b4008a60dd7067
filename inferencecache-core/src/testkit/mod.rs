//! Test kit: an oracle that is obviously right, and what it takes to hold another implementation against it.
//!
//! ```text
//!  generate ──operations──> differential ──> Model    (flat lists, recomputes everything)
//!                                 └────────> any IndexApi + Inspect
//!  conformance ──fixed stories────────────> any IndexApi
//! ```
//!
//! Everything here is slow on purpose; none of it belongs into a serving process.

pub mod broken;
pub mod check;
pub mod conformance;
pub mod differential;
pub mod doubles;
pub mod dump;
pub mod generate;
pub mod hooked;
pub mod model;
pub mod subject;

pub use broken::{Broken, Fault};
pub use doubles::{Call, Knobs, PolicyTable, RecordingSink};
pub use dump::{Dump, DumpEntry, DumpStats, Inspect};
pub use hooked::{Hooked, Hooks};
pub use model::Model;
pub use subject::{Factory, Subject};

use crate::index::IndexApi;

/// An index that answers like any other and can be looked into.
pub trait TestIndex: IndexApi + Inspect {}

impl<I: IndexApi + Inspect> TestIndex for I {}
