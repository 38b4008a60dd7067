//! What the index claims after everything went wrong: real processes, real sockets, faults of every kind.
//!
//! ```text
//! kvevent-fake-engine ──> relay ──> kvevent-subscriber ──> inferencecache-server <── judge
//!  simulated cache  │    drops, repeats,     killed, frozen, restarted, like       │
//!                   │    reorders, cuts      the engine and the server             │
//!                   └──────────────── what it holds ── compared with ── every claim┘
//! ```
//!
//! For each seed: faults, then peace. Then the engine stops taking prompts, so that truth stands still, and
//!
//! 1. soon the index claims no block that the engine does not hold, and goes on claiming none;
//! 2. where every lost frame could be had again, it claims exactly what the engine holds, in the right tier, for longer than
//!    the time after which an unrepeated entry is forgotten.
//!
//! Some servers forget nothing within a run: there, what is wrong stays wrong unless it is withdrawn.
//!
//! `SEED=17 cargo test --workspace --test chaos -- --ignored --nocapture` repeats one, with its faults listed; `SEEDS=100`
//! runs as many, several at a time.

#[path = "chaos/judge.rs"]
mod judge;
#[path = "chaos/plan.rs"]
mod plan;
#[path = "chaos/process.rs"]
#[expect(dead_code, reason = "shared with the other long run")]
mod process;
#[path = "chaos/relay.rs"]
mod relay;
#[path = "chaos/stack.rs"]
mod stack;

use std::num::NonZeroU32;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use inferencecache_wire::testkit::churn::Universe;
use judge::{Claims, Difference, Judge, Truth};
use plan::{Plan, Times};
use stack::{BLOCKS, Stack};

/// Time between looks at the index.
const LOOK: Duration = Duration::from_millis(200);
/// How long whatever the subscriber still has to do may take: it waits for at most 10 s after a failed call, and spreads a
/// full report over 10 s more.
const CATCHING_UP: Duration = Duration::from_secs(30);
/// Seeds under way at a time; each of them mostly waits.
const ABREAST: usize = 6;

/// What came of a seed that did not fail.
struct Outcome {
    held: usize,
    /// `None` where not even that could be expected.
    clean_after: Option<Duration>,
    /// `None` where it was not to be expected.
    equal_after: Option<Duration>,
}

fn run(plan: &Plan, times: Times) -> Result<Outcome, String> {
    let universe = Universe::new(plan.seed, NonZeroU32::MIN.saturating_add(3), BLOCKS);
    let mut stack = Stack::start(plan.clone(), times)?;
    let judged = (|| {
        stack.suffer()?;
        stack.settle()?;
        let judge = Judge::new(stack.grpc(), stack.bridge(), &universe, plan.adapters)?;
        let held = Truth::ask(stack.control())?.held;
        // A quiet restart is no excuse: what it hides looks like a loss to the subscriber, and all of it can be replayed.
        let excused = |stack: &Stack| !plan.quiet_restart && !stack.nothing_lost();
        if plan.whole && !excused(&stack) {
            let holds = if plan.unforgetting { times.reannounce } else { 3 * times.reannounce };
            let outcome = judged(&judge, &held, times, true, holds);
            // A replay that was under way may have failed meanwhile.
            if outcome.is_ok() || !excused(&stack) {
                return outcome;
            }
        }
        if plan.unforgetting {
            // Then only the TTL heals, and there is none.
            return Ok(Outcome { held: held.len(), clean_after: None, equal_after: None });
        }
        judged(&judge, &held, times, false, 3 * times.reannounce)
    })();
    let fallen = stack.fallen();
    if !fallen.is_empty() {
        return Err(format!("ended by itself: {fallen:?}\n{}", stack.evidence()));
    }
    judged.map_err(|why| format!("{why}\n{}", stack.evidence()))
}

/// Waits until the claims are right, and sees whether they stay so for as long as `holds`.
fn judged(judge: &Judge, held: &Claims, times: Times, whole: bool, holds: Duration) -> Result<Outcome, String> {
    let start = Instant::now();
    if !whole {
        // A replay that is not answered holds frames back, so a claim may still be made that only the TTL takes away.
        std::thread::sleep(2 * times.reannounce);
    }
    // Two periods, and the TTL, which is as long: a wrong entry may have been repeated just before the subscriber knew.
    let clean_after = Some(until(judge, held, start + 4 * times.reannounce, Difference::is_clean)? - start);
    let exact = || until(judge, held, Instant::now() + CATCHING_UP, Difference::is_none);
    let equal_after = if whole { Some(exact()? - start) } else { None };
    let since = Instant::now();
    while since.elapsed() < holds {
        std::thread::sleep(LOOK);
        let difference = judge.compare(held)?;
        if !difference.is_clean() || whole && !difference.is_none() {
            return Err(format!("right for a while, then after {:?}: {}", start.elapsed(), tell(&difference)));
        }
    }
    Ok(Outcome { held: held.len(), clean_after, equal_after })
}

/// When it was right.
fn until(judge: &Judge, held: &Claims, deadline: Instant, right: fn(&Difference) -> bool) -> Result<Instant, String> {
    loop {
        let difference = judge.compare(held)?;
        if right(&difference) {
            return Ok(Instant::now());
        }
        if Instant::now() > deadline {
            return Err(format!("not right in time: {}", tell(&difference)));
        }
        std::thread::sleep(LOOK);
    }
}

fn tell(difference: &Difference) -> String {
    format!(
        "{} claimed and not held {:x?}, {} claimed that no prompt has, {} held and not claimed {:x?}, {} otherwise {:x?}",
        difference.false_claims.len(),
        difference.false_claims.iter().take(5).collect::<Vec<_>>(),
        difference.unheard_of,
        difference.missing.len(),
        difference.missing.iter().take(5).collect::<Vec<_>>(),
        difference.otherwise.len(),
        difference.otherwise.iter().take(5).collect::<Vec<_>>(),
    )
}

/// Runs plans and prints a line for each; panics at the end when one failed.
fn run_all(plans: &[Plan], times: Times) {
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let exact = AtomicUsize::new(0);
    let alone = plans.len() == 1;
    std::thread::scope(|scope| {
        for _ in 0..ABREAST.min(plans.len()) {
            scope.spawn(|| {
                while let Some(plan) = plans.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let seed = plan.seed;
                    if alone {
                        plan.acts.iter().for_each(|(at, act)| println!("  {at:>9.3?} {act:?}"));
                    }
                    let verdict = match run(plan, times) {
                        Ok(Outcome { held, clean_after, equal_after }) => {
                            exact.fetch_add(equal_after.is_some().into(), Ordering::Relaxed);
                            let word = |what: &str, after: Option<Duration>| match after {
                                Some(after) => format!("{what} after {after:.1?}"),
                                None => format!("{what} not to be expected"),
                            };
                            let (clean, equal) = (word("clean", clean_after), word("equal", equal_after));
                            format!("ok, {held} held, {clean}, {equal}")
                        }
                        Err(why) => {
                            failures.lock().expect("unpoisoned").push(seed);
                            format!("FAILED: {why}")
                        }
                    };
                    println!("seed {seed}: {plan}: {verdict}");
                }
            });
        }
    });
    let failures = failures.into_inner().expect("unpoisoned");
    let (count, exact) = (plans.len(), exact.into_inner());
    println!("{} of {count} seeds claim only what is held, {exact} of them exactly that", count - failures.len());
    assert!(failures.is_empty(), "seeds that failed: {failures:?}");
}

#[test]
#[ignore = "minutes; make soak SEEDS=100"]
fn the_index_claims_only_what_the_engine_holds() {
    let seeds = match process::setting("SEED") {
        Some(seed) => seed..=seed,
        None => 1..=process::setting("SEEDS").unwrap_or(20),
    };
    let times = Times { faults: Duration::from_secs(6), reannounce: Duration::from_secs(2) };
    run_all(&seeds.map(|seed| Plan::new(seed, times)).collect::<Vec<_>>(), times);
}

/// The strictest plans, in short: nothing heals by itself, so the index must be told everything.
#[test]
fn an_index_that_forgets_nothing_equals_the_cache_after_faults() {
    let times = Times { faults: Duration::from_millis(1500), reannounce: Duration::from_secs(1) };
    run_all(&Plan::strict(1, times).take(3).collect::<Vec<_>>(), times);
}
