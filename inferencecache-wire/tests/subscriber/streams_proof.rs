//! Whether the publisher behind a connection that comes back, or has fallen silent, is the one that was heard.

use inferencecache_wire::subscriber::blockmap::{BlockMap, StreamId, Ticks};
use inferencecache_wire::subscriber::config::Rules;
use inferencecache_wire::subscriber::sequence::{
    AWAY, Frame, Held, QUIET, ReplayEnd, Request, Sequences, Step, Verdict,
};

const IGNORE: Step = Step { restarted: false, begins: None, lost: 0, unproven: false, verdict: Verdict::Ignore };

/// A machine that has heard frames 0 to 5 of the first publisher.
fn heard(replayable: bool, streams: i64) -> (Sequences, Vec<StreamId>) {
    let (mut sequences, mut map) = (Sequences::new(true), BlockMap::new(Rules::default()));
    if replayable {
        sequences.replayable(0);
    }
    let ids: Vec<StreamId> = (0..streams).map(|rank| map.stream(0, Some(rank)).0).collect();
    for &id in &ids {
        sequences.add(0);
        for number in 0..=5 {
            assert_eq!(sequences.live(id, old(number), 0).verdict, Verdict::Apply);
        }
    }
    (sequences, ids)
}

fn old(sequence: u64) -> Frame {
    Frame { sequence, at: 100, print: 1000 + sequence }
}

fn new(sequence: u64) -> Frame {
    Frame { sequence, at: 200, print: 2000 + sequence }
}

fn comes_back(sequences: &mut Sequences) -> Request {
    assert_eq!(sequences.parted(0, 10), []);
    assert_eq!(sequences.rejoined(0, 11), []);
    let request = sequences.next_request().expect("the publisher is asked");
    assert_eq!((request.start, request.until), (5, u64::MAX), "from the last frame on");
    request
}

fn hold(sequences: &mut Sequences, id: StreamId, frame: Frame, now: Ticks) {
    assert_eq!(sequences.live(id, frame, now).verdict, Verdict::Hold);
    sequences.hold(id, Held { frame, payload: Some(Vec::new()) });
}

#[test]
fn the_same_frame_is_the_same_publisher_and_nothing_is_missed() {
    let (mut sequences, ids) = heard(true, 1);
    let request = comes_back(&mut sequences);
    hold(&mut sequences, ids[0], old(8), 12);
    assert_eq!(sequences.reply(request.id, old(5), 13), (IGNORE, None));
    assert_eq!(sequences.reply(request.id, old(6), 13), (Step::default(), None));
    assert_eq!(sequences.reply(request.id, old(7), 13), (Step::default(), Some(ReplayEnd::Complete)));
    let (_, step) = sequences.ended(request.id, ReplayEnd::Complete, 13).expect("it was wanted");
    assert_eq!(step, IGNORE);
    assert_eq!(sequences.next_held(ids[0], 13).expect("held").1, Step::default());
    let tally = sequences.tally();
    assert_eq!((tally.gaps, tally.lost, tally.unproven, tally.restarts, tally.replayed), (1, 0, 0, 0, 2));
}

#[test]
fn another_frame_or_none_is_another_publisher_who_is_asked_for_everything() {
    for answer in [Some(new(5)), None] {
        let (mut sequences, ids) = heard(true, 1);
        let request = comes_back(&mut sequences);
        // Perhaps the last words of the old one.
        hold(&mut sequences, ids[0], old(6), 12);
        let step = match answer {
            Some(frame) => sequences.reply(request.id, frame, 13),
            None => (sequences.ended(request.id, ReplayEnd::Complete, 13).expect("wanted").1, None),
        };
        assert_eq!(step, (Step { restarted: true, ..IGNORE }, None));
        assert!(!sequences.is_wanted(request.id));
        let again = sequences.next_request().expect("the new one is asked for all");
        assert_eq!((again.start, again.until), (0, u64::MAX));
        hold(&mut sequences, ids[0], new(2), 14);
        assert!(sequences.reply(again.id, new(0), 15).0.begins.is_some_and(|begins| begins.fresh));
        assert_eq!(sequences.reply(again.id, new(1), 15).1, Some(ReplayEnd::Complete));
        assert_eq!(sequences.ended(again.id, ReplayEnd::Complete, 15).expect("wanted").1, IGNORE);
        let (held, step) = sequences.next_held(ids[0], 15).expect("held");
        assert_eq!((held.frame, step), (new(2), Step::default()));
        assert!(sequences.next_held(ids[0], 15).is_none(), "nothing of the old one");
        let tally = sequences.tally();
        assert_eq!((tally.restarts, tally.duplicates, tally.lost, tally.unproven), (1, 0, 0, 0));
    }
}

#[test]
fn a_buffer_that_begins_later_and_no_answer_leave_doubt() {
    let (mut sequences, ids) = heard(true, 1);
    let request = comes_back(&mut sequences);
    let (step, end) = sequences.reply(request.id, new(6), 12);
    assert_eq!((step, end), (Step { unproven: true, ..Step::default() }, None), "it may have been anybody's");
    assert_eq!(sequences.ended(request.id, ReplayEnd::Complete, 12).expect("wanted").1, IGNORE);

    let request = {
        sequences.parted(0, 20);
        sequences.rejoined(0, 21);
        sequences.next_request().expect("asked")
    };
    hold(&mut sequences, ids[0], new(7), 22);
    let (_, step) = sequences.ended(request.id, ReplayEnd::Failed, 50).expect("wanted");
    assert_eq!(step, Step { unproven: true, ..IGNORE });
    assert_eq!(sequences.next_held(ids[0], 50).expect("held").1, Step::default(), "the stream goes on");
    assert_eq!(sequences.tally().unproven, 2);
}

#[test]
fn where_nobody_can_be_asked_a_loss_is_a_doubt_at_once() {
    for (replayable, streams) in [(false, 1), (false, 2), (true, 2)] {
        let (mut sequences, ids) = heard(replayable, streams);
        assert_eq!(sequences.parted(0, 10), ids);
        assert_eq!(sequences.rejoined(0, 11), []);
        assert_eq!(sequences.next_request(), None);
    }
}

#[test]
fn what_came_without_numbers_is_in_doubt_once_its_connection_is_lost() {
    for before in [true, false] {
        let (mut sequences, ids) = heard(true, if before { 1 } else { 0 });
        let ids = if before { ids } else { vec![BlockMap::new(Rules::default()).stream(0, None).0] };
        if !before {
            sequences.add(0);
        }
        sequences.unnumbered(ids[0]);
        assert_eq!(sequences.parted(0, 10), ids);
    }
}

#[test]
fn a_connection_that_stays_away_leaves_doubt_and_is_asked_all_the_same() {
    let (mut sequences, ids) = heard(true, 1);
    assert_eq!(sequences.parted(0, 10), []);
    assert_eq!(sequences.wake_at(), Some(10 + AWAY));
    assert_eq!(sequences.look(9 + AWAY), []);
    assert_eq!(sequences.look(10 + AWAY), ids);
    assert_eq!((sequences.look(11 + AWAY), sequences.wake_at()), (vec![], None), "once");
    sequences.rejoined(0, 500);
    assert_eq!(sequences.next_request().map(|request| request.start), Some(5));
}

#[test]
fn a_first_connection_and_a_second_publisher_are_no_return() {
    let (mut sequences, _) = heard(true, 1);
    assert_eq!(sequences.rejoined(0, 10), []);
    assert_eq!(sequences.next_request(), None);
}

#[test]
fn a_silence_is_looked_into_once_and_an_empty_answer_means_nothing() {
    let (mut sequences, ids) = heard(true, 1);
    assert_eq!(sequences.wake_at(), Some(QUIET));
    sequences.look(QUIET);
    let request = sequences.next_request().expect("asked");
    assert_eq!(request.start, 5);
    assert_eq!(sequences.ended(request.id, ReplayEnd::Complete, QUIET + 1).expect("wanted").1, IGNORE);
    sequences.look(10 * QUIET);
    assert_eq!((sequences.next_request(), sequences.wake_at()), (None, None));

    // What was said last had been lost.
    assert_eq!(sequences.live(ids[0], old(6), 2000).verdict, Verdict::Apply);
    sequences.look(2000 + QUIET);
    let request = sequences.next_request().expect("asked");
    assert_eq!(sequences.reply(request.id, old(6), 2101).0, IGNORE);
    assert_eq!(sequences.reply(request.id, old(7), 2101).0, Step::default());
    assert_eq!(sequences.ended(request.id, ReplayEnd::Complete, 2101).expect("wanted").1, IGNORE);
    assert_eq!((sequences.tally().gaps, sequences.tally().replayed), (1, 1));
    // So had what came until the next frame: the same gap.
    hold(&mut sequences, ids[0], old(9), 2102);
    let request = sequences.next_request().expect("asked");
    assert_eq!((request.start, request.until, sequences.tally().gaps), (8, 9, 1));
    sequences.reply(request.id, old(8), 2103);
    sequences.ended(request.id, ReplayEnd::Complete, 2103);
    assert_eq!(sequences.next_held(ids[0], 2103).expect("held").1, Step::default());

    // Somebody else has been speaking behind a connection that stands.
    assert_eq!(sequences.live(ids[0], old(10), 3000).verdict, Verdict::Apply);
    sequences.look(3000 + QUIET);
    let request = sequences.next_request().expect("asked");
    assert!(sequences.reply(request.id, new(10), 3101).0.restarted);
}

#[test]
fn a_replay_that_was_under_way_when_the_connection_broke_is_asked_for_again() {
    let (mut sequences, ids) = heard(true, 1);
    hold(&mut sequences, ids[0], old(8), 5);
    let first = sequences.next_request().expect("a gap");
    assert_eq!((first.start, first.until), (6, 8));
    sequences.parted(0, 10);
    sequences.rejoined(0, 11);
    let second = sequences.next_request().expect("asked");
    assert_eq!((second.start, second.until), (5, 8));
    assert!(!sequences.is_wanted(first.id));
    for number in 5..8 {
        sequences.reply(second.id, old(number), 12);
    }
    sequences.ended(second.id, ReplayEnd::Complete, 12);
    assert_eq!(sequences.next_held(ids[0], 12).expect("held").1, Step::default());
}
