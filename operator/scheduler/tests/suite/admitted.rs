//! The admitted pod counts, not the template.

use k8s_openapi::api::core::v1::Node;
use lockstep_sim::pods::FOREIGN_GATE;
use lockstep_sim::{Gangs, Key, Spec};
use serde_json::{Value, json};

use crate::{HIGH, LOW, run};

/// Two members with two accelerators each.
const WIDE: Spec = Spec { gpus: 2, ..HIGH };

/// Merges this into the spec of each pod of gang `high` on admission.
fn admission(world: &Gangs, spec: &Value) {
    let spec = spec.clone();
    world.store().admission.webhook = Some(Box::new(move |pod| {
        if pod["spec"]["priorityClassName"] == "high" {
            for (field, value) in spec.as_object().into_iter().flatten() {
                match (value.as_array(), pod["spec"][field].as_array_mut()) {
                    (Some(more), Some(list)) => list.extend(more.iter().cloned()),
                    _ => pod["spec"][field] = value.clone(),
                }
            }
        }
        Ok(())
    }));
}

fn sidecar() -> Value {
    let resources = json!({"limits": {"nvidia.com/gpu": "1"}});
    json!({"containers": [{"name": "proxy", "image": "i", "resources": resources}]})
}

/// Two accelerator nodes with the taints of cloud providers.
fn tainted() -> Gangs {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
    for name in ["n1", "n2"] {
        let taint = json!([{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]);
        world.cluster.edit::<Node>(&Key::new("", name), |node| {
            let spec = node.spec.get_or_insert_default();
            spec.taints = serde_json::from_value(taint).unwrap();
        });
    }
    world
}

#[test]
fn a_gang_runs_on_tainted_nodes_when_admission_adds_the_toleration() {
    let mut world = tainted();
    let toleration = json!({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"});
    admission(&world, &json!({"tolerations": [toleration]}));
    world.gang("high", WIDE);
    run(&mut world, 30);
    assert_eq!(world.running("high"), 2, "{:?}", world.condition("high"));
}

#[test]
fn a_gang_evicts_for_its_sidecars_and_overhead_too() {
    for more in [sidecar(), json!({"overhead": {"nvidia.com/gpu": "1"}})] {
        let mut world = Gangs::new(&[("n1", 2), ("n2", 2), ("n3", 3), ("n4", 3)]);
        for name in ["a", "b", "c", "d"] {
            world.gang(name, LOW);
        }
        world.gang("e", Spec { gpus: 1, ..LOW });
        world.settle();
        admission(&world, &more);
        world.gang("high", WIDE);
        run(&mut world, 120);
        assert_eq!(world.nodes("high"), ["n3", "n4"], "{more}");
        assert_eq!((world.running("high"), world.preemptions("high")), (2, 1));
    }
}

#[test]
fn a_gang_that_does_not_fit_with_its_sidecars_has_no_pods_and_evicts_none() {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
    world.gang("low", LOW);
    world.settle();
    admission(&world, &sidecar());
    world.gang("high", WIDE);
    run(&mut world, 300);
    assert_eq!((world.pods_of("high").len(), world.running("low")), (0, 2));
}

#[test]
fn if_a_webhook_does_not_support_dry_runs_the_template_counts_and_no_pod_is_evicted() {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
    admission(&world, &json!({}));
    world.store().admission.no_dry_runs = true;
    world.gang("high", WIDE);
    run(&mut world, 30);
    assert_eq!(world.running("high"), 2, "free capacity is taken");
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
    world.gang("low", LOW);
    world.settle();
    admission(&world, &json!({}));
    world.store().admission.no_dry_runs = true;
    world.gang("high", WIDE);
    run(&mut world, 120);
    assert_eq!((world.preemptions("high"), world.running("low")), (0, 2));
    let message = world.condition("high").message;
    let expected = "no workload is preempted for this gang: the result of the pods' dry run is unknown (admission \
        webhook \"mesh.example.com\" does not support dry run)";
    assert!(message.contains(expected), "{message}");
}

#[test]
fn a_new_leader_runs_admission_dry_runs_before_it_evicts() {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
    world.scheduler_settings().preemption_enabled = false;
    world.gang("low", LOW);
    world.settle();
    admission(&world, &sidecar());
    world.gang("high", WIDE);
    run(&mut world, 30);
    world.crash();
    world.scheduler_settings().preemption_enabled = true;
    run(&mut world, 300);
    assert_eq!((world.preemptions("high"), world.running("low")), (0, 2));
}

#[test]
fn admission_dry_runs_are_repeated_after_their_lifetime() {
    let mut world = tainted();
    world.gang("high", WIDE);
    run(&mut world, 60);
    assert_eq!(world.running("high"), 0);
    let toleration = json!({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"});
    admission(&world, &json!({"tolerations": [toleration]}));
    run(&mut world, 500);
    assert_eq!(world.running("high"), 0, "not yet");
    run(&mut world, 90);
    assert_eq!(world.running("high"), 2);
}

#[test]
fn a_webhook_that_comes_between_the_answer_and_the_pods_is_seen_after_the_refusal() {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2), ("n3", 3), ("n4", 3)]);
    let mut taken = world.scheduler_settings().clone();
    taken.avoid_refused = std::time::Duration::from_mins(10);
    *world.scheduler_settings() = taken;
    for node in ["n3", "n4"] {
        world.node(node, 3, false);
    }
    world.control();
    world.gang("high", WIDE);
    world.control();
    admission(&world, &sidecar());
    for node in ["n3", "n4"] {
        world.node(node, 3, true);
    }
    run(&mut world, 200);
    assert_eq!(
        (world.nodes("high"), world.running("high")),
        (vec!["n3".to_owned(), "n4".to_owned()], 2)
    );
}

/// The scheduling gate of another controller.
fn gate() -> Value {
    json!({"schedulingGates": [{"name": FOREIGN_GATE}]})
}

/// Two nodes that a gang of low priority takes.
fn taken() -> Gangs {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
    world.gang("low", LOW);
    world.settle();
    world
}

#[test]
fn no_work_is_evicted_for_pods_with_a_gate_of_another_controller() {
    let mut world = taken();
    admission(&world, &gate());
    world.gang("high", WIDE);
    run(&mut world, 120);
    assert_eq!((world.preemptions("high"), world.running("low")), (0, 2));
    let message = world.condition("high").message;
    assert!(message.contains(FOREIGN_GATE), "{message}");
    world.store().admission.webhook = None;
    run(&mut world, 700);
    assert_eq!((world.preemptions("high"), world.running("high")), (1, 2));
}

#[test]
fn no_work_is_evicted_if_the_dry_run_does_not_show_the_gate() {
    let mut world = taken();
    world.gang("high", WIDE);
    while world.intent("high").is_none() {
        world.pass();
    }
    admission(&world, &gate());
    let mut decided = std::collections::BTreeSet::new();
    for _ in 0..300 {
        world.round();
        decided.extend(world.intent("high").map(|intent| intent.decided_at));
        world.later(1);
    }
    assert_eq!(world.running("low"), 2);
    assert!(decided.len() < 10, "{} decisions", decided.len());
}

#[test]
fn a_gate_that_opens_later_costs_a_gang_in_free_capacity_nothing() {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
    admission(&world, &gate());
    world.gang("high", WIDE);
    run(&mut world, 20);
    let placed = world.placement("high");
    assert_eq!((world.running("high"), placed.is_some()), (0, true));
    world.store().admission.webhook = None;
    assert!(world.cluster.open_foreign_gates());
    run(&mut world, 10);
    assert_eq!(
        (world.running("high"), world.placement("high")),
        (2, placed)
    );
}
