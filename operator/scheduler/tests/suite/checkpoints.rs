//! Checkpoints of victims before their eviction.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use lockstep_api::condition::{find, types};
use lockstep_api::names::annotations;
use lockstep_api::scheduling::PreemptionRequest;
use lockstep_api::workload::{
    CheckpointOccasion, CheckpointOutcome, CheckpointRequest, TrainingProgress,
};
use lockstep_model::snapshot::{NodeRecord, VERSION};
use lockstep_model::{Node, SnapshotFile};
use lockstep_scheduler::snapshot::{self, scheduling_input};
use lockstep_scheduler::{GangInput, Memory, schedule};
use lockstep_sim::{Actor, Gangs, Key, Spec, WatchedKind};
use serde_json::{Value, json};

const LOW: Spec = Spec {
    priority: 10,
    members: 4,
    gpus: 1,
};
/// Needs the nodes of two gangs.
const HIGH: Spec = Spec {
    priority: 100,
    members: 8,
    gpus: 1,
};

fn asks(timeout: i64) -> Value {
    json!({"checkpoint": {"onRequest": {"timeoutSeconds": timeout}}})
}

/// Gangs `a` and `b` run for ten minutes on two nodes.
fn running(a: &Value, b: &Value) -> Gangs {
    let mut world = Gangs::new(&[("n1", 4), ("n2", 4)]);
    world.gang_with("a", LOW, a);
    world.gang_with("b", LOW, b);
    world.settle();
    assert_eq!((world.running("a"), world.running("b")), (4, 4));
    world.later(600);
    world
}

/// Both are asked for a checkpoint, for a third gang.
fn asked() -> Gangs {
    let mut world = running(&asks(300), &asks(30));
    preempt(&mut world);
    assert!(request(&world, "a").is_some() && request(&world, "b").is_some());
    world
}

/// A gang decides a preemption. Its pods exist, and its victims are asked or evicted.
fn preempt(world: &mut Gangs) {
    preempt_for(world, HIGH);
}

fn preempt_for(world: &mut Gangs, spec: Spec) {
    world.gang("high", spec);
    world.pass();
    assert!(world.intent("high").is_some());
    while world.pods_of("high").len() < world.nodes("high").len() {
        world.control();
    }
    world.schedule();
}

fn request(world: &Gangs, name: &str) -> Option<PreemptionRequest> {
    world.status(name).checkpoint_request
}

/// Message of condition DisruptionTarget on a gang's pod group.
fn disruption(world: &Gangs, name: &str) -> String {
    let conditions = world.status(name).conditions;
    let told = find(&conditions, types::DISRUPTION_TARGET);
    told.expect("it was preempted").message.clone()
}

/// Records a request to each restart domain of a gang, as its controller does.
fn record(world: &mut Gangs, name: &str, request: &CheckpointRequest) {
    world.edit(name, |w| {
        for domain in &mut w.status.get_or_insert_default().domains {
            domain.checkpoint_request = Some(request.clone());
        }
    });
}

fn past(at: DateTime<Utc>, outcome: CheckpointOutcome, millis: i64) -> CheckpointRequest {
    CheckpointRequest {
        id: "earlier".to_owned(),
        reason: CheckpointOccasion::Suspend,
        attempt: 1,
        requested_at: at,
        deadline: None,
        watch: false,
        outcome: Some(outcome),
        millis: Some(millis),
        saved_step: None,
        steps_lost: None,
    }
}

/// The gang's controller answers the request.
fn answer(world: &mut Gangs, name: &str, outcome: CheckpointOutcome) {
    let open = request(world, name).expect("it is asked");
    let answer = CheckpointRequest {
        id: open.id,
        reason: CheckpointOccasion::Preemption,
        ..past(world.now(), outcome, 0)
    };
    record(world, name, &answer);
}

fn disrupted(world: &Gangs) -> (bool, bool) {
    (world.disrupted("a"), world.disrupted("b"))
}

#[test]
fn all_victims_are_asked_once_and_evicted_when_all_have_answered() {
    let mut world = asked();
    let (a, b) = (request(&world, "a").unwrap(), request(&world, "b").unwrap());
    let placement = world.placement("high").unwrap().id;
    assert_eq!((a.id.as_str(), b.id.as_str()), (&*placement, &*placement));
    let after = |r: &PreemptionRequest| (r.deadline - world.now()).num_seconds();
    assert_eq!(
        (after(&a), after(&b)),
        (120, 30),
        "its own limit, and that of the preemptor"
    );
    let high = Key::of(&world.group("high").unwrap()).to_string();
    assert_eq!((a.preemptor.as_str(), a.watch), (&*high, false));
    let message = world.condition("high").message;
    assert!(message.contains("for checkpoints of 2 gangs"), "{message}");

    world.later(1);
    let summary = world.schedule();
    assert_eq!(summary.requests, 0);
    assert_eq!(summary.wake_after, Some(Duration::from_secs(119)));
    answer(&mut world, "a", CheckpointOutcome::Ended);
    world.schedule();
    assert_eq!(disrupted(&world), (false, false));
    assert_eq!(request(&world, "a"), Some(a), "it stays until the eviction");
    answer(&mut world, "b", CheckpointOutcome::Saved);
    world.schedule();
    assert_eq!(disrupted(&world), (true, true));
    assert_eq!((request(&world, "a"), request(&world, "b")), (None, None));
    world.settle();
    assert_eq!(world.running("high"), 8);
}

#[test]
fn the_preemptor_waits_once_and_at_most_the_configured_time() {
    let mut world = asked();
    world.later(31);
    world.schedule();
    assert_eq!(disrupted(&world), (false, false));
    world.later(88);
    world.schedule();
    assert_eq!(disrupted(&world), (false, false));
    world.later(1);
    world.schedule();
    assert_eq!(disrupted(&world), (true, true));
}

#[test]
fn a_longer_wait_than_the_deadline_of_a_preemption_withdraws_nothing() {
    let mut world = running(&asks(3000), &asks(3000));
    world.scheduler_settings().checkpoint_wait = Duration::from_mins(20);
    preempt(&mut world);
    for _ in 0..19 {
        world.later(60);
        world.schedule();
        assert_eq!(disrupted(&world), (false, false));
    }
    world.later(60);
    world.schedule();
    assert_eq!(disrupted(&world), (true, true));
    world.settle();
    assert_eq!(world.running("high"), 8);
}

#[test]
fn the_class_of_the_preemptor_lowers_the_wait_and_does_not_raise_it() {
    for (annotation, expected) in [
        ("0s", None),
        ("20s", Some(20)),
        ("1h", Some(120)),
        ("soon", Some(120)),
    ] {
        let mut world = running(&asks(300), &asks(300));
        world.class_annotation("high", annotations::CHECKPOINT_WAIT, annotation);
        preempt(&mut world);
        let wait = request(&world, "a").map(|r| (r.deadline - world.now()).num_seconds());
        assert_eq!(wait, expected, "{annotation}");
        assert_eq!(world.disrupted("a"), expected.is_none());
    }
}

#[test]
fn without_a_wait_victims_are_evicted_at_once() {
    let mut world = running(&asks(300), &asks(300));
    world.scheduler_settings().checkpoint_wait = Duration::ZERO;
    preempt(&mut world);
    assert_eq!(disrupted(&world), (true, true));
}

#[test]
fn a_gang_is_not_asked_before_a_preemption_if_it_names_other_occasions() {
    let suspend = json!({"checkpoint": {"onRequest": {"occasions": ["Suspend"]}}});
    let mut world = running(&suspend, &json!({}));
    preempt(&mut world);
    assert_eq!(disrupted(&world), (true, true));
}

#[test]
fn requests_are_withdrawn_with_the_preemption() {
    type Change = fn(&mut Gangs);
    let changes: [(&str, Change); 3] = [
        ("capacity", |world| world.node("n3", 8, true)),
        ("disabled", |world| {
            world.scheduler_settings().preemption_enabled = false;
        }),
        ("preemptor", |world| {
            world.delete(WatchedKind::TrainingWorkload, &Key::new("ml", "high"));
            while world.run(&Actor::GarbageCollector) {}
        }),
    ];
    for (what, change) in changes {
        let mut world = asked();
        world.later(5);
        change(&mut world);
        world.schedule();
        assert_eq!(
            (request(&world, "a"), request(&world, "b")),
            (None, None),
            "{what}"
        );
        assert_eq!(disrupted(&world), (false, false), "{what}");
        world.settle();
        assert_eq!((world.running("a"), world.running("b")), (4, 4), "{what}");
    }
}

#[test]
fn a_victim_that_ends_spares_the_others_whose_capacity_is_not_needed() {
    for members in [4, 8] {
        let mut world = running(&asks(300), &asks(300));
        // The larger gang needs both, the smaller one only one of them.
        preempt_for(&mut world, Spec { members, ..HIGH });
        let victims = world.intent("high").unwrap().victims.len();
        assert_eq!(victims, members as usize / 4);
        let first = if request(&world, "a").is_some() {
            "a"
        } else {
            "b"
        };
        let other = if first == "a" { "b" } else { "a" };
        world.edit(first, |w| w.spec.suspend = true);
        world.control();
        if let Some(asked) = request(&world, other) {
            // These members have no supervisors, so the controller has answered for them.
            let open = CheckpointRequest {
                id: asked.id,
                outcome: None,
                millis: None,
                ..past(world.now(), CheckpointOutcome::Saved, 0)
            };
            record(&mut world, other, &open);
        }
        world.schedule();
        assert_eq!(request(&world, first), None);
        assert_eq!(request(&world, other).is_some(), members == 8);
        assert!(!world.disrupted(other));
    }
}

#[test]
fn a_preemption_whose_asked_victims_are_spared_does_not_wait_again() {
    let mut world = running(&asks(300), &asks(300));
    world.later(900);
    // A checkpoint takes gang b longer than the work that it would save.
    let earlier = world.now() - TimeDelta::seconds(1000);
    let slow = past(earlier, CheckpointOutcome::Saved, 50_000);
    record(&mut world, "b", &slow);
    checkpoints(&mut world, "b", 30, &[]);
    preempt(&mut world);
    assert!(request(&world, "a").is_some() && request(&world, "b").is_none());
    world.later(40);
    // Gang a can stay beside the preemptor. The work of gang b is worth a request by now.
    let home = world.nodes("a").remove(0);
    world.node(&home, 8, true);
    for _ in 0..2 {
        world.schedule();
        assert_eq!(request(&world, "b"), None);
    }
    assert_eq!(disrupted(&world), (false, true));
}

#[test]
fn every_restart_domain_has_to_answer() {
    let replicas = json!({"failurePolicy": {"restartScope": "Replica"},
        "checkpoint": {"onRequest": {}}});
    let mut world = running(&replicas, &json!({}));
    preempt(&mut world);
    let domains = |world: &Gangs| world.workload("a").status.unwrap().domains.len();
    assert_eq!(domains(&world), 4);
    let open = request(&world, "a").unwrap();
    for answered in 0..4 {
        world.schedule();
        assert!(!world.disrupted("a"), "{answered} have answered");
        let saved = CheckpointRequest {
            id: open.id.clone(),
            ..past(world.now(), CheckpointOutcome::Saved, 0)
        };
        world.edit("a", |w| {
            let domains = &mut w.status.as_mut().unwrap().domains;
            domains[answered].checkpoint_request = Some(saved);
        });
    }
    world.schedule();
    assert!(world.disrupted("a"));
}

/// Sets what status knows about the checkpoints of a gang: its last one, and the last intervals.
fn checkpoints(world: &mut Gangs, name: &str, ago: i64, intervals: &[i64]) {
    let last = world.now() - TimeDelta::seconds(ago);
    let progress = TrainingProgress {
        step_time: last,
        checkpoint_time: Some(last),
        checkpoint_intervals: intervals.to_vec(),
        ..TrainingProgress::default()
    };
    world.edit(name, |w| {
        w.status.get_or_insert_default().progress = Some(progress);
    });
}

#[test]
fn the_next_regular_checkpoint_is_awaited_if_it_is_due_in_time_and_worth_it() {
    let cases: [(i64, &[i64], bool); 6] = [
        (400, &[300, 500, 900], true),
        (400, &[500, 500], false),
        (300, &[500; 5], false),
        // Little would be lost.
        (40, &[100; 5], false),
        (450, &[400; 3], true),
        // It is overdue by far.
        (450, &[200; 3], false),
    ];
    for (ago, intervals, awaited) in cases {
        let mut world = running(&json!({}), &json!({}));
        checkpoints(&mut world, "a", ago, intervals);
        preempt(&mut world);
        let watch = request(&world, "a").map(|r| r.watch);
        assert_eq!(
            watch,
            awaited.then_some(true),
            "{ago} s ago, every {intervals:?}"
        );
        assert_eq!(world.disrupted("b"), !awaited);
        if awaited {
            answer(&mut world, "a", CheckpointOutcome::Saved);
            world.schedule();
            assert_eq!(disrupted(&world), (true, true));
        }
    }
}

#[test]
fn a_gang_is_asked_once_in_ten_minutes_and_after_a_failure_once_for_a_placement() {
    use CheckpointOutcome::{Saved, TimedOut, Unsupported};
    // `running` has let 600 s pass since the placement.
    for (outcome, ago, asked) in [
        (Saved, 599, false),
        (Saved, 601, true),
        (TimedOut, 590, false),
        (TimedOut, 1300, false),
        (Unsupported, 1300, false),
        (TimedOut, 3000, true),
    ] {
        let mut world = running(&asks(300), &asks(300));
        world.later(900);
        let at = world.now() - TimeDelta::seconds(ago);
        record(&mut world, "a", &past(at, outcome, 1000));
        preempt(&mut world);
        assert_eq!(
            request(&world, "a").is_some(),
            asked,
            "{outcome:?} {ago} s ago"
        );
        assert!(request(&world, "b").is_some());
    }
    let mut world = running(&asks(300), &asks(300));
    let of_user = CheckpointRequest {
        reason: CheckpointOccasion::User,
        ..past(world.now() - TimeDelta::seconds(60), Saved, 1000)
    };
    record(&mut world, "a", &of_user);
    preempt(&mut world);
    assert!(request(&world, "a").is_some(), "users do not use it up");
}

#[test]
fn a_checkpoint_that_costs_more_than_it_saves_or_takes_too_long_is_not_requested() {
    for (checkpoint_ago, takes, expected) in [
        (60, 50, true),
        (60, 70, false),
        (600, 110, true),
        (600, 130, false),
    ] {
        let mut world = running(&asks(300), &asks(300));
        world.later(900);
        let earlier = world.now() - TimeDelta::seconds(1000);
        record(
            &mut world,
            "a",
            &past(earlier, CheckpointOutcome::Saved, takes * 1000),
        );
        checkpoints(&mut world, "a", checkpoint_ago, &[]);
        preempt(&mut world);
        assert_eq!(
            request(&world, "a").is_some(),
            expected,
            "{takes} s for {checkpoint_ago} s"
        );
    }
}

#[test]
fn opting_in_makes_no_gang_the_favourite_victim_before_it_has_saved_on_request() {
    use CheckpointOutcome::{Ended, Saved, TimedOut};
    let one = Spec { members: 4, ..HIGH };
    for (outcome, expected) in [
        (None, "b"),
        (Some(TimedOut), "b"),
        (Some(Ended), "b"),
        (Some(Saved), "a"),
    ] {
        let mut world = running(&asks(300), &json!({}));
        world.later(900);
        // Without a save, gang b loses less.
        checkpoints(&mut world, "a", 900, &[]);
        checkpoints(&mut world, "b", 800, &[]);
        if let Some(outcome) = outcome {
            let earlier = world.now() - TimeDelta::seconds(1000);
            record(&mut world, "a", &past(earlier, outcome, 19_500));
        }
        world.gang("high", one);
        world.pass();
        let intent = world.intent("high").unwrap();
        assert_eq!(
            intent.victims[0].uid,
            world.group_uid(expected),
            "{outcome:?}"
        );
        if expected == "b" {
            assert_eq!((intent.lost_work, intent.cost), (4 * 800, 4 * 920));
            continue;
        }
        assert_eq!((intent.lost_work, intent.cost), (0, 4 * 140));
        assert!(
            intent
                .explanation
                .contains("0 GPU-hours of lost work, checkpoints on request, and the restarts")
        );
    }
}

#[test]
fn the_victim_is_told_what_it_loses_after_the_wait() {
    for (outcome, lost) in [
        (CheckpointOutcome::Saved, "0 GPU-hours of work lost here"),
        (
            CheckpointOutcome::TimedOut,
            "1.0 GPU-hours of work lost here",
        ),
    ] {
        let mut world = running(&asks(300), &asks(300));
        world.later(900);
        checkpoints(&mut world, "a", 895, &[]);
        let earlier = world.now() - TimeDelta::seconds(1000);
        record(
            &mut world,
            "a",
            &past(earlier, CheckpointOutcome::Saved, 20_000),
        );
        preempt(&mut world);
        world.later(5);
        answer(&mut world, "a", outcome);
        answer(&mut world, "b", outcome);
        world.schedule();
        let told = disruption(&world, "a");
        assert!(told.contains(lost), "{told}");
    }
}

#[test]
fn a_new_leader_continues_the_wait_wherever_the_last_one_died() {
    for crash_after in 0..9 {
        let mut world = running(&asks(300), &asks(300));
        world.gang("high", HIGH);
        let mut first: Option<PreemptionRequest> = None;
        for step in 0..9 {
            if step == crash_after {
                world.crash();
            }
            world.control();
            world.schedule();
            if let Some(open) = request(&world, "a") {
                assert_eq!(first.get_or_insert(open.clone()), &open, "asked once");
            }
            if step == 7 && request(&world, "a").is_some() {
                answer(&mut world, "a", CheckpointOutcome::Saved);
                answer(&mut world, "b", CheckpointOutcome::Saved);
            }
            world.later(1);
        }
        assert!(first.is_some());
        world.settle();
        assert_eq!(world.running("high"), 8, "crash after step {crash_after}");
    }
}

#[test]
fn a_flapping_node_of_a_victim_or_of_the_preemptor_asks_nobody_again() {
    for settle in [false, true] {
        let mut world = asked();
        let open = request(&world, "a").unwrap();
        world.later(5);
        world.node("n1", 4, false);
        for _ in 0..4 {
            world.schedule();
            world.later(2);
            if settle {
                world.control();
            }
            for name in ["a", "b"] {
                let now = request(&world, name);
                assert!(now.is_none_or(|now| now.id == open.id));
            }
        }
        world.node("n1", 4, true);
        world.schedule();
        world.later(120);
        world.settle();
        assert_eq!(world.running("high"), 8);
    }
}

#[test]
fn a_process_that_remembers_nothing_decides_the_same_about_the_same_statuses() {
    for answers in [false, true] {
        let mut world = asked();
        if answers {
            answer(&mut world, "a", CheckpointOutcome::Saved);
            answer(&mut world, "b", CheckpointOutcome::TimedOut);
        }
        world.later(1);
        let (input, now) = (world.scheduling_input(), world.now());
        let settings = world.scheduler_settings().clone();
        let plan = || schedule(&input, &mut Memory::default(), &settings, now).plan;
        assert_eq!(plan(), plan());
        assert_eq!(plan().steps.len(), if answers { 3 } else { 0 });
        // Nor does it need more than a snapshot file has.
        let nodes: Vec<Node> = (0..)
            .map_while(|n| input.cluster.node(n).cloned())
            .collect();
        let record =
            |gang: &Arc<GangInput>| snapshot::record(gang, &nodes, &BTreeSet::new()).unwrap();
        let file = SnapshotFile {
            version: VERSION,
            taken_at: now,
            namespace: None,
            nodes: nodes.iter().map(NodeRecord::of).collect(),
            pods: Vec::new(),
            gangs: input.gangs.iter().map(record).collect(),
            budgets: Vec::new(),
            priority_classes: Vec::new(),
            namespace_weights: BTreeMap::new(),
        };
        let read = SnapshotFile::from_json(&file.to_json().unwrap()).unwrap();
        let again = scheduling_input(&read, Vec::new());
        assert_eq!(
            file.gangs,
            again.gangs.iter().map(record).collect::<Vec<_>>()
        );
        let a = &file.gangs[0];
        assert_eq!(
            (a.on_request_seconds, a.checkpoint_request.is_some()),
            (Some(300), true)
        );
    }
}
