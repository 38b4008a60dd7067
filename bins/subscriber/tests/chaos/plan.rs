//! What happens in a seed's run: how the engine is set up, and which faults come when. Pure, so that a seed says it all.

use std::fmt;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};

/// How long everything takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    /// Faults.
    pub(crate) faults: Duration,
    /// `--reannounce-interval`; the server's TTL is twice that.
    pub(crate) reannounce: Duration,
}

/// The processes that can fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Victim {
    Engine,
    Subscriber,
    Server,
}

/// Chances of each frame, in thousandths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Noise {
    pub(crate) drop: u32,
    pub(crate) duplicate: u32,
    /// Held back for a random time up to [`Noise::LATE`], so that others overtake it.
    pub(crate) delay: u32,
    /// Of replies to replay requests: lost.
    pub(crate) lose_reply: u32,
    /// Of replay requests: answered after the subscriber has given up.
    pub(crate) slow_reply: u32,
}

impl Noise {
    /// Longest delay.
    pub(crate) const LATE: Duration = Duration::from_millis(120);
}

/// One thing that is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    /// SIGSTOP.
    Freeze(Victim),
    /// SIGCONT.
    Thaw(Victim),
    /// SIGKILL. An engine behind a forwarder dies without its connections breaking.
    Kill {
        victim: Victim,
        forwarder: bool,
    },
    /// Started again, an engine with its clock so many seconds off.
    Start {
        victim: Victim,
        clock: i64,
    },
    Noise(Noise),
    /// Connections between engine and subscriber break.
    Cut,
    /// The engine drops its cache without a word.
    Sleep,
    Wake,
}

/// A run.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) ranks: u16,
    pub(crate) map: bool,
    pub(crate) host_capacity: usize,
    pub(crate) adapters: &'static str,
    pub(crate) twice_every: u32,
    pub(crate) clear_every: u32,
    /// Batches kept for replay; `None`: no replay endpoint.
    pub(crate) replay: Option<usize>,
    pub(crate) layout: &'static str,
    pub(crate) rate: u32,
    /// Every lost frame can be had again, and nothing makes the subscriber doubt: the index must equal the cache in the end.
    pub(crate) whole: bool,
    /// The server forgets nothing by itself: what is wrong stays wrong unless it is withdrawn. Only where all is whole.
    pub(crate) unforgetting: bool,
    /// The engine is replaced while the subscriber cannot notice.
    pub(crate) quiet_restart: bool,
    pub(crate) acts: Vec<(Duration, Act)>,
}

impl Plan {
    pub(crate) fn new(seed: u64, times: Times) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let whole = rng.random_ratio(1, 2);
        let replay = match whole {
            true => Some(10_000),
            false if rng.random_ratio(1, 3) => None,
            false => Some(rng.random_range(5..200)),
        };
        let mut plan = Self {
            seed,
            ranks: if rng.random_ratio(1, 3) { 2 } else { 1 },
            map: rng.random_ratio(1, 2),
            host_capacity: if rng.random_ratio(1, 3) { 80 } else { 0 },
            adapters: if rng.random_ratio(1, 3) { "a,b" } else { "" },
            twice_every: if !whole && rng.random_ratio(1, 2) { 20 } else { 0 },
            clear_every: if rng.random_ratio(1, 2) { 150 } else { 0 },
            replay,
            layout: if rng.random_ratio(2, 3) { "current" } else { "older" },
            rate: rng.random_range(30..100),
            whole,
            unforgetting: whole && rng.random_ratio(1, 2),
            quiet_restart: rng.random_ratio(1, 5),
            acts: Vec::new(),
        };
        plan.schedule(&mut rng, times);
        plan
    }

    /// The plans from `seed` on under which the index must equal the cache although nothing heals by itself, and in which a
    /// restart shows.
    pub(crate) fn strict(seed: u64, times: Times) -> impl Iterator<Item = Self> {
        (seed..).map(move |seed| Self::new(seed, times)).filter(|plan| plan.unforgetting && !plan.quiet_restart)
    }

    fn schedule(&mut self, rng: &mut SmallRng, times: Times) {
        if self.quiet_restart {
            self.restart_quietly(rng, times);
        } else {
            self.outages(rng, times, Victim::Engine);
            self.outages(rng, times, Victim::Subscriber);
        }
        self.outages(rng, times, Victim::Server);
        let mut at = Duration::ZERO;
        while at < times.faults {
            let act = match rng.random_range(0..10) {
                0 => Act::Cut,
                1 => Act::Noise(Noise::default()),
                2 => Act::Sleep,
                _ => Act::Noise(self.noise(rng)),
            };
            self.acts.push((at, act));
            at += Duration::from_millis(rng.random_range(200..900));
            if act == Act::Sleep {
                self.acts.push((at.min(times.faults), Act::Wake));
            }
        }
        self.acts.sort_by_key(|&(at, _)| at);
    }

    fn noise(&self, rng: &mut SmallRng) -> Noise {
        let mut chance = |most: u32| if rng.random_ratio(1, 2) { rng.random_range(0..most) } else { 0 };
        let noise = Noise { drop: chance(300), duplicate: chance(200), delay: chance(200), ..Noise::default() };
        if self.whole { noise } else { Noise { lose_reply: chance(100), slow_reply: chance(300), ..noise } }
    }

    /// The frozen subscriber never meets a closed port, and by the time it goes on the new engine may have passed the number
    /// of the old one.
    fn restart_quietly(&mut self, rng: &mut SmallRng, times: Times) {
        let begin = times.faults.mul_f64(rng.random_range(0.05..0.4));
        let frozen = times.faults.mul_f64(0.4).min(Duration::from_millis(900));
        let (victim, clock) = (Victim::Engine, [0, 0, -3600, 3600][rng.random_range(0..4)]);
        let moment = Duration::from_millis(10);
        self.acts.extend([
            (begin, Act::Freeze(Victim::Subscriber)),
            (begin + moment, Act::Kill { victim, forwarder: false }),
            (begin + 2 * moment, Act::Start { victim, clock }),
            (begin + frozen, Act::Thaw(Victim::Subscriber)),
        ]);
    }

    /// Times at which one process is dead or frozen, one after the other.
    fn outages(&mut self, rng: &mut SmallRng, times: Times, victim: Victim) {
        let millis = u64::try_from(times.faults.as_millis()).unwrap_or(u64::MAX);
        let mut at = rng.random_range(0..millis);
        while at < millis {
            // Short enough for a replay to be answered in time, where all must be whole in the end.
            let lasts = rng.random_range(20..if self.whole { 900 } else { 3000 }).min(millis - at);
            let (begin, end) = match rng.random_range(0..2) {
                0 => (Act::Freeze(victim), Act::Thaw(victim)),
                _ => {
                    let forwarder = victim == Victim::Engine && rng.random_ratio(1, 4);
                    let clock = [0, 0, -3600, 3600, -2, 2][rng.random_range(0..6)];
                    (Act::Kill { victim, forwarder }, Act::Start { victim, clock })
                }
            };
            self.acts.push((Duration::from_millis(at), begin));
            self.acts.push((Duration::from_millis(at + lasts), end));
            at += lasts + 1 + rng.random_range(millis / 10..millis);
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |wanted: fn(&Act) -> bool| self.acts.iter().filter(|(_, act)| wanted(act)).count();
        let shape = if self.map { "map" } else { "tuple" };
        write!(f, "{} rank(s), {shape}, {}/s", self.ranks, self.rate)?;
        match self.replay {
            Some(batches) => write!(f, ", replay {batches} {}", self.layout)?,
            None => write!(f, ", no replay")?,
        }
        for (is, word) in [
            (self.host_capacity > 0, "host tier"),
            (!self.adapters.is_empty(), "adapters"),
            (self.twice_every > 0, "copies"),
            (self.clear_every > 0, "clears"),
            (self.unforgetting, "no TTL"),
            (self.quiet_restart, "quiet restart"),
        ] {
            if is {
                write!(f, ", {word}")?;
            }
        }
        let kills = count(|act| matches!(act, Act::Kill { .. }));
        let freezes = count(|act| matches!(act, Act::Freeze(_)));
        write!(f, "; {kills} kills, {freezes} freezes, {} cuts", count(|act| *act == Act::Cut))
    }
}
