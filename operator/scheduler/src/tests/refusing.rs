//! kube-scheduler refuses pods for reasons that preemption does not mend; and no preemption at all.

use std::collections::BTreeSet;

use lockstep_api::condition::{find, reasons, types};
use lockstep_model::pod::Stage;

use super::world::{INSUFFICIENT, Spec, World};
use crate::Memory;

const LOW: Spec = Spec {
    priority: 10,
    members: 2,
    gpus: 1,
};
const HIGH: Spec = Spec {
    priority: 100,
    ..LOW
};

/// Four nodes full of four gangs of low priority, and a gang of high priority whose claim does not
/// exist.
fn broken() -> World {
    let mut world = World::new(&[("n1", 2), ("n2", 2), ("n3", 2), ("n4", 2)]);
    for name in ["a", "b", "c", "d"] {
        world.gang(name, LOW);
    }
    world.settle();
    world.without_claim.insert("high".into());
    world.gang("high", HIGH);
    world
}

/// Lets the world run for so many seconds.
fn run(world: &mut World, seconds: i64) {
    for _ in 0..seconds {
        world.pass();
        world.control();
        world.bind();
        world.end_terminating();
        world.later(1);
    }
}

fn preemptions(world: &World) -> usize {
    world.preempted_for.get("high").map_or(0, BTreeSet::len)
}

fn low_running(world: &World) -> usize {
    ["a", "b", "c", "d"]
        .iter()
        .map(|name| world.running(name))
        .sum()
}

/// The condition of a gang that is waiting for its next placement.
fn refused_message(world: &mut World, name: &str) -> String {
    for _ in 0..30 {
        run(world, 1);
        let condition = world.condition(name);
        if condition.reason == reasons::UNSCHEDULABLE {
            return condition.message;
        }
    }
    panic!("it has not given up its placement");
}

#[test]
fn a_gang_whose_claim_does_not_exist_evicts_no_second_victim() {
    let mut world = broken();
    run(&mut world, 900);
    assert_eq!(
        (
            preemptions(&world),
            low_running(&world),
            world.running("high")
        ),
        (1, 8, 0)
    );
}

#[test]
fn a_gang_that_was_refused_on_free_nodes_evicts_no_victim() {
    let mut world = World::new(&[("n1", 2), ("n2", 2)]);
    world.without_claim.insert("high".into());
    world.gang("high", HIGH);
    refused_message(&mut world, "high");
    for name in ["a", "b"] {
        world.gang(name, LOW);
    }
    run(&mut world, 900);
    assert_eq!(
        (preemptions(&world), world.running("a") + world.running("b")),
        (0, 4)
    );
    let message = world.condition("high").message;
    assert!(
        message.contains("no workload is preempted for it: kube-scheduler refuses pod"),
        "{message}"
    );
}

#[test]
fn the_condition_has_the_words_of_kube_scheduler_and_the_time_of_the_next_placement() {
    let mut world = World::new(&[("n1", 2)]);
    world.without_claim.insert("high".into());
    world.gang("high", HIGH);
    let message = refused_message(&mut world, "high");
    let refusal = world.status("high").refusal.unwrap();
    let next = (refusal.at + chrono::TimeDelta::seconds(5)).format("%H:%M:%SZ");
    let expected = format!(
        "kube-scheduler refuses pod {} on n1: persistentvolumeclaim \"data-high\" not found; not a lack of capacity, so no \
         workload is preempted for it; next try at {next}",
        refusal.pod
    );
    assert_eq!(message, expected);
    assert!(
        refusal.message.starts_with("0/3 nodes are available"),
        "{}",
        refusal.message
    );
}

#[test]
fn each_placement_that_is_refused_doubles_the_time_to_the_next_up_to_five_minutes() {
    let mut world = World::new(&[("n1", 2), ("n2", 2)]);
    world.without_claim.insert("high".into());
    world.gang("high", HIGH);
    let mut waits = Vec::new();
    let mut since = None;
    for _ in 0..1800 {
        let placed = world.placement("high").is_some();
        run(&mut world, 1);
        match (placed, world.placement("high").is_some()) {
            (true, false) => since = Some(world.now),
            (false, true) => waits.extend(since.map(|since| (world.now - since).num_seconds())),
            _ => {}
        }
    }
    assert_eq!(waits[..9], [5, 10, 20, 40, 80, 160, 300, 300, 300]);
}

#[test]
fn a_gang_that_backs_off_keeps_no_capacity_from_others() {
    let mut world = World::new(&[("n1", 2)]);
    world.without_claim.insert("high".into());
    world.gang("high", HIGH);
    refused_message(&mut world, "high");
    world.gang("low", LOW);
    world.pass();
    assert_eq!(world.seats("low").len(), 2);
}

#[test]
fn a_new_leader_neither_evicts_again_nor_tries_earlier() {
    let mut world = broken();
    refused_message(&mut world, "high");
    let refusal = world.status("high").refusal;
    for _ in 0..600 {
        world.memory = Memory::default();
        run(&mut world, 1);
    }
    assert_eq!(preemptions(&world), 1);
    assert!(
        refusal.is_some() && world.status("high").refusal == refusal,
        "as each leader saw it for a second only"
    );
    run(&mut world, 600);
    assert_eq!((preemptions(&world), low_running(&world)), (1, 8));
}

#[test]
fn a_changed_spec_is_tried_again_and_may_preempt_again() {
    let mut world = broken();
    run(&mut world, 60);
    assert_eq!((preemptions(&world), low_running(&world)), (1, 8));
    world.without_claim.clear();
    run(&mut world, 600);
    assert_eq!(
        (preemptions(&world), world.running("high")),
        (1, 0),
        "its spec is still the one that was refused"
    );
    world.workloads.get_mut("high").unwrap().metadata.generation = Some(2);
    run(&mut world, 60);
    assert_eq!((preemptions(&world), world.running("high")), (2, 2));
    let status = world.status("high");
    assert_eq!((status.refusal, status.last_preemption), (None, None));
}

#[test]
fn a_gang_that_runs_in_the_end_may_preempt_again_when_it_has_lost_its_place() {
    let mut world = broken();
    run(&mut world, 60);
    world.without_claim.clear();
    world.node("n5", 2, true);
    run(&mut world, 300);
    assert_eq!((preemptions(&world), world.running("high")), (1, 2));
    let status = world.status("high");
    assert_eq!((status.refusal, status.last_preemption), (None, None));
    world.node("n5", 0, true);
    world.release("high");
    run(&mut world, 60);
    assert_eq!((preemptions(&world), world.running("high")), (2, 2));
}

#[test]
fn a_gang_that_is_refused_for_capacity_after_it_has_preempted_does_not_preempt_again() {
    let mut world = World::new(&[("n1", 2), ("n2", 2)]);
    for name in ["a", "b"] {
        world.gang(name, LOW);
    }
    world.settle();
    world.gang("high", HIGH);
    for _ in 0..4 {
        world.pass();
        world.control();
    }
    world.end_terminating();
    world.pass();
    world.control();
    let node = world.nodes("high").remove(0);
    world.foreign("intruder", &node, 2_000_000_000, 2);
    world.change("intruder", |p| p.protected = true);
    run(&mut world, 600);
    assert_eq!((preemptions(&world), world.running("high")), (1, 0));
    assert_eq!(world.status("high").refusal, None, "it was about capacity");
    let message = world.condition("high").message;
    assert!(
        message.contains("needs") && message.contains("after the last preemption"),
        "{message}"
    );
}

#[test]
fn an_intent_that_is_not_about_to_evict_is_no_useless_preemption() {
    let mut world = broken();
    world.pass();
    assert!(world.intent("high").is_some());
    world.without_claim.clear();
    world.node("n5", 2, true);
    run(&mut world, 10);
    assert_eq!(
        (preemptions(&world), world.status("high").last_preemption),
        (0, None)
    );
}

#[test]
fn a_member_of_a_basic_group_that_is_refused_backs_off_while_the_others_run() {
    let mut world = World::new(&[("n1", 4)]);
    world.gang_with(
        "a",
        LOW,
        serde_json::json!({"scheduling": {"policy": "Basic"}}),
        serde_json::json!({"gangKey": "g", "schedulingPolicy": {"basic": {}, "gang": null},
            "disruptionMode": {"single": {}, "all": null}}),
    );
    let group = world.groups.get_mut("a").unwrap();
    group.metadata.name = Some(lockstep_api::names::pod_group_name("a", "w-a", "g"));
    world.ledger("a").key = "g".into();
    world.settle();
    assert_eq!(world.running("a"), 2);
    let lost = world.pods_of("a").remove(0);
    world.without_claim.insert("a".into());
    world.remove(&lost.name);
    run(&mut world, 30);
    assert_eq!(world.running("a"), 1);
    let refusal = world.status("a").refusal.unwrap();
    assert!(refusal.tries > 1, "{refusal:?}");
}

#[test]
fn no_intent_is_made_while_preemption_is_disabled_and_the_condition_names_the_key() {
    let mut world = World::new(&[("n1", 2)]);
    world.gang("low", LOW);
    world.settle();
    world.settings.preemption_enabled = false;
    world.gang("high", HIGH);
    run(&mut world, 60);
    assert_eq!((world.intent("high"), world.running("low")), (None, 2));
    let message = world.condition("high").message;
    for part in [
        "needs 2 more nvidia.com/gpu",
        "preemption is disabled (scheduler.preemption.enabled)",
    ] {
        assert!(message.contains(part), "{part:?} is missing: {message}");
    }
    world.settings.preemption_enabled = true;
    run(&mut world, 60);
    assert_eq!((world.running("high"), world.running("low")), (2, 0));
}

#[test]
fn disabling_preemption_withdraws_what_has_been_decided_and_takes_back_the_marks() {
    for passes in 0..2 {
        let mut world = World::new(&[("n1", 2)]);
        world.gang("low", LOW);
        world.settle();
        world.gang("high", HIGH);
        world.pass();
        assert!(world.intent("high").is_some());
        world.control();
        for _ in 0..passes {
            world.pass();
        }
        assert_eq!(world.disrupted("low"), passes > 0);
        world.settings.preemption_enabled = false;
        world.memory = Memory::default();
        world.pass();
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
    let mut world = World::new(&[("n1", 2)]);
    world.foreign("first", "n1", 1, 1);
    world.foreign("second", "n1", 1, 1);
    world.gang("high", HIGH);
    world.pass();
    world.control();
    world.pass();
    assert_eq!(world.evicted.len(), 2);
    // A budget has refused one of the two evictions.
    world.change("second", |p| p.terminating = None);
    world.settings.preemption_enabled = false;
    run(&mut world, 60);
    assert_eq!(
        (
            world.evicted.len(),
            world.intent("high"),
            world.running("high")
        ),
        (2, None, 0)
    );
    assert!(world.pods.contains_key("second") && !world.pods.contains_key("first"));
}

#[test]
fn capacity_that_victims_are_leaving_already_is_used_although_preemption_was_disabled_meanwhile() {
    let mut world = World::new(&[("n1", 2)]);
    world.gang("low", LOW);
    world.settle();
    world.gang("high", HIGH);
    world.pass();
    world.control();
    world.pass();
    world.control();
    world.settings.preemption_enabled = false;
    run(&mut world, 60);
    assert_eq!((world.running("high"), world.running("low")), (2, 0));
    assert!(
        find(
            &world.status("high").conditions,
            types::POD_GROUP_INITIALLY_SCHEDULED
        )
        .is_some()
    );
    assert!(world.pods_of("high").iter().all(|p| p.stage == Stage::Open));
}

/// Lets kube-scheduler refuse the pinned pod of a gang for long enough, on a node that looks free.
fn refuse_pin(world: &mut World, name: &str) {
    let pod = world.pods_of(name).remove(0);
    world.change(&pod.name, |p| {
        p.stage = Stage::Refused;
        p.refusal = Some(INSUFFICIENT.into());
    });
    world.pass();
    world.later(5);
    world.pass();
    world.control();
}

#[test]
fn a_new_leader_keeps_away_from_the_same_nodes() {
    let mut world = World::new(&[("n1", 1), ("n2", 1)]);
    world.gang("a", Spec { members: 1, ..LOW });
    world.pass();
    world.control();
    let first = world.nodes("a");
    refuse_pin(&mut world, "a");
    let second = world.nodes("a");
    assert_ne!(first, second);
    refuse_pin(&mut world, "a");
    assert_eq!(world.placement("a"), None, "both nodes have refused it");
    world.memory = Memory::default();
    let plan = world.pass();
    assert_eq!(world.placement("a"), None, "the new leader knows that");
    assert!(plan.wake_after.is_some(), "and when it may try again");
    world.later(600);
    world.pass();
    assert_eq!(world.nodes("a"), first);
}

#[test]
fn a_new_leader_counts_the_time_for_which_budgets_have_refused_an_eviction() {
    let mut world = World::new(&[("n1", 1)]);
    world.settings.delete_after = Some(std::time::Duration::from_secs(30));
    world.foreign("web", "n1", 1, 1);
    world.gang("high", Spec { members: 1, ..HIGH });
    let forced = |plan: &crate::SchedulingPlan| {
        let steps = plan.steps.iter();
        steps
            .filter_map(|step| match step {
                crate::Step::Evict { by_force, .. } => Some(*by_force),
                _ => None,
            })
            .collect::<Vec<_>>()
    };
    world.pass();
    world.control();
    assert_eq!(forced(&world.pass()), [false]);
    world.change("web", |p| p.terminating = None);
    for _ in 0..29 {
        world.later(1);
        world.memory = Memory::default();
        assert_eq!(forced(&world.pass()), [false]);
        world.change("web", |p| p.terminating = None);
    }
    world.later(1);
    world.memory = Memory::default();
    assert_eq!(forced(&world.pass()), [true]);
}
