//! Which gangs are placed, in which order, and on which nodes.

use k8s_openapi::api::core::v1::Node;
use lockstep_api::condition::{ConditionStatus, reasons};
use lockstep_api::member::Member;
use lockstep_api::workload::{Backoff, GroupStatus};
use lockstep_sim::{Gangs, Key, Spec, WatchedKind};
use serde_json::json;

use crate::run;

const SMALL: Spec = Spec {
    priority: 10,
    members: 4,
    gpus: 1,
};

#[test]
fn a_gang_is_placed_whole_and_a_second_pass_changes_nothing() {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
    world.gang("a", SMALL);
    assert_eq!(world.pass().requests, 1);
    assert_eq!(world.nodes("a"), ["n1", "n1", "n2", "n2"]);
    assert_eq!(world.condition("a").reason, reasons::SCHEDULED);
    assert_eq!(world.schedule().requests, 0);
    assert_eq!(world.pass().requests, 0);
}

#[test]
fn a_waiting_gang_holds_nothing_and_says_what_is_short() {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
    world.foreign("other", "n2", 1000, 1);
    world.gang("a", SMALL);
    world.pass();
    assert_eq!(world.placement("a"), None);
    let condition = world.condition("a");
    assert_eq!(
        (condition.status, condition.reason.as_str()),
        (ConditionStatus::False, reasons::UNSCHEDULABLE)
    );
    assert!(
        condition.message.contains("nvidia.com/gpu"),
        "{}",
        condition.message
    );
    world.gang(
        "b",
        Spec {
            members: 3,
            ..SMALL
        },
    );
    world.pass();
    assert_eq!(
        world.nodes("b").len(),
        3,
        "what the waiting gang does not hold is there for others"
    );
}

#[test]
fn a_gang_that_never_fits_says_so_reserves_nothing_and_preempts_nothing() {
    let container =
        |gpus: &str| json!({"name": "c", "resources": {"limits": {"nvidia.com/gpu": gpus}}});
    let selector = json!({"containers": [container("1")], "nodeSelector": {"gpu": "h200"}});
    let taint = json!({"key": "nvidia.com/gpu", "effect": "NoSchedule"});
    for (pod, topology, taints, reason) in [
        (selector, json!({}), json!([]), reasons::NO_NODE_MATCHES),
        (
            json!({"containers": [container("1")]}),
            json!({}),
            json!([taint]),
            reasons::NO_NODE_MATCHES,
        ),
        (
            json!({"containers": [container("5")]}),
            json!({}),
            json!([]),
            reasons::EXCEEDS_LARGEST_NODE,
        ),
        (
            json!({"containers": [container("1")]}),
            json!({"topology": {"key": "example.com/rack", "mode": "Required"}}),
            json!([]),
            reasons::NO_TOPOLOGY_LABEL,
        ),
        (
            json!({"containers": [container("3")]}),
            json!({}),
            json!([]),
            reasons::EXCEEDS_CLUSTER,
        ),
    ] {
        let mut world = Gangs::new(&[("n1", 4)]);
        world.cluster.edit::<Node>(&Key::new("", "n1"), |node| {
            let spec = node.spec.get_or_insert_default();
            spec.taints = serde_json::from_value(taints).unwrap();
        });
        let group = json!({"name": "g", "replicas": 2, "template": {"spec": pod}});
        let high = Spec {
            priority: 100,
            ..SMALL
        };
        world.gang_with(
            "never",
            high,
            &json!({"groups": [group], "scheduling": topology}),
        );
        world.pass();
        world.later(1);
        world.pass();
        assert_eq!(world.condition("never").reason, reason);
        let status = world.status("never");
        assert_eq!((status.reservation, status.preemption), (None, None));
    }
}

#[test]
fn of_two_gangs_one_gets_all_and_the_other_nothing_in_any_order() {
    for (first, second) in [("a", "b"), ("b", "a")] {
        let mut world = Gangs::new(&[("n1", 3), ("n2", 3)]);
        world.gang(first, SMALL);
        world.pass();
        world.later(1);
        world.gang(second, SMALL);
        world.pass();
        assert_eq!(
            (world.nodes(first).len(), world.placement(second)),
            (4, None)
        );
    }
}

/// Gangs ordered by the UIDs of their pod groups.
fn by_uid<'n>(world: &Gangs, mut names: [&'n str; 2]) -> [&'n str; 2] {
    names.sort_by_key(|name| world.group_uid(name));
    names
}

#[test]
fn the_more_important_gang_and_among_equals_the_older_one_comes_first() {
    let mut world = Gangs::new(&[("n1", 0)]);
    for name in ["one", "other"] {
        world.gang(name, SMALL);
    }
    let high = Spec {
        priority: 11,
        ..SMALL
    };
    world.gang("high", high);
    world.control();
    // Their UIDs would give the opposite order.
    let [young, old] = by_uid(&world, ["one", "other"]);
    for (name, ago) in [(old, 60), (young, 5)] {
        let at = world.now() - chrono::TimeDelta::seconds(ago);
        world.edit_group(name, |g| {
            g.status.get_or_insert_default().queued_at = Some(at);
        });
    }
    world.node("n1", 8, true);
    world.pass();
    assert_eq!(
        (
            world.nodes("high").len(),
            world.nodes(old).len(),
            world.placement(young)
        ),
        (4, 4, None)
    );
}

#[test]
fn nothing_is_promised_twice_while_the_watch_lags_behind() {
    let mut world = Gangs::new(&[("n1", 4)]);
    for name in ["one", "other"] {
        world.gang(name, SMALL);
    }
    world.control();
    // If both seemed to wait, `b` would be first.
    let [b, a] = by_uid(&world, ["one", "other"]);
    world.edit(b, |w| w.spec.suspend = true);
    world.store().watches.hold(WatchedKind::PodGroup, true);
    world.pass();
    world.edit(b, |w| w.spec.suspend = false);
    world.pass();
    assert_eq!((world.nodes(a).len(), world.placement(b)), (4, None));
}

#[test]
fn a_new_leader_rebuilds_its_reservations_from_the_placements() {
    let mut world = Gangs::new(&[("n1", 4)]);
    world.gang("a", SMALL);
    world.pass();
    world.crash();
    world.gang("b", SMALL);
    world.pass();
    assert_eq!((world.nodes("a").len(), world.placement("b")), (4, None));
}

#[test]
fn a_suspended_backing_off_or_dependent_gang_requests_no_capacity() {
    let mut world = Gangs::new(&[("n1", 16)]);
    for name in ["suspended", "backing-off", "dependent"] {
        world.gang(name, SMALL);
    }
    world.control();
    let until = world.now();
    world.edit("suspended", |w| w.spec.suspend = true);
    world.edit_ledger("backing-off", |gang| {
        gang.backoff = Some(Backoff {
            reason: reasons::QUOTA_EXCEEDED.into(),
            message: String::new(),
            tries: 1,
            until,
        });
    });
    world.edit_ledger("dependent", |gang| gang.started = false);
    assert_eq!(world.schedule().requests, 0);
}

#[test]
fn members_that_have_succeeded_need_no_capacity() {
    let mut world = Gangs::new(&[("n1", 3)]);
    world.gang("a", SMALL);
    world.control();
    world.edit("a", |w| {
        w.status.get_or_insert_default().groups = vec![GroupStatus {
            name: "g".into(),
            completed_indexes: "0".into(),
            ..GroupStatus::default()
        }];
    });
    world.schedule();
    assert_eq!(world.assigned("a").len(), 3);
}

#[test]
fn members_of_replicas_that_have_succeeded_need_no_capacity() {
    let mut world = Gangs::new(&[]);
    world.zone("n1", 3, &json!({"rack": "a"}));
    world.zone("n2", 2, &json!({"rack": "b"}));
    let topology = json!({"key": "rack", "mode": "Required", "scope": "Replica"});
    let container = json!({"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}});
    let template = json!({"spec": {"containers": [container]}});
    let group = json!({"name": "g", "replicas": 2, "size": 3, "template": template});
    let more = json!({"groups": [group], "scheduling": {"topology": topology}});
    world.gang_with("a", SMALL, &more);
    world.control();
    world.edit("a", |w| {
        w.status.get_or_insert_default().groups = vec![GroupStatus {
            name: "g".into(),
            completed_indexes: "4".into(),
            ..GroupStatus::default()
        }];
    });
    world.schedule();
    let placed = world.assigned("a");
    let on = |node: &str| placed.values().filter(|n| *n == node).count();
    assert_eq!((on("n1"), on("n2")), (3, 2));
    assert!(!placed.contains_key(&Member::new("g", 1, 1)));
}

#[test]
fn members_of_a_basic_group_are_placed_one_by_one() {
    let mut world = Gangs::new(&[("n1", 2)]);
    world.gang_with("a", SMALL, &json!({"scheduling": {"policy": "Basic"}}));
    world.settle();
    assert_eq!(world.assigned("a").len(), 2);
    world.node("n2", 2, true);
    world.settle();
    assert_eq!((world.assigned("a").len(), world.running("a")), (4, 4));
}

#[test]
fn small_gangs_do_not_starve_a_large_one_that_waits_before_them() {
    let mut world = Gangs::new(&[("n1", 4), ("n2", 4)]);
    world.gang("running", SMALL);
    world.settle();
    world.gang(
        "large",
        Spec {
            members: 8,
            ..SMALL
        },
    );
    world.pass();
    world.later(1);
    world.gang(
        "small",
        Spec {
            members: 1,
            ..SMALL
        },
    );
    world.settle();
    assert_eq!(
        (world.placement("large"), world.placement("small")),
        (None, None)
    );
    world.edit("running", |w| w.spec.suspend = true);
    world.settle();
    assert_eq!(
        (world.running("large"), world.placement("small")),
        (8, None)
    );
}

#[test]
fn capacity_that_the_waiting_gang_cannot_use_is_there_for_those_behind_it() {
    let mut world = Gangs::new(&[("n1", 5)]);
    world.gang("running", SMALL);
    world.settle();
    world.node("n2", 1, true);
    world.gang(
        "large",
        Spec {
            members: 2,
            gpus: 2,
            ..SMALL
        },
    );
    world.pass();
    world.later(1);
    world.gang(
        "small",
        Spec {
            members: 1,
            ..SMALL
        },
    );
    world.settle();
    assert_eq!(
        (world.placement("large"), world.nodes("small")),
        (None, vec!["n2".to_owned()])
    );
}

#[test]
fn a_message_that_changes_all_the_time_is_written_now_and_then() {
    let mut world = Gangs::new(&[("n1", 1)]);
    world.gang("a", SMALL);
    world.pass();
    world.node("n2", 1, true);
    assert_eq!(world.pass().requests, 0);
    world.later(5);
    assert_eq!(world.pass().requests, 1);
}

#[test]
fn a_foreign_pending_pod_keeps_no_node_if_it_is_gated_or_its_owner_pins_none() {
    for (group, gates) in [
        ("x.example/v1", json!([])),
        ("apps/v1", json!([{"name": "x.example/later"}])),
    ] {
        let mut world = Gangs::new(&[("n1", 1)]);
        let owner = json!({"apiVersion": group, "kind": "DaemonSet", "name": "d", "uid": "d", "controller": true});
        let field = json!({"key": "metadata.name", "operator": "In", "values": ["n1"]});
        let terms = json!({"nodeSelectorTerms": [{"matchFields": [field]}]});
        let affinity =
            json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}});
        let pod = json!({"metadata": {"ownerReferences": [owner]},
            "spec": {"nodeName": null, "affinity": affinity, "schedulingGates": gates}});
        world.foreign_with("pinned", "n1", 0, 1, &pod);
        world.gang(
            "a",
            Spec {
                members: 1,
                ..SMALL
            },
        );
        world.pass();
        assert_eq!(world.nodes("a"), ["n1"], "{group}");
    }
}

#[test]
fn gangs_that_require_labels_of_no_node_each_name_their_own() {
    let mut world = Gangs::new(&[("n1", 4)]);
    let keys = [("a", "example.com/rack"), ("b", "example.com/pod")];
    for (name, key) in keys {
        let topology = json!({"scheduling": {"topology": {"key": key, "mode": "Required"}}});
        world.gang_with(name, SMALL, &topology);
    }
    run(&mut world, 10);
    for (name, key) in keys {
        let message = world.condition(name).message;
        assert!(message.contains(key), "{message}");
    }
}

/// Without the admission policy, a tenant can create a pod that stands in for a member.
#[test]
fn members_get_what_a_pod_with_a_forged_owner_does_not_request() {
    let mut world = Gangs::new(&[("n1", 4)]);
    let of = |members| Spec {
        members,
        gpus: 2,
        ..SMALL
    };
    world.gang("owner", of(1));
    world.settle();
    let member = world.pods_of("owner").remove(0);
    let meta = &member.metadata;
    let copied = json!({"labels": meta.labels, "annotations": meta.annotations, "ownerReferences": meta.owner_references});
    world.foreign_with("forged", "n1", 0, 0, &json!({"metadata": copied}));
    world.delete(WatchedKind::Pod, &Key::of(&member));
    world.settle();
    world.foreign("foreign", "n1", 1000, 2);
    let elastic = json!({"scheduling": {"gang": {"minCount": 1}}});
    world.gang_with("other", of(2), &elastic);
    run(&mut world, 60);
    assert_eq!(world.running("other"), 1);
    world.delete(WatchedKind::Pod, &Key::new("ml", "foreign"));
    run(&mut world, 1_300);
    assert_eq!(world.running("other"), 2);
}
