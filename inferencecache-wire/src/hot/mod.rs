//! The two busy RPCs read and written by hand.
//!
//! ```text
//! bytes ──reader──> LookupRequest ──question──> core ──answer──> LookupReply ──> bytes
//! bytes ──reader──> Report ────────update────> core
//! ```
//!
//! Decoding with prost and building its response cost several times what the index needs for the answer, nearly all of it
//! for one allocation a block. Here a message stays one buffer; what is read are places in it. Hashes of
//! 8 bytes, the usual ones, are copied into one list, so that the index can compare them as words.
//!
//! 1. What prost accepts is accepted, with the same values, and what it refuses is refused: unknown fields, repeated
//!    fields, packed and single numbers, groups, invalid UTF-8. Prost is the oracle of the tests.
//! 2. What is written equals prost's encoding byte for byte.
//! 3. Memory is at most a small multiple of the message: nothing is sized by a number that the message names.

mod codec;
mod hashes;
mod lookup;
mod reader;
mod reply;
mod report;

pub use codec::{LookupCodec, Pool, Pooled, Reading, ReportCodec, Writing};
pub use lookup::LookupRequest;
pub use reader::Fault;
pub use reply::LookupReply;
pub use report::Report;
