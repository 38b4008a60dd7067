//! Opens the sockets and publishes until a signal, or the end of the work.

use std::io::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bins_common::Exit;
use bins_common::signals::{self, Signals};
use inferencecache_wire::testkit::capture::Capture;
use inferencecache_wire::testkit::fake_engine::{CapturePlayer, EngineOptions, FakeEngine, Publish, Step};
use inferencecache_wire::testkit::script::Play;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use crate::args::{Args, Work};
use crate::simulate;

/// Runs until a signal ends it, which is a success.
///
/// # Errors
/// What kept it from starting or from going on, with exit code 1.
pub(crate) fn run(args: Args) -> Result<(), Exit> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(|why| Exit::failure(format!("cannot start the runtime: {why}")))?;
    let outcome = runtime.block_on(async {
        let signals = Signals::install().map_err(|why| Exit::failure(format!("cannot catch signals: {why}")))?;
        let work = |shutdown: signals::Shutdown| async move {
            tokio::select! {
                biased;
                () = shutdown.wait() => Ok(()),
                outcome = publish(args) => outcome,
            }
        };
        signals::run(signals, work).await.unwrap_or(Ok(()))
    });
    // Whoever still reads stdin shall not keep the process.
    runtime.shutdown_background();
    outcome
}

async fn publish(args: Args) -> Result<(), Exit> {
    match args.work {
        Work::Script { ref play, drop_every, evict_every, restart_every } => {
            let engine = open(args.engine.clone())?;
            expect(play);
            let somebody = || engine.wait_for_subscriber(args.topic.as_bytes(), Duration::ZERO);
            wait_for_subscriber(somebody, args.wait_subscriber).await;
            script(engine, &args, play, [drop_every, evict_every, restart_every]).await
        }
        Work::Capture { ref file, keep_time, step } => {
            // One that cannot be read is refused before anybody is told where to connect.
            let mut capture = Capture::load(file).map_err(|why| Exit::failure(describe(&why)))?;
            if !keep_time {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                capture.shift_to(now.as_secs_f64() + args.clock_offset);
            }
            let player = CapturePlayer::new(open(args.engine.clone())?, capture);
            if step { play_by_step(player, args.wait_subscriber).await } else { play_through(player, &args).await }
        }
        Work::Churn(ref churning) => simulate::churn(&args, churning).await,
        Work::Flood(ref flooding) => simulate::flood(open(args.engine.clone())?, &args, flooding).await,
    }
}

/// Opens the sockets of an engine, and says where.
pub(crate) fn open(options: EngineOptions) -> Result<FakeEngine, Exit> {
    let bound = matches!(options.publish, Publish::Bind(_));
    let engine = FakeEngine::start(options).map_err(|why| failed(&why))?;
    say(&format!("{} {}", if bound { "listening" } else { "dialling" }, engine.endpoint()))?;
    engine.replay_endpoint().map_or(Ok(()), |endpoint| say(&format!("replay {endpoint}")))?;
    Ok(engine)
}

/// What must come of a script, for whoever compares.
fn expect(play: &Play) {
    let expected = play.expected();
    if expected.is_empty() {
        tracing::info!("EXPECT no index entries: the batch carries no token_ids");
    }
    for (i, (digest, tokens)) in expected.iter().enumerate() {
        tracing::info!("EXPECT prefix_hash[{i}]={digest:016x} token_count={tokens}");
    }
}

async fn script(mut engine: FakeEngine, args: &Args, play: &Play, every: [u64; 3]) -> Result<(), Exit> {
    let [drop_every, evict_every, restart_every] = every;
    let (stored, removed) = (play.stored(), play.removed());
    let mut ticks = interval(args.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for message in 1_u64.. {
        ticks.tick().await;
        let is = |every: u64| every > 0 && message.is_multiple_of(every);
        if is(drop_every) {
            engine.skip(1);
        }
        let payload = if is(evict_every) { &removed } else { &stored };
        engine.publish(args.topic.as_bytes(), payload).map_err(|why| failed(&why))?;
        if is(restart_every) {
            engine.restart().map_err(|why| failed(&why))?;
        }
    }
    Ok(())
}

/// Sends one stretch for each line on stdin. End of input is the end.
async fn play_by_step(mut player: CapturePlayer, wait: Duration) -> Result<(), Exit> {
    let mut lines = stdin_lines();
    let (mut prompts, mut first) = (0_usize, true);
    while lines.recv().await.is_some() {
        if std::mem::take(&mut first) {
            let topic = player.topic().unwrap_or_default().to_vec();
            wait_for_subscriber(|| player.engine().wait_for_subscriber(&topic, Duration::ZERO), wait).await;
        }
        let step = player.step().map_err(|why| failed(&why))?;
        let last = |step: &Step| step.last.map_or_else(|| "none".to_owned(), |sequence| sequence.to_string());
        match &step {
            Some(step) if step.prompt.is_some() => {
                say(&format!("sent {} prompt {prompts}", last(step)))?;
                prompts += 1;
            }
            Some(step) => say(&format!("sent {} end", last(step)))?,
            None => say("end")?,
        }
    }
    Ok(())
}

/// Sends everything, then stays for replay requests.
async fn play_through(mut player: CapturePlayer, args: &Args) -> Result<(), Exit> {
    let topic = player.topic().unwrap_or_default().to_vec();
    let somebody = || player.engine().wait_for_subscriber(&topic, Duration::ZERO);
    wait_for_subscriber(somebody, args.wait_subscriber).await;
    let mut ticks = interval(args.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = None;
    while let Some(sequence) = player.next_frame().map_err(|why| failed(&why))? {
        last = Some(sequence);
        ticks.tick().await;
    }
    say(&format!("sent {} end", last.map_or_else(|| "none".to_owned(), |sequence| sequence.to_string())))?;
    std::future::pending().await
}

/// Waits for somebody to listen, but not for ever.
pub(crate) async fn wait_for_subscriber(somebody: impl Fn() -> bool, limit: Duration) {
    let deadline = tokio::time::Instant::now() + limit;
    while !somebody() {
        if tokio::time::Instant::now() >= deadline {
            if !limit.is_zero() {
                tracing::warn!("nobody subscribes; publishing all the same");
            }
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn stdin_lines() -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel(16);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            if line.map_or(true, |line| sender.blocking_send(line).is_err()) {
                return;
            }
        }
    });
    receiver
}

/// Writes one line for whoever drives this process.
pub(crate) fn say(line: &str) -> Result<(), Exit> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").and_then(|()| out.flush()).map_err(|why| failed(&why))
}

pub(crate) fn failed(why: &std::io::Error) -> Exit {
    Exit::failure(why.to_string())
}

fn describe(why: &dyn std::error::Error) -> String {
    match why.source() {
        Some(source) => format!("{why}: {source}"),
        None => why.to_string(),
    }
}
