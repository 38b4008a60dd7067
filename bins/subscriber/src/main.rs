//! The subscriber beside an engine: parse, run, exit code.

use std::process::ExitCode;

mod args;
mod run;

fn main() -> ExitCode {
    bins_common::enter(&args::flags(), |values| args::Args::from_values(values).and_then(run::run))
}
