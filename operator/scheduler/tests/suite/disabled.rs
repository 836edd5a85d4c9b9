//! Disabling and enabling preemption.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use lockstep_api::condition::reasons;
use lockstep_sim::{Gangs, Key};

use crate::{HIGH, LOW, run};

#[test]
fn no_intent_is_made_while_preemption_is_disabled_and_the_condition_names_the_key() {
    let mut world = Gangs::new(&[("n1", 2)]);
    world.gang("low", LOW);
    world.settle();
    world.scheduler_settings().preemption_enabled = false;
    world.gang("high", HIGH);
    run(&mut world, 60);
    assert_eq!((world.intent("high"), world.running("low")), (None, 2));
    let message = world.condition("high").message;
    for part in [
        "insufficient nvidia.com/gpu: 2 pods need 2 more",
        "preemption is disabled (scheduler.preemption.enabled)",
    ] {
        assert!(message.contains(part), "{part:?} is missing: {message}");
    }
    world.scheduler_settings().preemption_enabled = true;
    // No other event announces the changed configuration.
    world.schedule();
    run(&mut world, 60);
    assert_eq!((world.running("high"), world.running("low")), (2, 0));
}

#[test]
fn disabling_preemption_withdraws_what_has_been_decided_and_takes_back_the_marks() {
    for passes in 0..2 {
        let mut world = Gangs::new(&[("n1", 2)]);
        world.gang("low", LOW);
        world.settle();
        world.gang("high", HIGH);
        world.pass();
        assert!(world.intent("high").is_some());
        world.control();
        for _ in 0..passes {
            world.schedule();
        }
        assert_eq!(world.disrupted("low"), passes > 0);
        world.scheduler_settings().preemption_enabled = false;
        world.crash();
        world.schedule();
        assert_eq!(
            (
                world.intent("high"),
                world.placement("high"),
                world.disrupted("low")
            ),
            (None, None, false)
        );
        run(&mut world, 60);
        assert_eq!((world.running("low"), world.running("high")), (2, 0));
    }
}

#[test]
fn disabling_preemption_stops_at_the_pods_that_are_ending() {
    let mut world = Gangs::new(&[("n1", 2)]);
    world.foreign("first", "n1", 1, 1);
    world.guarded("second", "n1");
    // A guarded pod is a candidate only if it can be deleted eventually.
    world.scheduler_settings().delete_after = Some(Duration::from_mins(10));
    world.gang("high", HIGH);
    world.pass();
    assert_eq!(world.intent("high").unwrap().victims.len(), 2);
    world.pass();
    assert_eq!(world.evicted(), ["first"], "a budget has refused the other");
    world.scheduler_settings().preemption_enabled = false;
    run(&mut world, 60);
    assert_eq!(
        (world.evicted(), world.intent("high"), world.running("high")),
        (vec!["first".to_owned()], None, 0)
    );
    let there = |name: &str| world.get::<Pod>(&Key::new("ml", name)).is_some();
    assert!(there("second") && !there("first"));
}

#[test]
fn capacity_of_terminating_victims_is_used_even_if_preemption_is_disabled_meanwhile() {
    let mut world = Gangs::new(&[("n1", 2)]);
    world.gang("low", LOW);
    world.settle();
    world.gang("high", HIGH);
    world.pass();
    world.pass();
    world.control();
    assert!(world.released("low"));
    world.scheduler_settings().preemption_enabled = false;
    run(&mut world, 60);
    assert_eq!((world.running("high"), world.running("low")), (2, 0));
    assert_eq!(world.condition("high").reason, reasons::SCHEDULED);
    let gates = |p: &Pod| p.spec.as_ref().and_then(|s| s.scheduling_gates.clone());
    let pods = world.pods_of("high");
    assert!(pods.iter().filter_map(gates).all(|gates| gates.is_empty()));
}
