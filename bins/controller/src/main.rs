//! The InferenceCache controller: parse, run, exit code.

use std::process::ExitCode;

mod args;
mod run;

fn main() -> ExitCode {
    let flags = args::flags();
    let values = match flags.parse(std::env::args_os().skip(1)) {
        Ok(values) => values,
        Err(stop) => return stop.report(),
    };
    match args::Config::from_values(&values).and_then(run::run) {
        Ok(()) => ExitCode::SUCCESS,
        Err(exit) => exit.report(),
    }
}
