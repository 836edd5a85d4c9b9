//! Refusals by kube-scheduler that preemption cannot resolve.

use std::time::Duration;

use lockstep_api::condition::reasons;
use lockstep_api::workload::SchedulingPolicy;
use lockstep_scheduler::{Memory, Step, schedule};
use lockstep_sim::api::{Refused, Rule, Verb};
use lockstep_sim::pods::leaving;
use lockstep_sim::{Gangs, Key, Spec, WatchedKind};

use crate::{HIGH, INSUFFICIENT, LOW, run};

/// Four nodes full of four gangs of low priority, and a gang of high priority whose pods lack an
/// object that a webhook requires.
fn broken() -> Gangs {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2), ("n3", 2), ("n4", 2)]);
    for name in ["a", "b", "c", "d"] {
        world.gang(name, LOW);
    }
    world.settle();
    world.obstructed_gang("high", HIGH);
    world
}

fn low_running(world: &Gangs) -> usize {
    ["a", "b", "c", "d"]
        .iter()
        .map(|name| world.running(name))
        .sum()
}

/// Condition of a gang in back-off.
fn refused_message(world: &mut Gangs, name: &str) -> String {
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
fn a_gang_that_is_refused_after_it_has_preempted_evicts_no_second_victim() {
    let mut world = broken();
    run(&mut world, 900);
    assert_eq!(
        (
            world.preemptions("high"),
            low_running(&world),
            world.running("high")
        ),
        (1, 8, 0)
    );
}

#[test]
fn a_gang_that_was_refused_on_free_nodes_evicts_no_victim() {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
    world.obstructed_gang("high", HIGH);
    refused_message(&mut world, "high");
    for name in ["a", "b"] {
        world.gang(name, LOW);
    }
    run(&mut world, 900);
    assert_eq!(
        (
            world.preemptions("high"),
            world.running("a") + world.running("b")
        ),
        (0, 4)
    );
    let message = world.condition("high").message;
    assert!(
        message.contains("no workload is preempted for this gang, because capacity is not the problem: kube-scheduler refuses pod"),
        "{message}"
    );
}

#[test]
fn the_condition_has_the_words_of_kube_scheduler_and_the_time_of_the_next_placement() {
    let mut world = Gangs::new(&[("n1", 2)]);
    world.obstructed_gang("high", HIGH);
    let message = refused_message(&mut world, "high");
    let refusal = world.status("high").refusal.unwrap();
    let next = lockstep_api::words::time(refusal.at + chrono::TimeDelta::seconds(5));
    let expected = format!(
        "kube-scheduler refuses pod {} on n1: persistentvolumeclaim \"data-high\" not found; capacity is not the problem, \
         so no workload is preempted for this gang; retry at {next}",
        refusal.pod
    );
    assert_eq!(message, expected);
    assert!(
        refusal.message.starts_with("0/1 nodes are available"),
        "{}",
        refusal.message
    );
}

#[test]
fn each_placement_that_is_refused_doubles_the_time_to_the_next_up_to_five_minutes() {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
    world.obstructed_gang("high", HIGH);
    let mut waits = Vec::new();
    let mut since = None;
    for _ in 0..1800 {
        let placed = world.placement("high").is_some();
        run(&mut world, 1);
        match (placed, world.placement("high").is_some()) {
            (true, false) => since = Some(world.now()),
            (false, true) => waits.extend(since.map(|since| (world.now() - since).num_seconds())),
            _ => {}
        }
    }
    assert_eq!(waits[..9], [5, 10, 20, 40, 80, 160, 300, 300, 300]);
}

#[test]
fn a_gang_in_back_off_keeps_no_capacity_from_other_gangs() {
    let mut world = Gangs::new(&[("n1", 2)]);
    world.obstructed_gang("high", HIGH);
    refused_message(&mut world, "high");
    world.gang("low", LOW);
    world.pass();
    assert_eq!(world.assigned("low").len(), 2);
}

#[test]
fn a_new_leader_neither_evicts_again_nor_tries_earlier() {
    let mut world = broken();
    refused_message(&mut world, "high");
    let refusal = world.status("high").refusal;
    for _ in 0..150 {
        world.crash();
        run(&mut world, 4);
    }
    assert_eq!(world.preemptions("high"), 1);
    assert!(
        refusal.is_some() && world.status("high").refusal == refusal,
        "as each leader saw it for less than five seconds"
    );
    run(&mut world, 600);
    assert_eq!((world.preemptions("high"), low_running(&world)), (1, 8));
}

#[test]
fn a_claim_that_only_kube_scheduler_does_not_see_ends_one_refusal_and_no_more() {
    let mut world = Gangs::new(&[("n1", 2)]);
    world.gang("low", LOW);
    world.settle();
    world.gang_with_claim("high", HIGH);
    world.make_claim("high");
    let unseen =
        "0/1 nodes are available: persistentvolumeclaim \"data-high\" not found. not found";
    for _ in 0..600 {
        world.control();
        world.schedule();
        world.refuse_pods("high", unseen);
        world.kubelets();
        world.later(1);
    }
    assert_eq!(
        world.preemptions("high"),
        1,
        "the second placement is in what the victim has left"
    );
}

/// The controller creates 20 claims per second, so a gang of 200 waits for ten seconds.
#[test]
fn a_gang_whose_claims_are_being_made_keeps_its_nodes() {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
    world.gang("high", HIGH);
    world.control();
    world.schedule();
    let placement = world.placement("high");
    let waits = "0/2 nodes are available: waiting for ephemeral volume controller to create the \
                 persistentvolumeclaim \"high-0-scratch\". not found";
    let wait = |world: &mut Gangs, seconds| {
        for _ in 0..seconds {
            world.control();
            world.refuse_pods("high", waits);
            world.schedule();
            world.later(1);
        }
    };
    wait(&mut world, 280);
    assert!(placement.is_some());
    assert_eq!(world.placement("high"), placement);
    assert_eq!(world.status("high").refusal, None);
    wait(&mut world, 30);
    assert_ne!(
        world.status("high").refusal,
        None,
        "somebody has to make the claims in the end"
    );
}

#[test]
fn a_changed_spec_is_tried_again_and_may_preempt_again() {
    let mut world = broken();
    run(&mut world, 600);
    assert_eq!((world.preemptions("high"), low_running(&world)), (1, 8));
    world.edit("high", |w| {
        w.spec.groups[0].template.0.metadata = None;
        w.spec.restart_nonce += 1;
    });
    run(&mut world, 60);
    assert_eq!((world.preemptions("high"), world.running("high")), (2, 2));
    let status = world.status("high");
    assert_eq!((status.refusal, status.last_preemption), (None, None));
}

#[test]
fn a_gang_that_runs_in_the_end_may_preempt_again_when_it_has_lost_its_place() {
    let mut world = broken();
    run(&mut world, 60);
    world.make_claim("high");
    world.node("n5", 2, true);
    run(&mut world, 300);
    assert_eq!((world.preemptions("high"), world.running("high")), (1, 2));
    let status = world.status("high");
    assert_eq!((status.refusal, status.last_preemption), (None, None));
    world.node("n5", 0, true);
    world.release("high");
    run(&mut world, 60);
    assert_eq!((world.preemptions("high"), world.running("high")), (2, 2));
}

#[test]
fn a_gang_that_is_refused_for_capacity_after_it_has_preempted_backs_off() {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
    for name in ["a", "b"] {
        world.gang(name, LOW);
    }
    world.settle();
    world.gang("high", HIGH);
    for _ in 0..4 {
        world.pass();
    }
    world.control();
    world.kubelets();
    world.decide();
    let node = world.nodes("high").remove(0);
    world.foreign("intruder", &node, 2_000_000_000, 2);
    run(&mut world, 600);
    assert_eq!((world.preemptions("high"), world.running("high")), (1, 0));
    assert_eq!(world.status("high").refusal, None, "it was about capacity");
    let message = world.condition("high").message;
    assert!(
        message.contains("insufficient") && message.contains("did not run after 1 preemption"),
        "{message}"
    );
}

#[test]
fn an_intent_that_has_not_evicted_is_no_failed_preemption() {
    let mut world = broken();
    world.pass();
    assert!(world.intent("high").is_some());
    world.make_claim("high");
    world.node("n5", 2, true);
    run(&mut world, 10);
    assert_eq!(
        (
            world.preemptions("high"),
            world.status("high").last_preemption
        ),
        (0, None)
    );
}

#[test]
fn a_refused_member_of_a_basic_group_backs_off_while_other_members_run() {
    let mut world = Gangs::new(&[("n1", 4)]);
    world.obstructed_gang("a", LOW);
    world.edit("a", |w| w.spec.scheduling.policy = SchedulingPolicy::Basic);
    world.make_claim("a");
    world.settle();
    assert_eq!(world.running("a"), 2);
    let lost = world.pods_of("a").remove(0);
    let claim = Key::new("ml", "data-a");
    world.remove(WatchedKind::PersistentVolumeClaim, &claim);
    world.remove(WatchedKind::Pod, &Key::of(&lost));
    run(&mut world, 30);
    assert_eq!(world.running("a"), 1);
    let refusal = world.status("a").refusal.unwrap();
    assert!(refusal.tries > 1, "{refusal:?}");
}

/// Makes kube-scheduler refuse a gang's pinned pod for long enough, on a node that looks free.
fn refuse_pin(world: &mut Gangs, name: &str) {
    world.refuse_pods(name, INSUFFICIENT);
    world.schedule();
    world.later(5);
    world.schedule();
    world.control();
}

#[test]
fn a_new_leader_keeps_away_from_the_same_nodes() {
    let mut world = Gangs::new(&[("n1", 1), ("n2", 1)]);
    world.gang("a", Spec { members: 1, ..LOW });
    world.decide();
    let first = world.nodes("a");
    refuse_pin(&mut world, "a");
    let second = world.nodes("a");
    assert_ne!(first, second);
    refuse_pin(&mut world, "a");
    assert_eq!(world.placement("a"), None, "both nodes have refused it");
    world.crash();
    let cycle = world.schedule();
    assert_eq!(world.placement("a"), None, "the new leader knows that");
    assert!(cycle.wake_after.is_some(), "and when it may try again");
    world.later(600);
    world.schedule();
    assert_eq!(world.nodes("a"), first);
}

#[test]
fn a_new_leader_counts_the_time_for_which_budgets_have_refused_an_eviction() {
    let mut world = Gangs::new(&[("n1", 1)]);
    world.scheduler_settings().delete_after = Some(Duration::from_secs(30));
    world.guarded("web", "n1");
    world.gang("high", Spec { members: 1, ..HIGH });
    world.pass();
    world.control();
    assert_eq!(forced(&mut world), [false]);
    world.schedule();
    for _ in 0..29 {
        world.later(1);
        world.crash();
        assert_eq!(forced(&mut world), [false]);
        world.schedule();
        assert!(!leaving(&world.get(&Key::new("ml", "web")).unwrap()));
    }
    world.later(1);
    world.crash();
    assert_eq!(forced(&mut world), [true]);
    world.schedule();
    assert!(leaving(&world.get(&Key::new("ml", "web")).unwrap()));
    assert_eq!(world.evicted(), [""; 0], "its budget has never allowed it");
}

/// Evictions that a new leader requests now: whether each is by force.
fn forced(world: &mut Gangs) -> Vec<bool> {
    let (input, now) = (world.scheduling_input(), world.now());
    let plan = schedule(
        &input,
        &mut Memory::default(),
        world.scheduler_settings(),
        now,
    )
    .plan;
    let steps = plan.steps.into_iter();
    let evictions = steps.filter_map(|step| match step {
        Step::Evict { by_force, .. } => Some(by_force),
        Step::Status(_)
        | Step::MarkPod { .. }
        | Step::DryRunEviction(_)
        | Step::Nominate { .. } => None,
    });
    evictions.collect()
}

/// Makes the API server refuse status writes to a gang's pod group.
fn refuse_status(world: &mut Gangs, name: &str) {
    let group = world.group(name).unwrap().metadata.name;
    world.store().admission.rules.push(Rule {
        kind: WatchedKind::PodGroup,
        verb: Verb::UpdateStatus,
        name: group,
        answer: Refused::conflict("the object has been modified"),
    });
}

#[test]
fn no_pod_is_evicted_before_its_intent_is_written() {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
    world.gang("low", LOW);
    world.settle();
    let free = if world.nodes("low") == ["n1", "n1"] {
        "n2"
    } else {
        "n1"
    };
    world.foreign("trainer", free, 1, 2);
    world.gang("high", Spec { members: 4, ..HIGH });
    world.pass();
    assert_eq!(world.intent("high").unwrap().victims.len(), 2);
    refuse_status(&mut world, "high");
    run(&mut world, 5);
    assert_eq!((world.evicted(), world.disrupted("low")), (vec![], false));
    world.store().admission.rules.clear();
    run(&mut world, 30);
    assert_eq!((world.evicted().len(), world.running("high")), (1, 4));
}
