//! Taking room from others.

use std::sync::Arc;

use lockstep_api::condition::{find, reasons, types};
use lockstep_api::workload::Backoff;
use lockstep_model::{Budget, Pod};
use serde_json::json;

use super::world::{Spec, World};
use crate::Memory;
use crate::intent_id::intent_id;
use crate::plan::Step;

const LOW: Spec = Spec {
    priority: 10,
    members: 4,
    gpus: 1,
};
const HIGH: Spec = Spec {
    priority: 100,
    members: 4,
    gpus: 1,
};

/// A gang of low priority runs, one of high priority has its intent.
fn contested() -> World {
    let mut world = World::new(&[("n1", 2), ("n2", 2)]);
    world.gang("low", LOW);
    world.settle();
    world.gang("high", HIGH);
    world.pass();
    assert!(world.intent("high").is_some());
    world
}

#[test]
fn a_gang_displaces_a_less_important_one_step_by_step() {
    let mut world = contested();
    let intent = world.intent("high").unwrap();
    assert_eq!(
        intent
            .victims
            .iter()
            .map(|v| v.uid.as_str())
            .collect::<Vec<_>>(),
        ["pg-low"]
    );
    assert_eq!(world.condition("high").reason, reasons::PREEMPTING);
    assert!(
        intent.proven
            && intent
                .explanation
                .contains("no cheaper set frees enough capacity"),
        "{}",
        intent.explanation
    );
    assert!(
        world
            .condition("high")
            .message
            .contains("preempting 1 victims"),
        "{}",
        world.condition("high").message
    );
    assert!(
        world.pass().steps.is_empty(),
        "nobody is told before the preemptor's pods exist"
    );

    world.control();
    world.pass();
    assert!(world.disrupted("low"));
    let told = find(&world.status("low").conditions, types::DISRUPTION_TARGET)
        .unwrap()
        .message
        .clone();
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
    let nominations = world.pass().steps;
    assert!(
        nominations.len() == 4
            && nominations
                .iter()
                .all(|s| matches!(s, Step::Nominate { .. }))
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
    let after = find(&world.status("low").conditions, types::DISRUPTION_TARGET)
        .unwrap()
        .message
        .clone();
    assert!(
        after.starts_with(&told) && after.contains("requeued at its original position"),
        "{after}"
    );
}

#[test]
fn a_victim_is_not_overtaken_by_pods_before_it_begins_to_leave() {
    let mut world = contested();
    world.control();
    world.pass();
    assert!(world.disrupted("low"));
    assert!(
        world.pass().steps.is_empty(),
        "kube-scheduler would preempt by itself for pods that it sees"
    );
}

#[test]
fn equal_priority_is_never_preempted() {
    let mut world = World::new(&[("n1", 4)]);
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
    let mut world = World::new(&[("n1", 4)]);
    world.gang("low", LOW);
    world.settle();
    world.gang_with(
        "high",
        HIGH,
        json!({}),
        json!({"preemptionPolicy": "Never"}),
    );
    world.pass();
    assert_eq!(
        (world.intent("high"), world.placement("high")),
        (None, None)
    );
    assert!(world.condition("high").message.contains("may not preempt"));
}

#[test]
fn nobody_is_evicted_for_a_gang_that_would_not_fit_all_the_same() {
    let mut world = World::new(&[("n1", 4)]);
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
                world.memory = Memory::default();
            }
            world.control();
            world.bind();
            world.pass();
            if step > 3 {
                world.end_terminating();
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
fn a_forged_intent_evicts_nobody() {
    for (what, forge) in forgeries() {
        let mut world = World::new(&[("n1", 4), ("n2", 4), ("n3", 4), ("n4", 4)]);
        world.gang("low", LOW);
        world.gang("equal", HIGH);
        world.settle();
        world.foreign("guard", "n3", 2_000_000_000, 4);
        world.change("guard", |p| p.protected = true);
        world.gang("high", HIGH);
        world.settle();
        forge(&mut world);
        world.memory = Memory::default();
        world.settle();
        assert!(
            !world.disrupted("low") && !world.disrupted("equal") && world.evicted.is_empty(),
            "{what}"
        );
        assert_eq!(
            (world.running("low"), world.running("equal")),
            (4, 4),
            "{what}"
        );
        assert_eq!(world.intent("high"), None, "{what}");
    }
}

type Forgery = fn(&mut World);

fn forgeries() -> [(&'static str, Forgery); 6] {
    fn forge(world: &mut World, kind: &str, uid: &str, sign: bool, preemptor: &str) {
        let mut status = world.status("high");
        let mut intent = lockstep_api::scheduling::Preemption {
            id: "deadbeef".into(),
            preemptor_uid: preemptor.into(),
            decided_at: world.now,
            placement: status
                .placement
                .as_ref()
                .map(|p| p.id.clone())
                .unwrap_or_default(),
            victims: vec![lockstep_api::scheduling::Victim {
                kind: kind.into(),
                namespace: "ml".into(),
                name: "x".into(),
                uid: uid.into(),
                ..lockstep_api::scheduling::Victim::default()
            }],
            ..lockstep_api::scheduling::Preemption::default()
        };
        if sign {
            intent.id = intent_id(&intent);
        }
        status.preemption = Some(intent);
        world.groups.get_mut("high").unwrap().status = Some(status);
    }
    [
        ("unsigned", |w| {
            forge(w, "PodGroup", "pg-low", false, "pg-high");
        }),
        ("signed, but there is no need", |w| {
            forge(w, "PodGroup", "pg-low", true, "pg-high");
        }),
        ("another preemptor", |w| {
            forge(w, "PodGroup", "pg-low", true, "pg-equal");
        }),
        ("equal priority", |w| {
            forge(w, "PodGroup", "pg-equal", true, "pg-high");
        }),
        ("protected pod", |w| {
            forge(w, "Pod", "uid-guard", true, "pg-high");
        }),
        ("a member of a gang that goes whole", |w| {
            let uid = w.pods_of("low").remove(0).uid;
            forge(w, "Pod", &uid, true, "pg-high");
        }),
    ]
}

#[test]
fn a_forged_intent_for_a_waiting_gang_evicts_nobody_who_is_not_in_the_way() {
    let mut world = contested();
    world.gang("bystander", Spec { members: 2, ..LOW });
    world.node("n9", 2, true);
    world.settle();
    let mut world = contested();
    let mut status = world.status("high");
    let intent = status.preemption.as_mut().unwrap();
    world.gang("bystander", Spec { members: 2, ..LOW });
    world.node("n9", 2, true);
    world.pass();
    world.control();
    world.bind();
    intent.victims.push(lockstep_api::scheduling::Victim {
        kind: "PodGroup".into(),
        uid: "pg-bystander".into(),
        ..lockstep_api::scheduling::Victim::default()
    });
    intent.id = intent_id(intent);
    world.groups.get_mut("high").unwrap().status = Some(status);
    world.memory = Memory::default();
    world.settle();
    assert_eq!((world.running("high"), world.running("bystander")), (4, 2));
}

#[test]
fn a_victim_that_has_finished_meanwhile_is_not_replaced_by_another() {
    let mut world = World::new(&[("n1", 2), ("n2", 2), ("n3", 2)]);
    for (name, node) in [("a", "n1"), ("b", "n2"), ("c", "n3")] {
        world.foreign(name, node, 0, 2);
    }
    world.gang("high", Spec { members: 4, ..HIGH });
    world.pass();
    let victims: Vec<String> = world
        .intent("high")
        .unwrap()
        .victims
        .into_iter()
        .map(|v| v.name)
        .collect();
    assert_eq!(victims.len(), 2);
    world.remove(&victims[0]);
    world.settle();
    assert_eq!(world.evicted, [victims[1].clone()]);
    assert_eq!(world.running("high"), 4);
}

#[test]
fn room_that_becomes_free_elsewhere_spares_the_victims() {
    let mut world = contested();
    world.node("n3", 4, true);
    world.settle();
    assert_eq!((world.running("high"), world.running("low")), (4, 4));
    assert_eq!(world.intent("high"), None);
}

#[test]
fn an_intent_is_withdrawn_when_the_preemptor_has_vanished() {
    let mut world = contested();
    world.control();
    world.pass();
    assert!(world.disrupted("low"));
    world.groups.remove("high");
    for pod in world.pods_of("high") {
        world.remove(&pod.name);
    }
    world.pass();
    assert!(!world.disrupted("low"), "it had not begun to leave");
    world.settle();
    assert_eq!(world.running("low"), 4);
}

#[test]
fn a_quota_that_refuses_the_preemptor_withdraws_the_intent_and_evicts_nobody() {
    let mut world = contested();
    let until = world.now;
    let id = world.placement("high").map(|p| p.id);
    let ledger = world.ledger("high");
    ledger.backoff = Some(Backoff {
        reason: reasons::QUOTA_EXCEEDED.into(),
        message: String::new(),
        tries: 1,
        until,
    });
    ledger.released = id;
    world.settle();
    assert_eq!(
        (
            world.intent("high"),
            world.placement("high"),
            world.running("low")
        ),
        (None, None, 4)
    );
    assert!(!world.disrupted("low"));
}

#[test]
fn a_pod_that_names_a_gang_of_another_namespace_as_its_owner_is_evicted_all_the_same() {
    let mut world = World::new(&[("n1", 1), ("n2", 1)]);
    world.gang("low", Spec { members: 1, ..LOW });
    world.settle();
    let free = if world.pods_of("low")[0].bound.as_deref() == Some("n1") {
        "n2"
    } else {
        "n1"
    };
    let forged = Pod {
        namespace: "tenant".into(),
        owner: Some("w-low".into()),
        ..world.pod("forged", 1)
    };
    world.put(Pod {
        bound: Some(free.into()),
        ..forged
    });
    world.gang("high", Spec { members: 1, ..HIGH });
    world.pass();
    let victims: Vec<String> = world
        .intent("high")
        .unwrap()
        .victims
        .into_iter()
        .map(|v| v.uid)
        .collect();
    assert_eq!(victims, ["uid-forged"]);
}

#[test]
fn foreign_pods_are_marked_then_evicted_and_only_as_many_as_needed() {
    let mut world = World::new(&[("n1", 4)]);
    for (name, priority) in [("p1", 1), ("p2", 2), ("p3", 3), ("p4", 4)] {
        world.foreign(name, "n1", priority, 1);
    }
    world.gang("high", Spec { members: 2, ..HIGH });
    world.settle();
    world.evicted.sort();
    assert_eq!(
        (world.evicted.clone(), world.running("high")),
        (vec!["p1".to_owned(), "p2".to_owned()], 2)
    );
}

#[test]
fn a_budget_is_spared_when_another_set_suffices() {
    let mut world = World::new(&[("n1", 2)]);
    world.foreign("guarded", "n1", 1, 1);
    world.foreign("free", "n1", 1, 1);
    world.change("guarded", |p| {
        p.labels = Arc::new([("app".to_owned(), "db".to_owned())].into());
    });
    let selector = serde_json::from_value(json!({"matchLabels": {"app": "db"}})).unwrap();
    world.budgets.push(Arc::new(Budget {
        namespace: "ml".into(),
        name: "b".into(),
        selector: Some(selector),
        allowed: 0,
    }));
    world.gang("high", Spec { members: 1, ..HIGH });
    world.settle();
    assert_eq!(world.evicted, ["free"]);
}

#[test]
fn of_two_equal_gangs_the_one_that_has_checkpointed_goes() {
    for (fresh, stale) in [("a", "b"), ("b", "a")] {
        let mut world = World::new(&[("n1", 4), ("n2", 4)]);
        for name in ["a", "b"] {
            world.gang(name, LOW);
        }
        world.settle();
        world.later(7200);
        for (name, ago) in [(fresh, 60), (stale, 3600)] {
            let at = (world.now - chrono::TimeDelta::seconds(ago)).to_rfc3339();
            let annotation = (
                lockstep_api::names::annotations::LAST_CHECKPOINT.to_owned(),
                at,
            );
            world.workloads.get_mut(name).unwrap().metadata.annotations = Some([annotation].into());
        }
        world.gang("high", HIGH);
        world.pass();
        let victims = world.intent("high").unwrap().victims;
        assert_eq!(
            victims.iter().map(|v| v.uid.clone()).collect::<Vec<_>>(),
            [format!("pg-{fresh}")]
        );
        // Four accelerators, 60 s of work and 120 s of restart.
        assert_eq!(victims[0].cost, 4 * 180);
    }
}

#[test]
fn a_gang_waits_for_pods_that_are_ending_rather_than_to_evict_more() {
    let mut world = World::new(&[("n1", 2), ("n2", 2)]);
    world.foreign("ending", "n1", 1, 2);
    world.foreign("running", "n2", 1, 2);
    let end = world.now + chrono::TimeDelta::seconds(30);
    world.change("ending", |p| p.terminating = Some(end));
    world.gang("high", Spec { members: 2, ..HIGH });
    world.pass();
    assert_eq!(
        (world.intent("high"), world.placement("high")),
        (None, None)
    );
    assert!(world.condition("high").message.contains("terminating pods"));
    world.later(60);
    world.pass();
    let victims = world.intent("high").unwrap().victims;
    assert_eq!(
        victims.iter().map(|v| v.name.as_str()).collect::<Vec<_>>(),
        ["running"],
        "it will never end"
    );
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
    let mut world = World::new(&[("n1", 2), ("n2", 2)]);
    world.gang_with(
        "low",
        LOW,
        json!({"scheduling": {"disruptionMode": "Single"}}),
        json!({"disruptionMode": {"all": null, "single": {}}}),
    );
    world.settle();
    world.gang("high", Spec { members: 1, ..HIGH });
    world.settle();
    assert_eq!(
        (
            world.running("high"),
            world.running("low"),
            world.evicted.len()
        ),
        (1, 3, 1)
    );
    assert_eq!(world.seats("low").len(), 3);
}

#[test]
fn an_intent_that_became_void_is_replaced_by_one_that_comes_to_an_end() {
    let mut world = World::new(&[("n0", 4), ("n1", 4), ("n2", 2), ("n3", 3)]);
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
