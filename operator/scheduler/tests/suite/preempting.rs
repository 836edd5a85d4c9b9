//! Preemption.

use std::collections::BTreeSet;

use chrono::TimeDelta;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use lockstep_api::condition::{find, reasons, types};
use lockstep_api::names::annotations::LAST_CHECKPOINT;
use lockstep_api::scheduling::Preemption;
use lockstep_api::workload::KueueStatus;
use lockstep_sim::{Actor, Gangs, Key, Spec, WatchedKind};
use serde_json::json;

const LOW: Spec = Spec {
    priority: 10,
    members: 4,
    gpus: 1,
};
pub const HIGH: Spec = Spec {
    priority: 100,
    members: 4,
    gpus: 1,
};

/// A gang of low priority runs, and a gang of high priority has an intent.
fn contested() -> Gangs {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
    world.gang("low", LOW);
    world.settle();
    world.gang("high", HIGH);
    world.pass();
    assert!(world.intent("high").is_some());
    world
}

pub fn victims(intent: &Preemption) -> Vec<&str> {
    intent.victims.iter().map(|v| v.uid.as_str()).collect()
}

/// Message of condition DisruptionTarget on a gang's pod group.
fn disruption(world: &Gangs, name: &str) -> String {
    let status = world.status(name);
    let told = find(&status.conditions, types::DISRUPTION_TARGET);
    told.expect("it was preempted").message.clone()
}

/// Number of a gang's pods with a nominated node.
pub fn nominated(world: &Gangs, name: &str) -> usize {
    let node = |p: &Pod| p.status.as_ref()?.nominated_node_name.clone();
    world.pods_of(name).iter().filter_map(node).count()
}

/// Creates the preemptor's pods. The victim gets its condition, and none of these pods takes its
/// place yet.
fn gets_its_condition_before_losing_its_nodes(world: &mut Gangs) {
    let high = Key::new("ml", "high");
    // A pass that creates pods yields to other keys.
    while world.pods_of("high").len() < world.nodes("high").len() {
        world.cluster.pass(&high);
    }
    world.schedule();
    assert!(world.disrupted("low"));
    assert_eq!(nominated(world, "high"), 0);
}

#[test]
fn a_victim_with_pods_bound_since_the_decision_gets_its_condition_first() {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
    world.gang("low", LOW);
    world.decide();
    world.node("n1", 2, false);
    world.bind();
    world.later(61);
    world.schedule();
    assert_eq!(world.nodes("low"), ["n2", "n2"]);
    world.gang("high", Spec { members: 2, ..HIGH });
    let high = Key::new("ml", "high");
    while world.group("high").is_none() {
        world.cluster.pass(&high);
    }
    world.schedule();
    let intent = world.intent("high").unwrap();
    assert_eq!(victims(&intent), [world.group_uid("low")]);
    world.later(1);
    world.node("n1", 2, true);
    world.bind();
    // The gang restores its members on the first node: a new placement for the same pods.
    world.schedule();
    assert_eq!(world.running("low"), 4);
    gets_its_condition_before_losing_its_nodes(&mut world);
}

#[test]
fn a_victim_with_pods_recreated_since_the_decision_gets_its_condition_first() {
    let mut world = contested();
    world.later(1);
    let now = world.cluster.now();
    world.edit_group("low", |group| {
        let placement = group.status.as_mut().and_then(|s| s.placement.as_mut());
        placement.unwrap().decided_at = now;
    });
    for pod in world.pods_of("low") {
        world.remove(WatchedKind::Pod, &Key::of(&pod));
    }
    gets_its_condition_before_losing_its_nodes(&mut world);
}

#[test]
fn a_gang_displaces_a_less_important_one_step_by_step() {
    let mut world = contested();
    let intent = world.intent("high").unwrap();
    assert_eq!(victims(&intent), [world.group_uid("low")]);
    assert_eq!(world.condition("high").reason, reasons::PREEMPTING);
    assert!(
        intent.proven
            && intent
                .explanation
                .contains("no cheaper set frees enough capacity"),
        "{}",
        intent.explanation
    );
    let waiting = world.condition("high").message;
    assert!(
        waiting.contains("preempting 1 victim (4 pods) at a cost of"),
        "{waiting}"
    );
    assert_eq!(
        world.schedule().requests,
        0,
        "nobody is told before the preemptor's pods exist"
    );

    world.pass();
    assert!(world.disrupted("low"));
    let by = world.status("low").preemptor.unwrap();
    assert_eq!(
        (&*by.namespace, &*by.name, by.priority),
        ("ml", "high", 100)
    );
    let told = disruption(&world, "low");
    for part in [
        "ml/high",
        "priority 100",
        &intent.id,
        "no cheaper set frees enough capacity",
    ] {
        assert!(told.contains(part), "{part:?} is missing: {told}");
    }

    world.control();
    assert!(world.released("low"));
    assert_eq!(
        (world.schedule().requests, nominated(&world, "high")),
        (4, 4)
    );

    let queued_at = world.status("low").queued_at;
    world.settle();
    assert_eq!((world.running("high"), world.running("low")), (4, 0));
    assert_eq!((world.intent("high"), world.placement("low")), (None, None));
    assert_eq!(
        world.status("low").queued_at,
        queued_at,
        "a preempted gang keeps its place in the queue"
    );
    assert!(!world.disrupted("low") && world.condition("high").reason == reasons::SCHEDULED);
    let after = disruption(&world, "low");
    assert!(
        after.starts_with(&told) && after.contains("requeued at its original position"),
        "{after}"
    );
}

#[test]
fn a_victim_is_not_overtaken_by_pods_before_it_begins_to_leave() {
    let mut world = contested();
    world.pass();
    assert!(world.disrupted("low"));
    assert_eq!(
        world.schedule().requests,
        0,
        "kube-scheduler would preempt by itself for pods that it sees"
    );
}

#[test]
fn equal_priority_is_never_preempted() {
    let mut world = Gangs::new(&[("n1", 4)]);
    world.gang("low", LOW);
    world.settle();
    world.gang("equal", LOW);
    world.pass();
    assert_eq!(
        (world.intent("equal"), world.placement("equal")),
        (None, None)
    );
}

#[test]
fn a_gang_whose_policy_is_never_waits() {
    let mut world = Gangs::new(&[("n1", 4)]);
    world.gang("low", LOW);
    world.settle();
    let never = json!({"scheduling": {"preemptionPolicy": "Never"}});
    world.gang_with("high", HIGH, &never);
    world.pass();
    assert_eq!(
        (world.intent("high"), world.placement("high")),
        (None, None)
    );
    assert!(world.condition("high").message.contains("may not preempt"));
}

#[test]
fn no_pod_is_evicted_for_a_gang_that_would_still_not_fit() {
    let mut world = Gangs::new(&[("n1", 4)]);
    world.gang("low", LOW);
    world.settle();
    world.gang("high", Spec { members: 5, ..HIGH });
    world.settle();
    assert_eq!((world.intent("high"), world.running("low")), (None, 4));
}

#[test]
fn a_new_leader_takes_an_intent_up_where_the_last_one_left_it() {
    for crash_after in 0..6 {
        let mut world = contested();
        for step in 0..8 {
            if step == crash_after {
                world.crash();
            }
            world.control();
            world.bind();
            world.schedule();
            if step > 3 {
                world.kubelets();
            }
        }
        world.settle();
        assert_eq!(
            (world.running("high"), world.running("low")),
            (4, 0),
            "crash after step {crash_after}"
        );
        assert_eq!(world.intent("high"), None);
    }
}

#[test]
fn a_victim_that_has_finished_meanwhile_is_not_replaced_by_another() {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2), ("n3", 2)]);
    for (name, node) in [("a", "n1"), ("b", "n2"), ("c", "n3")] {
        world.foreign(name, node, 0, 2);
    }
    world.gang("high", HIGH);
    world.pass();
    let intent = world.intent("high").unwrap();
    let victims: Vec<String> = intent.victims.into_iter().map(|v| v.name).collect();
    assert_eq!(victims.len(), 2);
    world.remove(WatchedKind::Pod, &Key::new("ml", &victims[0]));
    world.settle();
    assert_eq!(world.evicted(), [victims[1].clone()]);
    assert_eq!(world.running("high"), 4);
}

#[test]
fn capacity_that_becomes_free_elsewhere_spares_the_victims() {
    let mut world = contested();
    world.node("n3", 4, true);
    world.settle();
    assert_eq!((world.running("high"), world.running("low")), (4, 4));
    assert_eq!(world.intent("high"), None);
}

#[test]
fn an_intent_is_withdrawn_when_the_preemptor_has_vanished() {
    let mut world = contested();
    world.pass();
    assert!(world.disrupted("low"));
    world.delete(WatchedKind::TrainingWorkload, &Key::new("ml", "high"));
    while world.run(&Actor::GarbageCollector) {}
    assert_eq!(
        (world.group("high"), world.pods_of("high").len()),
        (None, 0)
    );
    world.schedule();
    assert!(!world.disrupted("low"), "it had not begun to leave");
    world.settle();
    assert_eq!(world.running("low"), 4);
}

#[test]
fn a_quota_that_refuses_the_preemptor_withdraws_the_intent_without_evictions() {
    let mut world = contested();
    world.store().admission.quota = Some(4);
    world.settle();
    let backoff = world.ledger("high").backoff.expect("it waits");
    assert_eq!(backoff.reason, reasons::QUOTA_EXCEEDED);
    assert_eq!(
        (
            world.intent("high"),
            world.placement("high"),
            world.running("low")
        ),
        (None, None, 4)
    );
    assert!(!world.disrupted("low"));
    assert_eq!(world.preemptions("high"), 0);
}

#[test]
fn foreign_pods_are_marked_then_evicted_and_only_as_many_as_needed() {
    let mut world = Gangs::new(&[("n1", 4)]);
    for (name, priority) in [("p1", 1), ("p2", 2), ("p3", 3), ("p4", 4)] {
        world.foreign(name, "n1", priority, 1);
    }
    world.gang("high", Spec { members: 2, ..HIGH });
    world.settle();
    let mut evicted = world.evicted();
    evicted.sort();
    assert_eq!(
        (evicted, world.running("high")),
        (vec!["p1".to_owned(), "p2".to_owned()], 2)
    );
}

#[test]
fn a_budget_is_spared_when_another_set_suffices() {
    let mut world = Gangs::new(&[("n1", 2)]);
    world.guarded("guarded", "n1");
    world.foreign("free", "n1", 1, 1);
    world.gang("high", Spec { members: 1, ..HIGH });
    world.settle();
    assert_eq!(world.evicted(), ["free"]);
}

#[test]
fn of_two_equal_gangs_the_one_that_has_checkpointed_goes() {
    for (fresh, stale) in [("a", "b"), ("b", "a")] {
        let mut world = Gangs::new(&[("n1", 4), ("n2", 4)]);
        for name in ["a", "b"] {
            world.gang(name, LOW);
        }
        world.settle();
        world.later(7200);
        for (name, ago) in [(fresh, 60), (stale, 3600)] {
            let at = (world.now() - TimeDelta::seconds(ago)).to_rfc3339();
            world.edit(name, |w| {
                w.metadata.annotations = Some([(LAST_CHECKPOINT.to_owned(), at)].into());
            });
        }
        world.gang("high", HIGH);
        world.pass();
        let intent = world.intent("high").unwrap();
        assert_eq!(victims(&intent), [world.group_uid(fresh)]);
        // Four accelerators, 60 s of work and 120 s of restart.
        assert_eq!(intent.victims[0].cost, 4 * 180);
    }
}

#[test]
fn a_gang_waits_for_pods_that_are_ending_rather_than_to_evict_more() {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
    world.foreign("ending", "n1", 1, 2);
    world.foreign("running", "n2", 1, 2);
    world.delete(WatchedKind::Pod, &Key::new("ml", "ending"));
    world.gang("high", Spec { members: 2, ..HIGH });
    world.pass();
    assert_eq!(
        (world.intent("high"), world.placement("high")),
        (None, None)
    );
    assert!(world.condition("high").message.contains("terminating pods"));
    world.later(60);
    world.pass();
    let intent = world.intent("high").unwrap();
    assert_eq!(victims(&intent), ["uid-running"], "it will never end");
}

#[test]
fn two_preemptors_do_not_count_on_the_same_victim() {
    let mut world = contested();
    world.gang("high-2", HIGH);
    world.settle();
    assert_eq!(
        (world.running("high"), world.placement("high-2")),
        (4, None)
    );
}

#[test]
fn a_pod_of_a_single_mode_gang_goes_alone_and_its_member_queues_again() {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
    world.gang_with(
        "low",
        LOW,
        &json!({"scheduling": {"disruptionMode": "Single"}}),
    );
    world.settle();
    world.gang("high", Spec { members: 1, ..HIGH });
    world.settle();
    assert_eq!(
        (
            world.running("high"),
            world.running("low"),
            world.evicted().len()
        ),
        (1, 3, 1)
    );
    assert_eq!(world.assigned("low").len(), 3);
}

#[test]
fn a_void_intent_is_replaced_by_one_that_completes() {
    let mut world = Gangs::new(&[("n0", 4), ("n1", 4), ("n2", 2), ("n3", 3)]);
    world.gang("low", LOW);
    world.gang(
        "high",
        Spec {
            priority: 30,
            members: 5,
            gpus: 2,
        },
    );
    world.node("n0", 4, false);
    world.pass();
    world.gang(
        "middle",
        Spec {
            priority: 20,
            members: 3,
            gpus: 2,
        },
    );
    world.pass();
    world.control();
    world.node("n0", 4, true);
    world.settle();
    assert_eq!((world.running("high"), world.intent("high")), (5, None));
}

/// kube-scheduler before 1.34 drops the nomination, and itself preempts for pods that it sees.
#[test]
fn where_nominations_are_dropped_a_gang_waits_until_its_victims_are_gone() {
    for (kept, early) in [(true, 4), (false, 0)] {
        let mut world = contested();
        world.scheduler_settings().keeps_nominations = kept;
        world.pass();
        world.control();
        world.schedule();
        let leaving = world.pods_of("low");
        assert!(
            leaving
                .iter()
                .all(|p| p.metadata.deletion_timestamp.is_some())
                && leaving.len() == 4
        );
        assert_eq!(nominated(&world, "high"), early, "kept: {kept}");
        world.settle();
        assert_eq!((world.running("high"), world.running("low")), (4, 0));
    }
}

/// The search ignores nominations of lower priority. The execution must do so too; otherwise it
/// withdraws in every cycle what the next one decides again.
#[test]
fn what_is_nominated_for_lower_priority_does_not_stop_a_preemption_that_was_decided() {
    let one = Spec { members: 1, ..LOW };
    let mut world = Gangs::new(&[("n1", 1)]);
    world.gang("low", one);
    world.settle();
    let nominated = json!({"spec": {"nodeName": null, "schedulingGates": [{"name": "example.com/never"}]},
        "status": {"nominatedNodeName": "n1"}});
    world.foreign_with("nominated", "n1", 0, 1, &nominated);
    world.gang(
        "high",
        Spec {
            priority: 100,
            ..one
        },
    );
    world.settle();
    assert_eq!((world.running("high"), world.running("low")), (1, 0));
}

/// kube-scheduler has not bound the first member yet. That it would fit into free capacity is no
/// reason to drop the intent for the second member.
#[test]
fn an_intent_for_one_member_of_a_basic_group_stays_while_another_waits_to_be_bound() {
    let mut world = Gangs::new(&[("n1", 2)]);
    world.foreign("low", "n1", 0, 1);
    let basic = json!({"scheduling": {"policy": "Basic"}});
    world.gang_with("high", Spec { members: 2, ..HIGH }, &basic);
    world.decide();
    for _ in 0..3 {
        world.later(1);
        world.decide();
    }
    assert_eq!(world.evicted(), ["low"]);
}

/// Sets the allocatable CPU of a node.
fn cpu(world: &mut Gangs, node: &str, amount: &str) {
    let amount = Quantity(amount.to_owned());
    world.cluster.edit::<Node>(&Key::new("", node), |node| {
        let status = node.status.get_or_insert_default();
        let allocatable = status.allocatable.get_or_insert_default();
        allocatable.insert("cpu".into(), amount);
    });
}

/// Node n1, with a gang of low priority and fewer CPUs than its pods request, as after a larger
/// reservation of the kubelet. Node n2 has CPUs only.
fn overcommitted() -> Gangs {
    let mut world = Gangs::new(&[("n1", 4), ("n2", 0)]);
    cpu(&mut world, "n1", "64");
    cpu(&mut world, "n2", "64");
    let container = json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": "4"}}});
    let other = json!({"spec": {"containers": [container]}});
    world.foreign_with("other", "n1", 1000, 0, &other);
    world.gang("low", LOW);
    world.settle();
    cpu(&mut world, "n1", "1");
    world
}

/// Number of decided preemptions and of running members after two minutes.
fn preempts(world: &mut Gangs) -> (usize, usize) {
    let mut decided = BTreeSet::new();
    for _ in 0..120 {
        world.round();
        decided.extend(world.intent("high").map(|intent| intent.decided_at));
        world.later(1);
    }
    (decided.len(), world.running("high"))
}

#[test]
fn a_node_overcommitted_in_a_resource_that_the_gang_does_not_request_is_used() {
    let mut world = overcommitted();
    world.gang("high", HIGH);
    assert_eq!(preempts(&mut world), (1, HIGH.members as usize));
}

#[test]
fn a_node_overcommitted_in_a_resource_that_only_another_group_requests_is_used() {
    let mut world = overcommitted();
    let group = |name: &str, replicas: i32, resources: serde_json::Value| {
        json!({"name": name, "replicas": replicas, "template": {"spec": {"containers": [
            {"name": "c", "resources": resources}]}}})
    };
    let groups = json!({"groups": [
        group("workers", 4, json!({"limits": {"nvidia.com/gpu": "1"}})),
        group("launcher", 1, json!({"requests": {"cpu": "1"}})),
    ]});
    world.gang_with("high", HIGH, &groups);
    assert_eq!(preempts(&mut world), (1, 5));
}

/// Marks a workload as admitted by Kueue.
fn admit(world: &mut Gangs, name: &str) {
    world.edit(name, |w| {
        let status = w.status.get_or_insert_default();
        status.kueue = Some(KueueStatus {
            queue: "q".into(),
            admitted: true,
            ..KueueStatus::default()
        });
    });
}

/// True if a gang of high priority preempts one of low priority. Kueue has admitted these.
fn is_preempted(admitted: &[&str], evict_admitted: bool) -> bool {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
    world.scheduler_settings().rules.victims.evict_admitted = evict_admitted;
    world.gang("low", LOW);
    world.settle();
    world.gang("high", HIGH);
    let high = Key::new("ml", "high");
    while world.group("high").is_none() {
        world.cluster.pass(&high);
    }
    for name in admitted {
        admit(&mut world, name);
    }
    world.schedule();
    world.intent("high").is_some()
}

#[test]
fn gangs_that_kueue_has_admitted_are_no_victims_unless_the_configuration_says_so() {
    assert!(is_preempted(&[], false));
    assert!(!is_preempted(&["low"], false));
    assert!(is_preempted(&["low"], true));
    assert!(is_preempted(&["high"], false));
    assert!(!is_preempted(&["low", "high"], false));
    assert!(!is_preempted(&["low", "high"], true));
}
