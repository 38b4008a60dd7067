//! Pods that the selector finds.

use std::time::Duration;

use serde_json::json;

use super::world::{World, bare, changed};
use crate::controller::backend::status::matched::Wanted;

const NOBODY: &str = "spec.engineSelector.matchLabels={inferencecache.io/cache-domain:d1}; no Pods in namespace match";
const EVENT: &str = "Normal EngineSelectorUnmatched";

/// controller:112,113,114
#[test]
fn whoever_matches_is_counted_and_nobody_is_told_once() {
    let other = json!({"metadata": {"labels": {"inferencecache.io/cache-domain": "d2"}}});
    let mut world = World::managed().with([bare("a"), bare("b"), bare("c"), changed(bare("d"), &other)]);
    world.settle();
    assert_eq!(world.status()["matchedEnginePods"], 3);
    assert!(world.status()["engineSelectorMessage"].is_null());

    let mut world = World::managed();
    for _ in 0..5 {
        world.later(30);
        world.settle();
    }
    assert_eq!(
        (&world.status()["matchedEnginePods"], &world.status()["engineSelectorMessage"]),
        (&json!(0), &json!(NOBODY))
    );
    assert_eq!(world.count(EVENT), 1);
    world.pods.push(bare("p"));
    world.settle();
    assert!(world.status()["engineSelectorMessage"].is_null());
    world.pods.clear();
    world.settle();
    assert_eq!(world.status()["engineSelectorMessage"], NOBODY);
    assert_eq!(world.count(EVENT), 2);
}

/// controller:115,116,117
#[test]
fn replicas_that_are_wanted_say_whether_it_surprises() {
    let (slow, fast) = (Some(Duration::from_secs(30)), Some(Duration::from_secs(5)));
    let mut world = World::host_only();
    world.wanted = Some(Wanted::Replicas(0));
    assert_eq!(world.settle().requeue, slow);
    assert_eq!(world.status()["matchedEnginePods"], 0);
    assert!(world.status()["engineSelectorMessage"].is_null());
    assert_eq!(world.count(EVENT), 0);
    world.wanted = Some(Wanted::Replicas(2));
    assert_eq!(world.settle().requeue, fast, "Pods are about to come");
    assert_eq!(world.count(EVENT), 1);
    world.pods = vec![bare("a"), bare("b"), changed(bare("old"), &json!({"status": {"phase": "Failed"}}))];
    assert_eq!(world.settle().requeue, slow);
    assert_eq!(world.status()["matchedEnginePods"], 3);
    world.wanted = None;
    assert_eq!(world.settle().requeue, slow, "what cannot be read does not hurry");

    let mut world = World::external("h:1");
    world.settle();
    let mut world = world.without_selector();
    assert_eq!(world.settle().requeue, None);
    let status = world.status();
    assert!(status["matchedEnginePods"].is_null() && status["engineSelectorMessage"].is_null());
}
