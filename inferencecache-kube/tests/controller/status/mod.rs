//! The status of CacheBackends, written by a running reconciler.

mod gate;
mod outages;
mod probe;
mod steady;
mod storage;
mod world;
