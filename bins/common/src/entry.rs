//! What each `main` does.

use std::process::ExitCode;

use crate::Exit;
use crate::flags::{Flags, Values};

/// Reads the command line, hands what it says to `work`, and gives the exit code; what is wrong is printed to where it belongs.
#[must_use]
pub fn enter(flags: &Flags, work: impl FnOnce(&Values) -> Result<(), Exit>) -> ExitCode {
    let values = match flags.parse(std::env::args_os().skip(1)) {
        Ok(values) => values,
        Err(stop) => return stop.report(),
    };
    match work(&values) {
        Ok(()) => ExitCode::SUCCESS,
        Err(exit) => exit.report(),
    }
}
