//! The binary as a process: what it says, how it is driven, and how it ends.

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

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
