//! The functional probe, as passes see it.

use std::time::Duration;

use super::world::{World, good};
use crate::controller::backend::probing::{Report, StageError};
use crate::controller::backend::status::probe::View;

const AT: &str = "2026-01-02T03:04:30Z";

/// A managed backend that is ready but for the probe.
fn probed(view: View) -> World {
    let mut world = World::managed().with([good("e1")]);
    world.deployment(1, 1);
    world.event(AT);
    world.probe = view;
    world
}

fn report(ingest: &str, routing: &str, t2: &str) -> Report {
    let errors = [("ingest", "  "), ("ingest", "no event arrived"), ("routing", "no hint"), ("t2", "redis is gone")];
    Report {
        ingest: ingest.to_owned(),
        routing: routing.to_owned(),
        t2: t2.to_owned(),
        errors: errors
            .map(|(stage, message)| StageError { stage: stage.to_owned(), message: message.to_owned() })
            .to_vec(),
    }
}

fn answered(ingest: &str, routing: &str, t2: &str) -> View {
    View::Answered(Ok(report(ingest, routing, t2)))
}

/// controller:88,89,90,98
#[test]
fn an_answer_decides_stage_by_stage() {
    for (ingest, routing, t2, says, message) in [
        ("ok", "ok", "skipped", "True/ProbeOK", ""),
        ("failed", "skipped", "skipped", "False/ProbeIngestFailed", "no event arrived"),
        ("failed", "failed", "failed", "False/ProbeIngestFailed", "no event arrived"),
        ("ok", "failed", "skipped", "False/ProbeRoutingFailed", "no hint"),
        ("ok", "ok", "failed", "False/ProbeT2Failed", "redis is gone"),
        ("", "", "", "False/ProbeError", "unrecognized"),
        ("ok", "maybe", "ok", "False/ProbeError", "routing=\"maybe\""),
    ] {
        let mut world = probed(answered(ingest, routing, t2));
        let decision = world.pass();
        let next = decision.probe;
        assert!(next.used && !next.call);
        assert_eq!(next.requeue, Some(Duration::from_secs(30)));
        assert_eq!(world.says("FunctionalProbeOK"), says, "{ingest} {routing} {t2}");
        assert!(world.message("FunctionalProbeOK").contains(message));
        if says.starts_with("True") {
            world.expect(&[("Ready", "True/KVEventsObserved")]);
        } else {
            world.expect(&[("Ready", says), ("Degraded", "False/NotDegraded")]);
            assert!(world.message("Ready").starts_with("functional probe failed: "));
            assert!(world.message("Ready").contains(message));
        }
    }
    let mut quiet = report("failed", "ok", "ok");
    quiet.errors.clear();
    let mut world = probed(View::Answered(Ok(quiet)));
    world.pass();
    assert!(!world.message("FunctionalProbeOK").is_empty());
    let mut long = report("failed", "ok", "ok");
    long.errors[1].message = "x".repeat(600);
    let mut world = probed(View::Answered(Ok(long)));
    world.pass();
    let message = world.message("FunctionalProbeOK");
    assert!(message.len() == 512 && message.ends_with("..."));
}

/// controller:91,92,94
#[test]
fn a_verdict_against_stays_until_a_later_one_lifts_it() {
    let mut world = probed(answered("failed", "skipped", "skipped"));
    world.pass();
    for view in [
        View::Resting(Duration::from_secs(12)),
        View::Resting(Duration::ZERO),
        View::Due,
        View::Underway,
        View::Answered(Err("status 503".to_owned())),
    ] {
        world.probe = view;
        let writes = world.writes;
        let decision = world.pass();
        assert_eq!(world.writes, writes, "{:?}", world.probe);
        world.expect(&[("Ready", "False/ProbeIngestFailed"), ("FunctionalProbeOK", "False/ProbeIngestFailed")]);
        let expected = match world.probe {
            View::Resting(Duration::ZERO) => 1,
            View::Resting(_) => 12,
            _ => 30,
        };
        assert_eq!(decision.probe.requeue, Some(Duration::from_secs(expected)));
        assert_eq!(decision.probe.call, world.probe == View::Due);
    }
    world.probe = answered("ok", "ok", "skipped");
    world.pass();
    world.expect(&[("Ready", "True/KVEventsObserved"), ("FunctionalProbeOK", "True/ProbeOK")]);
}

/// controller:93,99 field:57
#[test]
fn a_call_without_a_verdict_changes_nothing_but_is_said() {
    let mut world = probed(View::Answered(Err("connect 10.0.0.7:49152->10.0.0.8:8081: refused".to_owned())));
    world.pass();
    world.expect(&[("Ready", "True/KVEventsObserved"), ("FunctionalProbeOK", "Unknown/ProbeError")]);
    assert!(world.message("FunctionalProbeOK").starts_with("probe call failed: connect"));
    let writes = world.writes;
    for port in 49153..49200 {
        world.probe = View::Answered(Err(format!("connect 10.0.0.7:{port}->10.0.0.8:8081: refused")));
        world.pass();
    }
    assert_eq!(world.writes, writes, "a text that differs in numbers alone is the same");
    world.probe = View::Answered(Err("no answer within 5s".to_owned()));
    world.pass();
    assert_eq!(world.writes, writes + 1);
    assert!(world.message("FunctionalProbeOK").contains("no answer"));
}

/// controller:95,96,97
#[test]
fn a_probe_that_is_waived_off_or_too_early_is_not_called() {
    let mut waived = probed(View::Due);
    waived.annotate("inferencecache.io/skip-functional-probe", "true");
    let decision = waived.settle();
    waived.expect(&[("FunctionalProbeOK", "True/ProbeBypassed"), ("Ready", "True/KVEventsObserved")]);
    assert!(!decision.probe.call);
    waived.annotate("inferencecache.io/skip-functional-probe", "True");
    assert!(waived.decide().probe.call);

    for pods in [vec![], vec![good("e1")]] {
        let mut off = probed(answered("ok", "ok", "ok"));
        off.pass();
        off.pods = pods;
        off.probe = View::Off;
        off.settle();
        off.expect(&[("FunctionalProbeOK", "absent")]);
    }
    let mut early = World::managed().with([good("e1")]);
    early.deployment(1, 1);
    early.probe = View::Due;
    let decision = early.settle();
    assert!(!decision.probe.call);
    early.expect(&[("FunctionalProbeOK", "absent"), ("Ready", "False/AwaitingFirstKVEvent")]);
}

/// [+] the probe is beside the pass, and Ready does not flicker while the first answer is on its way.
#[test]
fn ready_is_held_until_the_first_answer() {
    let mut world = probed(View::Due);
    assert!(world.pass().probe.call);
    world.expect(&[
        ("Ready", "absent"),
        ("FunctionalProbeOK", "absent"),
        ("RemoteStorageReady", "True/RemoteStorageReady"),
    ]);
    world.probe = View::Underway;
    assert!(!world.settle().probe.call);
    world.probe = answered("ok", "ok", "skipped");
    world.pass();
    world.expect(&[("Ready", "True/KVEventsObserved")]);

    let mut waited = World::managed().with([good("e1")]);
    waited.deployment(1, 1);
    waited.settle();
    waited.event(AT);
    waited.probe = View::Due;
    waited.pass();
    waited.expect(&[("Ready", "False/AwaitingFirstKVEvent")]);
    assert_eq!(waited.count("Normal KVEventsObserved"), 1, "the event itself is told at once");
}
