//! Foreign gangs: cost of evicting one of their pods.

use lockstep_model::{NativeGroup, NativeKind};
use lockstep_sim::{Gangs, Key, Spec};
use serde_json::{Value, json};

use crate::run;

const HIGH: Spec = Spec {
    priority: 100,
    members: 1,
    gpus: 1,
};

/// A pod of an Indexed Job.
fn indexed(job: &str, index: u8) -> Value {
    let owner = json!({"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": job, "controller": true});
    let labels = json!({"batch.kubernetes.io/job-completion-index": index.to_string()});
    json!({"metadata": {"labels": labels, "ownerReferences": [owner]}})
}

#[test]
fn a_pod_of_a_job_of_many_costs_the_whole_job_and_a_pod_on_its_own_goes_instead() {
    let mut world = Gangs::new(&[("n1", 1), ("n2", 1), ("n3", 2)]);
    world.foreign_with("job-0", "n1", 0, 1, &indexed("job", 0));
    world.foreign_with("job-1", "n2", 0, 1, &indexed("job", 1));
    world.foreign_with("job-2", "n3", 0, 2, &indexed("job", 2));
    world.later(600);
    world.node("n4", 1, true);
    world.foreign("alone", "n4", 0, 1);
    world.later(1200);
    world.gang("high", HIGH);
    world.pass();
    let intent = world.intent("high").unwrap();
    assert_eq!(intent.victims[0].name, "alone");
    assert!(intent.proven, "{}", intent.explanation);
}

#[test]
fn the_cost_of_a_job_pod_is_that_of_its_job_and_only_needed_pods_are_evicted() {
    let mut world = Gangs::new(&[("n1", 1), ("n2", 1), ("n3", 2)]);
    world.foreign_with("job-0", "n1", 0, 1, &indexed("job", 0));
    world.foreign_with("job-1", "n2", 0, 1, &indexed("job", 1));
    world.foreign_with("job-2", "n3", 0, 2, &indexed("job", 2));
    world.later(600);
    world.gang("high", HIGH);
    world.pass();
    let intent = world.intent("high").unwrap();
    assert_eq!(intent.victims.len(), 1);
    // Four accelerators for ten minutes, plus a restart.
    assert_eq!(intent.cost, 4 * (600 + 120), "{}", intent.explanation);
}

/// A pod of a Kueue group.
fn of_group(group: &str) -> Value {
    json!({"metadata": {"labels": {"kueue.x-k8s.io/pod-group-name": group, "kueue.x-k8s.io/managed": "true"}}})
}

/// A Kueue group over three nodes, whose last pod uses no accelerator.
fn group_of_three(world: &mut Gangs) {
    world.foreign_with("group-0", "n1", 0, 1, &of_group("group"));
    world.foreign_with("group-1", "n2", 0, 1, &of_group("group"));
    world.foreign_with("group-2", "n3", 0, 0, &of_group("group"));
    world.later(600);
}

#[test]
fn a_group_without_a_controller_is_evicted_whole_wherever_its_pods_are() {
    let mut world = Gangs::new(&[("n1", 1), ("n2", 1), ("n3", 1)]);
    group_of_three(&mut world);
    world.foreign("guard", "n3", 1000, 1);
    world.gang("high", HIGH);
    run(&mut world, 120);
    assert_eq!(world.running("high"), 1, "{:?}", world.condition("high"));
    assert_eq!(world.evicted(), ["group-0", "group-1", "group-2"]);
}

#[test]
fn a_group_one_of_whose_pods_is_too_important_stays_whole() {
    let mut world = Gangs::new(&[("n1", 1), ("n2", 1), ("n3", 1)]);
    group_of_three(&mut world);
    world.foreign_with("group-3", "n3", 1000, 1, &of_group("group"));
    world.gang("high", HIGH);
    run(&mut world, 120);
    assert_eq!((world.running("high"), world.evicted().len()), (0, 0));
}

#[test]
fn a_pod_that_says_it_is_of_a_group_costs_what_goes_with_it_and_no_more() {
    let mut world = Gangs::new(&[("n1", 1), ("n2", 2), ("n3", 1)]);
    world.foreign_with("claims", "n1", 0, 1, &of_group("group"));
    world.foreign("other", "n2", 0, 2);
    let mut elsewhere = of_group("group");
    elsewhere["metadata"]["namespace"] = json!("another");
    world.foreign_with("abroad", "n3", 0, 1, &elsewhere);
    world.later(600);
    world.gang("high", HIGH);
    world.pass();
    let intent = world.intent("high").unwrap();
    assert_eq!(intent.victims.len(), 1, "{:?}", intent.victims);
    assert_eq!(intent.cost, 600 + 120);
}

fn native(gang: bool, all: bool, parent: Option<&str>) -> NativeGroup {
    NativeGroup {
        gang,
        all,
        parent: parent.map(Into::into),
        priority: Some(0),
    }
}

#[test]
fn groups_below_a_composite_with_mode_all_are_evicted_together() {
    for (all, pods) in [(true, 2), (false, 1)] {
        let mut world = Gangs::new(&[("n1", 1), ("n2", 1)]);
        let set = (
            NativeKind::CompositePodGroup,
            "set",
            native(true, all, None),
        );
        let leaf = |name| (NativeKind::PodGroup, name, native(true, true, Some("set")));
        for (kind, name, group) in [set, leaf("one"), leaf("two")] {
            world.native_group(kind, &Key::new("ml", name), group);
        }
        for (name, node) in [("one", "n1"), ("two", "n2")] {
            let group = json!({"spec": {"schedulingGroup": {"podGroupName": name}}});
            world.foreign_with(name, node, 0, 1, &group);
        }
        world.later(600);
        world.gang("high", HIGH);
        world.pass();
        let intent = world.intent("high").unwrap();
        assert_eq!(intent.victims.len(), pods, "{:?}", intent.victims);
        world.settle();
        assert_eq!((world.running("high"), world.evicted().len()), (1, pods));
    }
}

#[test]
fn pods_of_a_native_group_have_at_least_the_priority_of_its_root() {
    for (group, pod, evicted) in [(5, 5, 1), (5000, 5, 0), (5, 5000, 0)] {
        let mut world = Gangs::new(&[("n1", 1)]);
        let group = NativeGroup {
            priority: Some(group),
            ..native(true, false, None)
        };
        world.native_group(NativeKind::PodGroup, &Key::new("ml", "pg"), group);
        let group = json!({"spec": {"schedulingGroup": {"podGroupName": "pg"}}});
        world.foreign_with("a", "n1", pod, 1, &group);
        world.later(600);
        world.gang("high", HIGH);
        world.settle();
        assert_eq!(world.evicted().len(), evicted);
    }
}

#[test]
fn a_group_of_kube_scheduler_goes_whole_unless_its_mode_is_single() {
    let group = json!({"spec": {"schedulingGroup": {"podGroupName": "pg"}}});
    for (mode, pods, cost) in [
        (None, 2, 2 * (600 + 120)),
        (Some((true, true)), 2, 2 * (600 + 120)),
        (Some((false, true)), 2, 2 * (600 + 120)),
        (Some((true, false)), 1, 2 * (600 + 120)),
        (Some((false, false)), 1, 600 + 120),
    ] {
        let mut world = Gangs::new(&[("n1", 1), ("n2", 1)]);
        if let Some((gang, all)) = mode {
            let group = native(gang, all, None);
            world.native_group(NativeKind::PodGroup, &Key::new("ml", "pg"), group);
        }
        world.foreign_with("a", "n1", 0, 1, &group);
        world.foreign_with("b", "n2", 0, 1, &group);
        world.later(600);
        world.gang("high", HIGH);
        world.pass();
        let intent = world.intent("high").unwrap();
        assert_eq!(
            (intent.victims.len(), intent.cost),
            (pods, cost),
            "{mode:?}"
        );
    }
}
