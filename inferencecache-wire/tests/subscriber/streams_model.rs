//! Random faults between an engine and the machines behind the sockets, against a model of what the engine holds.
//!
//! Frames are lost, sent twice, and swapped; the engine restarts, with its clock set back or not, and its buffer for replay
//! is as short as chance has it; replies are late, cut off, or never come; connections break, and who is there afterwards may
//! be another engine that has long passed the last number. Then two things must hold. Where nothing was
//! missed for good, what the machines hold is what the engine holds. And whatever was missed, nothing counts as confirmed
//! that the engine does not hold.

use std::collections::{BTreeSet, VecDeque};

use inferencecache_core::fingerprint::prefix_digests;
use inferencecache_wire::kvevents::MsgpackDecoder;
use inferencecache_wire::subscriber::config::Rules;
use inferencecache_wire::subscriber::ingest::{Ingest, Message};
use inferencecache_wire::subscriber::sequence::{ReplayEnd, Request, SILENCE};
use inferencecache_wire::testkit::msgpack::Writer;
use proptest::prelude::*;

/// What happens to the engine.
#[derive(Debug, Clone)]
enum Turn {
    /// A block is stored, if it is not there.
    Store(u64),
    /// A block is removed, if it is there.
    Remove(u64),
    Clear,
    Restart {
        clock: f64,
        noticed: bool,
    },
    /// The connection breaks and comes back.
    Rejoin {
        /// What another engine, with its clock so far off, has stored by then; `None`: the engine is the same.
        replaced: Option<(f64, Vec<u64>)>,
    },
}

/// What happens to the frame of a turn on its way.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Way {
    Arrives,
    Lost,
    Twice,
    /// After the next one.
    Swapped,
}

/// What becomes of a replay.
#[derive(Debug, Clone, Copy)]
enum Answer {
    Whole,
    /// Ends as if it were whole, or breaks off, after so many replies.
    Cut {
        after: usize,
        broken: bool,
    },
    Silence,
}

fn turn() -> impl Strategy<Value = (Turn, Way, Answer)> {
    let turn = prop_oneof![
        20 => (0..24u64).prop_map(Turn::Store),
        12 => (0..24u64).prop_map(Turn::Remove),
        1 => Just(Turn::Clear),
        1 => (-50.0..50.0, any::<bool>()).prop_map(|(clock, noticed)| Turn::Restart { clock, noticed }),
        1 => prop::option::of((-50.0..50.0, prop::collection::vec(0..24u64, 0..40)))
            .prop_map(|replaced| Turn::Rejoin { replaced }),
    ];
    let way =
        prop_oneof![12 => Just(Way::Arrives), 3 => Just(Way::Lost), 1 => Just(Way::Twice), 1 => Just(Way::Swapped)];
    let answer = prop_oneof![
        4 => Just(Answer::Whole),
        1 => (0..6usize, any::<bool>()).prop_map(|(after, broken)| Answer::Cut { after, broken }),
        1 => Just(Answer::Silence),
    ];
    (turn, way, answer)
}

/// The naive model: what is held, and the last batches.
#[derive(Debug, Default)]
struct Engine {
    held: BTreeSet<u64>,
    next: u64,
    clock: f64,
    buffer: VecDeque<(u64, Vec<u8>)>,
    room: usize,
}

impl Engine {
    /// Numbers the batch of a turn.
    fn publish(&mut self, turn: &Turn) -> (u64, Vec<u8>) {
        self.clock += 1.0;
        let mut writer = Writer::new();
        writer.array(2).float64(self.clock);
        match turn {
            Turn::Store(block) if self.held.insert(*block) => {
                writer.array(1).array(6).str("BlockStored").array(1).uint(*block + 1).nil();
                writer.array(2).uint(tokens(*block)[0].into()).uint(tokens(*block)[1].into()).uint(2).nil();
            }
            Turn::Remove(block) if self.held.remove(block) => {
                writer.array(1).array(2).str("BlockRemoved").array(1).uint(*block + 1);
            }
            Turn::Clear => {
                self.held.clear();
                writer.array(1).array(1).str("AllBlocksCleared");
            }
            _ => {
                writer.array(0);
            }
        }
        let frame = (self.next, writer.into_bytes());
        self.next += 1;
        self.buffer.push_back(frame.clone());
        if self.buffer.len() > self.room {
            self.buffer.pop_front();
        }
        frame
    }
}

fn tokens(block: u64) -> [u32; 2] {
    let token = u32::try_from(block).expect("small");
    [token, token + 1000]
}

fn digest(block: u64) -> u64 {
    let mut digests = Vec::new();
    prefix_digests(&tokens(block), 2.try_into().expect("positive"), &mut digests);
    digests[0]
}

struct World {
    engine: Engine,
    ingest: Ingest<MsgpackDecoder>,
    now: u32,
    /// A replay that is neither answered nor given up.
    silent: Option<Request>,
    swapped: Option<(u64, Vec<u8>)>,
    /// The beginning was asked for and not given in full. That counts nowhere as lost: nobody knows what was there.
    headless: bool,
}

impl World {
    fn new(room: usize, replayable: bool) -> Self {
        let mut ingest = Ingest::new(MsgpackDecoder::default(), Rules::default(), true, 0);
        if replayable {
            ingest.replayable(0);
        }
        let engine = Engine { clock: 1000.0, room, ..Engine::default() };
        Self { engine, ingest, now: 0, silent: None, swapped: None, headless: false }
    }

    fn frame(&mut self, (sequence, payload): &(u64, Vec<u8>), answer: Answer) {
        let message = Message { connection: 0, sequence: Some(*sequence), payload };
        self.ingest.apply(message, self.now, &mut Vec::new(), &mut Vec::new()).expect("a batch");
        self.answer(answer);
    }

    fn answer(&mut self, answer: Answer) {
        while let Some(request) = self.ingest.next_request() {
            self.headless |= request.start == 0 && !matches!(answer, Answer::Whole);
            let (replies, end) = match answer {
                Answer::Silence => {
                    self.silent = Some(request);
                    continue;
                }
                Answer::Whole => (usize::MAX, ReplayEnd::Complete),
                Answer::Cut { after, broken: false } => (after, ReplayEnd::Complete),
                Answer::Cut { after, broken: true } => (after, ReplayEnd::Failed),
            };
            self.replies(request, replies);
            self.ingest.replay_ended(request.id, end, self.now, &mut Vec::new(), &mut Vec::new());
        }
    }

    fn replies(&mut self, request: Request, replies: usize) {
        let wanted = self.engine.buffer.iter().filter(|(sequence, _)| *sequence >= request.start).take(replies);
        for (sequence, payload) in wanted {
            let message = Message { connection: 0, sequence: Some(*sequence), payload };
            self.ingest.reply(request.id, message, self.now, &mut Vec::new(), &mut Vec::new());
        }
    }

    fn pass(&mut self, ticks: u32) {
        self.now += ticks;
        self.ingest.tick(self.now, &mut Vec::new(), &mut Vec::new());
        if self.now.is_multiple_of(7)
            && let Some(request) = self.silent.take()
        {
            // Too late.
            self.replies(request, usize::MAX);
            self.ingest.replay_ended(request.id, ReplayEnd::Complete, self.now, &mut Vec::new(), &mut Vec::new());
        }
        self.answer(Answer::Whole);
    }

    fn turn(&mut self, turn: &Turn, way: Way, answer: Answer) {
        if let Turn::Restart { clock, noticed } = turn {
            self.engine = Engine { clock: self.engine.clock + clock, room: self.engine.room, ..Engine::default() };
            self.swapped = None;
            if *noticed {
                self.ingest.gone(0, self.now, &mut Vec::new(), &mut Vec::new());
                return;
            }
            // Nobody has noticed, so its first frame must arrive for anybody to know.
            let first = self.engine.publish(turn);
            return self.frame(&first, answer);
        }
        if let Turn::Rejoin { replaced } = turn {
            self.swapped = None;
            if let Some((clock, stores)) = replaced {
                self.engine = Engine { clock: self.engine.clock + clock, room: self.engine.room, ..Engine::default() };
                for block in stores {
                    self.engine.publish(&Turn::Store(*block));
                }
            }
            self.ingest.parted(0, self.now);
            self.ingest.rejoined(0, self.now);
            return self.answer(answer);
        }
        let frame = self.engine.publish(turn);
        let before = self.swapped.take();
        match way {
            Way::Arrives => self.frame(&frame, answer),
            Way::Lost => {}
            Way::Twice => {
                self.frame(&frame, answer);
                self.frame(&frame, answer);
            }
            Way::Swapped => self.swapped = Some(frame),
        }
        if let Some(before) = before {
            self.frame(&before, answer);
        }
    }

    fn held(&mut self) -> BTreeSet<u64> {
        self.ingest.map().all_held().iter().map(|report| report.digest).collect()
    }
}

fn run(turns: &[(Turn, Way, Answer)], room: usize, replayable: bool) -> Result<(), TestCaseError> {
    let mut world = World::new(room, replayable);
    for (turn, way, answer) in turns {
        world.turn(turn, *way, *answer);
        world.pass(3);
    }
    // The faults end; the engine goes on.
    world.swapped = None;
    world.pass(10 * SILENCE);
    for block in [100, 101] {
        world.turn(&Turn::Store(block), Way::Arrives, Answer::Whole);
    }
    world.pass(10 * SILENCE);
    let engine: BTreeSet<u64> = world.engine.held.iter().map(|&block| digest(block)).collect();
    let confirmed: BTreeSet<u64> = world.ingest.map().confirmed().map(|report| report.digest).collect();
    prop_assert!(confirmed.is_subset(&engine), "believed without reason: {:?}", confirmed.difference(&engine));
    let tally = world.ingest.sequences();
    let missed = world.headless || tally.lost > 0 || tally.unproven > 0 || tally.restarts > 0;
    if replayable && !missed && world.engine.buffer.len() as u64 == world.engine.next {
        prop_assert_eq!(&world.held(), &engine);
        prop_assert_eq!(confirmed, engine);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_believed_without_reason(
        turns in proptest::collection::vec(turn(), 1..80),
        room in prop_oneof![Just(1usize), Just(4), Just(10_000)],
        replayable in prop::bool::weighted(0.8),
    ) {
        run(&turns, room, replayable)?;
    }

    /// With an engine that answers in full whatever else happens, nothing is ever missing.
    #[test]
    fn a_complete_replay_makes_both_equal(turns in proptest::collection::vec(turn(), 1..80)) {
        let mut world = World::new(usize::MAX, true);
        for (turn, way, _) in &turns {
            world.turn(turn, *way, Answer::Whole);
        }
        world.swapped = None;
        world.turn(&Turn::Store(100), Way::Arrives, Answer::Whole);
        let engine: BTreeSet<u64> = world.engine.held.iter().map(|&block| digest(block)).collect();
        prop_assert_eq!(&world.held(), &engine);
        let confirmed: BTreeSet<u64> = world.ingest.map().confirmed().map(|report| report.digest).collect();
        prop_assert_eq!(confirmed, engine);
        prop_assert_eq!(world.ingest.sequences().lost, 0);
    }
}
