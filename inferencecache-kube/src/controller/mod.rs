//! The controllers: what the cluster and the server say, into decisions, into writes.
//!
//! ```text
//!   API server ── live reads ──▶ facts ──▶ pure decision ──▶ writes ──▶ API server
//!   cache server ─ /snapshot ──▶   │                           └─ /policy, /probe ──▶ cache server
//! ```
//!
//! Decisions know neither clients nor clocks: they take facts and the time, and return what should be. Only the modules that
//! act speak to anybody, and they write only what differs from what was read.
