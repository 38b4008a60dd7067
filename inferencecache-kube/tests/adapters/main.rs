//! The numbered cases of the adapters, the worked Pods, the suites on what ships, and the suites on what is broken.

mod admitted;
mod conformance;
mod fixtures;
mod hicache;
mod linker;
mod lmcache;
mod programs;
mod reference;
mod registry;
mod storage;
mod subscriber;
mod worked;
