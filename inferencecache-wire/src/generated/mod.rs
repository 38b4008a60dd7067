//! What the published contract compiles to. Committed, never edited: `tests/generated.rs` compares it with the `.proto`.
#![allow(missing_docs, unreachable_pub, unused_qualifications, rust_2018_idioms, clippy::all, clippy::pedantic)]

include!("inferencecache.v1alpha1.rs");
