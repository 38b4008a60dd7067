//! The poller: what the server holds, mirrored into the cluster.
//!
//! ```text
//!  CacheIndex exists? ─▶ GET /snapshot ─┬─▶ mirror         CacheIndex status
//!                                       ├─▶ participation  CacheBackend.status.indexParticipation, t2 metrics
//!                                       └─▶ tenants        CacheTenant status
//! ```
//!
//! 1. A failed scrape changes nothing anywhere.
//! 2. The three projections do not hold up or end each other.
//! 3. Only what differs on the wire is written. Each write names the uid it is meant for, so that what was made again under the
//!    same name does not inherit anything.

mod act;
mod mirror;
pub mod participation;
pub mod snapshot;
mod t2;
pub mod tenants;
#[cfg(test)]
mod tests;

pub use self::act::{NAME, Poller};
pub use self::mirror::changed as mirrored;
pub use self::t2::T2;
