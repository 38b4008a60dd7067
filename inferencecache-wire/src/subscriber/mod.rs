//! The subscriber: turns one engine's KV-cache events into reports to the policy server.
//!
//! ```text
//! frame ──> ingest { kvevents decoder ──> blockmap ──> window } ──> deliveries
//! ```

pub mod blockmap;
pub mod config;
pub mod content;
pub mod ingest;
pub mod sequence;
pub mod window;
