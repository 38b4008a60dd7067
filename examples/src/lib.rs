//! What the example programs share: the real binaries as child processes.

pub mod processes;
