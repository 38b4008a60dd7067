//! An engine that is none: publishes scripted or recorded KV-cache events over real ZMQ sockets, for tests and
//! demonstrations.
//!
//! ```text
//! script ──payload──┐
//! churn ───batches──┼──> fake_engine: XPUB socket, sequence numbers, replay ROUTER ══ZMQ══> subscriber
//! capture ──frames──┘
//! ```
//!
//! * [`script`]: batches made from a few numbers; the digests they must lead to are known beforehand.
//! * [`churn`]: a simulated prefix cache under random prompts, which knows what it holds; [`event`] writes its batches.
//! * [`flood`]: more stored blocks than any engine announces.
//! * [`capture`]: recordings of real engines, frame by frame, with what the engine reused at each prompt.
//! * [`fake_engine`]: the sockets. It can wait for a subscriber, so that nothing is lost to a slow joiner.

pub mod capture;
pub mod churn;
pub mod event;
pub mod fake_engine;
pub mod flood;
pub mod msgpack;
pub mod script;
