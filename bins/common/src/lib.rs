//! What the binaries share, so that each of them is only: parse, build, run.
//!
//! ```text
//! args ──flags──> Values ──args.rs──> Config ──run.rs──> work(shutdown) ──> exit code
//!          └─ Stop: help, version, or a refusal that names its exit code
//! ```
//!
//! * [`enter`]: what each `main` does.
//! * [`flags`]: published flag names in all the forms Go's flag package takes.
//! * [`duration`]: `100ms`, `1m30s`.
//! * [`logging`]: one line an event on stderr, JSON or text, for this project's targets alone.
//! * [`open_files`]: as many as the system lets the process have.
//! * [`signals`]: the first signal asks for a graceful end, the second ends at once.
//! * [`build`]: version and commit, fixed when compiled.
//!
//! Nothing here reads the environment at run time.

pub mod build;
pub mod duration;
mod entry;
mod exit;
pub mod flags;
pub mod logging;
pub mod open_files;
pub mod signals;

pub use entry::enter;
pub use exit::Exit;
