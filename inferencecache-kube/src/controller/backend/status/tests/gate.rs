//! The wait for the first event.

use std::time::Duration;

use serde_json::json;

use super::world::{MINUTES, World, bare, good};
use crate::controller::backend::dispatch::Mode;

const AWAITING: &str = "False/AwaitingFirstKVEvent";
const LATE: &str = "False/NoKVEventsObserved";
const DEGRADED: &str = "True/NoKVEventsObserved";
const SEEN: &str = "True/KVEventsObserved";
const AT: &str = "2026-01-02T03:04:30Z";

fn waiting() -> World {
    let mut world = World::managed().with([good("e1")]);
    world.deployment(1, 1);
    world
}

/// A managed backend whose first event never came.
fn late() -> World {
    let mut world = waiting().timeout("2s");
    world.settle();
    world.later(2);
    world.settle();
    world
}

/// controller:73,74,80
#[test]
fn ready_waits_for_the_first_event_and_never_again() {
    let mut world = waiting();
    let decision = world.settle();
    world.expect(&[
        ("Ready", AWAITING),
        ("Progressing", "True/AwaitingFirstKVEvent"),
        ("Degraded", "False/NotDegraded"),
    ]);
    assert_eq!(world.status()["firstAvailableAt"], "2026-01-02T03:04:05Z");
    assert!(world.message("Ready").contains("5m0s"));
    assert_eq!(world.count("Normal AwaitingFirstKVEvent"), 1);
    assert_eq!(decision.requeue, Some(Duration::from_secs(30)), "a managed object is looked at that often anyway");
    world.event(AT);
    world.settle();
    world.expect(&[("Ready", SEEN), ("Progressing", "False/Synced")]);
    assert_eq!(world.status()["firstKVEventObservedAt"], AT);
    assert_eq!(world.count("Normal KVEventsObserved"), 1);
    world.plant(&json!({"indexParticipation": {"prefixCount": 0, "lastEventAt": null}}));
    world.settle();
    world.expect(&[("Ready", SEEN)]);
}

/// controller:75,81,82,83
#[test]
fn who_has_an_event_or_needs_none_does_not_wait() {
    let mut early = World::managed();
    early.deployment(1, 1);
    early.event(AT);
    early.settle();
    assert_eq!(early.status()["firstKVEventObservedAt"], AT, "latched before anything is ready");
    early.pods.push(good("e1"));
    early.settle();
    early.expect(&[("Ready", SEEN)]);
    assert_eq!(early.count("Normal AwaitingFirstKVEvent"), 0);

    let mut off = waiting().off();
    off.settle();
    off.expect(&[("Ready", "True/ConnectorReady")]);
    off.annotate("inferencecache.io/require-kv-events", "False");
    off.settle();
    off.expect(&[("Ready", AWAITING)]);

    let mut events_only = World::events_only();
    let decision = events_only.settle();
    assert_eq!(events_only.status()["firstAvailableAt"], "2026-01-02T03:04:05Z");
    events_only.expect(&[("Ready", AWAITING), ("ConnectorReady", "absent"), ("RemoteStorageReady", "absent")]);
    assert!(events_only.message("Ready").contains("wired"));
    assert!(decision.requeue <= Some(Duration::from_secs(30)));
    events_only.event(AT);
    events_only.settle();
    events_only.expect(&[("Ready", SEEN)]);
    let mut none = World::events_only().off();
    none.settle();
    none.expect(&[("Ready", "True/EventsOnlyActive")]);
}

/// controller:76,78,79,84
#[test]
fn who_never_reports_is_degraded_until_it_does() {
    let mut world = waiting().timeout("2s");
    let first = world.pass();
    assert_eq!(first.requeue, Some(Duration::from_secs(2)), "exactly when the wait ends");
    world.later(2);
    world.settle();
    world.expect(&[("Ready", LATE), ("Degraded", DEGRADED), ("Progressing", "False/NoKVEventsObserved")]);
    assert_eq!((world.count("Warning NoKVEventsObserved"), world.count("Warning BackendDegraded")), (1, 0));
    world.deployment(1, 0);
    world.settle();
    world.deployment(1, 1);
    world.settle();
    world.expect(&[("Ready", LATE), ("Degraded", DEGRADED)]);
    world.event(AT);
    world.settle();
    world.expect(&[("Ready", SEEN), ("Degraded", "False/NotDegraded")]);
    assert_eq!(world.count("Normal BackendRecovered"), 0);

    let mut events_only = World::events_only().timeout("1s").without_selector();
    assert_eq!(events_only.pass().requeue, Some(Duration::from_secs(1)));
    events_only.later(1);
    assert_eq!(events_only.pass().requeue, None);
    events_only.expect(&[("Ready", LATE), ("Degraded", DEGRADED)]);
    assert!(events_only.status()["remoteStorage"].is_null());
}

/// controller:77
#[test]
fn a_longer_timeout_does_not_undo_the_verdict() {
    let mut events_only = World::events_only().timeout("1s");
    events_only.settle();
    events_only.later(1);
    events_only.settle();
    events_only.edit(Mode::EventsOnly, &json!({"observation": {"firstEventTimeout": "1h"}}));
    events_only.settle();
    events_only.expect(&[("Ready", LATE), ("Degraded", DEGRADED)]);

    // [+] nor does what the edit does to the connector in between.
    let mut managed = late();
    managed.edit(Mode::Managed, &json!({"observation": {"firstEventTimeout": "1h"}}));
    managed.settle();
    managed.expect(&[("Ready", "Unknown/ConnectorInjectionUnverified"), ("Degraded", DEGRADED)]);
    managed.restamp();
    managed.settle();
    managed.expect(&[("Ready", LATE), ("Degraded", DEGRADED)]);
    assert_eq!((managed.count("Warning BackendDegraded"), managed.count("Normal BackendRecovered")), (0, 0));

    // Opting out ends it, and so does an event while the connector is down.
    let mut out = late().off();
    out.settle();
    out.expect(&[("Ready", "True/ConnectorReady"), ("Degraded", "False/NotDegraded")]);
    let mut seen = late();
    seen.pods = vec![bare("e1")];
    seen.event(AT);
    seen.settle();
    seen.expect(&[("Degraded", "False/NotDegraded")]);
}

/// controller:85, and every other change of mode [+].
#[test]
fn a_change_of_mode_starts_the_wait_anew() {
    let mut planted = World::events_only();
    planted.plant(&json!({
        "remoteStorage": {"provider": "Redis", "endpoint": "h:1", "ready": "True"},
        "firstAvailableAt": "2026-01-02T02:04:05Z",
        "conditions": [
            {"type": "Ready", "status": "False", "reason": "NoKVEventsObserved", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            {"type": "Degraded", "status": "True", "reason": "NoKVEventsObserved", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"},
        ],
    }));
    planted.settle();
    planted.expect(&[("Ready", AWAITING), ("Degraded", "False/NotDegraded")]);
    assert_eq!(planted.status()["firstAvailableAt"], "2026-01-02T03:04:05Z");
    assert!(planted.status()["remoteStorage"].is_null());

    let managed = json!({"integration": {"mode": "Offload"}, "remoteStorage": {"provider": "Redis", "ownership": "Managed", "redis": {}}});
    let external = json!({"remoteStorage": {"provider": "Redis", "ownership": "External", "endpoint": "h:1"}});
    let host_only = json!({"integration": {"mode": "Offload"}, "remoteStorage": null});
    let events_only = json!({"integration": {"mode": "EventsOnly"}, "remoteStorage": null});
    for (mode, spec) in [(Mode::HostOnly, &host_only), (Mode::EventsOnly, &events_only)] {
        let mut world = late();
        world.later(100);
        world.edit(mode, spec);
        world.restamp();
        world.settle();
        assert_eq!(world.says("Ready"), AWAITING, "Managed to {mode:?}");
        assert_eq!(world.status()["firstAvailableAt"], "2026-01-02T03:05:47Z");
    }
    let mut world = late();
    world.edit(Mode::HostOnly, &host_only);
    world.restamp();
    world.settle();
    world.later(2);
    world.settle();
    world.expect(&[("Ready", LATE)]);
    for (mode, spec) in [(Mode::EventsOnly, &events_only), (Mode::Managed, &managed)] {
        world.later(2);
        world.edit(mode, spec);
        world.restamp();
        world.deployment(1, 1);
        world.endpoint = Some("cache.ns.svc.cluster.local:6379");
        world.settle();
        assert_eq!(world.says("Ready"), AWAITING, "to {mode:?}");
        world.later(2);
        world.settle();
        assert_eq!(world.says("Ready"), LATE, "{mode:?}");
    }
    world.edit(Mode::External, &external);
    world.restamp();
    world.settle();
    world.expect(&[("Ready", "True/ConnectorReady"), ("Degraded", "absent")]);
    world.later(100);
    world.edit(Mode::Managed, &managed);
    world.restamp();
    world.settle();
    world.expect(&[("Ready", AWAITING)]);
}

/// controller:86,87
#[test]
fn the_clock_starts_at_the_first_time_ready_and_events_are_told_once() {
    let mut world = waiting().closed();
    world.event(AT);
    world.settle();
    world.deployment(0, 1);
    world.settle();
    world.expect(&[("Ready", "Unknown/RemoteStoragePending")]);
    world.deployment(1, 1);
    world.settle();
    world.expect(&[("Ready", SEEN)]);
    assert_eq!(world.count("Normal KVEventsObserved"), 1);

    let mut patient = World::host_only();
    patient.settle();
    patient.later(3600);
    patient.settle();
    patient.pods.push(good("e1"));
    let decision = patient.settle();
    patient.expect(&[("Ready", AWAITING)]);
    assert!(decision.requeue.is_some_and(|wait| wait <= MINUTES(5)));
}

#[test]
fn a_timeout_that_is_none_is_five_minutes_and_said() {
    for (timeout, said) in [("soon", true), ("-3s", false), ("0s", false)] {
        let mut world = waiting().timeout(timeout);
        world.settle();
        world.expect(&[("Ready", AWAITING)]);
        assert!(world.message("Ready").contains("5m0s"), "{}", world.message("Ready"));
        assert_eq!(world.message("Ready").contains("firstEventTimeout"), said, "{timeout}");
        world.later(301);
        world.settle();
        world.expect(&[("Ready", LATE)]);
    }
}
