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
//!  backend/   CacheBackend: children, status, Events      index/   what the server holds, into the cluster
//!  policy/    policies and budgets, to the server          engines/ Events of engine Pods
//!  bridge/    calls of the server                          manager  all of it in one process
//!  lease      who leads                                    fence    what nobody else may do
//!  recorder   Events, queued            queue      keys that wait for a pass, and their workers
//!  watch      what wakes them up        pages      live listings
//!                                       condition  types, reasons, how one is changed
//! ```

pub mod backend;
pub mod bridge;
pub mod condition;
pub mod engines;
pub mod fence;
pub mod index;
pub mod lease;
pub mod manager;
pub mod pages;
pub mod policy;
pub mod queue;
pub mod recorder;
pub mod text;
pub mod watch;
