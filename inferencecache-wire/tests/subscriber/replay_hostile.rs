//! Hostile answers to replay requests: random parts, numbers and payloads, late, repeated, endless, never ended.
//!
//! Whatever comes, nothing panics, the map keeps its bound, no replay applies more batches than were asked for, and the
//! stream goes on.

use inferencecache_wire::kvevents::MsgpackDecoder;
use inferencecache_wire::subscriber::config::Rules;
use inferencecache_wire::subscriber::ingest::{Ingest, Message};
use inferencecache_wire::subscriber::sequence::{PAUSE, ReplayEnd, Request, SILENCE};
use inferencecache_wire::subscriber::source::{MAX_REPLY_PARTS, Reply};
use inferencecache_wire::testkit::msgpack::Writer;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const BLOCKS: usize = 40;

fn batch(rng: &mut SmallRng, clock: u64) -> Vec<u8> {
    let mut out = Writer::new();
    let ts = clock.saturating_sub(rng.random_range(0..3)) as f64;
    out.array(3).float64(ts).array(1).array(6).str("BlockStored").array(1).uint(rng.random_range(1..100)).nil();
    out.array(2).uint(rng.random_range(0..100)).uint(7).uint(2).nil();
    if rng.random_bool(0.9) {
        out.nil()
    } else {
        out.uint(rng.random_range(0..3))
    };
    let mut bytes = out.into_bytes();
    match rng.random_range(0..10) {
        0 => bytes.truncate(rng.random_range(0..bytes.len())),
        1 => {
            let at = rng.random_range(0..bytes.len());
            bytes[at] ^= 1 << rng.random_range(0..8);
        }
        _ => {}
    }
    bytes
}

fn part(rng: &mut SmallRng, request: Option<&Request>, clock: u64) -> Vec<u8> {
    let near = request.map_or(0, |request| request.start);
    match rng.random_range(0..8) {
        0 => Vec::new(),
        1 => vec![0xff; 8],
        2 => rng.random::<u64>().to_be_bytes().to_vec(),
        3 | 4 => near.saturating_add(rng.random_range(0..6)).saturating_sub(1).to_be_bytes().to_vec(),
        5 => (0..rng.random_range(0..40)).map(|_| rng.random()).collect(),
        _ => batch(rng, clock),
    }
}

/// Parts that are a reply more often than chance would have it.
fn parts(rng: &mut SmallRng, request: Option<&Request>, clock: u64) -> Vec<Vec<u8>> {
    let near = request.map_or(0, |request| request.start).saturating_add(rng.random_range(0..6)).saturating_sub(1);
    match rng.random_range(0..4) {
        0 => vec![Vec::new(), b"topic".to_vec(), near.to_be_bytes().to_vec(), batch(rng, clock)],
        1 => vec![Vec::new(), near.to_be_bytes().to_vec(), batch(rng, clock)],
        _ => (0..rng.random_range(0..MAX_REPLY_PARTS + 2)).map(|_| part(rng, request, clock)).collect(),
    }
}

fn run(replies: u64, seed: u64) {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut ingest =
        Ingest::new(MsgpackDecoder::default(), Rules { max_tracked_blocks: BLOCKS, ..Rules::default() }, true, 0);
    ingest.replayable(0);
    let (mut now, mut clock, mut sequence) = (0, 1000, 0_u64);
    let mut asked: Option<(Request, u64)> = None;
    let (mut out, mut notices, mut requests) = (Vec::new(), Vec::new(), 0_u64);
    for _ in 0..replies {
        out.clear();
        notices.clear();
        if let Some(request) = ingest.next_request() {
            asked = Some((request, ingest.sequences().replayed));
            requests += 1;
        }
        let request = asked.as_ref().map(|(request, _)| *request);
        let parts = parts(&mut rng, request.as_ref(), clock);
        let reply = Reply::parse(&parts);
        assert!(parts.len() <= MAX_REPLY_PARTS || reply.is_err());
        if let Some(request) = request {
            match reply {
                Ok(Reply::Batch(number, payload)) => {
                    let message = Message { connection: 0, sequence: Some(number), payload };
                    ingest.reply(request.id, message, now, &mut out, &mut notices);
                }
                Ok(Reply::End) if rng.random_bool(0.3) => {
                    ingest.replay_ended(request.id, ReplayEnd::Complete, now, &mut out, &mut notices);
                }
                Err(_) if rng.random_bool(0.1) => {
                    ingest.replay_ended(request.id, ReplayEnd::Failed, now, &mut out, &mut notices);
                }
                _ => {}
            }
        }
        if let Some((request, before)) = &asked {
            assert!(ingest.sequences().replayed - before <= request.until - request.start);
        }
        if rng.random_bool(0.3) {
            clock += 1;
            sequence = match rng.random_range(0..200) {
                0 => 0,
                1 => rng.random_range(0..sequence + 1),
                2..40 => sequence + rng.random_range(1..5),
                _ => sequence + 1,
            };
            let payload = batch(&mut rng, clock);
            let message = Message { connection: 0, sequence: Some(sequence), payload: &payload };
            let _ = ingest.apply(message, now, &mut out, &mut notices);
        }
        if rng.random_bool(0.05) {
            now += rng.random_range(0..SILENCE + 5);
            ingest.tick(now, &mut out, &mut notices);
        }
        let (indexed, opaque) = ingest.map().tracked();
        assert!(indexed + opaque <= BLOCKS);
    }
    let tally = ingest.sequences();
    assert!(requests > replies / 1000 && tally.replayed > 0 && tally.lost > 0 && tally.restarts > 0, "{tally:?}");
    // It goes on: once everything has timed out, the next frames are applied.
    now += 100 * PAUSE;
    ingest.tick(now, &mut out, &mut notices);
    assert_eq!(ingest.wake_at(), None, "nothing is waited for without end");
    let before = ingest.tally().stored;
    let mut payload = Writer::new();
    payload.array(2).float64(1e9).array(1).array(6).str("BlockStored").array(1).uint(5000).nil();
    payload.array(2).uint(1).uint(2).uint(2).nil();
    let payload = payload.into_bytes();
    ingest.gone(0, now, &mut out, &mut notices);
    let message = Message { connection: 0, sequence: Some(0), payload: &payload };
    ingest.apply(message, now, &mut out, &mut notices).expect("a batch");
    assert_eq!(ingest.tally().stored, before + 1);
}

#[test]
fn hostile_replies_are_survived() {
    run(100_000, 1);
}

#[test]
#[ignore = "10^7 replies"]
fn ten_million_hostile_replies_are_survived() {
    run(10_000_000, 2);
}
