//! Random operations over small alphabets, from a seed.
//!
//! ```text
//! seed ──> Setup   (how the index is built, which alphabet)
//!    └───> Op, Op, Op, …   each drawn on its own, so that any of them can be left out
//! ```
//!
//! The alphabets are small so that operations meet: the same hash under several replicas, adapters and schemes, equal
//! stamps, a cap and a budget that bind. The generator of random numbers is the caller's, through [`rand::Rng`]: `rand` is
//! part of this interface on purpose, as `testkit` is no part of a serving build. [`Shape`] says what there is much of. [`Names`] holds the words and
//! [`Op::random`] combines them, with a share of input that is malformed or extreme.

mod names;
mod ops;
mod setup;

pub use names::{Hash, Names, Shape};
pub use ops::{Ask, Credit, Notice, Op, Prefix, Report, Stamp};
pub use setup::{EPOCH, MINUTE, Setup};
