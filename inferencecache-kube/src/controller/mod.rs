//! The controllers: what the cluster and the server say, into decisions, into writes.
//!
//! ```text
//!   API server ── live reads ──▶ facts ──▶ pure decision ──▶ writes ──▶ API server
//!   cache server ─ /snapshot ──▶   │                           └─ /policy, /probe ──▶ cache server
//! ```
//!
//! Decisions know neither clients nor clocks: they take facts and the time, and return what should be. Only the modules that
//! act speak to anybody, and they write only what differs from what was read.
//!
//! ```text
//!  backend/   CacheBackend: children, status, Events
//!  recorder   Events, queued            queue      keys that wait for a pass, and their workers
//!  watch      what wakes them up        condition  types, reasons, how one is changed
//! ```

pub mod backend;
pub mod condition;
pub mod queue;
pub mod recorder;
pub mod text;
pub mod watch;
