//! The limit of evictions per minute.

use std::num::NonZeroU32;

use lockstep_api::condition::reasons;
use lockstep_sim::{Gangs, Key, Spec, WatchedKind};

use crate::{HIGH, LOW, run};

const KEY: &str = "scheduler.preemption.maxEvictionsPerMinute";

/// Nodes that are each full of a gang of two pods, and an eviction limit.
fn full(nodes: usize, limit: u32) -> Gangs {
    let names: Vec<String> = (0..nodes).map(|n| format!("n{n}")).collect();
    let nodes: Vec<(&str, i64)> = names.iter().map(|name| (name.as_str(), 2)).collect();
    let mut world = Gangs::new(&nodes);
    world.scheduler_settings().max_evictions_per_minute = NonZeroU32::new(limit);
    for name in &names {
        world.gang(&format!("low-{name}"), LOW);
        world.settle();
    }
    world
}

/// True for each gang that runs whole.
fn running(world: &Gangs, names: &[&str]) -> Vec<bool> {
    names.iter().map(|name| world.running(name) == 2).collect()
}

#[test]
fn a_preemption_beyond_the_limit_waits_and_the_condition_names_the_time_and_the_key() {
    let mut world = full(2, 2);
    world.gang("first", HIGH);
    world.gang("second", HIGH);
    run(&mut world, 30);
    assert_eq!(running(&world, &["first", "second"]), [true, false]);
    assert_eq!(world.intent("second"), None, "no node is taken for it");
    let message = world.condition("second").message;
    for part in [
        "insufficient nvidia.com/gpu: 2 pods need 2 more",
        "victims (2 pods) are not evicted before ",
        "the limit is 2 pods per minute",
        KEY,
    ] {
        assert!(message.contains(part), "{part:?} is missing: {message}");
    }
    run(&mut world, 45);
    assert_eq!(running(&world, &["first", "second"]), [true, true]);
}

#[test]
fn a_gang_larger_than_the_limit_is_evicted_whole_and_alone_and_not_never() {
    let mut world = full(2, 1);
    world.gang("first", HIGH);
    world.gang("second", HIGH);
    run(&mut world, 30);
    assert_eq!(running(&world, &["first", "second"]), [true, false]);
    run(&mut world, 45);
    assert_eq!(running(&world, &["first", "second"]), [true, true]);
}

#[test]
fn a_preemption_that_waits_for_the_limit_is_not_overtaken_by_smaller_ones() {
    let mut world = full(4, 4);
    world.gang("first", HIGH);
    run(&mut world, 5);
    let large = Spec {
        priority: 90,
        members: 4,
        gpus: 1,
    };
    let small = Spec {
        priority: 80,
        ..LOW
    };
    world.gang("large", large);
    world.gang("small", small);
    run(&mut world, 30);
    assert_eq!((world.running("large"), world.running("small")), (0, 0));
    let message = world.condition("small").message;
    assert!(message.contains(KEY), "{message}");
    run(&mut world, 45);
    assert_eq!((world.running("large"), world.running("small")), (4, 0));
    run(&mut world, 60);
    assert_eq!(world.running("small"), 2);
}

#[test]
fn the_next_leader_knows_what_preemptions_under_way_have_evicted() {
    let mut world = full(2, 2);
    world.gang("first", HIGH);
    world.pass();
    world.pass();
    let told = world.intent("first").unwrap().victims;
    assert!(told.iter().all(|v| v.eviction_requested_at.is_some()));
    world.crash();
    world.gang("second", HIGH);
    world.pass();
    assert_eq!(world.intent("second"), None);
    let message = world.condition("second").message;
    assert!(message.contains(KEY), "{message}");
}

#[test]
fn a_limit_that_is_lowered_holds_for_what_has_been_decided() {
    let mut world = full(3, 4);
    world.gang("first", HIGH);
    world.gang("second", HIGH);
    world.pass();
    assert!(world.intent("first").is_some() && world.intent("second").is_some());
    world.scheduler_settings().max_evictions_per_minute = NonZeroU32::new(2);
    run(&mut world, 30);
    assert_eq!(running(&world, &["first", "second"]), [true, false]);
    let condition = world.condition("second");
    assert_eq!(condition.reason, reasons::PREEMPTING);
    assert!(condition.message.contains(KEY), "{}", condition.message);
    run(&mut world, 45);
    assert_eq!(running(&world, &["first", "second"]), [true, true]);
}

#[test]
fn a_victim_that_goes_by_itself_lifts_the_limit_for_no_other() {
    let mut world = full(1, 4);
    world.gang("first", HIGH);
    run(&mut world, 5);
    world.node("n9", 2, true);
    world.foreign("one", "n9", 0, 1);
    world.foreign("other", "n9", 0, 1);
    world.gang("second", HIGH);
    world.pass();
    assert_eq!(world.intent("second").unwrap().victims.len(), 2);
    world.scheduler_settings().max_evictions_per_minute = NonZeroU32::new(2);
    world.remove(WatchedKind::Pod, &Key::new("ml", "one"));
    run(&mut world, 5);
    assert_eq!(world.evicted(), [""; 0]);
    run(&mut world, 60);
    assert_eq!(running(&world, &["second"]), [true]);
}

#[test]
fn a_preemption_that_waits_for_the_limit_is_neither_overtaken_nor_withdrawn() {
    let mut world = full(12, 0);
    world.gang("a-first", HIGH);
    let large = Spec {
        priority: 90,
        members: 6,
        gpus: 1,
    };
    world.gang("z-large", large);
    world.pass();
    assert!(world.intent("a-first").is_some() && world.intent("z-large").is_some());
    // A decision counts for a minute, and its evictions from now on.
    world.later(2);
    world.scheduler_settings().max_evictions_per_minute = NonZeroU32::new(4);
    let small = Spec {
        priority: 80,
        ..LOW
    };
    for number in 0..7 {
        world.gang(&format!("a-{number}"), small);
        run(&mut world, 20);
    }
    assert_eq!(world.running("z-large"), 6);
}
