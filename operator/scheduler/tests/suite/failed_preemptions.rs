//! A gang that does not run after a preemption preempts again only after a back-off.

use lockstep_api::workload::SchedulingPolicy;
use lockstep_sim::{Gangs, Key, Spec, WatchedKind};
use serde_json::{Value, json};

use crate::{HIGH, INSUFFICIENT, LOW, run};

/// Environment of a container whose image cannot be pulled.
const NO_IMAGE: [(&str, &str); 1] = [("HOLLOW_NOT_CREATED", "ErrImagePull")];

/// Two nodes full of a gang of low priority, and a gang of high priority that needs one of them.
fn contested(more: &Value) -> Gangs {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
    world.gang("full", Spec { members: 4, ..LOW });
    world.settle();
    world.gang_with("himg", HIGH, more);
    world
}

/// Containers with this environment, and a start deadline of 45 s.
fn never_starts(env: &[(&str, &str)]) -> Value {
    let env: Vec<Value> = env
        .iter()
        .map(|(name, value)| json!({"name": name, "value": value}))
        .collect();
    json!({"failurePolicy": {"startDeadlineSeconds": 45}, "groups": [{"name": "g", "replicas": 2,
        "template": {"spec": {"containers": [{"name": "c", "env": env,
            "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}}}]})
}

/// Seconds from now at which each further preemption for a gang began.
fn preemptions_within(world: &mut Gangs, name: &str, seconds: i64) -> Vec<i64> {
    let mut at = Vec::new();
    for second in 0..seconds {
        let before = world.preemptions(name);
        run(world, 1);
        if world.preemptions(name) > before {
            at.push(second);
        }
    }
    at
}

#[test]
fn a_gang_whose_image_cannot_be_pulled_preempts_again_after_a_growing_backoff() {
    let mut world = contested(&never_starts(&NO_IMAGE));
    let at = preemptions_within(&mut world, "himg", 3 * 3600);
    let waits: Vec<i64> = at.windows(2).map(|w| w[1] - w[0]).collect();
    // The third failed start ends the workload.
    assert!(at[0] < 30 && waits.len() == 2, "{at:?}");
    for (wait, backoff) in waits.iter().zip([600, 1200]) {
        assert!(*wait >= backoff, "{waits:?}");
    }
    assert_eq!(world.running("full"), 4, "the victim is back");
}

#[test]
fn a_gang_whose_program_cannot_be_started_preempts_once_within_ten_minutes() {
    let mut world = contested(&never_starts(&[
        ("HOLLOW_REASON", "StartError"),
        ("HOLLOW_EXIT", "128"),
    ]));
    let at = preemptions_within(&mut world, "himg", 600);
    assert_eq!(at.len(), 1, "{at:?}");
    assert_eq!(world.running("full"), 4);
    let last = world.status("himg").last_preemption.unwrap();
    assert!(last.has_failed() && last.failures == 1, "{last:?}");
}

#[test]
fn a_basic_group_that_does_not_start_preempts_once_within_ten_minutes() {
    let mut world = contested(&json!({"scheduling": {"policy": "Basic"},
        "failurePolicy": {"startDeadlineSeconds": 45},
        "groups": never_starts(&NO_IMAGE)["groups"]}));
    let policy = world.workload("himg").spec.scheduling.policy;
    assert_eq!(policy, SchedulingPolicy::Basic);
    let at = preemptions_within(&mut world, "himg", 600);
    assert_eq!(at.len(), 1, "{at:?}");
    assert_eq!(world.running("full"), 4, "the victim is back");
    // The third start that fails ends the workload.
    let later = preemptions_within(&mut world, "himg", 3000);
    assert!(later.len() == 2 && later[1] - later[0] >= 1200, "{later:?}");
}

#[test]
fn a_changed_spec_ends_the_backoff_of_a_gang_that_did_not_start() {
    let mut world = contested(&never_starts(&NO_IMAGE));
    run(&mut world, 300);
    assert_eq!(world.preemptions("himg"), 1);
    world.edit("himg", |w| {
        let template = &mut w.spec.groups[0].template.0;
        template.spec.as_mut().unwrap().containers[0].env = None;
        w.spec.restart_nonce += 1;
    });
    run(&mut world, 120);
    assert_eq!((world.preemptions("himg"), world.running("himg")), (2, 2));
    assert_eq!(world.status("himg").last_preemption, None);
}

#[test]
fn a_new_leader_keeps_the_backoff() {
    let mut world = contested(&never_starts(&NO_IMAGE));
    for _ in 0..60 {
        run(&mut world, 10);
        world.crash();
    }
    assert_eq!(world.preemptions("himg"), 1);
}

/// While the victims terminate, a pod of higher priority takes one of the nodes.
fn lost_race() -> Gangs {
    let whole = |priority| Spec {
        priority,
        members: 2,
        gpus: 2,
    };
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
    world.gang("low", whole(10));
    world.settle();
    world.gang("high", whole(100));
    while world.intent("high").is_none() || world.running("low") > 0 {
        world.round();
    }
    world.foreign("guest", "n1", 1000, 2);
    world
}

#[test]
fn a_gang_that_has_lost_a_race_for_its_capacity_preempts_again_after_the_backoff() {
    let mut world = lost_race();
    run(&mut world, 520);
    assert_eq!((world.preemptions("high"), world.running("high")), (1, 0));
    world.remove(WatchedKind::Pod, &Key::new("ml", "guest"));
    world.foreign("squatter-1", "n1", 0, 2);
    world.foreign("squatter-2", "n2", 0, 2);
    run(&mut world, 1200);
    assert_eq!((world.preemptions("high"), world.running("high")), (2, 2));
    assert_eq!(world.status("high").last_preemption, None);
}

#[test]
fn a_preemption_without_its_capacity_fails_though_kube_scheduler_refuses_no_pod() {
    let mut world = lost_race();
    let wait = |world: &mut Gangs, seconds: usize| {
        for _ in 0..seconds {
            world.later(1);
            world.kubelets();
            world.control();
            world.schedule();
        }
    };
    wait(&mut world, 240);
    assert!(world.intent("high").is_some(), "it can pass");
    wait(&mut world, 180);
    assert_eq!(world.intent("high"), None);
    let last = world.status("high").last_preemption.unwrap();
    assert!(last.has_failed() && last.failures == 1, "{last:?}");
}

#[test]
fn a_refusal_before_the_victims_ended_counts_after_the_back_off_of_kube_scheduler() {
    let mut world = contested(&json!({}));
    while world.intent("himg").is_none() || world.running("full") > 0 {
        world.pass();
        world.control();
    }
    world.decide();
    // kube-scheduler tries while the victims terminate, and backs off. No cycle runs before they end.
    world.refuse_pods("himg", INSUFFICIENT);
    world.kubelets();
    let nodes = world.nodes("himg");
    for _ in 0..10 {
        world.later(1);
        world.schedule();
        world.control();
        let failed = world
            .status("himg")
            .last_preemption
            .and_then(|last| last.failed_at);
        assert_eq!((failed, world.nodes("himg")), (None, nodes.clone()));
    }
    run(&mut world, 10);
    let status = world.status("himg");
    assert_eq!((world.running("himg"), status.last_preemption), (2, None));
}

#[test]
fn the_condition_has_the_time_of_the_next_preemption() {
    let mut world = lost_race();
    run(&mut world, 120);
    let last = world.status("high").last_preemption.unwrap();
    let next = last.failed_at.unwrap() + chrono::TimeDelta::minutes(10);
    let expected = format!(
        "no workload is preempted for this gang before {} or a spec change: the gang did not run after 1 preemption",
        lockstep_api::words::time(next)
    );
    let message = world.condition("high").message;
    assert!(message.contains(&expected), "{message}");
}

#[test]
fn a_gang_that_loses_a_node_before_it_is_bound_preempts_again_at_once() {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
    for name in ["a", "b"] {
        world.gang(name, LOW);
    }
    world.settle();
    world.gang("high", HIGH);
    while world.preemptions("high") == 0 {
        world.round();
    }
    let node = world.nodes("high").remove(0);
    world.node(&node, 2, false);
    run(&mut world, 120);
    assert_eq!((world.preemptions("high"), world.running("high")), (2, 2));
}
