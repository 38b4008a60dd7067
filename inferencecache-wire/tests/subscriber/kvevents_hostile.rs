//! Payloads that want to do harm: lying lengths, endless nesting, noise. Nothing panics, nothing is slow, nothing grows.

use inferencecache_wire::kvevents::{BatchHead, BatchSink, EngineDecoder, EngineEvent, Malformed, MsgpackDecoder};
use inferencecache_wire::subscriber::config::Rules;
use inferencecache_wire::subscriber::ingest::{Ingest, Message};
use proptest::prelude::*;

const GOOD: &str = "93cb408f4400000000009188ac626c6f636b5f686173686573910ab1706172656e745f626c6f636b5f68617368c0a5785f6e65\
                    7781a1619201c0a9746f6b656e5f696473920102aa626c6f636b5f73697a6502a76c6f72615f6964c0a66d656469756da34750\
                    55a474797065ab426c6f636b53746f72656400";

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).expect("hex")).collect()
}

/// Every sample and field payload, as seeds for mutation.
fn samples() -> Vec<Vec<u8>> {
    let mut payloads = Vec::new();
    for file in ["kv_events_samples.json", "field_cases.json"] {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(file);
        let file: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(path).expect("the case file")).expect("JSON");
        for case in file["cases"].as_array().expect("cases") {
            payloads
                .extend(case["batches"].as_array().expect("batches").iter().map(|b| unhex(b.as_str().expect("hex"))));
        }
    }
    payloads
}

#[derive(Default)]
struct Events(usize);

impl BatchSink for Events {
    fn batch(&mut self, _head: BatchHead) {}
    fn event(&mut self, event: Result<EngineEvent<'_>, Malformed>) {
        // Walk everything that is decoded lazily.
        match event {
            Ok(EngineEvent::Stored(stored)) => {
                assert_eq!(stored.hashes.iter().count(), stored.hashes.len());
                if let Some(keys) = stored.extra_keys {
                    std::hint::black_box(keys.first_other_than(stored.lora_name));
                }
            }
            Ok(EngineEvent::Removed(removed)) => {
                assert_eq!(removed.hashes.iter().count(), removed.hashes.len());
                if let Some(remaining) = removed.remaining {
                    assert_eq!(remaining.iter().count(), remaining.len());
                }
            }
            _ => {}
        }
        self.0 += 1;
    }
}

fn small_map() -> Ingest<MsgpackDecoder> {
    Ingest::new(MsgpackDecoder::default(), Rules { max_tracked_blocks: 50, ..Rules::default() }, true, 0)
}

fn feed(ingest: &mut Ingest<MsgpackDecoder>, sequence: Option<u64>, payload: &[u8]) {
    let (mut out, mut notices) = (Vec::new(), Vec::new());
    // Whether it is refused does not matter here.
    let _ = ingest.apply(Message { connection: 0, sequence, payload }, 0, &mut out, &mut notices);
    let (indexed, opaque) = ingest.map().tracked();
    assert!(indexed + opaque <= 50);
}

// field:5
#[test]
fn lengths_that_lie_are_refused_at_once_and_without_memory() {
    let mut deep = unhex("92cb408f440000000000");
    deep.resize(deep.len() + 100_000, 0x91);
    for payload in [
        unhex("92cb408f440000000000dd7fffffff"),
        unhex("92cb408f44000000000091df7fffffff"),
        unhex("92cb408f4400000000009196ab426c6f636b53746f72656491c67fffffff0102"),
        deep,
    ] {
        let mut decoder = MsgpackDecoder::default();
        let mut events = Events::default();
        let info = allocation_counter::measure(|| assert!(decoder.decode(&payload, &mut events).is_err()));
        assert_eq!((info.count_total, events.0), (0, 0));
        decoder.decode(&unhex(GOOD), &mut events).expect("a good batch after a bad one");
        assert_eq!(events.0, 1);
    }
}

#[test]
fn decoding_and_applying_known_blocks_allocates_nothing() {
    let payload = unhex(GOOD);
    let mut ingest = Ingest::new(MsgpackDecoder::default(), Rules::default(), true, 100);
    let (mut out, mut notices) = (Vec::new(), Vec::new());
    let mut once = || {
        ingest.apply(Message { connection: 0, sequence: Some(1), payload: &payload }, 0, &mut out, &mut notices).is_ok()
    };
    for _ in 0..10_000 {
        assert!(once());
    }
    let info = allocation_counter::measure(|| {
        for _ in 0..1000 {
            once();
        }
    });
    assert!(info.count_total <= 1, "{info:?}");
}

#[test]
fn one_event_with_more_tokens_than_the_bound_is_malformed() {
    let mut payload = unhex("92079196ab426c6f636b53746f726564");
    payload.extend([0x91, 1, 0xc0, 0xdd]);
    let count = u32::try_from(inferencecache_wire::kvevents::MAX_TOKENS + 1).expect("fits");
    payload.extend(count.to_be_bytes());
    payload.resize(payload.len() + count as usize, 7);
    payload.extend([2, 0xc0]);
    struct Last(Option<bool>);
    impl BatchSink for Last {
        fn batch(&mut self, _head: BatchHead) {}
        fn event(&mut self, event: Result<EngineEvent<'_>, Malformed>) {
            self.0 = Some(event.is_err());
        }
    }
    let mut last = Last(None);
    MsgpackDecoder::default().decode(&payload, &mut last).expect("the envelope is right");
    assert_eq!(last.0, Some(true));
}

#[test]
fn every_prefix_and_every_flipped_byte_of_every_sample_is_survived() {
    let mut ingest = small_map();
    for (sequence, payload) in (0..).zip(samples()) {
        if payload.len() > 600 {
            continue;
        }
        for end in 0..payload.len() {
            feed(&mut ingest, Some(sequence), &payload[..end]);
        }
        for i in 0..payload.len() {
            for byte in [0x00, 0x91, 0xc0, 0xc1, 0xc4, 0xcf, 0xdd, 0xff, payload[i] ^ 1, payload[i] ^ 0x80] {
                let mut mutated = payload.clone();
                mutated[i] = byte;
                feed(&mut ingest, None, &mutated);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn noise_is_survived(payload in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut events = Events::default();
        let _ = MsgpackDecoder::default().decode(&payload, &mut events);
        feed(&mut small_map(), Some(0), &payload);
    }

    #[test]
    fn spliced_samples_are_survived(
        picks in proptest::collection::vec((any::<prop::sample::Index>(), 0usize..700, 0usize..700, any::<u8>()), 1..12),
    ) {
        let samples = samples();
        let mut ingest = small_map();
        for (sequence, (pick, from, to, byte)) in (0..).zip(picks) {
            let mut payload = pick.get(&samples).clone();
            let (from, to) = (from % payload.len(), to % payload.len());
            if from < to {
                payload.splice(from..to, [byte]);
            } else {
                let tail = payload[to..from].to_vec();
                payload.extend(tail);
            }
            feed(&mut ingest, Some(sequence), &payload);
        }
    }
}
