//! The fake engine's payloads and sockets.

use std::time::Duration;

use inferencecache_wire::testkit::fake_engine::{EngineOptions, FakeEngine, ReplayLayout};
use inferencecache_wire::testkit::script::Script;

const TOPIC: &[u8] = b"kv-events";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

// subscriber:144
#[test]
fn three_blocks_over_two_events_are_the_published_payload() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/kv_events_samples.json");
    let file: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let case = file["cases"].as_array().unwrap().iter().find(|case| case["id"] == "E03").unwrap();
    let script = Script { block_size: 16, num_blocks: 3, events: 2, start_token: 100, ..Script::default() };
    let play = script.check().unwrap();
    assert_eq!(hex(&play.stored()), case["batches"][0].as_str().unwrap());
    let expected: Vec<(String, u32)> = play.expected().iter().map(|(d, n)| (format!("{d:016x}"), *n)).collect();
    let published = [("9633b31c7a2562c7", 16), ("38edde460245fc8e", 32), ("ff80123400f62cbe", 48)];
    assert_eq!(expected, published.map(|(digest, count)| (digest.to_owned(), count)));
}

/// Everything a plain SUB socket gets, while `work` runs, up to a message with this payload.
fn received(engine: &mut FakeEngine, work: impl FnOnce(&mut FakeEngine)) -> Vec<Vec<Vec<u8>>> {
    let context = zmq::Context::new();
    let socket = context.socket(zmq::SUB).unwrap();
    socket.set_rcvtimeo(10_000).unwrap();
    socket.set_subscribe(b"kv-").unwrap();
    socket.connect(engine.endpoint()).unwrap();
    assert!(engine.wait_for_subscriber(TOPIC, Duration::from_secs(10)));
    work(engine);
    engine.publish(TOPIC, b"end").unwrap();
    let mut messages = Vec::new();
    loop {
        let message = socket.recv_multipart(0).unwrap();
        if message[2] == b"end" {
            return messages;
        }
        messages.push(message);
    }
}

#[test]
fn the_first_message_is_not_lost_and_numbers_count_from_zero() {
    let mut engine = FakeEngine::start(EngineOptions::default()).unwrap();
    let messages = received(&mut engine, |engine| {
        engine.publish(TOPIC, b"a").unwrap();
        engine.skip(2);
        engine.publish(TOPIC, b"b").unwrap();
        engine.publish(b"other", b"c").unwrap();
    });
    let number = |n: u64| n.to_be_bytes().to_vec();
    assert_eq!(
        messages,
        [vec![TOPIC.to_vec(), number(0), b"a".to_vec()], vec![TOPIC.to_vec(), number(3), b"b".to_vec()]]
    );
    let endpoint = engine.endpoint().to_owned();
    engine.restart().unwrap();
    assert_eq!((engine.endpoint(), engine.next_sequence()), (&*endpoint, 0));
    let messages = received(&mut engine, |engine| {
        engine.publish(TOPIC, b"d").unwrap();
    });
    assert_eq!(messages, [vec![TOPIC.to_vec(), number(0), b"d".to_vec()]]);
}

#[test]
fn replay_answers_in_the_layout_that_was_asked_for() {
    let number = |n: u64| n.to_be_bytes().to_vec();
    let end = vec![0xff; 8];
    for (layout, expected) in [
        (
            ReplayLayout::Current,
            vec![
                vec![vec![], TOPIC.to_vec(), number(1), b"b".to_vec()],
                vec![vec![], TOPIC.to_vec(), number(2), b"c".to_vec()],
                vec![vec![], vec![], end.clone(), vec![]],
            ],
        ),
        (
            ReplayLayout::Older,
            vec![
                vec![vec![], number(1), b"b".to_vec()],
                vec![vec![], number(2), b"c".to_vec()],
                vec![vec![], end, vec![]],
            ],
        ),
        (
            ReplayLayout::First,
            vec![vec![vec![], number(1), b"b".to_vec()], vec![vec![], number(2), b"c".to_vec()], vec![vec![], vec![]]],
        ),
    ] {
        let replay = Some("tcp://127.0.0.1:*".to_owned());
        let mut engine = FakeEngine::start(EngineOptions { replay, layout, ..EngineOptions::default() }).unwrap();
        for payload in [b"a", b"b", b"c"] {
            engine.publish(TOPIC, payload).unwrap();
        }
        let context = zmq::Context::new();
        let socket = context.socket(zmq::DEALER).unwrap();
        socket.set_rcvtimeo(10_000).unwrap();
        socket.connect(engine.replay_endpoint().unwrap()).unwrap();
        // Malformed requests are ignored.
        socket.send_multipart([&b""[..], b"short"], 0).unwrap();
        socket.send_multipart([&b""[..], &1u64.to_be_bytes()], 0).unwrap();
        let replies: Vec<Vec<Vec<u8>>> = (0..3).map(|_| socket.recv_multipart(0).unwrap()).collect();
        assert_eq!(replies, expected, "{layout:?}");
    }
}
