//! The flags, and what they mean once validated. Numbers that make no sense end with exit code 1, as published.

mod simulation;

use std::path::PathBuf;
use std::time::Duration;

use bins_common::flags::{Flags, Values};
use bins_common::{Exit, duration, logging};
use inferencecache_wire::testkit::fake_engine::{EngineOptions, Publish, ReplayLayout};
use inferencecache_wire::testkit::script::{Play, Script, Shape};

pub(crate) use self::simulation::{Churning, Flooding};

const EXAMPLES: &str = "\
Examples:
  kvevent-fake-engine -block-size 16 -num-blocks 3 -events 2
        publishes one batch for ever and says on stderr which digests must come of it
  kvevent-fake-engine -bind tcp://127.0.0.1:5557 -capture examples/captures/vllm-0.32-cpu-a.jsonl
        plays a recording once, then stays and answers replay requests
  kvevent-fake-engine -bind 'tcp://127.0.0.1:*' -capture FILE -step-stdin
        plays it prompt by prompt: for each line on stdin the frames up to the next prompt are sent, then stdout says
        'sent SEQUENCE prompt N', or 'sent SEQUENCE end' after the last; end of input ends the process
  kvevent-fake-engine -churn-seed 7 -replay tcp://127.0.0.1:5558 -control 127.0.0.1:8000
        fills and empties a simulated cache; http://127.0.0.1:8000/truth says what it holds, /metrics what vLLM would

On stdout: 'listening ENDPOINT' (or 'dialling ENDPOINT') and 'replay ENDPOINT' at the start, once for each rank, and
'control ADDRESS'; then the lines above.
Nothing is sent before somebody subscribes, unless -wait-subscriber=0.";

/// Time between the frames of a recording, unless told otherwise.
const FRAME_INTERVAL: Duration = Duration::from_millis(10);

/// Every flag of the fake engine.
pub(crate) fn flags() -> Flags {
    let flags =
        Flags::new("kvevent-fake-engine", "Publishes scripted or recorded KV-cache events, as an engine would.")
            .group("Sockets")
            .text("bind", "tcp://0.0.0.0:5557", "ZMQ endpoint to listen on. Port * is any free one.")
            .text("connect", "", "ZMQ endpoint to dial instead of listening.")
            .text("topic", "kv-events", "Topic of scripted batches.")
            .text("replay", "", "ZMQ endpoint on which replay requests are answered. Empty: none.")
            .text("replay-layout", "current", "Parts of a replay reply: current, older or first.")
            .integer("replay-buffer", 10_000, "Batches kept for replay.")
            .duration(
                "wait-subscriber",
                "30s",
                "How long to wait for a subscriber before the first message. 0: not at all.",
            )
            .group("Script")
            .integer("block-size", 128, "Tokens of each block.")
            .integer("num-blocks", 1, "Blocks.")
            .integer("events", 1, "Events that the blocks are split over.")
            .integer("start-token", 0, "First token; the others follow.")
            .text("interval", "500ms", "Time between messages. In a recording 10ms unless given.")
            .switch("omit-token-ids", false, "Leave the tokens out, so that nothing can be indexed.")
            .text("format", "tuple", "Shape of events: tuple or map.")
            .text("medium", "", "Medium of the copies. Empty: not said.")
            .text("lora-name", "", "Adapter of the blocks. Empty: not said.")
            .integer("drop-every", 0, "Leave a number out before every nth message. 0: never.")
            .integer("evict-every", 0, "Make every nth message the removal of all blocks. 0: never.")
            .integer("restart-every", 0, "Start anew, counting from 0, after every n messages. 0: never.")
            .group("Recording")
            .text("capture", "", "File to play instead of a script.")
            .switch("keep-time", false, "Keep the times of the recording instead of moving its end to now.")
            .switch("step-stdin", false, "Send the frames up to the next prompt for each line on stdin.");
    simulation::flags(flags).epilogue(EXAMPLES)
}

/// A command line that makes sense.
#[derive(Debug)]
pub(crate) struct Args {
    pub(crate) engine: EngineOptions,
    pub(crate) topic: String,
    pub(crate) wait_subscriber: Duration,
    pub(crate) interval: Duration,
    /// How far the engine's clock is ahead of the system's, in seconds.
    pub(crate) clock_offset: f64,
    pub(crate) work: Work,
}

/// What to publish.
#[derive(Debug)]
pub(crate) enum Work {
    /// One batch for ever.
    Script { play: Play, drop_every: u64, evict_every: u64, restart_every: u64 },
    /// A recording.
    Capture { file: PathBuf, keep_time: bool, step: bool },
    /// A simulated cache.
    Churn(Churning),
    /// New blocks without end.
    Flood(Flooding),
}

impl Args {
    /// Validates, and starts logging.
    ///
    /// # Errors
    /// The first thing that makes no sense, with exit code 1.
    pub(crate) fn from_values(values: &Values) -> Result<Self, Exit> {
        logging::init(logging::Format::Json, logging::parse_level("info").unwrap_or(DEFAULT_LEVEL));
        let publish = match values.text("connect") {
            "" => Publish::Bind(values.text("bind").to_owned()),
            _ if values.is_given("bind") => {
                return Err(Exit::failure("-bind and -connect exclude each other; drop one"));
            }
            endpoint => Publish::Connect(endpoint.to_owned()),
        };
        let layout = match values.text("replay-layout") {
            "current" => ReplayLayout::Current,
            "older" => ReplayLayout::Older,
            "first" => ReplayLayout::First,
            _ => return Err(Exit::failure("-replay-layout must be current, older or first")),
        };
        let replay = Some(values.text("replay").to_owned()).filter(|endpoint| !endpoint.is_empty());
        let buffer = usize::try_from(values.integer("replay-buffer"));
        let buffer = buffer.map_err(|_| Exit::failure("-replay-buffer must not be negative"))?;
        let work = work(values)?;
        let interval = duration::parse(values.text("interval")).ok().filter(|interval| !interval.is_zero());
        let interval = interval.ok_or_else(|| Exit::failure("-interval must be a positive duration"))?;
        let recorded = matches!(work, Work::Capture { .. }) && !values.is_given("interval");
        Ok(Self {
            engine: EngineOptions { publish, replay, layout, buffer },
            topic: values.text("topic").to_owned(),
            wait_subscriber: values.duration("wait-subscriber"),
            interval: if recorded { FRAME_INTERVAL } else { interval },
            clock_offset: simulation::clock_offset(values)?,
            work,
        })
    }
}

const DEFAULT_LEVEL: tracing::level_filters::LevelFilter = tracing::level_filters::LevelFilter::INFO;

fn work(values: &Values) -> Result<Work, Exit> {
    let shape = match values.text("format") {
        "tuple" => Shape::Tuple,
        "map" => Shape::Map,
        _ => return Err(Exit::failure("-format must be tuple or map")),
    };
    if let Some(flood) = simulation::flooding(values, shape)? {
        return Ok(Work::Flood(flood));
    }
    if let Some(churn) = simulation::churning(values, shape)? {
        return Ok(Work::Churn(churn));
    }
    let script = Script {
        block_size: values.integer("block-size"),
        num_blocks: values.integer("num-blocks"),
        events: values.integer("events"),
        start_token: values.integer("start-token"),
        omit_token_ids: values.switch("omit-token-ids"),
        shape,
        medium: values.text("medium").to_owned(),
        lora_name: values.text("lora-name").to_owned(),
    };
    let play = script.check().map_err(|why| Exit::failure(why.to_string()))?;
    let every = |flag: &str| {
        u64::try_from(values.integer(flag)).map_err(|_| Exit::failure(format!("-{flag} must not be negative")))
    };
    let (drop_every, evict_every, restart_every) =
        (every("drop-every")?, every("evict-every")?, every("restart-every")?);
    Ok(match values.text("capture") {
        "" => Work::Script { play, drop_every, evict_every, restart_every },
        file => Work::Capture {
            file: file.into(),
            keep_time: values.switch("keep-time"),
            step: values.switch("step-stdin"),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Args, u8> {
        let values = flags().parse(words.iter().map(std::ffi::OsString::from)).map_err(|_| 2)?;
        Args::from_values(&values).map_err(|exit| exit.code)
    }

    // subscriber:145
    #[test]
    fn numbers_out_of_range_end_with_code_1() {
        for bad in [
            &["-events", "4", "-num-blocks", "3"][..],
            &["-interval", "0"],
            &["-interval=-1s"],
            &["-start-token", "-1"],
            &["-block-size", "0"],
            &["-block-size", "4096", "-num-blocks", "4097"],
            &["-format", "json"],
            &["-drop-every", "-1"],
            &["-replay-layout", "new"],
            &["-replay-buffer", "-1"],
            &["-churn-seed", "1", "-churn-rate", "0"],
            &["-churn-seed", "1", "-churn-capacity", "1"],
            &["-churn-seed", "1", "-ranks", "65"],
            &["-flood-blocks", "-1"],
            &["-clock-offset", "1"],
            &["-bind", "tcp://127.0.0.1:1", "-connect", "tcp://127.0.0.1:2"],
        ] {
            assert_eq!(parse(bad).unwrap_err(), 1, "{bad:?}");
        }
        assert_eq!(parse(&["-no-such-flag"]).unwrap_err(), 2);
    }

    #[test]
    fn a_clock_may_be_ahead_or_behind() {
        let offset = |text| parse(&["-clock-offset", text]).unwrap().clock_offset;
        assert_eq!(["90s", "0", "-1h"].map(offset), [90.0, 0.0, -3600.0]);
    }

    #[test]
    fn a_recording_has_an_interval_of_its_own() {
        assert_eq!(parse(&[]).unwrap().interval, Duration::from_millis(500));
        assert_eq!(parse(&["-capture", "x"]).unwrap().interval, FRAME_INTERVAL);
        assert_eq!(parse(&["-capture", "x", "-interval", "1s"]).unwrap().interval, Duration::from_secs(1));
    }
}
