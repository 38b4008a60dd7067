//! Whatever an engine says, the tables agree with each other and stay within their bounds.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::kvevents::{BatchHead, BatchSink, EngineDecoder, Malformed, MsgpackDecoder};

#[derive(Debug, Clone)]
struct Store {
    stream: u8,
    first: u8,
    blocks: u8,
    parent: Option<u8>,
    token: u8,
    tokens: bool,
    medium: usize,
    name: u8,
    salt: bool,
}

#[derive(Debug, Clone)]
enum Event {
    Store(Store),
    Remove { stream: u8, hash: u8, medium: usize, remaining: Option<u8> },
    Cleared { stream: u8 },
    Lost,
}

const MEDIA: [&str; 5] = ["GPU", "CPU", "DISK", "EXTERNAL", "TAPE"];

fn event() -> impl Strategy<Value = Event> {
    let store = (0..2u8, 0..20u8, 1..4u8, proptest::option::weighted(0.5, 0..20u8), 1..4u8, prop::bool::weighted(0.9))
        .prop_flat_map(|fields| (Just(fields), 0..MEDIA.len(), 0..3u8, prop::bool::weighted(0.1)))
        .prop_map(|((stream, first, blocks, parent, token, tokens), medium, name, salt)| {
            Event::Store(Store { stream, first, blocks, parent, token, tokens, medium, name, salt })
        });
    prop_oneof![
        10 => store,
        8 => (0..2u8, 0..23u8, 0..MEDIA.len(), proptest::option::weighted(0.2, 0..3u8))
            .prop_map(|(stream, hash, medium, remaining)| Event::Remove { stream, hash, medium, remaining }),
        1 => (0..2u8).prop_map(|stream| Event::Cleared { stream }),
        1 => Just(Event::Lost),
    ]
}

fn text(bytes: &mut Vec<u8>, text: &str) {
    bytes.push(0xa0 | u8::try_from(text.len()).expect("short"));
    bytes.extend(text.as_bytes());
}

/// The batch of one event, in map form.
fn payload(event: &Event) -> Vec<u8> {
    let mut bytes = vec![0x92, 0x07, 0x91];
    match event {
        Event::Store(store) => {
            bytes.push(0x88);
            text(&mut bytes, "type");
            text(&mut bytes, "BlockStored");
            text(&mut bytes, "block_hashes");
            bytes.push(0x90 | store.blocks);
            bytes.extend(store.first..store.first + store.blocks);
            text(&mut bytes, "parent_block_hash");
            bytes.push(store.parent.unwrap_or(0xc0));
            text(&mut bytes, "token_ids");
            let tokens = if store.tokens { store.blocks } else { 0 };
            bytes.push(0x90 | tokens);
            bytes.extend((0..tokens).map(|_| store.token));
            text(&mut bytes, "block_size");
            bytes.push(1);
            text(&mut bytes, "medium");
            text(&mut bytes, MEDIA[store.medium]);
            text(&mut bytes, "lora_name");
            text(&mut bytes, ["", "a", "b"][usize::from(store.name)]);
            text(&mut bytes, "cache_salt");
            text(&mut bytes, if store.salt { "s" } else { "" });
        }
        Event::Remove { hash, medium, remaining, .. } => {
            bytes.push(0x83 + u8::from(remaining.is_some()));
            text(&mut bytes, "type");
            text(&mut bytes, "BlockRemoved");
            text(&mut bytes, "block_hashes");
            bytes.extend([0x91, *hash]);
            text(&mut bytes, "medium");
            text(&mut bytes, MEDIA[*medium]);
            if let Some(remaining) = remaining {
                text(&mut bytes, "remaining_copy_counts");
                bytes.extend([0x91, *remaining]);
            }
        }
        Event::Cleared { .. } | Event::Lost => {
            bytes.push(0x91);
            text(&mut bytes, "AllBlocksCleared");
        }
    }
    bytes
}

struct Apply<'a> {
    map: &'a mut BlockMap,
    stream: StreamId,
    outcome: Outcome,
}

impl BatchSink for Apply<'_> {
    fn batch(&mut self, _head: BatchHead) {}
    fn event(&mut self, event: Result<EngineEvent<'_>, Malformed>) {
        self.map.apply(self.stream, &event.expect("well-formed"), &mut self.outcome);
    }
}

/// Applies a payload and returns what follows.
fn apply(map: &mut BlockMap, stream: StreamId, payload: &[u8]) -> Vec<Op> {
    let mut sink = Apply { map, stream, outcome: Outcome::default() };
    MsgpackDecoder::default().decode(payload, &mut sink).expect("a batch");
    sink.outcome.ops
}

/// Recomputes the pairs from the blocks and compares.
fn check(map: &BlockMap) {
    let mut pairs: HashMap<u32, [u32; 3]> = HashMap::new();
    let mut per_stream: HashMap<u8, usize> = HashMap::new();
    let mut indexed = 0;
    for id in map.blocks.iter() {
        *per_stream.entry(map.blocks.home(id).stream).or_default() += 1;
        let Some(pair) = map.blocks.pair(id) else { continue };
        indexed += 1;
        let counts = pairs.entry(pair.0).or_default();
        counts[2] += 1;
        assert!(map.blocks.places(id).next().is_some(), "an indexed block without a copy");
        for place in map.blocks.places(id) {
            match map.places.tier(place) {
                Tier::T1 => counts[0] += 1,
                Tier::T2 => counts[1] += 1,
                Tier::Remote => {}
            }
        }
    }
    assert_eq!(map.pairs.counts(), pairs);
    assert_eq!(map.blocks.indexed(), indexed);
    assert!(map.blocks.len() <= map.rules.max_tracked_blocks);
    for (stream, blocks) in per_stream {
        assert_eq!(map.streams.get(StreamId(stream)).blocks, blocks);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn the_tables_agree_after_every_event(
        events in proptest::collection::vec(event(), 1..120),
        max_tracked_blocks in 1usize..40,
        ignore_block_removed: bool,
    ) {
        let mut map = BlockMap::new(Rules { max_tracked_blocks, ignore_block_removed, ..Rules::default() });
        let streams = [map.stream(0, Some(0)).0, map.stream(0, Some(1)).0];
        for event in &events {
            let stream = match event {
                Event::Store(Store { stream, .. }) | Event::Remove { stream, .. } | Event::Cleared { stream } => *stream,
                Event::Lost => {
                    map.lost_batch(0);
                    prop_assert_eq!(map.confirmed().count(), 0);
                    continue;
                }
            };
            let before: HashMap<(AdapterId, u64), Tier> = held(&map);
            let ops = apply(&mut map, streams[usize::from(stream)], &payload(event));
            check(&map);
            let after = held(&map);
            // An eviction is never about something that is still held, nor an add about something that is not.
            for op in &ops {
                match op {
                    Op::Evict { digest, adapter, .. } => {
                        prop_assert!(before.contains_key(&(*adapter, *digest)));
                    }
                    Op::Add { report, .. } if max_tracked_blocks > 3 => {
                        prop_assert_eq!(after.get(&(report.adapter, report.digest)), Some(&report.tier));
                    }
                    _ => {}
                }
            }
        }
    }
}

fn held(map: &BlockMap) -> HashMap<(AdapterId, u64), Tier> {
    map.all_held().iter().map(|report| ((report.adapter, report.digest), report.tier)).collect()
}

/// Stores one block of one token under an 8-byte hash.
fn single(hash: u64) -> Vec<u8> {
    let mut bytes = vec![0x92, 0x07, 0x91, 0x96];
    text(&mut bytes, "BlockStored");
    bytes.extend([0x91, 0xcf]);
    bytes.extend(hash.to_be_bytes());
    bytes.extend([0xc0, 0x91, 0xce]);
    bytes.extend(u32::try_from(hash).expect("small").to_be_bytes());
    bytes.extend([1, 0xc0]);
    bytes
}

#[test]
fn a_full_map_takes_96_bytes_a_block() {
    const BLOCKS: u64 = 500_000;
    let mut decoder = MsgpackDecoder::default();
    let mut map = None;
    let info = allocation_counter::measure(|| {
        let mut full = BlockMap::new(Rules::default());
        let (stream, _) = full.stream(0, None);
        let mut sink = Apply { map: &mut full, stream, outcome: Outcome::default() };
        for hash in 1..=BLOCKS + 1000 {
            decoder.decode(&single(hash), &mut sink).expect("a batch");
            sink.outcome.clear();
        }
        map = Some(full);
    });
    let map = map.expect("filled");
    assert_eq!((map.tracked(), map.tally().map_evictions), ((500_000, 0), 1000));
    let bytes = info.bytes_current / i64::try_from(BLOCKS).expect("small");
    assert!(bytes <= 96, "{bytes} bytes a block");
}
