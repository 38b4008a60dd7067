//! An engine that is none: parse, run, exit code.

use std::process::ExitCode;

mod args;
mod control;
mod run;
mod simulate;

fn main() -> ExitCode {
    bins_common::enter(&args::flags(), |values| args::Args::from_values(values).and_then(run::run))
}
