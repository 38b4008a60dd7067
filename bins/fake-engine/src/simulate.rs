//! Simulations at work: prompts through a cache, or new blocks without end, in real time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bins_common::Exit;
use inferencecache_wire::testkit::churn::Churn;
use inferencecache_wire::testkit::event;
use inferencecache_wire::testkit::fake_engine::{EngineOptions, FakeEngine, Publish};
use inferencecache_wire::testkit::flood::Flood;
use tokio::time::{MissedTickBehavior, interval};

use crate::args::{Args, Churning, Flooding};
use crate::control::{self, Shared, Simulation};
use crate::run::{failed, open, say, wait_for_subscriber};

/// How often a flood publishes.
const FLOOD_TICK: Duration = Duration::from_millis(5);
/// Flood ticks in a second.
const FLOOD_TICKS: usize = 200;

/// The endpoint of a rank: engines add the rank to the port, and leave a port that the system chooses to it.
fn at_rank(endpoint: &str, rank: usize) -> String {
    let shifted = endpoint.rsplit_once(':').and_then(|(host, port)| {
        let port = port.parse::<u16>().ok()?.checked_add(u16::try_from(rank).ok()?)?;
        Some(format!("{host}:{port}"))
    });
    shifted.unwrap_or_else(|| endpoint.to_owned())
}

fn now(offset: f64) -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64() + offset
}

/// Runs prompts for ever.
pub(crate) async fn churn(args: &Args, churning: &Churning) -> Result<(), Exit> {
    let engines = (0..churning.options.ranks).map(|rank| {
        let options = &args.engine;
        let publish = match &options.publish {
            Publish::Bind(endpoint) => Publish::Bind(at_rank(endpoint, rank)),
            Publish::Connect(endpoint) => Publish::Connect(at_rank(endpoint, rank)),
        };
        let replay = options.replay.as_deref().map(|endpoint| at_rank(endpoint, rank));
        open(EngineOptions { publish, replay, ..options.clone() })
    });
    let engines = engines.collect::<Result<Vec<_>, Exit>>()?;
    let topic = args.topic.as_bytes();
    let simulation = Simulation { churn: Churn::new(churning.options.clone()), engines, paused: false, asleep: false };
    let shared = Shared::new(simulation);
    if !churning.control.is_empty() {
        let address = control::listen(&churning.control, shared.clone()).await.map_err(|why| failed(&why))?;
        say(&format!("control {address}"))?;
    }
    wait_for_subscriber(
        || shared.lock().engines.iter().all(|engine| engine.wait_for_subscriber(topic, Duration::ZERO)),
        args.wait_subscriber,
    )
    .await;
    let ranked = churning.options.ranks > 1;
    let mut ticks = interval(churning.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let mut simulation = shared.lock();
        if simulation.paused || simulation.asleep {
            continue;
        }
        let step = simulation.churn.step();
        if step.events.is_empty() {
            continue;
        }
        let rank = ranked.then_some(step.rank as u64);
        let payload = event::batch(now(args.clock_offset), rank, churning.options.shape, &step.events);
        if let Some(engine) = simulation.engines.get_mut(step.rank) {
            engine.publish(topic, &payload).map_err(|why| failed(&why))?;
        }
    }
}

/// Publishes at the rate asked for, catching up when it falls behind, then stays for replay requests.
pub(crate) async fn flood(mut engine: FakeEngine, args: &Args, flooding: &Flooding) -> Result<(), Exit> {
    let topic = args.topic.as_bytes();
    wait_for_subscriber(|| engine.wait_for_subscriber(topic, Duration::ZERO), args.wait_subscriber).await;
    let mut source = Flood::new(flooding.seed, flooding.block_size);
    let mut ticks = interval(FLOOD_TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let (start, mut stored, mut removed, mut last) = (Instant::now(), 0, 0, None);
    for tick in 1.. {
        ticks.tick().await;
        let due = |per_second: usize| per_second * tick / FLOOD_TICKS - per_second * (tick - 1) / FLOOD_TICKS;
        let (store, remove) = (due(flooding.blocks), due(flooding.evictions));
        let events = source.batch(store, remove);
        (stored, removed) = (stored + store, removed + remove);
        let payload = event::batch(now(args.clock_offset), None, flooding.shape, &events);
        last = Some(engine.publish(topic, &payload).map_err(|why| failed(&why))?);
        if tick % FLOOD_TICKS == 0 {
            let elapsed = start.elapsed();
            say(&format!("flooded {:.3}s stored {stored} removed {removed}", elapsed.as_secs_f64()))?;
            if !flooding.lasts.is_zero()
                && tick / FLOOD_TICKS >= usize::try_from(flooding.lasts.as_secs()).unwrap_or(usize::MAX)
            {
                break;
            }
        }
    }
    say(&format!("sent {} end", last.map_or_else(|| "none".to_owned(), |sequence| sequence.to_string())))?;
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_take_the_ports_that_follow() {
        for (endpoint, expected) in [
            ("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5559"),
            ("tcp://[::1]:5557", "tcp://[::1]:5559"),
            ("tcp://127.0.0.1:*", "tcp://127.0.0.1:*"),
            ("ipc:///tmp/x", "ipc:///tmp/x"),
        ] {
            assert_eq!(at_rank(endpoint, 2), expected);
        }
    }
}
