//! How much one subscriber takes for how long: a flood of new blocks through real processes, measured from outside.
//!
//! Most blocks are never removed, so every bound bites: the subscriber's on tracked blocks, the server's on entries. What is
//! checked is that nothing is dropped and that memory stops growing; the rest is a table to read.

#[path = "chaos/process.rs"]
#[expect(dead_code, reason = "shared with the other long run")]
mod process;

use std::time::{Duration, Instant};

use process::{PATIENCE, Process, free_ports, http, sample, setting};

const STORED_PER_SECOND: usize = 200_000;
const EVICTED_PER_SECOND: usize = 10_000;
const BLOCK_SIZE: usize = 16;
/// Time between rows of the table.
const ROW: Duration = Duration::from_secs(5);

/// What is seen from outside at one moment.
struct Sight {
    at: Instant,
    /// CPU seconds of the subscriber and of the server.
    cpu: [f64; 2],
    /// Their resident bytes.
    resident: [u64; 2],
    acknowledged: u64,
    entries: f64,
    evictions: f64,
    tracked: f64,
    dropped: f64,
}

struct Stack {
    engine: Process,
    subscriber: Process,
    server: Process,
    health: u16,
}

impl Stack {
    fn start(seconds: u64) -> Result<Self, String> {
        let ports = free_ports(4);
        let [grpc, public, bridge, health] = [0, 1, 2, 3].map(|offset| ports + offset);
        let server = Process::start(
            "inferencecache-server",
            &[
                format!("--grpc-bind-address=127.0.0.1:{grpc}"),
                format!("--http-bind-address=127.0.0.1:{public}"),
                format!("--snapshot-bind-address=127.0.0.1:{bridge}"),
                "--insecure-disable-auth".to_owned(),
                "--lame-duck=0".to_owned(),
            ],
        )?;
        let mut engine = Process::start(
            "kvevent-fake-engine",
            &[
                "-bind=tcp://127.0.0.1:*".to_owned(),
                format!("-flood-blocks={STORED_PER_SECOND}"),
                format!("-flood-evictions={EVICTED_PER_SECOND}"),
                format!("-flood-for={seconds}s"),
                format!("-block-size={BLOCK_SIZE}"),
                "-format=map".to_owned(),
            ],
        )?;
        let endpoint = engine.said("endpoint", |lines| {
            lines.iter().find_map(|line| line.strip_prefix("listening ")).map(str::to_owned)
        })?;
        let subscriber = Process::start(
            "kvevent-subscriber",
            &[
                format!("--engine-endpoint={endpoint}"),
                format!("--server=127.0.0.1:{grpc}"),
                "--replica-id=r0".to_owned(),
                "--model-id=m".to_owned(),
                format!("--health-bind-address=127.0.0.1:{health}"),
            ],
        )?;
        Ok(Self { engine, subscriber, server, health })
    }

    fn look(&self) -> Result<Sight, String> {
        let page = http("GET", self.health, "/metrics", "")?;
        let value = |name: &str| sample(&page, &format!("inferencecache_subscriber_{name}")).unwrap_or(0.0);
        let (subscriber, server) = self.subscriber.usage().zip(self.server.usage()).ok_or("a process is gone")?;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a sequence number")]
        let acknowledged = value("acknowledged_sequence{rank=\"0\"}") as u64;
        Ok(Sight {
            at: Instant::now(),
            cpu: [subscriber.0, server.0],
            resident: [subscriber.1, server.1],
            acknowledged,
            entries: value("entries_reported_total{tier=\"t1\"}"),
            evictions: value("evictions_total"),
            tracked: value("tracked_blocks{kind=\"indexed\"}"),
            dropped: value("dropped_messages_total"),
        })
    }

    /// Batches published so far, and whether that was all: the engine publishes 200 a second and says each second.
    fn published(&mut self) -> Result<(u64, bool), String> {
        self.engine.said("progress", |lines| {
            let end = lines.iter().find_map(|line| line.strip_prefix("sent ")?.strip_suffix(" end")?.parse().ok());
            let flooded = lines.iter().filter(|line| line.starts_with("flooded ")).count() as u64;
            Some(end.map_or((flooded * 200, false), |last: u64| (last + 1, true)))
        })
    }
}

fn mib(bytes: u64) -> u64 {
    bytes >> 20
}

#[test]
#[ignore = "a minute and all of the machine; make soak"]
fn a_flood_is_taken_without_loss_and_in_flat_memory() {
    let seconds = setting("FLOOD_SECONDS").unwrap_or(60);
    flood(seconds).unwrap_or_else(|why| panic!("{why}"));
}

fn flood(seconds: u64) -> Result<(), String> {
    let mut stack = Stack::start(seconds)?;
    let deadline = Instant::now() + PATIENCE;
    let mut last = loop {
        match stack.look() {
            Ok(sight) if sight.entries > 0.0 => break sight,
            outcome if Instant::now() > deadline => return Err(format!("no report: {:?}", outcome.err())),
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    println!("asked for: {STORED_PER_SECOND} stored and {EVICTED_PER_SECOND} evicted blocks/s of {BLOCK_SIZE} tokens");
    println!(
        " stored/s  evicted/s  CPU subscriber  CPU server  RSS subscriber  RSS server  tracked  batches behind  drops"
    );
    let (first, mut rows) = ((last.at, last.cpu, last.entries, last.evictions), Vec::new());
    let deadline = Instant::now() + Duration::from_secs(seconds) + PATIENCE;
    loop {
        std::thread::sleep(ROW);
        let (published, all) = stack.published()?;
        let sight = stack.look()?;
        let wall = (sight.at - last.at).as_secs_f64();
        let rate = |now: f64, then: f64| (now - then) / wall;
        println!(
            "{:>9.0} {:>10.0} {:>14.0}% {:>10.0}% {:>11} MiB {:>7} MiB {:>8} {:>15} {:>6}",
            rate(sight.entries, last.entries),
            rate(sight.evictions, last.evictions),
            100.0 * rate(sight.cpu[0], last.cpu[0]),
            100.0 * rate(sight.cpu[1], last.cpu[1]),
            mib(sight.resident[0]),
            mib(sight.resident[1]),
            sight.tracked,
            published.saturating_sub(sight.acknowledged + 1),
            sight.dropped,
        );
        rows.push(sight.resident);
        let done = all && sight.acknowledged + 1 == published;
        last = sight;
        if done {
            break;
        }
        if Instant::now() > deadline {
            return Err(format!("{} of {published} batches are acknowledged", last.acknowledged + 1));
        }
    }
    let wall = (last.at - first.0).as_secs_f64();
    let share = |now: f64, then: f64| 100.0 * (now - then) / wall;
    println!(
        "over {wall:.0} s: {:.0} entries/s and {:.0} evictions/s acknowledged, subscriber {:.0}% and server {:.0}% of a core",
        (last.entries - first.2) / wall,
        (last.evictions - first.3) / wall,
        share(last.cpu[0], first.1[0]),
        share(last.cpu[1], first.1[1]),
    );
    if last.dropped > 0.0 {
        return Err(format!("{} messages were dropped", last.dropped));
    }
    for (name, resident) in [("subscriber", 0), ("server", 1)] {
        // Every bound bites within seconds; from the middle on nothing has a reason to grow.
        let (middle, end) = (rows[rows.len() / 2][resident], rows[rows.len() - 1][resident]);
        if end * 10 > middle * 11 {
            return Err(format!("the {name} grew from {} to {} MiB in the second half", mib(middle), mib(end)));
        }
    }
    Ok(())
}
