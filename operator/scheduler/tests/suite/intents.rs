//! Intents of several preemptors: one counts on nodes that the victims of another leave.

use lockstep_sim::{Actor, Gangs, Key, Spec, WatchedKind};
use serde_json::json;

use crate::preempting::{HIGH, nominated, victims};
use crate::run;

/// Two preemptors decide in one cycle: `first` evicts `low`, and `second` evicts `middle` and takes
/// the node of `low` that `first` leaves.
fn second_counts_on_first() -> Gangs {
    let nodes = ["n1", "n2", "n3", "n4", "n5"].map(|name| (name, 1));
    let mut world = Gangs::new(&nodes);
    for (name, priority, members) in [("low", 10, 3), ("middle", 20, 2)] {
        let spec = Spec {
            priority,
            members,
            gpus: 1,
        };
        world.gang(name, spec);
        world.settle();
    }
    for (name, members) in [("first", 2), ("second", 3)] {
        world.gang(name, Spec { members, ..HIGH });
    }
    world.pass();
    let victims_of = |name: &str| victims(&world.intent(name).unwrap()).join(" ");
    assert_eq!(victims_of("first"), world.group_uid("low"));
    assert_eq!(victims_of("second"), world.group_uid("middle"));
    world
}

#[test]
fn a_preemptor_evicts_no_gang_before_the_victims_it_counts_on_leave() {
    let mut world = second_counts_on_first();
    // The other preemptor moves there, so its victim stays.
    world.node("n6", 2, true);
    world.settle();
    let running = ["first", "second", "low", "middle"].map(|name| world.running(name));
    assert_eq!(running, [2, 3, 0, 2]);
    assert_eq!(world.preemptions("middle"), 0);
}

#[test]
fn both_preemptors_run_if_the_first_one_evicts() {
    let mut world = second_counts_on_first();
    world.settle();
    let running = ["first", "second", "low", "middle"].map(|name| world.running(name));
    assert_eq!(running, [2, 3, 0, 0]);
}

#[test]
fn no_pod_is_nominated_for_nodes_that_a_victim_of_another_intent_holds() {
    let mut world = second_counts_on_first();
    let second = Key::new("ml", "second");
    while world.pods_of("second").len() < 3 {
        world.cluster.pass(&second);
    }
    world.delete(WatchedKind::TrainingWorkload, &Key::new("ml", "middle"));
    while world.run(&Actor::GarbageCollector) {}
    for _ in 0..60 {
        world.later(1);
        world.kubelets();
        world.schedule();
    }
    assert_eq!((world.running("middle"), world.running("low")), (0, 3));
    assert!(world.intent("first").is_some() && nominated(&world, "second") == 0);
    world.settle();
    let running = ["first", "second", "low"].map(|name| world.running(name));
    assert_eq!(running, [2, 3, 0]);
}

#[test]
fn two_preemptors_that_count_on_the_victims_of_each_other_do_not_wait_for_ever() {
    let mut world = Gangs::new(&[("n1", 1)]);
    let spec = |priority, members, gpus| Spec {
        priority,
        members,
        gpus,
    };
    let pool = json!({"pool": "b"});
    world.zone("n2", 1, &pool);
    world.gang("low", spec(10, 2, 1));
    world.settle();
    world.node("n1", 2, true);
    world.zone("n3", 1, &pool);
    world.gang("middle", spec(20, 2, 1));
    world.settle();
    assert_eq!(world.nodes("middle"), ["n1", "n3"]);
    world.node("n1", 3, true);
    world.gang("first", spec(100, 1, 2));
    world.gang_with(
        "second",
        spec(100, 2, 1),
        &json!({"groups": [{"name": "g", "replicas": 2, "template": {"spec": {
            "nodeSelector": pool, "containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}}}]}),
    );
    world.pass();
    for name in ["first", "second"] {
        assert_eq!(world.intent(name).unwrap().victims.len(), 1, "{name}");
    }
    world.node("n1", 2, true);
    run(&mut world, 600);
    assert_eq!((world.running("first"), world.running("second")), (1, 2));
}
