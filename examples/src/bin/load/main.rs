//! Load on a real server, and a report of it.
//!
//! ```text
//!  lookups, 8 connections ──LookupRoute──> inferencecache-server <──ReportCacheState── reports, one stream
//!                                              │ /proc: CPU, resident memory
//!                                              └──> docs/benchmarks/load.md, load.svg
//! ```
//!
//! `make load`, or `cargo run --release -p inferencecache-examples --bin load -- --seconds 60`

mod drive;
mod measure;
mod plot;
mod report;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use inferencecache_examples::processes::{Process, end_with_signals};

const USAGE: &str = "\
usage: load [OPTION=VALUE]...

Starts an inferencecache-server, fills it, asks and reports at full speed, and writes a table and a plot.

  --seconds=N        how long to measure (600)
  --connections=N    connections that ask, one question at a time each (8)
  --replicas=N       replicas that report (64)
  --blocks=N         blocks in the index; each new one drives an old one out (1000000)
  --hashes=N         block hashes of one question (64)
  --ingest=N         blocks a second that are reported meanwhile; 0 reports as fast as it can (20000)
  --out=FOLDER       where load.md and load.svg go (docs/benchmarks)";

/// What is asked of a run.
#[derive(Debug, Clone)]
struct Settings {
    seconds: u64,
    connections: usize,
    replicas: usize,
    blocks: usize,
    hashes: usize,
    ingest: u64,
    out: PathBuf,
}

impl Settings {
    fn parse(arguments: impl Iterator<Item = String>) -> Result<Option<Self>> {
        let mut settings = Self {
            seconds: 600,
            connections: 8,
            replicas: 64,
            blocks: 1_000_000,
            hashes: 64,
            ingest: 20_000,
            out: PathBuf::from("docs/benchmarks"),
        };
        for argument in arguments {
            if matches!(argument.as_str(), "-h" | "--help") {
                return Ok(None);
            }
            let Some((name, value)) = argument.strip_prefix("--").and_then(|rest| rest.split_once('=')) else {
                bail!("{argument}: expected --NAME=VALUE\n\n{USAGE}");
            };
            let number = || value.parse::<u64>().with_context(|| format!("--{name}: {value:?} is not a number"));
            let size = || Ok::<_, anyhow::Error>(usize::try_from(number()?)?.max(1));
            match name {
                "seconds" => settings.seconds = number()?.max(2),
                "connections" => settings.connections = size()?,
                "replicas" => settings.replicas = size()?,
                "blocks" => settings.blocks = size()?,
                "hashes" => settings.hashes = size()?,
                "ingest" => settings.ingest = number()?,
                "out" => settings.out = value.into(),
                _ => bail!("unknown option --{name}\n\n{USAGE}"),
            }
        }
        Ok(Some(settings))
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("load: {why:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let Some(settings) = Settings::parse(std::env::args().skip(1))? else {
        println!("{USAGE}");
        return Ok(());
    };
    let runtime = tokio::runtime::Runtime::new().context("no runtime")?;
    end_with_signals(&runtime)?;
    let mut server = Process::start(
        "inferencecache-server",
        &[
            "--grpc-bind-address=127.0.0.1:0".to_owned(),
            "--http-bind-address=127.0.0.1:0".to_owned(),
            "--snapshot-bind-address=127.0.0.1:0".to_owned(),
            "--insecure-disable-auth".to_owned(),
            format!("--index-max-entries={}", settings.blocks),
        ],
    )?;
    let [grpc] = server.wait_for_event("listening", ["grpc_addr"])?;
    let load = drive::Load::new(&settings);
    eprintln!("filling {} with {} blocks of {} replicas", grpc, settings.blocks, settings.replicas);
    runtime.block_on(load.fill(&grpc)).context("filling the index")?;
    eprintln!("measuring for {} s", settings.seconds);
    let watch = measure::Watch::new(server.id())?;
    let run = runtime.block_on(load.drive(&grpc, &watch, Duration::from_secs(settings.seconds)))?;
    server.check()?;
    std::fs::create_dir_all(&settings.out).with_context(|| format!("making {}", settings.out.display()))?;
    let table = report::table(&settings, &run);
    print!("{table}");
    std::fs::write(settings.out.join("load.md"), table).context("writing load.md")?;
    plot::write(&settings.out.join("load.svg"), &run)?;
    eprintln!("wrote load.md and load.svg into {}", settings.out.display());
    Ok(())
}
