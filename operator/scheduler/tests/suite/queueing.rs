//! Queue order, and protected work.

use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use lockstep_api::condition::reasons;
use lockstep_sim::{Gangs, Key, Spec, WatchedKind};
use serde_json::{Value, json};

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

/// A gang of low priority has just started and holds all capacity.
fn full(min_runtime: u64) -> Gangs {
    let mut world = Gangs::new(&[("n1", 4)]);
    world.scheduler_settings().rules.min_runtime = Duration::from_secs(min_runtime);
    world.gang("low", LOW);
    world.settle();
    world
}

fn of_zone(zone: &str, gpus: i64) -> Value {
    let container =
        json!({"name": "c", "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}}});
    let spec = json!({"nodeSelector": {"zone": zone}, "containers": [container]});
    json!({"groups": [{"name": "g", "replicas": 1, "template": {"spec": spec}}]})
}

#[test]
fn every_waiting_gang_is_protected_from_those_behind_it_however_many_wait() {
    let mut world = Gangs::new(&[]);
    world.zone("a", 1, &json!({"zone": "a"}));
    world.zone("b", 2, &json!({"zone": "b"}));
    let ends = json!({"spec": {"restartPolicy": "Never"}});
    world.foreign_with("elsewhere", "a", 1000, 1, &ends);
    world.foreign_with("half", "b", 1000, 1, &ends);
    for n in 0..40 {
        world.gang_with(
            &format!("a{n:02}"),
            Spec {
                priority: 10,
                members: 1,
                gpus: 1,
            },
            &of_zone("a", 1),
        );
    }
    world.pass();
    world.later(1);
    world.gang_with(
        "large",
        Spec {
            priority: 10,
            members: 1,
            gpus: 2,
        },
        &of_zone("b", 2),
    );
    world.pass();
    world.later(1);
    world.gang_with(
        "small",
        Spec {
            priority: 10,
            members: 1,
            gpus: 1,
        },
        &of_zone("b", 1),
    );
    world.settle();
    assert_eq!(
        world.placement("small"),
        None,
        "the large gang was overtaken"
    );
    world.remove(WatchedKind::Pod, &Key::new("ml", "half"));
    world.settle();
    assert_eq!(world.running("large"), 1);
}

#[test]
fn gangs_that_find_no_victims_do_not_keep_those_behind_them_from_looking_for_theirs() {
    let mut world = full(0);
    world.node("n2", 4, true);
    world.gang(
        "top",
        Spec {
            priority: 1000,
            ..HIGH
        },
    );
    world.settle();
    for n in 0..10 {
        world.gang(
            &format!("wide{n}"),
            Spec {
                priority: 500,
                members: 8,
                gpus: 1,
            },
        );
    }
    world.gang("high", HIGH);
    world.settle();
    assert_eq!((world.running("high"), world.running("low")), (4, 0));
}

#[test]
fn a_search_that_found_no_victims_is_repeated_only_after_a_change() {
    let mut world = full(0);
    world.gang(
        "wide",
        Spec {
            priority: 100,
            members: 4,
            gpus: 2,
        },
    );
    world.node("n2", 1, true);
    world.node("n3", 8, false);
    assert_eq!(world.pass().searches, 1);
    let searches: Vec<usize> = (0..3).map(|_| world.pass().searches).collect();
    assert_eq!(searches.last(), Some(&0), "{searches:?}");
    world.node("n2", 2, true);
    assert_eq!(world.pass().searches, 1);
}

#[test]
fn a_search_whose_victims_do_not_fit_into_one_object_is_not_repeated_at_once() {
    let mut world = Gangs::new(&[]);
    for node in 0..300 {
        let name = format!("n{node}");
        world.node(&name, 7, true);
        for pod in 0..7 {
            let pod = json!({"metadata": {"name": format!("{node}-{pod:0>240}"), "namespace": "web"},
                "spec": {"nodeName": name, "priority": 0, "containers": [{"name": "c", "image": "i",
                    "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}});
            world.create::<Pod>(&serde_json::from_value(pod).unwrap());
        }
    }
    let wide = Spec {
        priority: 100,
        members: 300,
        gpus: 7,
    };
    world.gang("wide", wide);
    assert_eq!(world.pass().searches, 1);
    let message = world.condition("wide").message;
    assert!(message.contains("2100 victims"), "{message}");
    world.decide();
    // Triggers a cycle without a change for other gangs.
    world.gang_with_claim("held", LOW);
    assert_eq!(world.pass().searches, 0);
}

#[test]
fn what_has_just_started_is_not_evicted_before_its_time() {
    let mut world = full(60);
    world.gang("high", HIGH);
    let plan = world.pass();
    let condition = world.condition("high");
    assert_eq!(
        (condition.reason.as_str(), world.intent("high")),
        (reasons::UNSCHEDULABLE, None)
    );
    assert!(
        condition.message.contains("minRuntimeSeconds"),
        "{}",
        condition.message
    );
    let wait = plan.wake_after.unwrap();
    assert!(
        wait <= Duration::from_mins(1),
        "nobody would look again before {wait:?}"
    );
    world.later(i64::try_from(wait.as_secs()).unwrap());
    world.settle();
    assert_eq!((world.running("high"), world.running("low")), (4, 0));
}

#[test]
fn capacity_that_could_not_be_taken_back_at_once_is_left_alone() {
    for (min_runtime, placed) in [(0, true), (60, false)] {
        let mut world = Gangs::new(&[("n1", 2)]);
        world.scheduler_settings().rules.min_runtime = Duration::from_secs(min_runtime);
        let ends = json!({"spec": {"restartPolicy": "Never"}});
        world.foreign_with("half", "n1", 1000, 1, &ends);
        world.gang("high", Spec { members: 2, ..HIGH });
        world.pass();
        world.gang("low", Spec { members: 1, ..LOW });
        world.pass();
        assert_eq!(
            world.placement("low").is_some(),
            placed,
            "with {min_runtime} s"
        );
    }
}

#[test]
fn a_class_may_make_what_runs_count_for_more_than_its_priority() {
    let mut world = Gangs::new(&[("n1", 4)]);
    world.preemption_priority("low", 100);
    world.gang("low", LOW);
    world.settle();
    world.gang("high", HIGH);
    world.pass();
    assert_eq!(world.intent("high"), None);
    world.gang(
        "higher",
        Spec {
            priority: 101,
            ..HIGH
        },
    );
    world.pass();
    assert_eq!(world.intent("higher").unwrap().victims[0].priority, 100);
}

#[test]
fn before_it_runs_a_gang_counts_for_its_priority() {
    let mut world = Gangs::new(&[("n1", 4)]);
    world.preemption_priority("low", 1000);
    world.gang("low", LOW);
    world.pass();
    world.gang("high", HIGH);
    world.pass();
    assert_eq!(world.intent("high").unwrap().victims[0].priority, 10);
}

#[test]
fn an_intent_is_withdrawn_if_its_victim_gets_a_higher_preemption_priority() {
    let mut world = full(0);
    world.gang("high", HIGH);
    world.pass();
    assert!(world.intent("high").is_some());
    world.preemption_priority("low", 100);
    world.settle();
    assert_eq!((world.running("low"), world.intent("high")), (4, None));
}

#[test]
fn of_gangs_with_equal_demand_only_the_first_and_reserving_gangs_are_judged() {
    let mut world = full(0);
    for n in 0..40 {
        world.gang(&format!("w{n:02}"), LOW);
    }
    world.decide();
    world.later(1);
    let pass = world.pass();
    // The gang whose reservation fits nowhere, and represents all others.
    assert!(pass.judged <= 3, "{pass:?}");
    assert_eq!(pass.searches, 0);
    for n in 0..40 {
        let told = world.condition(&format!("w{n:02}"));
        assert_eq!(told.reason, reasons::UNSCHEDULABLE);
        assert!(told.message.contains("need 4 more"), "{}", told.message);
    }
    // They get the free capacity at once.
    world.edit("low", |w| w.spec.suspend = true);
    world.settle();
    assert!(world.placement("w00").is_some());
}

/// Each has another deadline, and none of them ends before a reservation ahead starts.
#[test]
fn gangs_that_differ_only_in_their_deadlines_are_evaluated_once() {
    let mut world = full(0);
    for n in 0..40 {
        let deadline = json!({"activeDeadlineSeconds": 10_000 + n});
        world.gang_with(&format!("w{n:02}"), LOW, &deadline);
    }
    world.decide();
    world.later(1);
    let cycle = world.pass();
    assert!(cycle.judged <= 3, "{cycle:?}");
}

/// A gang that may not be evicted must not enter the reservation, but the next one may.
#[test]
fn gangs_that_may_not_be_evicted_share_no_verdict_with_other_gangs() {
    let mut world = Gangs::new(&[("n1", 4)]);
    let ends = json!({"spec": {"restartPolicy": "Never"}});
    world.foreign_with("half", "n1", 1000, 2, &ends);
    world.gang("high", Spec { members: 4, ..HIGH });
    world.settle();
    let template = |grace: u32| {
        let container = json!({"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}});
        let spec = json!({"containers": [container], "terminationGracePeriodSeconds": grace});
        json!({"groups": [{"name": "w", "template": {"spec": spec}}]})
    };
    let guarded = template(7_200);
    for name in ["guarded-1", "guarded-2"] {
        world.gang_with(name, Spec { members: 1, ..LOW }, &guarded);
    }
    let open = template(30);
    world.gang_with("open", Spec { members: 1, ..LOW }, &open);
    world.pass();
    let placed = ["guarded-1", "guarded-2", "open"].map(|name| world.placement(name).is_some());
    assert_eq!(placed, [false, false, true]);
}

/// A gang of two shapes that fit in only one way on nodes of seven and five accelerators.
fn two_shapes() -> Value {
    let group = |name: &str, replicas: i32, gpus: i32| {
        let container =
            json!({"name": "c", "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}}});
        json!({"name": name, "replicas": replicas, "template": {"spec": {"containers": [container]}}})
    };
    json!({"groups": [group("trainer", 2, 3), group("rollout", 3, 2)]})
}

#[test]
fn a_gang_with_an_unfinished_search_evicts_no_pod_before_a_longer_search() {
    let mut world = Gangs::new(&[("n1", 7), ("n2", 5), ("n3", 12)]);
    world.foreign("elsewhere", "n3", 1, 12);
    world.scheduler_settings().rules.placement_steps = 0;
    world.gang_with("mixed", HIGH, &two_shapes());
    world.pass();
    let told = world.condition("mixed");
    assert_eq!(told.reason, reasons::UNSCHEDULABLE);
    for part in [
        "unknown whether all pods fit",
        "the gang keeps its place in the queue",
        "next search, with 10 times the steps and then among victims, at",
    ] {
        assert!(told.message.contains(part), "{}", told.message);
    }
    assert_eq!(world.intent("mixed"), None);
    // The search for victims finds a placement without victims.
    world.settle();
    let mut nodes = world.nodes("mixed");
    nodes.sort();
    nodes.dedup();
    assert_eq!(nodes, ["n1", "n2"]);
    assert_eq!(world.evicted().len(), 0);
}

#[test]
fn a_gang_whose_placement_stays_unknown_preempts_after_a_longer_search() {
    let mut world = Gangs::new(&[("n1", 7), ("n2", 12)]);
    world.foreign("elsewhere", "n2", 1, 12);
    world.scheduler_settings().rules.placement_steps = 0;
    world.gang_with("mixed", HIGH, &two_shapes());
    world.settle();
    assert_eq!(world.evicted().len(), 1);
    assert!(!world.nodes("mixed").is_empty());
}

#[test]
fn a_gang_that_no_search_is_left_for_is_not_looked_at_before_its_turn() {
    let mut world = Gangs::new(&[("n1", 20)]);
    // A service never ends, so no gang reserves anything.
    world.foreign("service", "n1", 1000, 20);
    let searches = world.scheduler_settings().searches_per_cycle;
    for members in 1..=20 {
        let spec = Spec { members, ..HIGH };
        world.gang(&format!("waits-{members:02}"), spec);
    }
    world.decide();
    let mut looked_at = Vec::new();
    loop {
        let cycle = world.pass();
        if cycle.searches == 0 {
            break;
        }
        looked_at.push(cycle.judged);
    }
    assert!(!looked_at.is_empty(), "all were searched for");
    assert!(
        looked_at.iter().all(|&judged| judged <= searches),
        "{looked_at:?}"
    );
}
