//! Pods that need a host port, or a node without another member, and constraints that only
//! kube-scheduler evaluates.

use k8s_openapi::api::scheduling::v1::PriorityClass;
use lockstep_api::names::annotations;
use lockstep_sim::{Gangs, Key, Spec, WatchedKind};
use serde_json::{Value, json};

use crate::{HIGH, LOW, run};

/// A group of two members with one accelerator each, and additional pod spec.
fn group(more: &Value) -> Value {
    let mut spec =
        json!({"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]});
    for (field, value) in more.as_object().unwrap() {
        spec[field] = value.clone();
    }
    let labels = json!({"labels": {"app": "llama"}});
    json!({"groups": [{"name": "g", "replicas": 2, "template": {"metadata": labels, "spec": spec}}]})
}

fn with_port() -> Value {
    let ports = json!([{"containerPort": 29500, "hostPort": 29500}]);
    group(
        &json!({"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}, "ports": ports}]}),
    )
}

fn keeping_from(app: &str) -> Value {
    let selector = json!({"matchLabels": {"app": app}});
    group(
        &json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        [{"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}]}}}),
    )
}

#[test]
fn members_with_a_host_port_or_that_avoid_each_other_get_a_node_each() {
    for more in [with_port(), keeping_from("llama")] {
        let mut world = Gangs::new(&[("n1", 4), ("n2", 4)]);
        world.gang_with("a", LOW, &more);
        world.settle();
        assert_eq!(
            (world.nodes("a"), world.running("a")),
            (vec!["n1".into(), "n2".into()], 2)
        );
    }
}

#[test]
fn without_enough_nodes_no_pod_is_evicted_and_the_condition_explains_it() {
    for (more, words) in [
        (with_port(), "host port 29500"),
        (keeping_from("llama"), "nodes without another member"),
    ] {
        let mut world = Gangs::new(&[("n1", 2)]);
        world.gang("low", LOW);
        world.settle();
        world.gang_with("high", HIGH, &more);
        run(&mut world, 120);
        assert_eq!((world.preemptions("high"), world.running("low")), (0, 2));
        let message = world.condition("high").message;
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn a_node_where_a_protected_pod_has_the_port_is_skipped_without_evictions() {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2), ("n3", 2)]);
    let ports = json!([{"containerPort": 29500, "hostPort": 29500}]);
    let daemon = json!({"metadata": {"labels": {"training.lockstep.dev/evictable": "false"}},
        "spec": {"containers": [{"name": "c", "image": "i", "ports": ports}]}});
    world.foreign_with("daemon", "n2", 10, 0, &daemon);
    for name in ["a", "b", "c"] {
        world.gang(name, LOW);
    }
    world.settle();
    let there = world.nodes("b");
    world.gang_with("high", HIGH, &with_port());
    run(&mut world, 60);
    assert_eq!(world.running("high"), 2);
    assert!(!world.nodes("high").contains(&"n2".to_owned()));
    assert_eq!((there, world.running("b")), (vec!["n2".to_owned(); 2], 2));
}

#[test]
fn the_port_of_a_gang_of_lower_priority_is_capacity_that_eviction_frees() {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
    world.gang_with("low", LOW, &with_port());
    world.settle();
    world.gang_with("high", HIGH, &with_port());
    run(&mut world, 60);
    assert_eq!((world.preemptions("high"), world.running("high")), (1, 2));
}

#[test]
fn members_that_avoid_each_other_may_share_nodes_with_those_of_another_gang() {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
    world.gang_with("a", LOW, &keeping_from("llama"));
    let mut other = keeping_from("bert");
    other["groups"][0]["template"]["metadata"]["labels"]["app"] = json!("bert");
    world.gang_with("b", LOW, &other);
    world.settle();
    assert_eq!((world.running("a"), world.running("b")), (2, 2));
}

#[test]
fn a_member_that_was_lost_does_not_go_where_another_of_its_kind_runs() {
    let mut world = Gangs::new(&[("n1", 4), ("n2", 4), ("n3", 4)]);
    world.gang_with("a", LOW, &keeping_from("llama"));
    world.settle();
    world.node("n2", 4, false);
    run(&mut world, 900);
    assert_eq!(world.nodes("a"), ["n1", "n3"]);
}

/// A running pod with required anti-affinity against pods with this label.
fn hermit(app: &str, key: &str) -> Value {
    let term = json!({"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}});
    json!({"spec": {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}})
}

#[test]
fn nodes_with_a_pod_whose_anti_affinity_matches_the_gang_are_not_used() {
    let mut world = Gangs::new(&[("n1", 4), ("n2", 4)]);
    let hostname = "kubernetes.io/hostname";
    world.foreign_with("hermit", "n1", 10, 0, &hermit("llama", hostname));
    world.foreign_with("other", "n2", 10, 0, &hermit("bert", hostname));
    world.gang_with("a", LOW, &group(&json!({})));
    world.settle();
    assert_eq!(
        (world.nodes("a"), world.running("a")),
        (vec!["n2".into(); 2], 2)
    );
    assert_eq!(
        world.status("a").excluded_nodes,
        [],
        "kube-scheduler has refused no pod"
    );
}

#[test]
fn no_pod_is_evicted_on_nodes_closed_by_the_anti_affinity_of_another_pod() {
    let mut world = Gangs::new(&[("n1", 2)]);
    world.gang("low", LOW);
    world.settle();
    world.foreign_with(
        "hermit",
        "n1",
        1000,
        0,
        &hermit("llama", "kubernetes.io/hostname"),
    );
    world.gang_with("high", HIGH, &group(&json!({})));
    run(&mut world, 120);
    assert_eq!((world.preemptions("high"), world.running("low")), (0, 2));
    let message = world.condition("high").message;
    let words = "1 node did not match pod anti-affinity rules";
    assert!(message.contains(words), "{message}");
    world.delete(WatchedKind::Pod, &Key::new("ml", "hermit"));
    run(&mut world, 60);
    assert_eq!((world.preemptions("high"), world.running("high")), (1, 2));
}

/// kube-scheduler preempts for no pod whose class has policy Never.
#[test]
fn pods_of_a_class_with_policy_never_do_not_use_nodes_closed_by_any_pod() {
    let mut world = Gangs::new(&[("n1", 2)]);
    world.gang("low", LOW);
    world.settle();
    let hermit = hermit("llama", "kubernetes.io/hostname");
    world.foreign_with("hermit", "n1", 0, 0, &hermit);
    world.gang_with("high", HIGH, &group(&json!({})));
    world
        .cluster
        .edit::<PriorityClass>(&Key::new("", "high"), |class| {
            class.preemption_policy = Some("Never".into());
            let notes = class.metadata.annotations.get_or_insert_default();
            let policy = "PreemptLowerPriority".into();
            notes.insert(annotations::PREEMPTION_POLICY.into(), policy);
        });
    run(&mut world, 120);
    assert_eq!((world.preemptions("high"), world.running("low")), (0, 2));
    world.delete(WatchedKind::Pod, &Key::new("ml", "hermit"));
    run(&mut world, 60);
    assert_eq!((world.preemptions("high"), world.running("high")), (1, 2));
}

/// kube-scheduler preempts for such pods when it binds them.
#[test]
fn a_gang_whose_policy_is_never_does_not_use_nodes_closed_by_any_pod() {
    let mut world = Gangs::new(&[("n1", 2)]);
    let hermit = hermit("llama", "kubernetes.io/hostname");
    world.foreign_with("hermit", "n1", 0, 0, &hermit);
    let mut never = group(&json!({}));
    never["scheduling"] = json!({"preemptionPolicy": "Never"});
    world.gang_with("high", HIGH, &never);
    run(&mut world, 60);
    assert_eq!(world.running("high"), 0);
    world.delete(WatchedKind::Pod, &Key::new("ml", "hermit"));
    run(&mut world, 60);
    assert_eq!(world.running("high"), 2);
}

#[test]
fn constraints_that_only_kube_scheduler_evaluates_evict_no_pod() {
    let near = json!([{"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "cache"}}}]);
    let spread =
        json!([{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]);
    for (more, words) in [
        (
            group(
                &json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": near}}}),
            ),
            "required pod affinity",
        ),
        (
            group(&json!({"topologySpreadConstraints": spread})),
            "topology spread",
        ),
        (group(&json!({"resourceClaims": [{"name": "gpu"}]})), "DRA"),
        (keeping_from("web"), "pod anti-affinity to other pods"),
    ] {
        let mut world = Gangs::new(&[("n1", 2)]);
        world.gang("low", LOW);
        world.settle();
        world.gang_with("high", HIGH, &more);
        run(&mut world, 120);
        assert_eq!(
            (world.preemptions("high"), world.running("low")),
            (0, 2),
            "{words}"
        );
        let message = world.condition("high").message;
        assert!(message.contains(words), "{message}");
    }
}

#[test]
fn nodes_with_pods_of_another_workload_that_the_gang_avoids_are_not_used() {
    let group = |gpus: &str| {
        let mut spec = keeping_from("llama");
        let pod = &mut spec["groups"][0]["template"]["spec"];
        pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = json!(gpus);
        spec
    };
    let mut world = Gangs::new(&[("n1", 4), ("n2", 4)]);
    world.gang_with("first", HIGH, &group("1"));
    world.settle();
    let low = Spec { gpus: 3, ..LOW };
    world.gang("low", low);
    world.settle();
    world.gang_with("second", HIGH, &group("2"));
    run(&mut world, 300);
    assert_eq!((world.preemptions("second"), world.running("low")), (0, 2));
    for node in ["n3", "n4"] {
        world.node(node, 4, true);
    }
    world.settle();
    assert_eq!(world.nodes("second"), ["n3", "n4"]);
}
