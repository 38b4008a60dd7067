//! What does a stored block cost from its bytes to what the server must be told: decoding, map and window, in both layouts,
//! as vLLM and SGLang send it? Up to 1 µs is allowed.
//!
//! The map is at its bound, so every new block pushes out the oldest, and nothing is in the caches of the processor.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use inferencecache_wire::kvevents::MsgpackDecoder;
use inferencecache_wire::subscriber::config::Rules;
use inferencecache_wire::subscriber::ingest::{Ingest, Message};
use inferencecache_wire::testkit::event::{self, Event};
use inferencecache_wire::testkit::flood::Flood;
use inferencecache_wire::testkit::msgpack::Writer;
use inferencecache_wire::testkit::script::Shape;

/// Blocks of a batch.
const BATCH: usize = 1000;
/// Blocks the map may hold.
const TRACKED: usize = 200_000;

/// An engine as it announces blocks.
struct Engine {
    name: &'static str,
    /// Tokens of a block.
    block: u32,
    /// Bytes of a hash; 8 is an integer.
    hash: usize,
}

const ENGINES: [Engine; 4] = [
    Engine { name: "vllm/16-tokens", block: 16, hash: 8 },
    Engine { name: "vllm-sha256/16-tokens", block: 16, hash: 32 },
    Engine { name: "sglang/64-tokens", block: 64, hash: 8 },
    Engine { name: "sglang/1-token", block: 1, hash: 8 },
];

/// So many batches of blocks that were never there before.
fn batches(engine: &Engine, shape: Shape, number: usize) -> Vec<Vec<u8>> {
    let mut flood = Flood::new(1, NonZeroU32::new(engine.block).expect("positive"));
    (0..number)
        .map(|_| {
            let events = flood.batch(BATCH, 0);
            if engine.hash == 8 { event::batch(1e9, None, shape, &events) } else { with_long_hashes(shape, &events) }
        })
        .collect()
}

/// The same with hashes of 32 bytes.
fn with_long_hashes(shape: Shape, events: &[Event]) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.array(3).float64(1e9).array(events.len());
    let key = |writer: &mut Writer, name: &str| {
        if shape == Shape::Map {
            writer.str(name);
        }
    };
    for event in events {
        let Event::Stored { hashes, tokens, block_size, .. } = event else { continue };
        match shape {
            Shape::Map => writer.map(5).str("type").str("BlockStored"),
            Shape::Tuple => writer.array(5).str("BlockStored"),
        };
        key(&mut writer, "block_hashes");
        writer.array(hashes.len());
        for hash in hashes {
            let mut long = [7; 32];
            long[..8].copy_from_slice(&hash.to_be_bytes());
            writer.bin(&long);
        }
        key(&mut writer, "parent_block_hash");
        writer.nil();
        key(&mut writer, "token_ids");
        writer.array(tokens.len());
        tokens.iter().for_each(|&token| {
            writer.uint(token.into());
        });
        key(&mut writer, "block_size");
        writer.uint((*block_size).into());
    }
    writer.nil();
    writer.into_bytes()
}

fn events(c: &mut Criterion) {
    let mut group = c.benchmark_group("events");
    group.throughput(Throughput::Elements(BATCH as u64)).measurement_time(Duration::from_secs(3)).sample_size(20);
    for engine in &ENGINES {
        for (shape, name) in [(Shape::Map, "map"), (Shape::Tuple, "tuple")] {
            // By the time a batch comes round again, none of its blocks is known any more.
            let batches = batches(engine, shape, TRACKED / BATCH + 50);
            let rules = Rules { max_tracked_blocks: TRACKED, ..Rules::default() };
            let mut ingest = Ingest::new(MsgpackDecoder::default(), rules, false, 0);
            let (mut sequence, mut out, mut notices) = (0, Vec::new(), Vec::new());
            let mut apply = || {
                let payload = &batches[usize::try_from(sequence).expect("small") % batches.len()];
                let message = Message { connection: 0, sequence: Some(sequence), payload };
                ingest.apply(message, 0, &mut out, &mut notices).expect("a batch");
                sequence += 1;
                out.clear();
                // Beyond doubt: otherwise next to nothing would have been measured.
                assert!(ingest.map().tracked().0 >= TRACKED.min(BATCH), "blocks are indexed");
            };
            batches.iter().for_each(|_| apply());
            group.bench_function(format!("{}/{name}", engine.name), |b| {
                b.iter_custom(|iterations| {
                    let start = Instant::now();
                    (0..iterations).for_each(|_| apply());
                    start.elapsed()
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, events);
criterion_main!(benches);
