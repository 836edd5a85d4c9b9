//! Each event that lets a waiting gang fit brings it back, although its verdict is cached.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use lockstep_api::names::annotations;
use lockstep_sim::{Gangs, Key, Spec, WatchedKind};
use serde_json::{Value, json};

use crate::{HIGH, LOW, run};

/// Two equal gangs, so that the second shares the verdict on the first.
const EQUAL: [&str; 2] = ["first", "second"];

/// A cluster whose nodes are full of work that no gang may evict, and two equal gangs.
fn full(nodes: &[(&str, i64)], more: &Value) -> Gangs {
    let mut world = Gangs::new(nodes);
    for (node, gpus) in nodes {
        world.foreign(&format!("on-{node}"), node, 1000, *gpus);
    }
    queue(&mut world, more);
    world
}

fn queue(world: &mut Gangs, more: &Value) {
    for name in EQUAL {
        world.gang_with(name, HIGH, more);
    }
}

/// Checks that both gangs wait with a cached verdict, and that the event places the first gang.
fn brings_back(world: &mut Gangs, event: impl FnOnce(&mut Gangs)) {
    waits(world);
    event(world);
    world.settle();
    let running = EQUAL.map(|name| world.running(name));
    assert_eq!(running, [2, 0], "{}", world.condition("first").message);
}

/// Checks that both gangs wait, and that a cycle without an event evaluates no gang.
fn waits(world: &mut Gangs) {
    world.settle();
    world.pass();
    let cycle = world.pass();
    assert_eq!((cycle.judged, cycle.searches), (0, 0), "{cycle:?}");
    for name in EQUAL {
        assert_eq!((world.running(name), world.intent(name)), (0, None));
    }
}

fn edit_node(world: &mut Gangs, change: impl FnOnce(&mut Node)) {
    world.cluster.edit::<Node>(&Key::new("", "n2"), change);
}

/// Pods on nodes with label `zone: a` only.
fn in_zone_a() -> Value {
    let container = json!({"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}});
    let spec = json!({"nodeSelector": {"zone": "a"}, "containers": [container]});
    json!({"groups": [{"name": "g", "replicas": 2, "template": {"spec": spec}}]})
}

#[test]
fn a_waiting_gang_is_placed_when_a_foreign_pod_is_deleted() {
    let mut world = full(&[("n1", 2)], &json!({}));
    brings_back(&mut world, |world| {
        world.remove(WatchedKind::Pod, &Key::new("ml", "on-n1"));
    });
}

#[test]
fn a_waiting_gang_is_placed_when_a_foreign_pod_ends_at_its_deadline() {
    let mut world = Gangs::new(&[("n1", 2)]);
    let job = json!({"spec": {"restartPolicy": "Never", "activeDeadlineSeconds": 570}});
    world.foreign_with("job", "n1", 1000, 2, &job);
    queue(&mut world, &json!({}));
    brings_back(&mut world, |world| run(world, 600));
}

#[test]
fn a_waiting_gang_is_placed_when_another_gang_is_suspended() {
    let mut world = Gangs::new(&[("n1", 2)]);
    world.gang("holder", HIGH);
    world.settle();
    world.later(1);
    queue(&mut world, &json!({}));
    brings_back(&mut world, |world| {
        world.edit("holder", |w| w.spec.suspend = true);
    });
}

#[test]
fn a_waiting_gang_is_placed_when_a_node_is_added() {
    let mut world = full(&[("n1", 2)], &json!({}));
    brings_back(&mut world, |world| world.node("n2", 2, true));
}

#[test]
fn a_waiting_gang_is_placed_when_a_node_gets_more_accelerators() {
    let mut world = full(&[("n1", 2)], &json!({}));
    world.node("n2", 1, true);
    brings_back(&mut world, |world| world.node("n2", 2, true));
}

#[test]
fn a_waiting_gang_is_placed_when_a_lost_node_is_ready_again() {
    let mut world = full(&[("n1", 2)], &json!({}));
    world.node("n2", 2, false);
    run(&mut world, 60);
    brings_back(&mut world, |world| world.node("n2", 2, true));
}

#[test]
fn a_waiting_gang_is_placed_when_a_node_is_uncordoned() {
    let mut world = Gangs::new(&[("n2", 2)]);
    edit_node(&mut world, |n| {
        n.spec.get_or_insert_default().unschedulable = Some(true);
    });
    queue(&mut world, &json!({}));
    brings_back(&mut world, |world| {
        edit_node(world, |n| {
            n.spec.get_or_insert_default().unschedulable = None;
        });
    });
}

#[test]
fn a_waiting_gang_is_placed_when_a_node_gets_the_label_that_it_selects() {
    let mut world = Gangs::new(&[("n2", 2)]);
    queue(&mut world, &in_zone_a());
    brings_back(&mut world, |world| {
        edit_node(world, |n| {
            let labels = n.metadata.labels.get_or_insert_default();
            labels.insert("zone".into(), "a".into());
        });
    });
}

#[test]
fn a_waiting_gang_is_placed_when_a_taint_is_removed() {
    let mut world = Gangs::new(&[("n2", 2)]);
    edit_node(&mut world, |n| {
        let taint = json!([{"key": "maintenance", "effect": "NoSchedule"}]);
        let taints: Vec<Taint> = serde_json::from_value(taint).unwrap();
        n.spec.get_or_insert_default().taints = Some(taints);
    });
    queue(&mut world, &json!({}));
    brings_back(&mut world, |world| {
        edit_node(world, |n| n.spec.get_or_insert_default().taints = None);
    });
}

#[test]
fn a_waiting_gang_preempts_when_a_running_gang_gets_a_lower_preemption_priority() {
    let mut world = Gangs::new(&[("n1", 2)]);
    world.preemption_priority("low", 100);
    world.gang("low", LOW);
    world.settle();
    queue(&mut world, &json!({}));
    brings_back(&mut world, |world| world.preemption_priority("low", 50));
}

#[test]
fn a_waiting_gang_preempts_when_its_priority_class_allows_preemption() {
    let mut world = Gangs::new(&[("n1", 2)]);
    world.gang("low", LOW);
    world.settle();
    queue(&mut world, &json!({}));
    let policy = |world: &mut Gangs, name: &str, policy: &str| {
        let class = Key::new("", name);
        world.cluster.edit::<PriorityClass>(&class, |class| {
            let notes = class.metadata.annotations.get_or_insert_default();
            notes.insert(annotations::PREEMPTION_POLICY.into(), policy.into());
        });
    };
    for name in EQUAL {
        policy(&mut world, name, "Never");
    }
    brings_back(&mut world, |world| {
        policy(world, "first", "PreemptLowerPriority");
    });
}

#[test]
fn a_waiting_gang_preempts_when_it_gets_a_higher_priority() {
    let mut world = Gangs::new(&[("n1", 2)]);
    world.gang("holder", HIGH);
    world.settle();
    // Held for its claim, so that only its priority class matters.
    world.gang_with_claim(
        "top",
        Spec {
            priority: 200,
            ..HIGH
        },
    );
    queue(&mut world, &json!({}));
    brings_back(&mut world, |world| {
        world.edit("first", |w| {
            w.spec.priority_class_name = Some("top".into());
        });
    });
}

#[test]
fn a_waiting_gang_preempts_when_a_pod_is_protected_no_longer() {
    let mut world = Gangs::new(&[("n1", 2)]);
    let label =
        |value: &str| json!({"metadata": {"labels": {"training.lockstep.dev/evictable": value}}});
    world.foreign_with("service", "n1", 0, 2, &label("false"));
    queue(&mut world, &json!({}));
    brings_back(&mut world, |world| {
        let pod = Key::new("ml", "service");
        world
            .cluster
            .edit::<Pod>(&pod, |pod| pod.metadata.labels = None);
    });
}

#[test]
fn equal_gangs_preempt_when_the_guaranteed_run_time_of_running_gangs_ends() {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
    world.scheduler_settings().rules.min_runtime = Duration::from_mins(1);
    world.gang("low-1", LOW);
    world.gang("low-2", LOW);
    world.settle();
    queue(&mut world, &json!({}));
    world.decide();
    assert_eq!(EQUAL.map(|name| world.intent(name)), [None, None]);
    run(&mut world, 90);
    assert_eq!(EQUAL.map(|name| world.running(name)), [2, 2]);
}

/// A node of four accelerators, half of them held by a job. A gang reserves the whole node, and two
/// equal gangs of one accelerator wait behind the reservation.
fn reserved(job: &Value) -> Gangs {
    let mut world = Gangs::new(&[("n1", 4)]);
    world.foreign_with("half", "n1", 1000, 2, job);
    let large = Spec { members: 4, ..HIGH };
    world.gang("large", large);
    world.settle();
    assert!(world.status("large").reservation.is_some());
    world.later(1);
    queue(&mut world, &json!({}));
    waits(&mut world);
    world
}

fn ends() -> Value {
    json!({"spec": {"restartPolicy": "Never"}})
}

#[test]
fn a_waiting_gang_is_placed_when_a_reservation_is_released() {
    let mut world = reserved(&ends());
    brings_back(&mut world, |world| {
        world.edit("large", |w| w.spec.suspend = true);
    });
}

#[test]
fn a_waiting_gang_is_placed_when_its_own_deadline_precedes_a_reservation() {
    let job = json!({"spec": {"restartPolicy": "Never", "activeDeadlineSeconds": 570}});
    let mut world = reserved(&job);
    brings_back(&mut world, |world| {
        world.edit("first", |w| w.spec.active_deadline_seconds = Some(300));
    });
}

#[test]
fn a_waiting_gang_is_placed_when_the_deadline_of_running_work_dates_a_reservation() {
    let mut world = Gangs::new(&[("n1", 4)]);
    world.gang("runs", Spec { members: 2, ..HIGH });
    world.settle();
    world.gang("large", Spec { members: 4, ..HIGH });
    world.settle();
    assert!(world.status("large").reservation.is_some());
    world.later(1);
    queue(&mut world, &json!({"activeDeadlineSeconds": 5000}));
    brings_back(&mut world, |world| {
        world.edit("runs", |w| w.spec.active_deadline_seconds = Some(10_000));
    });
}

#[test]
fn a_waiting_gang_is_placed_when_a_gang_ahead_waits_for_a_claim() {
    let mut world = reserved(&ends());
    brings_back(&mut world, |world| {
        let container = json!({"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}});
        let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "none"}}]);
        let spec = json!({"containers": [container], "volumes": volumes});
        world.edit("large", |w| {
            w.spec.groups[0].template = serde_json::from_value(json!({"spec": spec})).unwrap();
        });
    });
}
