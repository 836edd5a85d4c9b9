//! Reservations of a waiting gang: nodes by name, and nothing else.

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use lockstep_sim::{Gangs, Key, Spec, WatchedKind};
use serde_json::{Value, json};

/// One member with one accelerator.
const SMALL: Spec = Spec {
    priority: 50,
    members: 1,
    gpus: 1,
};

/// Members that take whole nodes of four accelerators.
fn whole_nodes(members: i32) -> Spec {
    Spec {
        members,
        gpus: 4,
        ..SMALL
    }
}

/// Makes a foreign pod end by itself.
fn ends() -> Value {
    json!({"spec": {"restartPolicy": "Never"}})
}

/// Makes a foreign pod a mirror pod, which belongs to its node regardless of its restart policy.
fn of_the_node() -> Value {
    json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}})
}

/// Nodes of four accelerators, with amounts held by work that may not be evicted.
fn busy(held: &[i64], more: &Value) -> Gangs {
    let names: Vec<String> = (0..held.len()).map(|n| format!("n{n}")).collect();
    let nodes: Vec<(&str, i64)> = names.iter().map(|n| (n.as_str(), 4)).collect();
    let mut world = Gangs::new(&nodes);
    for (node, &gpus) in names.iter().zip(held).filter(|(_, gpus)| **gpus > 0) {
        world.foreign_with(&format!("on-{node}"), node, 1000, gpus, more);
    }
    world
}

/// Queues a gang after all existing ones.
fn later(world: &mut Gangs, name: &str, spec: Spec) {
    world.later(1);
    world.gang(name, spec);
    world.settle();
}

fn end(world: &mut Gangs, pod: &str) {
    world.remove(WatchedKind::Pod, &Key::new("ml", pod));
    world.settle();
}

#[test]
fn a_gang_that_fits_no_node_beside_daemon_pods_delays_no_other_gang() {
    let mut world = busy(&[1, 1], &of_the_node());
    later(&mut world, "never", whole_nodes(1));
    later(&mut world, "small", SMALL);
    assert_eq!((world.running("never"), world.running("small")), (0, 1));
}

#[test]
fn a_gang_that_waits_for_endless_services_delays_no_other_gang() {
    let mut world = busy(&[2, 2], &json!({}));
    later(&mut world, "never", whole_nodes(1));
    later(&mut world, "small", SMALL);
    assert_eq!((world.running("never"), world.running("small")), (0, 1));
}

#[test]
fn a_waiting_gang_reserves_only_the_nodes_that_it_needs() {
    let mut world = busy(&[2, 2, 2], &ends());
    later(&mut world, "waits", whole_nodes(1));
    for name in ["a", "b", "c"] {
        later(&mut world, name, Spec { gpus: 2, ..SMALL });
    }
    let placed = ["a", "b", "c"].map(|name| world.running(name));
    assert_eq!((world.running("waits"), placed), (0, [1, 1, 0]));
}

#[test]
fn a_later_gang_of_equal_priority_does_not_overtake_by_force() {
    let mut world = busy(&[4, 0], &ends());
    let low = Spec {
        priority: 10,
        ..whole_nodes(1)
    };
    later(&mut world, "low", low);
    later(&mut world, "first", whole_nodes(2));
    later(&mut world, "second", whole_nodes(1));
    assert_eq!(world.intent("second"), None);
    assert_eq!((world.running("low"), world.running("second")), (1, 0));
    end(&mut world, "on-n0");
    assert_eq!((world.running("first"), world.running("second")), (2, 0));
}

/// Names of the nodes reserved for a gang.
fn reserved(world: &Gangs, name: &str) -> Vec<String> {
    let reservation = world.status(name).reservation;
    let nodes = reservation.into_iter().flat_map(|r| r.nodes);
    nodes.map(|n| n.node).collect()
}

#[test]
fn a_waiting_gang_reports_its_reservation_and_gangs_behind_it_count_it() {
    let mut world = busy(&[2, 2], &ends());
    later(&mut world, "waits", whole_nodes(2));
    later(&mut world, "small", SMALL);
    let said = world.condition("waits").message;
    assert!(
        said.ends_with("; capacity on 2 nodes is reserved for this gang"),
        "{said}"
    );
    let said = world.condition("small").message;
    assert_eq!(
        said,
        "queued behind 1 gang: the capacity that would fit this gang is reserved"
    );
    for pod in ["on-n0", "on-n1"] {
        end(&mut world, pod);
    }
    assert_eq!(world.running("waits"), 2);
    assert_eq!(world.status("waits").reservation, None);
}

#[test]
fn a_reservation_stays_where_it_is_and_its_gang_starts_elsewhere_if_it_can() {
    let mut world = busy(&[1, 2, 3], &ends());
    later(&mut world, "waits", whole_nodes(1));
    let chosen = world.status("waits").reservation;
    assert_eq!(reserved(&world, "waits"), ["n0"]);
    world.remove(WatchedKind::Pod, &Key::new("ml", "on-n2"));
    world.foreign_with("again", "n2", 1000, 1, &ends());
    world.foreign_with("more", "n0", 1000, 2, &ends());
    world.settle();
    assert_eq!(world.status("waits").reservation, chosen);
    world.crash();
    world.settle();
    assert_eq!(world.status("waits").reservation, chosen, "a new leader");
    end(&mut world, "again");
    assert_eq!(world.nodes("waits"), ["n2"]);
}

#[test]
fn other_nodes_are_reserved_when_one_cannot_be_used_any_more() {
    let mut world = busy(&[1, 2, 3], &ends());
    later(&mut world, "waits", whole_nodes(1));
    world.node("n0", 4, false);
    world.settle();
    assert_eq!(reserved(&world, "waits"), ["n1"]);
    // A service that never ends.
    world.foreign("service", "n1", 1000, 1);
    world.settle();
    assert_eq!(reserved(&world, "waits"), ["n2"]);
    world.node("n0", 4, true);
    world.settle();
    assert_eq!(
        reserved(&world, "waits"),
        ["n2"],
        "a better one is no reason"
    );
}

#[test]
fn reservations_are_disjoint_and_those_ahead_choose_first() {
    let mut world = busy(&[1, 2, 3], &ends());
    later(&mut world, "second", whole_nodes(2));
    let before = world.status("second").reservation;
    let high = Spec {
        priority: 100,
        ..whole_nodes(1)
    };
    later(&mut world, "first", high);
    assert_eq!(
        reserved(&world, "first"),
        ["n2"],
        "it leaves the others alone"
    );
    assert_eq!(world.status("second").reservation, before);
    let higher = Spec {
        priority: 101,
        ..whole_nodes(2)
    };
    later(&mut world, "best", higher);
    assert_eq!(reserved(&world, "best"), ["n0", "n1"]);
    assert_eq!(reserved(&world, "first"), ["n2"]);
    assert_eq!(world.status("second").reservation, None);
}

#[test]
fn only_the_first_gangs_of_a_priority_reserve_nodes() {
    for (most, placed) in [(0, [1, 1]), (1, [1, 0]), (2, [0, 0])] {
        let mut world = busy(&[2, 2], &ends());
        world.scheduler_settings().rules.reservations_per_priority = most;
        for name in ["a", "b"] {
            later(&mut world, name, whole_nodes(1));
        }
        for name in ["c", "d"] {
            later(&mut world, name, Spec { gpus: 2, ..SMALL });
        }
        let running = ["c", "d"].map(|name| world.running(name));
        assert_eq!(running, placed, "{most} reservations");
    }
}

#[test]
fn each_namespace_may_hold_one_reservation_of_a_priority() {
    let mut world = busy(&[2, 2], &ends());
    world.scheduler_settings().rules.reservations_per_priority = 1;
    later(&mut world, "a", whole_nodes(1));
    world.later(1);
    world.gang_in("other", "b", whole_nodes(1), &json!({}));
    world.settle();
    for name in ["c", "d"] {
        later(&mut world, name, Spec { gpus: 2, ..SMALL });
    }
    assert_eq!(["c", "d"].map(|name| world.running(name)), [0, 0]);
}

#[test]
fn work_that_its_holder_could_not_evict_stays_off_reserved_nodes() {
    for (guarded, grace, runs) in [(false, 30, 1), (false, 7200, 0), (true, 30, 0)] {
        let mut world = busy(&[2, 2], &ends());
        if guarded {
            world.node("n2", 1, true);
            world.guarded("web", "n2");
        }
        later(&mut world, "waits", whole_nodes(2));
        let container = json!({"name": "c", "resources": {"limits": {"nvidia.com/gpu": "2"}}});
        let pod = json!({"containers": [container], "terminationGracePeriodSeconds": grace});
        let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": pod});
        let group = json!({"name": "g", "replicas": 1, "template": template});
        let low = Spec {
            priority: 10,
            ..SMALL
        };
        world.later(1);
        world.gang_with("low", low, &json!({"groups": [group]}));
        world.settle();
        assert_eq!(world.running("low"), runs, "{guarded} {grace}");
    }
}

#[test]
fn a_gang_that_waits_for_a_service_behind_a_budget_delays_no_other_gang() {
    let mut world = busy(&[0], &json!({}));
    world.guarded("web", "n0");
    later(&mut world, "never", whole_nodes(1));
    later(&mut world, "small", SMALL);
    assert_eq!((world.running("never"), world.running("small")), (0, 1));
}

#[test]
fn a_member_of_a_running_gang_may_use_what_a_gang_that_never_preempts_has_reserved() {
    let mut world = busy(&[0, 0], &json!({}));
    let low = Spec {
        priority: 10,
        ..whole_nodes(2)
    };
    later(&mut world, "runs", low);
    world.node("n2", 4, true);
    let never = json!({"scheduling": {"preemptionPolicy": "Never"}});
    world.gang_with("waits", whole_nodes(2), &never);
    world.settle();
    assert!(reserved(&world, "waits").contains(&"n2".to_owned()));
    world.node("n1", 4, false);
    crate::run(&mut world, 300);
    assert_eq!(world.nodes("runs"), ["n0", "n2"]);
}

#[test]
fn a_gang_refused_for_a_reason_other_than_capacity_reserves_nothing() {
    let mut world = Gangs::new(&[("n1", 4)]);
    world.obstructed_gang("broken", whole_nodes(1));
    world.settle();
    world.later(6);
    world.settle();
    assert!(world.status("broken").refusal.is_some());
    assert_eq!(world.status("broken").reservation, None);
    later(&mut world, "small", SMALL);
    assert_eq!(world.running("small"), 1);
}

/// A gang of two whole nodes, whose pods kube-scheduler refuses `times` times. Then another pod
/// takes one of the nodes permanently.
fn refused_before_it_waits(times: i32) -> Gangs {
    let mut world = Gangs::new(&[("n1", 4), ("n2", 4)]);
    world.obstructed_gang("broken", whole_nodes(2));
    let tries = |world: &Gangs| world.status("broken").refusal.map_or(0, |r| r.tries);
    for _ in 0..600 {
        world.round();
        world.later(1);
        if tries(&world) == times && world.pods_of("broken").is_empty() {
            break;
        }
    }
    assert_eq!(tries(&world), times);
    world.foreign_with("on-n2", "n2", 1000, 4, &ends());
    for _ in 0..360 {
        world.round();
        world.later(1);
    }
    assert!(
        world.nodes("broken").is_empty(),
        "there is no capacity for it"
    );
    world
}

#[test]
fn a_repeatedly_refused_gang_reserves_nothing_after_its_back_off_either() {
    let mut world = refused_before_it_waits(3);
    assert_eq!(reserved(&world, "broken"), [""; 0]);
    let low = Spec {
        priority: 1,
        ..SMALL
    };
    later(&mut world, "small", low);
    assert_eq!(world.running("small"), 1);
}

#[test]
fn a_gang_that_was_refused_once_still_reserves_what_it_waits_for() {
    let world = refused_before_it_waits(1);
    assert_eq!(reserved(&world, "broken"), ["n1", "n2"]);
}

#[test]
fn a_forged_reservation_is_dropped() {
    let forged = [
        (
            "every node",
            json!([{"node": "n0", "members": {"g": 1}}, {"node": "n1", "members": {"g": 1}},
            {"node": "n2", "members": {"g": 1}}]),
        ),
        (
            "a node that is not there",
            json!([{"node": "n9", "members": {"g": 1}}]),
        ),
        (
            "another group",
            json!([{"node": "n1", "members": {"h": 1}}]),
        ),
        (
            "too many",
            json!([{"node": "n1", "members": {"g": i32::MAX}}]),
        ),
        ("negative", json!([{"node": "n1", "members": {"g": -1}}])),
        (
            "twice",
            json!([{"node": "n1", "members": {"g": 1}}, {"node": "n1", "members": {"g": 1}}]),
        ),
        ("nothing", json!([])),
    ];
    for (what, nodes) in forged {
        let mut world = busy(&[1, 2, 3], &ends());
        later(&mut world, "waits", whole_nodes(1));
        world.edit_group("waits", |group| {
            let reservation = json!({"since": "2020-01-01T00:00:00Z", "nodes": nodes});
            let status = group.status.get_or_insert_default();
            status.reservation = Some(serde_json::from_value(reservation).unwrap());
        });
        world.crash();
        world.settle();
        assert_eq!(reserved(&world, "waits"), ["n0"], "{what}");
        later(&mut world, "small", SMALL);
        assert_eq!(world.running("small"), 1, "{what}");
    }
}

#[test]
fn a_gang_that_preempts_does_not_move_to_what_was_reserved_before_it() {
    let mut world = busy(&[4, 0, 0], &ends());
    let low = Spec {
        priority: 10,
        ..whole_nodes(1)
    };
    for name in ["low-a", "low-b"] {
        later(&mut world, name, low);
    }
    world.scheduler_settings().preemption_enabled = false;
    later(&mut world, "first", whole_nodes(2));
    let kept = reserved(&world, "first");
    world.scheduler_settings().preemption_enabled = true;
    world.later(1);
    world.gang("second", whole_nodes(1));
    world.settle();
    let second = world.nodes("second");
    assert!(
        second.iter().all(|n| !kept.contains(n)),
        "{second:?} of {kept:?}"
    );
    assert_eq!(world.running("first") + world.running("second"), 2);
}

#[test]
fn gangs_that_keep_coming_do_not_delay_one_that_waits() {
    let mut world = busy(&[2, 2, 2, 2], &ends());
    later(&mut world, "waits", whole_nodes(3));
    for n in 0..12 {
        let name = format!("g{n:02}");
        let spec = Spec {
            members: 1 + n % 2,
            gpus: 1 + i64::from(n % 3),
            priority: if n % 4 == 0 { 10 } else { 50 },
        };
        later(&mut world, &name, spec);
        match n {
            3 => end(&mut world, "on-n0"),
            6 => end(&mut world, "on-n1"),
            _ => {}
        }
    }
    let others = || (0..12).map(|n| format!("g{n:02}"));
    let before: usize = others().map(|g| world.running(&g)).sum();
    assert!(before > 0, "nobody ran beside it");
    assert_eq!(world.running("waits"), 0);
    end(&mut world, "on-n2");
    assert_eq!(world.running("waits"), 3);
}

/// A deadline of this many seconds.
fn ends_after(seconds: i64) -> Value {
    json!({"activeDeadlineSeconds": seconds})
}

/// Two nodes half full of work that ends in ten minutes, and a gang that waits for both.
fn waiting_for_a_deadline() -> Gangs {
    let job = json!({"spec": {"restartPolicy": "Never", "activeDeadlineSeconds": 570}});
    let mut world = busy(&[2, 2], &job);
    later(&mut world, "waits", whole_nodes(2));
    world
}

#[test]
fn a_gang_that_ends_in_time_uses_what_is_reserved_for_later() {
    let mut world = waiting_for_a_deadline();
    let start = world.status("waits").reservation.and_then(|r| r.starts_at);
    assert!(start.is_some());
    let said = world.condition("waits").message;
    assert!(said.contains("available by "), "{said}");
    world.gang_with("long", SMALL, &ends_after(590));
    world.gang("endless", SMALL);
    world.gang_with("short", SMALL, &ends_after(300));
    world.settle();
    let running = ["long", "endless", "short"].map(|name| world.running(name));
    assert_eq!(running, [0, 0, 1]);
    let backfill = world.placement("short").unwrap().backfill.unwrap();
    assert_eq!(Some(backfill.ends_by), start);
    assert_eq!(backfill.reserved_for, [world.group_uid("waits")]);
}

#[test]
fn reserved_nodes_are_not_backfilled_while_an_end_time_is_unknown() {
    let mut world = waiting_for_a_deadline();
    world.foreign_with("endless", "n0", 1000, 1, &ends());
    world.settle();
    world.gang_with("short", SMALL, &ends_after(300));
    world.settle();
    assert_eq!(world.status("waits").reservation.unwrap().starts_at, None);
    assert_eq!(world.running("short"), 0);
}

#[test]
fn a_deadline_that_is_raised_makes_room_for_the_gang_that_waits() {
    let mut world = waiting_for_a_deadline();
    world.gang_with("short", SMALL, &ends_after(300));
    world.settle();
    assert_eq!(world.running("short"), 1);
    world.edit("short", |w| w.spec.active_deadline_seconds = Some(100_000));
    world.settle();
    let start = world.status("waits").reservation.and_then(|r| r.starts_at);
    assert!(start.is_some(), "the promise counts, not the new deadline");
    for pod in ["on-n0", "on-n1"] {
        end(&mut world, pod);
    }
    assert_eq!((world.running("waits"), world.running("short")), (2, 0));
    assert!(world.names().contains(&"short".to_owned()));
    assert_eq!(world.placement("short"), None, "it waits again");
}

/// Otherwise free capacity beside a guarded service stays idle until another change.
#[test]
fn a_budget_that_forbids_an_eviction_ends_a_reservation() {
    let mut world = busy(&[4, 0], &ends());
    world.guarded("web", "n1");
    let allow = |world: &mut Gangs, count: i32| {
        let key = Key::new("ml", "web");
        world.cluster.edit::<PodDisruptionBudget>(&key, |budget| {
            budget.status.get_or_insert_default().disruptions_allowed = Some(count);
        });
        world.settle();
    };
    allow(&mut world, 1);
    later(&mut world, "waits", whole_nodes(2));
    assert_eq!(reserved(&world, "waits"), ["n0", "n1"]);
    allow(&mut world, 0);
    later(&mut world, "small", SMALL);
    crate::run(&mut world, 300);
    assert!(reserved(&world, "waits").is_empty());
    assert_eq!((world.running("waits"), world.running("small")), (0, 1));
}
