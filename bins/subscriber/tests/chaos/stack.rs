//! One server, one subscriber, one engine and the bad network between them, on ports that stay theirs.

use std::time::{Duration, Instant};

use serde_json::json;

use super::judge::{MODEL, REPLICA, SCHEME, TENANT};
use super::plan::{Act, Noise, Plan, Times, Victim};
use super::process::{PATIENCE, Process, exchange, free_ports, http, sample};
use super::relay::Relay;

/// Blocks that exist, and those that fit into an engine.
pub(crate) const BLOCKS: usize = 300;
const CAPACITY: usize = 120;
/// Longer than any run.
const UNFORGETTING: Duration = Duration::from_secs(3600);
/// How long somebody is waited for who may be frozen.
const SHORT: Duration = Duration::from_millis(200);

struct Ports {
    grpc: u16,
    public: u16,
    bridge: u16,
    control: u16,
    health: u16,
    events: u16,
    replay: u16,
}

pub(crate) struct Stack {
    plan: Plan,
    times: Times,
    ports: Ports,
    relays: Vec<Relay>,
    engine: Option<Process>,
    subscriber: Option<Process>,
    server: Option<Process>,
    /// Engines started so far: each sees the prompts in another order.
    runs: u32,
    /// Losses that the subscriber had counted when the engine started.
    lost_before: f64,
}

impl Stack {
    pub(crate) fn start(plan: Plan, times: Times) -> Result<Self, String> {
        let first = free_ports(5 + 2 * plan.ranks);
        let ports = Ports {
            grpc: first,
            public: first + 1,
            bridge: first + 2,
            control: first + 3,
            health: first + 4,
            events: first + 5,
            replay: first + 5 + plan.ranks,
        };
        let relays = (0..plan.ranks)
            .map(|rank| Relay::start(plan.seed ^ u64::from(rank) << 48, ports.events + rank, ports.replay + rank))
            .collect();
        let mut stack = Self {
            plan,
            times,
            ports,
            relays,
            engine: None,
            subscriber: None,
            server: None,
            runs: 0,
            lost_before: 0.0,
        };
        for victim in [Victim::Server, Victim::Engine, Victim::Subscriber] {
            stack.begin(victim, 0)?;
        }
        Ok(stack)
    }

    pub(crate) fn control(&self) -> u16 {
        self.ports.control
    }

    pub(crate) fn grpc(&self) -> u16 {
        self.ports.grpc
    }

    pub(crate) fn bridge(&self) -> u16 {
        self.ports.bridge
    }

    /// Runs the plan, then sees to it that everything is up and undisturbed.
    pub(crate) fn suffer(&mut self) -> Result<(), String> {
        let start = Instant::now();
        for (at, act) in self.plan.acts.clone() {
            std::thread::sleep((start + at).saturating_duration_since(Instant::now()));
            self.act(act)?;
        }
        for relay in &self.relays {
            relay.noise(Noise::default());
        }
        http("POST", self.ports.control, "/wake", "").map(drop)
    }

    fn act(&mut self, act: Act) -> Result<(), String> {
        match act {
            Act::Freeze(victim) => self.signal(victim, "STOP"),
            Act::Thaw(victim) => self.signal(victim, "CONT"),
            Act::Kill { victim, forwarder } => {
                if victim == Victim::Engine {
                    self.relays.iter().for_each(|relay| relay.down(forwarder));
                }
                *self.process(victim) = None;
            }
            Act::Start { victim, clock } => self.begin(victim, clock)?,
            Act::Noise(noise) => self.relays.iter().for_each(|relay| relay.noise(noise)),
            Act::Cut => self.relays.iter().for_each(Relay::cut),
            // An engine that is dead or frozen cannot be told.
            Act::Sleep | Act::Wake => {
                let path = if act == Act::Sleep { "/sleep" } else { "/wake" };
                let _ = exchange("POST", self.ports.control, path, "", SHORT);
            }
        }
        Ok(())
    }

    fn process(&mut self, victim: Victim) -> &mut Option<Process> {
        match victim {
            Victim::Engine => &mut self.engine,
            Victim::Subscriber => &mut self.subscriber,
            Victim::Server => &mut self.server,
        }
    }

    fn signal(&mut self, victim: Victim, signal: &str) {
        if let Some(process) = self.process(victim) {
            process.signal(signal);
        }
    }

    fn begin(&mut self, victim: Victim, clock: i64) -> Result<(), String> {
        match victim {
            Victim::Engine => self.begin_engine(clock),
            Victim::Subscriber => self.begin_subscriber(),
            Victim::Server => self.begin_server(),
        }
    }

    fn begin_server(&mut self) -> Result<(), String> {
        let ports = &self.ports;
        let ttl = if self.plan.unforgetting { UNFORGETTING } else { 2 * self.times.reannounce };
        let flags = [
            format!("--grpc-bind-address=127.0.0.1:{}", ports.grpc),
            format!("--http-bind-address=127.0.0.1:{}", ports.public),
            format!("--snapshot-bind-address=127.0.0.1:{}", ports.bridge),
            "--insecure-disable-auth".to_owned(),
            "--lame-duck=0".to_owned(),
            format!("--index-ttl={}ms", ttl.as_millis()),
            "--index-sweep-interval=100ms".to_owned(),
        ];
        self.server = Some(Process::start("inferencecache-server", &flags)?);
        let policy = json!({"version": 7, "policies": [{
            "namespace": TENANT, "minimumMatchedTokens": 0, "routingFloorScore": 0,
            "evictionTTL": u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX),
        }]});
        let bridge = ports.bridge;
        eventually("a server", || http("POST", bridge, "/policy", &policy.to_string()).map(|_| true))
    }

    fn begin_engine(&mut self, clock: i64) -> Result<(), String> {
        let plan = &self.plan;
        let mut flags = vec![
            "-bind=tcp://127.0.0.1:*".to_owned(),
            format!("-churn-seed={}", plan.seed),
            format!("-churn-run={}", self.runs),
            format!("-churn-rate={}", plan.rate),
            format!("-churn-blocks={BLOCKS}"),
            format!("-churn-capacity={CAPACITY}"),
            format!("-churn-host-capacity={}", plan.host_capacity),
            format!("-churn-adapters={}", plan.adapters),
            format!("-churn-twice-every={}", plan.twice_every),
            format!("-churn-clear-every={}", plan.clear_every),
            format!("-ranks={}", plan.ranks),
            "-block-size=4".to_owned(),
            format!("-format={}", if plan.map { "map" } else { "tuple" }),
            format!("-clock-offset={clock}s"),
            format!("-control=127.0.0.1:{}", self.ports.control),
            format!("-replay-layout={}", plan.layout),
        ];
        if let Some(batches) = plan.replay {
            flags.extend(["-replay=tcp://127.0.0.1:*".to_owned(), format!("-replay-buffer={batches}")]);
        }
        self.runs += 1;
        self.lost_before = self.lost();
        let mut engine = Process::start("kvevent-fake-engine", &flags)?;
        let ranks = usize::from(plan.ranks);
        let wanted = |word: &'static str, count: usize| {
            move |lines: &std::collections::VecDeque<String>| {
                let found: Vec<String> =
                    lines.iter().filter_map(|line| line.strip_prefix(word).map(str::to_owned)).collect();
                (found.len() == count).then_some(found)
            }
        };
        let events = engine.said("endpoint", wanted("listening ", ranks))?;
        let replays =
            engine.said("replay endpoint", wanted("replay ", if plan.replay.is_some() { ranks } else { 0 }))?;
        engine.said("control endpoint", wanted("control ", 1))?;
        for (rank, (relay, events)) in self.relays.iter().zip(events).enumerate() {
            relay.up(events, replays.get(rank).cloned());
        }
        self.engine = Some(engine);
        Ok(())
    }

    fn begin_subscriber(&mut self) -> Result<(), String> {
        let ports = &self.ports;
        let mut flags = vec![
            format!("--engine-endpoint=tcp://127.0.0.1:{}", ports.events),
            format!("--engine-dp-size={}", self.plan.ranks),
            format!("--engine-metrics-url=http://127.0.0.1:{}/metrics", ports.control),
            "--stats-interval=300ms".to_owned(),
            format!("--server=127.0.0.1:{}", ports.grpc),
            format!("--replica-id={REPLICA}"),
            format!("--model-id={MODEL}"),
            format!("--tenant-id={TENANT}"),
            format!("--hash-scheme={SCHEME}"),
            format!("--health-bind-address=127.0.0.1:{}", ports.health),
            "--window=20ms".to_owned(),
            format!("--reannounce-interval={}ms", self.times.reannounce.as_millis()),
            format!("--refresh-min-interval={}ms", self.times.reannounce.as_millis() / 2),
            "--reconnect-backoff=50ms".to_owned(),
            "--rpc-timeout=1s".to_owned(),
            "--log-level=debug".to_owned(),
        ];
        if self.plan.replay.is_some() {
            flags.push(format!("--replay-endpoint=tcp://127.0.0.1:{}", ports.replay));
        }
        self.lost_before = 0.0;
        self.subscriber = Some(Process::start("kvevent-subscriber", &flags)?);
        Ok(())
    }

    /// Waits until the subscriber is connected to every rank and each has published since.
    pub(crate) fn settle(&mut self) -> Result<(), String> {
        let ranks = self.plan.ranks;
        let connected = |page: &str| {
            let up = |rank| sample(page, &format!("inferencecache_subscriber_connected{{rank=\"{rank}\"}}"));
            (0..ranks).all(|rank| up(rank) == Some(1.0))
        };
        eventually("a connected subscriber", || Ok(connected(&self.metrics()?)))?;
        let control = self.ports.control;
        let before = super::judge::Truth::ask(control)?.last;
        eventually("ten more batches of each rank", || {
            let now = super::judge::Truth::ask(control)?.last;
            Ok(before.iter().zip(now).all(|(before, now)| now >= before.map_or(Some(9), |before| Some(before + 10))))
        })?;
        http("POST", control, "/pause", "").map(drop)
    }

    pub(crate) fn metrics(&self) -> Result<String, String> {
        http("GET", self.ports.health, "/metrics", "")
    }

    fn lost(&self) -> f64 {
        let page = exchange("GET", self.ports.health, "/metrics", "", SHORT).unwrap_or_default();
        let count = |name: &str| sample(&page, &format!("inferencecache_subscriber_{name}")).unwrap_or(0.0);
        count("lost_batches_total") + count("unproven_publishers_total")
    }

    /// Whether the subscriber itself says that nothing of the present engine was lost or left in doubt.
    pub(crate) fn nothing_lost(&self) -> bool {
        self.lost() <= self.lost_before
    }

    /// Everything that ended by itself, which nothing should.
    pub(crate) fn fallen(&mut self) -> Vec<&'static str> {
        let processes =
            [("engine", &mut self.engine), ("subscriber", &mut self.subscriber), ("server", &mut self.server)];
        let fallen = processes.into_iter().filter_map(|(name, process)| {
            let running = process.as_mut().is_some_and(Process::is_running);
            (!running).then_some(name)
        });
        fallen.collect()
    }

    /// What the subscriber said and counts, for a report.
    pub(crate) fn evidence(&self) -> String {
        let counts = self.metrics().unwrap_or_default();
        let counts: String = counts
            .lines()
            .filter(|line| !line.starts_with('#') && !line.ends_with(" 0") && !line.contains("_bucket"))
            .map(|line| format!("    {line}\n"))
            .collect();
        let log = self.subscriber.as_ref().map_or_else(String::new, |subscriber| subscriber.tail(60));
        format!("  subscriber's log:\n{log}  its metrics:\n{counts}")
    }
}

/// Waits for something to hold. An error means not yet.
pub(crate) fn eventually(what: &str, mut done: impl FnMut() -> Result<bool, String>) -> Result<(), String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let outcome = done();
        if outcome == Ok(true) {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(format!("not in time: {what} ({outcome:?})"));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
