//! Numbered streams through sequences, decoder, map and window, with injected time: gaps, replays, duplicates, restarts and
//! several ranks. No sockets; those are in `streams_sockets.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::calls::{self, unhex};
use inferencecache_wire::kvevents::MsgpackDecoder;
use inferencecache_wire::subscriber::blockmap::Tier;
use inferencecache_wire::subscriber::config::Rules;
use inferencecache_wire::subscriber::ingest::{Ingest, Message};
use inferencecache_wire::subscriber::sequence::{PAUSE, ReplayEnd, Request, SILENCE};
use inferencecache_wire::subscriber::source::Reply;
use inferencecache_wire::subscriber::window::Outgoing;
use inferencecache_wire::testkit::msgpack::Writer;
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Debug, Deserialize)]
struct File {
    streams: Vec<Stream>,
}

#[derive(Debug, Deserialize)]
struct Stream {
    id: String,
    title: String,
    replay: Option<Replay>,
    frames: Vec<Vec<String>>,
    expect: Vec<Value>,
    counters: BTreeMap<String, u64>,
}

#[derive(Debug, Deserialize)]
struct Replay {
    requests_expected: Vec<u64>,
    replies_to_each: Vec<Vec<String>>,
}

fn samples() -> Vec<Stream> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/kv_events_samples.json");
    let text = std::fs::read_to_string(path).expect("the case file");
    serde_json::from_str::<File>(&text).expect("streams").streams
}

/// The machines behind the sockets, and an engine that answers at once when it is asked to.
struct Machine {
    ingest: Ingest<MsgpackDecoder>,
    now: u32,
    out: Vec<Outgoing>,
    /// Batches that the engine still has; `None` when it does not answer.
    buffer: Option<Vec<(u64, Vec<u8>)>>,
    asked: Vec<Request>,
}

impl Machine {
    fn new(replayable: bool) -> Self {
        let mut ingest = Ingest::new(MsgpackDecoder::default(), Rules::default(), true, 0);
        if replayable {
            ingest.replayable(0);
        }
        Self { ingest, now: 0, out: Vec::new(), buffer: None, asked: Vec::new() }
    }

    fn frame(&mut self, sequence: impl Into<Option<u64>>, payload: &[u8]) {
        self.frame_on(0, sequence, payload);
    }

    fn frame_on(&mut self, connection: u16, sequence: impl Into<Option<u64>>, payload: &[u8]) {
        let message = Message { connection, sequence: sequence.into(), payload };
        let _ = self.ingest.apply(message, self.now, &mut self.out, &mut Vec::new());
        self.answer();
    }

    fn answer(&mut self) {
        while let Some(request) = self.ingest.next_request() {
            self.asked.push(request);
            let Some(buffer) = self.buffer.clone() else { continue };
            for (sequence, payload) in buffer.iter().filter(|(sequence, _)| *sequence >= request.start) {
                self.reply(request, *sequence, payload);
            }
            self.end(request, ReplayEnd::Complete);
        }
    }

    fn reply(&mut self, request: Request, sequence: u64, payload: &[u8]) {
        let message = Message { connection: request.connection, sequence: Some(sequence), payload };
        self.ingest.reply(request.id, message, self.now, &mut self.out, &mut Vec::new());
    }

    fn end(&mut self, request: Request, end: ReplayEnd) {
        self.ingest.replay_ended(request.id, end, self.now, &mut self.out, &mut Vec::new());
        self.answer();
    }

    fn pass(&mut self, ticks: u32) {
        self.now += ticks;
        self.ingest.tick(self.now, &mut self.out, &mut Vec::new());
        self.answer();
    }

    fn flush(&mut self) {
        self.ingest.flush(&mut self.out);
    }

    fn calls(&mut self) -> Vec<Value> {
        self.flush();
        let out = std::mem::take(&mut self.out);
        out.iter().map(|out| calls::call(&out.delivery, self.ingest.map())).collect()
    }

    /// As the tables of the specification write them.
    fn lines(&mut self) -> Vec<String> {
        self.calls().iter().map(line).collect()
    }

    fn counters(&mut self) -> BTreeMap<String, u64> {
        let sequences = self.ingest.sequences();
        let events = *self.ingest.tally();
        [
            ("gaps", sequences.gaps),
            ("lost", sequences.lost),
            ("replayed", sequences.replayed),
            ("duplicates", sequences.duplicates),
            ("restarts", sequences.restarts),
            ("dropped", sequences.dropped),
            ("unproven", sequences.unproven),
            ("batch_errors", events.bad_batches),
            ("malformed", events.bad_events),
        ]
        .into_iter()
        .chain(calls::tallies(self.ingest.map().tally()))
        .filter(|&(_, count)| count > 0)
        .map(|(name, count)| (name.to_owned(), count))
        .collect()
    }

    fn counted(&mut self, expected: Value) {
        assert_eq!(json!(self.counters()), expected);
    }

    fn confirmed(&mut self) -> BTreeSet<String> {
        self.ingest.map().confirmed().map(|report| format!("{:016x}", report.digest)).collect()
    }

    fn held(&mut self) -> BTreeSet<String> {
        self.ingest.map().all_held().iter().map(|report| format!("{:016x}", report.digest)).collect()
    }
}

fn line(call: &Value) -> String {
    let at = &call["timestamp_us"];
    match call["type"].as_str() {
        Some("ALL_CLEARED") => format!("clear@{at}"),
        Some(_) => format!("evict@{at} {}", call["prefix_hash"].as_str().expect("a hash")),
        None => {
            let entries = call["prefixes"].as_array().expect("entries").iter();
            let entries: Vec<&str> = entries.map(|entry| entry["prefix_hash"].as_str().expect("a hash")).collect();
            format!("report@{at} {entries:?}").replace('"', "")
        }
    }
}

fn set<const N: usize>(digests: [&str; N]) -> BTreeSet<String> {
    digests.iter().map(|&digest| digest.to_owned()).collect()
}

fn play(stream: &Stream) -> Machine {
    let mut machine = Machine::new(stream.replay.is_some());
    machine.buffer = stream.replay.as_ref().map(|replay| {
        let replies = replay.replies_to_each.iter();
        let parts = replies.map(|parts| parts.iter().map(|part| unhex(part)).collect::<Vec<_>>());
        let batch = |parts: Vec<Vec<u8>>| match Reply::parse(&parts) {
            Ok(Reply::Batch(sequence, payload)) => Some((sequence, payload.to_vec())),
            Ok(Reply::End) => None,
            Err(error) => panic!("{error}: {parts:?}"),
        };
        parts.filter_map(batch).collect()
    });
    for parts in &stream.frames {
        let sequence = (parts.len() >= 3).then(|| u64::from_str_radix(&parts[1], 16).expect("a number"));
        machine.frame(sequence, &unhex(parts.last().expect("a payload")));
    }
    machine
}

// subscriber:85-98
#[test]
fn the_published_stream_cases_give_the_published_calls() {
    let samples = samples();
    assert_eq!(samples.len(), 14);
    let mut wrong = Vec::new();
    for stream in &samples {
        let mut machine = play(stream);
        let asked: Vec<u64> = machine.asked.iter().map(|request| request.start).collect();
        let expected = stream.replay.as_ref().map_or(&[][..], |replay| &replay.requests_expected);
        let counters = machine.counters();
        let calls = machine.calls();
        if calls != stream.expect || counters != stream.counters || asked != expected {
            wrong.push(format!(
                "{} {}\n  expected {:?} {:?} {expected:?}\n  got      {calls:?} {counters:?} {asked:?}",
                stream.id, stream.title, stream.expect, stream.counters
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

// field:3
#[test]
fn a_batch_that_cannot_be_read_leaves_what_was_known_in_doubt_and_the_stream_goes_on() {
    let mut machine = Machine::new(false);
    machine.frame(0, &unhex("92cb408f4400000000009196ab426c6f636b53746f7265649101c092010202c0"));
    assert_eq!(machine.confirmed(), set(["9581a6bbf9cef45a"]));
    machine.frame(1, &unhex("92cb408f4c00000000009186a474797065"));
    assert_eq!(machine.confirmed(), set([]));
    machine.frame(2, &unhex("92cb408f5400000000009196ab426c6f636b53746f72656491020192030402c0"));
    assert_eq!(machine.confirmed(), set(["51bdd8da9da7a8e2"]));
    assert_eq!(machine.lines(), ["clear@0", "report@1002500000 [9581a6bbf9cef45a, 51bdd8da9da7a8e2]"]);
    machine.counted(json!({"batch_errors": 1}));
}

// field:18
#[test]
fn a_frame_0_is_a_restart_even_when_the_clock_stepped_back() {
    let mut machine = Machine::new(false);
    machine.frame(0, &unhex("92cb40590000000000009196ab426c6f636b53746f7265649101c092010202c0"));
    machine.frame(1, &unhex("92cb40594000000000009196ab426c6f636b53746f72656491020192030402c0"));
    machine.frame(0, &unhex("92cb4057c000000000009196ab426c6f636b53746f7265649101c092070802c0"));
    assert_eq!(
        machine.lines(),
        [
            "clear@0",
            "report@101000000 [9581a6bbf9cef45a, 51bdd8da9da7a8e2]",
            "clear@0",
            "report@95000000 [f4812f596557a7cc]"
        ]
    );
    machine.counted(json!({"restarts": 1}));
}

// field:18
#[test]
fn two_falling_frames_in_a_row_that_differ_are_a_restart_and_one_is_a_duplicate() {
    let mut machine = Machine::new(false);
    for sequence in 0..10 {
        machine.frame(sequence, &store(100.0, sequence + 1, 10 * sequence));
    }
    // Seen before, and in disorder, but never two new ones in a row.
    for (sequence, token) in [(3, 30), (4, 40), (5, 50), (7, 999)] {
        machine.frame(sequence, &store(100.0, sequence + 1, token));
    }
    machine.frame(10, &store(100.0, 11, 100));
    machine.counted(json!({"duplicates": 4}));
    assert_eq!(machine.held().len(), 11);
    machine.frame(4, &store(50.0, 1, 1));
    machine.frame(5, &store(51.0, 2, 3));
    machine.counted(json!({"duplicates": 4, "restarts": 1}));
    assert_eq!(machine.held().len(), 2);
    machine.frame(6, &store(52.0, 3, 5));
    assert_eq!(machine.held().len(), 3);
    machine.counted(json!({"duplicates": 4, "restarts": 1}));
}

// field:18
#[test]
fn the_last_number_with_other_content_and_then_the_next_one_are_a_restart() {
    let mut machine = Machine::new(false);
    for sequence in 0..3 {
        machine.frame(sequence, &store(100.0, sequence + 1, 10 * sequence));
    }
    machine.frame(2, &store(90.0, 1, 50));
    assert_eq!(machine.held().len(), 3);
    machine.frame(3, &store(91.0, 2, 60));
    machine.counted(json!({"restarts": 1}));
    assert_eq!(machine.held().len(), 2);
    // A late frame that was given up, followed by one in order, is none.
    machine.frame(5, &store(92.0, 3, 70));
    machine.frame(4, &store(91.5, 4, 80));
    machine.frame(6, &store(93.0, 5, 90));
    machine.counted(json!({"restarts": 1, "gaps": 1, "lost": 1, "duplicates": 1}));
    assert_eq!(machine.held().len(), 4);
}

// field:19
#[test]
fn a_replay_that_comes_too_late_is_ignored_and_the_next_one_waits() {
    let mut machine = Machine::new(true);
    machine.frame(0, &unhex("92cb40240000000000009196ab426c6f636b53746f7265649101c092010202c0"));
    machine.frame(2, &unhex("92cb40280000000000009192ac426c6f636b52656d6f7665649102"));
    let request = machine.asked[0];
    assert_eq!((request.start, request.until), (1, 2));
    machine.pass(SILENCE - 1);
    machine.counted(json!({"gaps": 1}));
    machine.pass(1);
    machine.counted(json!({"gaps": 1, "lost": 1, "unknown_removed": 1}));
    machine.pass(10);
    machine.reply(request, 1, &unhex("92cb40260000000000009196ab426c6f636b53746f7265649102c092070802c0"));
    machine.end(request, ReplayEnd::Complete);
    assert_eq!(machine.lines(), ["clear@0", "report@10000000 [9581a6bbf9cef45a]"]);
    assert_eq!(machine.confirmed(), set([]));
    machine.counted(json!({"gaps": 1, "lost": 1, "unknown_removed": 1}));
    // Within 5 s after the failure a gap is lost at once; then the engine is asked again.
    machine.pass(PAUSE - 11);
    machine.frame(4, &store(15.0, 4, 1));
    assert_eq!(machine.asked.len(), 1);
    machine.pass(1);
    machine.frame(6, &store(16.0, 4, 1));
    assert_eq!((machine.asked.len(), machine.asked[1].start), (2, 5));
}

// field:20
#[test]
fn every_number_is_applied_once_when_replay_and_live_frames_overlap() {
    let payloads = [
        unhex("92cb40240000000000009196ab426c6f636b53746f7265649101c092010202c0"),
        unhex("92cb40260000000000009196ab426c6f636b53746f72656491020192030402c0"),
        unhex("92cb40280000000000009196ab426c6f636b53746f72656491030292050602c0"),
        unhex("92cb402a0000000000009192ac426c6f636b52656d6f7665649103"),
    ];
    let mut machine = Machine::new(true);
    machine.frame(2, &payloads[2]);
    machine.frame(3, &payloads[3]);
    let request = machine.asked[0];
    for (sequence, payload) in (0..).zip(&payloads) {
        machine.reply(request, sequence, payload);
    }
    machine.end(request, ReplayEnd::Complete);
    for sequence in 4..104 {
        machine.frame(sequence, &store(20.0, 100, 50));
    }
    let lines = machine.lines();
    assert_eq!(
        lines[..3],
        [
            "clear@0",
            "report@12000000 [9581a6bbf9cef45a, 51bdd8da9da7a8e2, 34c32627148cd1a9]",
            "evict@13000000 34c32627148cd1a9"
        ]
    );
    assert_eq!(machine.asked.len(), 1);
    machine.counted(json!({"replayed": 2}));
}

// field:21
#[test]
fn ranks_behind_one_socket_have_numbers_of_their_own() {
    let mut machine = Machine::new(false);
    for (sequence, payload) in [
        (0, "93cb408f4400000000009196ab426c6f636b53746f7265649101c092010202c000"),
        (0, "93cb408f44cccccccccd9196ab426c6f636b53746f7265649101c092010202c001"),
        (1, "93cb408f4c00000000009192ac426c6f636b52656d6f766564910100"),
    ] {
        machine.frame(sequence, &unhex(payload));
    }
    assert_eq!(machine.lines(), ["clear@0", "report@1000600000 [9581a6bbf9cef45a]"]);
    machine.frame(1, &unhex("93cb408f5400000000009192ac426c6f636b52656d6f766564910101"));
    assert_eq!(machine.lines(), ["evict@1002500000 9581a6bbf9cef45a"]);
    machine.counted(json!({}));
}

// field:22
#[test]
fn the_clear_or_restart_of_one_rank_leaves_what_others_hold() {
    for restart in [false, true] {
        let mut machine = Machine::new(false);
        machine.frame_on(0, 0, &unhex("93cb40240000000000009196ab426c6f636b53746f7265649101c092010202c000"));
        machine.flush();
        machine.frame_on(1, 0, &unhex("93cb40260000000000009196ab426c6f636b53746f7265649101c092070802c001"));
        machine.frame_on(1, 1, &unhex("93cb40280000000000009196ab426c6f636b53746f72656491020192030402c001"));
        assert_eq!(
            machine.lines(),
            ["clear@0", "report@10000000 [9581a6bbf9cef45a]", "report@12000000 [f4812f596557a7cc, c55665aa096b99c0]"]
        );
        let mut expected = ["evict@13000000 f4812f596557a7cc", "evict@13000000 c55665aa096b99c0"].map(str::to_owned);
        if restart {
            machine.frame_on(1, 0, &unhex("93cb402a0000000000009001"));
            expected = expected.map(|line| line.replace("13000000", "0"));
        } else {
            machine.frame_on(1, 2, &unhex("93cb402a0000000000009191b0416c6c426c6f636b73436c656172656401"));
        }
        let mut lines = machine.lines();
        lines.sort_unstable();
        expected.sort_unstable();
        assert_eq!(lines, expected);
        assert_eq!(machine.held(), set(["9581a6bbf9cef45a"]));
    }
}

#[test]
fn the_clear_of_a_large_rank_is_one_clear_and_a_report_of_the_rest() {
    let mut machine = Machine::new(false);
    machine.frame_on(0, 0, &store(10.0, 1, 1));
    for sequence in 0..5000 {
        machine.frame_on(1, sequence, &store(11.0, sequence + 1, 10 + sequence));
    }
    machine.calls();
    machine.frame_on(1, 5000, &clear(12.0));
    let lines = machine.lines();
    assert_eq!((lines.len(), &lines[0][..], machine.held().len()), (2, "clear@12000000", 1));
    assert!(lines[1].starts_with("report@12000000 ["), "{lines:?}");
}

// field:23
#[test]
fn a_parent_that_nobody_announced_is_a_loss_without_a_gap() {
    let mut machine = Machine::new(false);
    machine.frame(0, &unhex("92cb40240000000000009196ab426c6f636b53746f7265649101c092010202c0"));
    machine.frame(1, &unhex("92cb40260000000000009196ab426c6f636b53746f72656491030292050602c0"));
    assert_eq!(machine.lines(), ["clear@0", "report@10000000 [9581a6bbf9cef45a]"]);
    assert_eq!(machine.confirmed(), set([]));
    machine.counted(json!({"dropped_parent": 1, "lost": 1}));
    machine.frame(2, &store(12.0, 7, 9));
    assert_eq!(machine.confirmed().len(), 1);
}

// field:23
#[test]
fn a_parent_that_left_or_a_partial_block_or_an_incomplete_stream_proves_nothing() {
    let child = |hash: u64, parent: u64, tokens: u64| {
        let mut writer = Writer::new();
        writer.array(2).float64(20.0).array(1).array(6).str("BlockStored").array(1).uint(hash).uint(parent);
        writer.array(usize::try_from(tokens).expect("small"));
        (0..tokens).for_each(|token| {
            writer.uint(token);
        });
        writer.uint(tokens).nil();
        writer.into_bytes()
    };
    let remove = |hash: u64| {
        let mut writer = Writer::new();
        writer.array(2).float64(20.0).array(1).array(2).str("BlockRemoved").array(1).uint(hash);
        writer.into_bytes()
    };
    for (start, frames) in [
        (0, vec![store(10.0, 1, 1), store(10.0, 2, 3), remove(2), child(3, 2, 2)]),
        (0, vec![store(10.0, 1, 1), remove(9), child(3, 9, 2)]),
        (0, vec![store(10.0, 1, 1), clear(11.0), store(12.0, 2, 3), child(3, 1, 2)]),
        (0, vec![store(10.0, 1, 1), child(3, 9, 1)]),
        (5, vec![store(10.0, 1, 1), child(3, 9, 2)]),
    ] {
        let mut machine = Machine::new(false);
        for (sequence, frame) in (start..).zip(&frames) {
            machine.frame(sequence, frame);
        }
        assert_eq!((machine.ingest.sequences().lost, machine.ingest.map().tally().parent), (0, 1), "{frames:x?}");
        assert_ne!(machine.confirmed(), set([]));
    }
}

/// A refused dial after a connection that stood: the next frame is another process's even when its number fits.
#[test]
fn after_a_process_has_gone_the_next_frame_is_a_restart_whatever_its_number() {
    for number in [1, 2, 3, 7] {
        let mut machine = Machine::new(true);
        machine.frame(0, &store(10.0, 1, 1));
        machine.frame(1, &store(10.0, 2, 3));
        machine.ingest.gone(0, machine.now, &mut machine.out, &mut Vec::new());
        assert_eq!((machine.held().len(), machine.confirmed()), (2, set([])));
        machine.buffer = Some((0..number).map(|sequence| (sequence, store(9.0, 50 + sequence, 100))).collect());
        machine.frame(number, &store(9.0, 60, 200));
        assert_eq!(machine.asked[0].start, 0);
        machine.counted(json!({"restarts": 1, "replayed": number}));
        assert_eq!(machine.held(), machine.confirmed());
        assert_eq!(machine.held().len(), 2, "tokens 100 and 200");
    }
}

#[test]
fn what_waits_when_a_process_goes_is_its_own() {
    let mut machine = Machine::new(true);
    machine.frame(0, &store(10.0, 1, 1));
    machine.frame(2, &store(11.0, 2, 3));
    assert_eq!(machine.asked.len(), 1);
    machine.ingest.gone(0, machine.now, &mut machine.out, &mut Vec::new());
    machine.counted(json!({"gaps": 1, "lost": 1}));
    assert_eq!((machine.held().len(), machine.confirmed()), (2, set([])));
    machine.buffer = Some(Vec::new());
    machine.frame(3, &store(12.0, 3, 5));
    assert_eq!((machine.asked.len(), machine.held().len()), (2, 1));
    machine.counted(json!({"gaps": 1, "lost": 1, "restarts": 1}));
}

/// A removal may have been among what was lost: then the store that follows made the only copy there is.
#[test]
fn copies_that_were_counted_before_a_loss_do_not_outlive_the_one_that_was_stored_after_it() {
    let mut machine = Machine::new(false);
    machine.frame(0, &store(10.0, 1, 1));
    machine.frame(2, &store(12.0, 1, 1));
    assert_eq!(machine.confirmed().len(), 1);
    machine.frame(3, &removal(13.0, 1, "GPU"));
    assert_eq!(machine.held(), set([]));

    // What is in another tier since before the loss is not believed either, however warm it was.
    let mut machine = Machine::new(false);
    machine.frame(0, &store(10.0, 1, 1));
    machine.frame(2, &store_in(12.0, 1, 1, "CPU"));
    let tiers = |machine: &mut Machine| machine.ingest.map().confirmed().map(|report| report.tier).collect::<Vec<_>>();
    assert_eq!(tiers(&mut machine), [Tier::T2]);
    let digest = machine.held().pop_first().expect("held");
    let lines = machine.lines();
    assert_eq!(lines[lines.len() - 1], format!("report@12000000 [{digest}]"), "{lines:?}");
    machine.frame(4, &store_in(14.0, 1, 1, "CPU_TIER2"));
    assert_eq!((machine.held(), machine.lines()), (set([]), vec![format!("evict@14000000 {digest}")]));
}

#[test]
fn a_hole_in_a_replay_leaves_what_was_known_before_in_doubt() {
    let mut machine = Machine::new(true);
    machine.buffer = Some(vec![(1, store(11.0, 2, 3)), (3, store(13.0, 4, 7))]);
    machine.frame(0, &store(10.0, 1, 1));
    machine.frame(4, &store(14.0, 5, 9));
    machine.counted(json!({"gaps": 1, "replayed": 2, "lost": 1}));
    assert_eq!((machine.held().len(), machine.confirmed().len()), (4, 2));
}

#[test]
fn a_replay_that_was_made_later_than_the_frame_it_leads_to_is_another_publishers() {
    let mut machine = Machine::new(true);
    machine.buffer = Some(vec![(1, store(99.0, 2, 3))]);
    machine.frame(0, &store(10.0, 1, 1));
    machine.frame(2, &store(12.0, 3, 5));
    machine.counted(json!({"gaps": 1, "lost": 1}));
    assert_eq!(machine.confirmed().len(), 1);
}

#[test]
fn frames_that_wait_are_bounded_and_what_was_dropped_is_asked_for_again() {
    let mut machine = Machine::new(true);
    machine.frame(0, &store(10.0, 1, 1));
    let large: Vec<Vec<u8>> = (0..20).map(|i| [store(10.0, 100 + i, 100 + i), vec![0; 1 << 20]].concat()).collect();
    for (sequence, payload) in (2..).zip(&large) {
        machine.frame(sequence, payload);
    }
    assert!((4..7).contains(&machine.ingest.sequences().dropped), "{:?}", machine.counters());
    let request = machine.asked[0];
    let buffer = [vec![store(10.0, 2, 3)], large].concat();
    machine.buffer = Some((1..).zip(buffer).collect());
    machine.reply(request, 1, &store(10.0, 2, 3));
    machine.answer();
    assert_eq!(machine.held().len(), 16 + 1, "what there was room for");
    machine.frame(22, &store(10.0, 500, 500));
    assert_eq!((machine.held().len(), machine.held()), (23, machine.confirmed()));
    assert_eq!(machine.asked.len(), 2);
}

#[test]
fn an_unreadable_frame_has_its_place_among_those_that_wait() {
    let mut machine = Machine::new(true);
    machine.frame(0, &store(10.0, 1, 1));
    machine.frame(2, b"\xc1");
    machine.frame(3, &store(13.0, 4, 7));
    machine.reply(machine.asked[0], 1, &store(11.0, 2, 3));
    machine.counted(json!({"gaps": 1, "replayed": 1, "batch_errors": 1}));
    assert_eq!((machine.held().len(), machine.confirmed().len(), machine.asked.len()), (3, 1, 1));
}

/// Numbers at the very end of their range change nothing and break nothing.
#[test]
fn the_largest_numbers_are_only_numbers() {
    let mut machine = Machine::new(false);
    for sequence in [u64::MAX - 1, u64::MAX, u64::MAX, 0, u64::MAX] {
        machine.frame(sequence, &store(10.0, 1, 1));
    }
    machine.counted(json!({"duplicates": 1, "restarts": 1, "gaps": 1, "lost": u64::MAX - 1}));
}

/// One block of two tokens without a parent.
fn store(ts: f64, hash: u64, token: u64) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.array(2).float64(ts).array(1).array(6).str("BlockStored").array(1).uint(hash).nil();
    writer.array(2).uint(token).uint(token + 1).uint(2).nil();
    writer.into_bytes()
}

fn store_in(ts: f64, hash: u64, token: u64, medium: &str) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.array(2).float64(ts).array(1).array(7).str("BlockStored").array(1).uint(hash).nil();
    writer.array(2).uint(token).uint(token + 1).uint(2).nil().str(medium);
    writer.into_bytes()
}

fn removal(ts: f64, hash: u64, medium: &str) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.array(2).float64(ts).array(1).array(3).str("BlockRemoved").array(1).uint(hash).str(medium);
    writer.into_bytes()
}

fn clear(ts: f64) -> Vec<u8> {
    let mut writer = Writer::new();
    writer.array(2).float64(ts).array(1).array(1).str("AllBlocksCleared");
    writer.into_bytes()
}
