//! The numbered cases that need no cluster, played on the pure decision.

mod connector;
mod external;
mod gate;
mod kernel;
mod matched;
mod node_local;
mod probe;
mod storage;
mod world;
