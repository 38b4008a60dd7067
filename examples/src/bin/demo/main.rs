//! The main job on recorded input: from a real engine's KV events to a ranked hint.
//!
//! ```text
//!  kvevent-fake-engine ──ZMQ──> kvevent-subscriber ──gRPC──> inferencecache-server <──LookupRoute── this program
//!    (replays a recording)            │ /metrics: acknowledged_sequence ──────────────────────────────^ barrier
//! ```
//!
//! At each recorded prompt the engine double publishes what the engine had published by then; when the server has
//! acknowledged all of it, the prompt is looked up and the hint is held against what the engine really reused.
//!
//! `make demo`, or `cargo build --bins && cargo run -p inferencecache-examples --bin demo -- [--keep] [capture…]`

mod capture;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use inferencecache_examples::processes::{PATIENCE, Process, end_with_signals};
use inferencecache_wire::grpc::client::{ClientOptions, HintClient};
use inferencecache_wire::pb;

use crate::capture::{Capture, Prompt};

const TENANT: &str = "demo";
const MODEL: &str = "demo-model";
const REPLICA: &str = "engine-0";
const USAGE: &str = "\
usage: demo [--keep] [CAPTURE...]

Replays recorded engines through a fake engine, a subscriber and a server, and holds every hint against what the engine
really reused. Without a CAPTURE both recordings of examples/captures are played.

  --keep    leave the server up after the last recording and print commands to try";

/// The three processes of one run.
struct Stack {
    server: Process,
    subscriber: Process,
    engine: Process,
    grpc: String,
    bridge: String,
    metrics: String,
}

/// What came of one recording.
struct Outcome {
    exact: usize,
    /// Wrong, and not explained by a clear that the engine had not announced yet.
    unexplained: usize,
    prompts: usize,
}

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("demo: {why:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<bool> {
    let mut keep = false;
    let mut paths: Vec<PathBuf> = Vec::new();
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--keep" => keep = true,
            "-h" | "--help" => {
                println!("{USAGE}");
                return Ok(true);
            }
            option if option.starts_with('-') => bail!("unknown option {option}\n\n{USAGE}"),
            path => paths.push(path.into()),
        }
    }
    if paths.is_empty() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("captures");
        paths = ["vllm-0.32-cpu-a.jsonl", "sglang-0.5.23-radix-a.jsonl"].map(|name| folder.join(name)).into();
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    end_with_signals(&runtime)?;
    let mut total = Outcome { exact: 0, unexplained: 0, prompts: 0 };
    let last = paths.len() - 1;
    for (number, path) in paths.iter().enumerate() {
        let capture = Capture::read(path)?;
        let mut stack = Stack::start(&capture)?;
        let outcome = stack.play(&capture, &runtime)?;
        println!("{} of {} predicted exactly\n", outcome.exact, outcome.prompts);
        total.exact += outcome.exact;
        total.unexplained += outcome.unexplained;
        total.prompts += outcome.prompts;
        if keep && number == last {
            stack.invite(&capture);
            stack.wait()?;
        }
    }
    if paths.len() > 1 {
        println!("{} of {} predicted exactly", total.exact, total.prompts);
    }
    Ok(total.unexplained == 0)
}

impl Stack {
    fn start(capture: &Capture) -> Result<Self> {
        let free = "127.0.0.1:0";
        let mut server = Process::start(
            "inferencecache-server",
            &[
                format!("--grpc-bind-address={free}"),
                format!("--http-bind-address={free}"),
                format!("--snapshot-bind-address={free}"),
                "--insecure-disable-auth".to_owned(),
                format!("--engine-block-size={}", capture.block_size()),
            ],
        )?;
        let [grpc, bridge] = server.wait_for_event("listening", ["grpc_addr", "snapshot_addr"])?;
        // Every match counts, however short, and nothing ages while we read the table.
        let policy = serde_json::json!({"version": 7, "policies": [{
            "namespace": TENANT, "minimumMatchedTokens": 0, "routingFloorScore": 0, "evictionTTL": 315_360_000_000_000_000_u64,
        }]});
        ureq::post(format!("http://{bridge}/policy")).send(policy.to_string()).context("pushing the policy")?;

        let mut engine = Process::start(
            "kvevent-fake-engine",
            &[
                format!("--capture={}", capture.path.display()),
                "--bind=tcp://127.0.0.1:*".to_owned(),
                "--step-stdin".to_owned(),
            ],
        )?;
        let endpoint =
            engine.wait_for("where it listens", |line| line.strip_prefix("listening ").map(str::to_owned))?;
        let mut subscriber = Process::start(
            "kvevent-subscriber",
            &[
                format!("--engine-endpoint={endpoint}"),
                format!("--topic={}", capture.topic),
                format!("--server={grpc}"),
                format!("--replica-id={REPLICA}"),
                format!("--model-id={MODEL}"),
                format!("--tenant-id={TENANT}"),
                format!("--hash-scheme={}", capture.engine),
                format!("--health-bind-address={free}"),
                "--window=5ms".to_owned(),
            ],
        )?;
        let [health] = subscriber.wait_for_event("health listening", ["addr"])?;
        Ok(Self { server, subscriber, engine, grpc, bridge, metrics: format!("http://{health}/metrics") })
    }

    /// Plays the recording and prints a line for each prompt.
    fn play(&mut self, capture: &Capture, runtime: &tokio::runtime::Runtime) -> Result<Outcome> {
        println!("{}", capture.path.display());
        println!("{}, blocks of {} tokens, {} frames\n", capture.engine, capture.block_size(), capture.frames);
        println!(
            "{:>4}  {:<12} {:>6} {:>6}  {:<13} {:>9} {:>7}  verdict",
            "#", "model", "tokens", "blocks", "hint", "predicted", "reused"
        );
        let client = {
            let _inside = runtime.enter();
            HintClient::new(&self.grpc, &ClientOptions { call_timeout: PATIENCE, ..ClientOptions::default() })?
        };
        let mut outcome = Outcome { exact: 0, unexplained: 0, prompts: 0 };
        for (number, prompt) in capture.prompts.iter().enumerate() {
            self.publish_up_to(prompt)?;
            let request = pb::LookupRouteRequest {
                tenant_id: TENANT.to_owned(),
                model_id: MODEL.to_owned(),
                hash_scheme: capture.engine.clone(),
                adapter_id: capture.adapter(&prompt.model).to_owned(),
                token_ids: prompt.token_ids.clone(),
                ..pb::LookupRouteRequest::default()
            };
            let hint = runtime.block_on(client.lookup(request));
            if let Some(cause) = hint.degraded {
                bail!("the server did not answer: {cause}");
            }
            let predicted = predict(&hint.response, prompt, capture);
            let verdict = if predicted == prompt.cached_tokens {
                outcome.exact += 1;
                "exact"
            } else if prompt.unannounced_reset {
                "differs: the cache was reset and the engine has not said so yet"
            } else {
                outcome.unexplained += 1;
                "DIFFERS"
            };
            outcome.prompts += 1;
            println!(
                "{:>4}  {:<12} {:>6} {:>6}  {:<13} {:>9} {:>7}  {verdict}",
                number + 1,
                prompt.model,
                prompt.token_ids.len(),
                prompt.token_ids.len() / capture.block_size() as usize,
                hint.response.reason_code,
                predicted,
                prompt.cached_tokens,
            );
        }
        println!();
        Ok(outcome)
    }

    /// Publishes what the engine had published before a prompt, and waits until the server has acknowledged all that
    /// follows from it.
    fn publish_up_to(&mut self, prompt: &Prompt) -> Result<()> {
        self.engine.say("")?;
        self.engine.wait_for("the frames it sent", |line| line.starts_with("sent ").then_some(()))?;
        let Some(sequence) = prompt.after else { return Ok(()) };
        let until = Instant::now() + PATIENCE;
        loop {
            let page = ureq::get(&self.metrics).call()?.into_body().read_to_string()?;
            if acknowledged(&page) == Some(sequence) {
                return Ok(());
            }
            if Instant::now() > until {
                bail!("the subscriber has not had sequence {sequence} acknowledged within {} s", PATIENCE.as_secs());
            }
            self.subscriber.check()?;
            self.server.check()?;
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn invite(&self, capture: &Capture) {
        let tokens = capture.prompts.last().map(|prompt| &prompt.token_ids[..]).unwrap_or_default();
        let (grpc, bridge) = (&self.grpc, &self.bridge);
        println!("The server is up (process {}). Try:\n", self.server.id());
        println!(
            "  grpcurl -plaintext -d '{{\"tenant_id\":\"{TENANT}\",\"model_id\":\"{MODEL}\",\"hash_scheme\":\"{}\",\"token_ids\":{}}}' \\\n    {grpc} inferencecache.v1alpha1.InferenceCache/LookupRoute",
            capture.engine,
            serde_json::json!(tokens),
        );
        println!("  curl -s http://{bridge}/snapshot");
        println!("  curl -s {}\n\nCtrl-C ends it.", self.metrics);
    }

    fn wait(&mut self) -> Result<()> {
        loop {
            self.server.check()?;
            thread::sleep(Duration::from_millis(200));
        }
    }
}

/// Tokens that the hint says are cached on the replica.
fn predict(response: &pb::LookupRouteResponse, prompt: &Prompt, capture: &Capture) -> u32 {
    let matched = response
        .replica_scores
        .iter()
        .find(|row| row.replica_id == REPLICA)
        .map_or(0, |row| u32::try_from(row.matched_tokens).unwrap_or(0));
    // vLLM always computes the last token itself, so of a wholly cached prompt it leaves the last block out.
    let whole = capture.engine == "vllm" && matched > 0 && matched as usize == prompt.token_ids.len();
    matched - if whole { capture.block_size() } else { 0 }
}

/// The sequence that a metrics page says is acknowledged.
fn acknowledged(page: &str) -> Option<u64> {
    page.lines()
        .find(|line| line.starts_with("inferencecache_subscriber_acknowledged_sequence{"))
        .and_then(|line| line.rsplit(' ').next()?.parse().ok())
}
