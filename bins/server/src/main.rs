//! The InferenceCache server: parse, run, exit code.

use std::process::ExitCode;

mod args;
mod prompts;
mod run;
mod warm;

fn main() -> ExitCode {
    bins_common::enter(&args::flags(), |values| args::Config::from_values(values).and_then(run::run))
}
