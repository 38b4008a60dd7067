//! Runs the rows, prints each as a line of JSON and all as a Markdown table. Fails when a row is missed.

use std::io::Write as _;
use std::process::ExitCode;

use inferencecache_peers::measure::Effort;
use inferencecache_peers::report::markdown;
use inferencecache_peers::rows::ROWS;

const HELP: &str = "\
peers: the index side by side with its peers

  --rows P4,P9   only these rows (all)
  --quick        a tenth of the size, one round: shows that it works, says little
  --markdown F   also writes the table to F
  --help         this text

Exit status 1 when a row is MISSED.";

fn main() -> anyhow::Result<ExitCode> {
    let mut effort = Effort::full();
    let (mut wanted, mut file) = (None::<Vec<String>>, None);
    let mut parser = lexopt::Parser::from_env();
    while let Some(arg) = parser.next()? {
        match arg {
            lexopt::Arg::Long("rows") => {
                wanted = Some(parser.value()?.to_string_lossy().split(',').map(|row| row.trim().to_owned()).collect());
            }
            lexopt::Arg::Long("quick") => effort = Effort::quick(),
            lexopt::Arg::Long("markdown") => file = Some(parser.value()?),
            lexopt::Arg::Long("help") => {
                println!("{HELP}");
                return Ok(ExitCode::SUCCESS);
            }
            other => return Err(other.unexpected().into()),
        }
    }
    if let Some(unknown) = wanted.iter().flatten().find(|row| !ROWS.iter().any(|(name, _)| name == row)) {
        let names: Vec<&str> = ROWS.iter().map(|(name, _)| *name).collect();
        anyhow::bail!("no row {unknown:?}; there are {}", names.join(", "));
    }
    let mut outcomes = Vec::new();
    for (name, run) in ROWS {
        if wanted.as_ref().is_none_or(|rows| rows.iter().any(|row| row == name)) {
            eprintln!("{name} …");
            for outcome in run(effort) {
                println!("{}", serde_json::to_string(&outcome)?);
                std::io::stdout().flush()?;
                outcomes.push(outcome);
            }
        }
    }
    let table = markdown(&outcomes);
    eprintln!("\n{table}");
    if let Some(file) = file {
        std::fs::write(file, table)?;
    }
    let missed = outcomes.iter().filter(|outcome| !outcome.met).count();
    eprintln!("{} of {} rows MET", outcomes.len() - missed, outcomes.len());
    Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
