//! The binary as a process: what it says, how it is driven, and how it ends.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use inferencecache_wire::kvevents::{
    BatchHead, BatchSink, BlockHash, EngineDecoder as _, EngineEvent, Malformed, MsgpackDecoder,
};

const PATIENCE: Duration = Duration::from_secs(20);

fn start(flags: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_kvevent-fake-engine"))
        .args(flags)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts")
}

fn ended(child: &mut Child) -> Option<i32> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().expect("a child of ours") {
            return status.code();
        }
        if Instant::now() > deadline {
            let _ = child.kill();
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn subscriber(context: &zmq::Context, endpoint: &str) -> zmq::Socket {
    let socket = context.socket(zmq::SUB).expect("a socket");
    socket.set_rcvtimeo(20_000).expect("set");
    socket.set_subscribe(b"kv-events").expect("set");
    socket.connect(endpoint).expect("connected");
    socket
}

/// The endpoint that it says it listens on.
fn endpoint(out: &mut impl BufRead) -> String {
    let mut line = String::new();
    out.read_line(&mut line).expect("a line");
    line.trim_end().strip_prefix("listening ").expect(&line).to_owned()
}

// subscriber:144 subscriber:145
#[test]
fn a_script_is_announced_and_published_until_a_signal() {
    let mut child = start(&[
        "-bind",
        "tcp://127.0.0.1:*",
        "-block-size",
        "16",
        "-num-blocks",
        "3",
        "-events",
        "2",
        "-start-token",
        "100",
        "-interval",
        "10ms",
        "-drop-every",
        "3",
    ]);
    let endpoint = endpoint(&mut BufReader::new(child.stdout.take().expect("piped")));
    let context = zmq::Context::new();
    let socket = subscriber(&context, &endpoint);
    let numbers: Vec<u64> = (0..4)
        .map(|_| socket.recv_multipart(0).expect("a message"))
        .map(|parts| u64::from_be_bytes(parts[1][..].try_into().expect("eight bytes")))
        .collect();
    assert_eq!(numbers, [0, 1, 3, 4]);
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().expect("kill runs").success());
    assert_eq!(ended(&mut child), Some(0));
    let mut log = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut log).expect("read");
    for line in [
        "EXPECT prefix_hash[0]=9633b31c7a2562c7 token_count=16",
        "EXPECT prefix_hash[1]=38edde460245fc8e token_count=32",
        "EXPECT prefix_hash[2]=ff80123400f62cbe token_count=48",
    ] {
        assert!(log.contains(line), "{log}");
    }
    let mut refused = start(&["-block-size", "0"]);
    assert_eq!(ended(&mut refused), Some(1));
}

#[test]
fn a_recording_that_cannot_be_read_is_refused_before_anybody_connects() {
    let mut refused = start(&["-bind", "tcp://127.0.0.1:*", "-capture", "/no/such/recording"]);
    assert_eq!(ended(&mut refused), Some(1));
    let (mut out, mut log) = (String::new(), String::new());
    refused.stdout.take().expect("piped").read_to_string(&mut out).expect("read");
    refused.stderr.take().expect("piped").read_to_string(&mut log).expect("read");
    assert_eq!(out, "");
    assert!(log.contains("cannot read /no/such/recording: "), "{log}");
}

#[test]
fn a_recording_is_played_prompt_by_prompt_from_outside() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/captures/vllm-0.32-cpu-a.jsonl");
    let file = file.to_str().expect("UTF-8");
    let mut child = start(&["-bind", "tcp://127.0.0.1:*", "-capture", file, "-step-stdin"]);
    let (mut orders, mut out) =
        (child.stdin.take().expect("piped"), BufReader::new(child.stdout.take().expect("piped")));
    let context = zmq::Context::new();
    let socket = subscriber(&context, &endpoint(&mut out));
    let (mut prompts, mut received) = (0, 0);
    loop {
        writeln!(orders).expect("it reads");
        let mut line = String::new();
        out.read_line(&mut line).expect("a line");
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ["sent", sequence, ..] = words[..]
            && let Ok(sequence) = sequence.parse::<u64>()
        {
            // Everything up to that number, and nothing beyond it, is on its way.
            while received <= sequence {
                let parts = socket.recv_multipart(0).expect("a message");
                assert_eq!(parts[1], received.to_be_bytes());
                received += 1;
            }
        }
        match words[..] {
            ["sent", _, "prompt", number] => {
                assert_eq!(number, prompts.to_string());
                prompts += 1;
            }
            ["sent", _, "end"] | ["end"] => break,
            _ => panic!("{line}"),
        }
    }
    assert_eq!((prompts, received), (79, 119));
    drop(orders);
    assert_eq!(ended(&mut child), Some(0));
}

/// The rest of the first line that begins so.
fn told(out: &mut impl BufRead, word: &str) -> String {
    for line in out.lines() {
        if let Some(rest) = line.expect("a line").strip_prefix(word) {
            return rest.trim().to_owned();
        }
    }
    panic!("it ended before {word}");
}

fn http(address: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    write!(stream, "{request} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").expect("written");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("read");
    answer.split_once("\r\n\r\n").expect("a head").1.to_owned()
}

/// The engine hashes that are left when everything was applied.
#[derive(Default)]
struct Left(BTreeSet<u64>);

impl BatchSink for Left {
    fn batch(&mut self, head: BatchHead) {
        assert!(head.timestamp > 0 && head.rank.is_some());
    }

    fn event(&mut self, event: Result<EngineEvent<'_>, Malformed>) {
        let word = |hash: BlockHash<'_>| match hash {
            BlockHash::Word(word) => word,
            BlockHash::Bytes(bytes) => panic!("{bytes:?}"),
        };
        match event.expect("well-formed") {
            EngineEvent::Stored(stored) => self.0.extend(stored.hashes.iter().map(word)),
            EngineEvent::Removed(removed) => removed.hashes.iter().map(word).for_each(|hash| {
                let _ = self.0.remove(&hash);
            }),
            EngineEvent::Cleared => self.0.clear(),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_simulated_cache_says_what_it_holds_and_replays_how_that_came() {
    let flags = [
        "-bind=tcp://127.0.0.1:*",
        "-replay=tcp://127.0.0.1:*",
        "-control=127.0.0.1:0",
        "-churn-seed=7",
        "-churn-rate=500",
        "-churn-capacity=100",
        "-churn-adapters=a",
        "-churn-clear-every=100",
        "-ranks=2",
        "-format=map",
        "-wait-subscriber=0",
    ];
    let mut child = start(&flags);
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    let replays = [(); 2].map(|()| told(&mut out, "replay "));
    let control = told(&mut out, "control ");
    let deadline = Instant::now() + PATIENCE;
    let count = |truth: &serde_json::Value| truth["held"].as_array().expect("a list").len();
    let truth = || serde_json::from_str::<serde_json::Value>(&http(&control, "GET /truth")).expect("JSON");
    while truth()["last_sequence"].as_array().expect("a list").iter().any(|last| last.as_u64() < Some(150)) {
        assert!(Instant::now() < deadline, "{}", truth());
        std::thread::sleep(Duration::from_millis(5));
    }
    http(&control, "POST /pause");
    let truth_now = truth();
    let context = zmq::Context::new();
    let mut left = BTreeSet::new();
    for (rank, endpoint) in replays.iter().enumerate() {
        let socket = context.socket(zmq::DEALER).expect("a socket");
        socket.set_rcvtimeo(20_000).expect("set");
        socket.connect(endpoint).expect("connected");
        socket.send_multipart([&b""[..], &0_u64.to_be_bytes()], 0).expect("sent");
        let (mut belief, mut next) = (Left::default(), 0_u64);
        loop {
            let reply = socket.recv_multipart(0).expect("a reply");
            if reply[2] == [0xff; 8] {
                break;
            }
            assert_eq!(reply[2], next.to_be_bytes());
            next += 1;
            MsgpackDecoder::default().decode(&reply[3], &mut belief).expect("decoded");
        }
        assert_eq!(truth_now["last_sequence"][rank], next - 1);
        left.extend(belief.0);
    }
    assert_eq!((left.len(), truth()), (count(&truth_now), truth_now.clone()), "and it stands still");
    let page = http(&control, "GET /metrics");
    assert!(page.contains("num_gpu_blocks=\"100\"") && page.contains("sleep_state=\"awake\"} 1.0"), "{page}");
    http(&control, "POST /sleep");
    assert_eq!(count(&truth()), 0);
    assert!(http(&control, "GET /metrics").contains("sleep_state=\"awake\"} 0.0"));
    child.kill().expect("killed");
    child.wait().expect("waited for");
}

#[test]
fn a_flood_stores_and_removes_what_was_asked_for() {
    let flags = ["-bind=tcp://127.0.0.1:*", "-wait-subscriber=0", "-flood-blocks=20000", "-flood-evictions=1000"];
    let mut child = start(&[&flags[..], &["-flood-for=1s"]].concat());
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    let flooded = told(&mut out, "flooded ");
    assert!(flooded.ends_with("stored 20000 removed 1000"), "{flooded}");
    assert_eq!(told(&mut out, "sent "), "199 end");
    child.kill().expect("killed");
    child.wait().expect("waited for");
}
