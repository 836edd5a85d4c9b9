//! Victims protected by disruption budgets, and victims that do not terminate.

use std::time::Duration;

use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use lockstep_sim::api::{DeleteOptions, Refused, Rule, Verb};
use lockstep_sim::pods::leaving;
use lockstep_sim::{Gangs, Key, Spec, WatchedKind};
use serde_json::json;

use crate::run;

const ONE: Spec = Spec {
    priority: 100,
    members: 1,
    gpus: 1,
};
const TWO: Spec = Spec { members: 2, ..ONE };

/// Sets the allowed disruptions of a pod's budget.
fn allow(world: &mut Gangs, name: &str, pods: i32) {
    let key = Key::new("ml", name);
    world.cluster.edit::<PodDisruptionBudget>(&key, |budget| {
        let status = budget.status.get_or_insert_default();
        status.disruptions_allowed = Some(pods);
    });
}

/// Makes the API server refuse the eviction of a pod, regardless of its budget.
fn refuse_evictions(world: &mut Gangs, name: &str) {
    world.store().admission.rules.push(Rule {
        kind: WatchedKind::Pod,
        verb: Verb::Evict,
        name: Some(name.to_owned()),
        answer: Refused::by_budget(),
    });
}

fn is_there(world: &Gangs, name: &str) -> bool {
    let pod = world.get::<k8s_openapi::api::core::v1::Pod>(&Key::new("ml", name));
    pod.is_some_and(|pod| !leaving(&pod))
}

#[test]
fn what_a_budget_guards_is_no_candidate_unless_deletion_is_allowed() {
    let mut world = Gangs::new(&[("n1", 1)]);
    world.guarded("web", "n1");
    world.gang("high", ONE);
    run(&mut world, 30);
    assert_eq!(
        (world.intent("high"), world.placement("high")),
        (None, None)
    );
    let message = world.condition("high").message;
    let says = "disruption budgets protect 1 pod of lower priority (scheduler.preemption.deleteWhenEvictionIsRefused)";
    assert!(message.contains(says), "{message}");
    world.scheduler_settings().delete_after = Some(Duration::from_secs(30));
    world.crash();
    run(&mut world, 120);
    assert_eq!(world.running("high"), 1);
}

#[test]
fn only_pods_on_nodes_that_the_gang_may_use_are_counted() {
    let mut world = Gangs::new(&[]);
    for zone in ["a", "b"] {
        world.zone(zone, 1, &json!({"zone": zone}));
        world.guarded(&format!("web-{zone}"), zone);
    }
    let container = json!({"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}});
    let spec = json!({"nodeSelector": {"zone": "a"}, "containers": [container]});
    let groups = json!([{"name": "g", "replicas": 1, "template": {"spec": spec}}]);
    world.gang_with("high", ONE, &json!({"groups": groups}));
    run(&mut world, 30);
    let message = world.condition("high").message;
    let says = "disruption budgets protect 1 pod of lower priority";
    assert!(message.contains(says), "{message}");
}

#[test]
fn a_budget_that_later_allows_an_eviction_is_used() {
    let mut world = Gangs::new(&[("n1", 1)]);
    world.guarded("web", "n1");
    world.gang("high", ONE);
    run(&mut world, 30);
    assert_eq!(world.intent("high"), None);
    allow(&mut world, "web", 1);
    run(&mut world, 60);
    assert_eq!(
        (world.evicted(), world.running("high")),
        (vec!["web".to_owned()], 1)
    );
}

#[test]
fn pods_that_one_budget_guards_together_are_no_victims_together() {
    let mut world = Gangs::new(&[("n1", 2)]);
    world.guarded("web", "n1");
    let same = serde_json::json!({"metadata": {"labels": {"app": "web"}}});
    world.foreign_with("web-2", "n1", 1, 1, &same);
    allow(&mut world, "web", 1);
    world.gang("high", TWO);
    run(&mut world, 30);
    assert_eq!((world.intent("high"), world.evicted().len()), (None, 0));
    let message = world.condition("high").message;
    assert!(message.contains("disruption budgets protect"), "{message}");
}

#[test]
fn no_pod_is_evicted_if_a_protected_pod_of_the_same_set_must_stay() {
    let mut world = Gangs::new(&[("n1", 2)]);
    world.foreign("free", "n1", 1, 1);
    world.guarded("web", "n1");
    allow(&mut world, "web", 1);
    refuse_evictions(&mut world, "web");
    world.gang("high", TWO);
    run(&mut world, 300);
    assert_eq!(world.evicted(), [""; 0]);
    assert!(is_there(&world, "free") && is_there(&world, "web"));
    assert_eq!(world.preemptions("high"), 0);
    world.store().admission.rules.clear();
    run(&mut world, 180);
    assert_eq!((world.evicted().len(), world.running("high")), (2, 2));
}

#[test]
fn a_preemption_whose_victims_do_not_go_is_withdrawn() {
    let mut world = Gangs::new(&[("n1", 2)]);
    world.foreign("first", "n1", 1, 1);
    world.foreign("second", "n1", 1, 1);
    refuse_evictions(&mut world, "second");
    world.gang("high", TWO);
    run(&mut world, 290);
    assert_eq!(world.evicted(), ["first"]);
    assert!(world.intent("high").is_some());
    run(&mut world, 30);
    assert_eq!(
        (world.intent("high"), world.placement("high")),
        (None, None)
    );
    let message = world.condition("high").message;
    assert!(
        message.contains("the gang did not run after 1 preemption"),
        "{message}"
    );
    world.gang("low", Spec { priority: 1, ..ONE });
    // The back-off of ten minutes began when the preemption was withdrawn.
    run(&mut world, 570);
    assert_eq!((world.preemptions("high"), world.running("low")), (1, 1));
    assert!(is_there(&world, "second"));
}

#[test]
fn victims_with_a_long_grace_period_are_waited_for() {
    let mut world = Gangs::new(&[("n1", 1)]);
    let grace = serde_json::json!({"spec": {"terminationGracePeriodSeconds": 3600}});
    world.foreign_with("slow", "n1", 1, 1, &grace);
    world.gang("high", ONE);
    // The pod uses its whole grace period.
    for _ in 0..350 {
        world.pass();
        world.bind();
        world.later(10);
    }
    assert!(world.intent("high").is_some());
    run(&mut world, 10);
    assert_eq!(world.running("high"), 1);
}

#[test]
fn a_victim_that_goes_by_itself_does_not_spare_the_question_what_budgets_allow() {
    let mut world = Gangs::new(&[("n1", 3)]);
    world.foreign("goes", "n1", 1, 1);
    world.foreign("free", "n1", 1, 1);
    world.guarded("web", "n1");
    allow(&mut world, "web", 1);
    refuse_evictions(&mut world, "web");
    world.gang("high", Spec { members: 3, ..ONE });
    world.pass();
    assert_eq!(world.intent("high").unwrap().victims.len(), 3);
    world.remove(WatchedKind::Pod, &Key::new("ml", "goes"));
    run(&mut world, 5);
    assert_eq!(world.evicted(), [""; 0]);
}

#[test]
fn a_pod_that_ends_after_the_wait_limit_stays_and_another_pod_is_evicted() {
    let mut world = Gangs::new(&[("n1", 1), ("n2", 1)]);
    let year = serde_json::json!({"spec": {"terminationGracePeriodSeconds": 31_536_000}});
    world.foreign_with("stubborn", "n1", 0, 1, &year);
    world.foreign("other", "n2", 0, 1);
    world.fault("n1", |f| f.unkillable = true);
    world.delete(WatchedKind::Pod, &Key::new("ml", "stubborn"));
    world.gang("high", ONE);
    run(&mut world, 600);
    assert_eq!(
        (world.evicted(), world.running("high")),
        (vec!["other".to_owned()], 1)
    );
}

#[test]
fn a_victim_deleted_with_an_endless_grace_period_is_no_longer_awaited() {
    let mut world = Gangs::new(&[("n1", 1), ("n2", 1)]);
    world.foreign("stubborn", "n1", 0, 1);
    world.foreign("other", "n2", 1, 1);
    world.fault("n1", |f| f.unkillable = true);
    world.gang("high", ONE);
    world.pass();
    assert_eq!(world.intent("high").unwrap().victims[0].name, "stubborn");
    let year = DeleteOptions {
        grace: Some(31_536_000),
        ..DeleteOptions::default()
    };
    let key = Key::new("ml", "stubborn");
    let deleted = world.store().delete("user", WatchedKind::Pod, &key, &year);
    deleted.unwrap();
    run(&mut world, 600);
    assert_eq!(
        (world.evicted(), world.running("high")),
        (vec!["other".to_owned()], 1)
    );
}

#[test]
fn pods_with_a_grace_period_above_the_wait_limit_are_no_candidates_and_are_reported() {
    let mut world = Gangs::new(&[("n1", 1)]);
    let grace = serde_json::json!({"spec": {"terminationGracePeriodSeconds": 3601}});
    world.foreign_with("slow", "n1", 0, 1, &grace);
    world.gang("high", ONE);
    run(&mut world, 30);
    assert_eq!((world.intent("high"), world.evicted().len()), (None, 0));
    let message = world.condition("high").message;
    let says = "of lower priority may not be evicted (scheduler.preemption.victims)";
    assert!(message.ends_with(says), "{message}");
}

/// The API server refuses such an eviction with an error, even if both budgets permit it.
#[test]
fn a_pod_with_two_budgets_that_would_both_let_it_go_is_no_candidate() {
    for budgets in [1, 2] {
        let mut world = Gangs::new(&[("n1", 1)]);
        world.guarded("web", "n1");
        allow(&mut world, "web", 1);
        if budgets == 2 {
            let first = Key::new("ml", "web");
            let mut second: PodDisruptionBudget = world.get(&first).unwrap();
            second.metadata.name = Some("web-too".to_owned());
            second.metadata.uid = None;
            second.metadata.resource_version = None;
            world.cluster.create(&second);
        }
        world.gang("high", ONE);
        run(&mut world, 60);
        let (running, stays) = (world.running("high"), is_there(&world, "web"));
        if budgets == 1 {
            assert_eq!((running, stays), (1, false));
        } else {
            assert_eq!((running, stays), (0, true));
            let message = world.condition("high").message;
            assert!(
                message.contains("disruption budgets protect 1 pod"),
                "{message}"
            );
        }
    }
}

/// A gang of four pods guarded by a budget.
fn budgeted_gang(world: &mut Gangs, name: &str) {
    let container =
        serde_json::json!({"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}});
    let template = serde_json::json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [container]}});
    let group = serde_json::json!({"name": "g", "replicas": 4, "template": template});
    let spec = Spec {
        priority: 1,
        members: 4,
        gpus: 1,
    };
    world.gang_with(name, spec, &serde_json::json!({"groups": [group]}));
    world.settle();
}

#[test]
fn what_a_budget_allows_is_spent_by_one_preemption_and_not_by_each() {
    let mut world = Gangs::new(&[("n1", 4), ("n2", 4), ("n3", 1)]);
    world.guarded("web", "n3");
    budgeted_gang(&mut world, "one");
    budgeted_gang(&mut world, "two");
    allow(&mut world, "web", 4);
    world.gang("first", Spec { members: 4, ..ONE });
    world.gang("second", Spec { members: 4, ..ONE });
    world.pass();
    let intents = [world.intent("first"), world.intent("second")];
    assert_eq!(intents.iter().flatten().count(), 1);
    let waits = if intents[0].is_none() {
        "first"
    } else {
        "second"
    };
    let message = world.condition(waits).message;
    assert!(
        message.contains("disruption budgets protect 5 pods"),
        "{message}"
    );
}

#[test]
fn a_gang_whose_budget_no_longer_allows_it_is_not_evicted() {
    let mut world = Gangs::new(&[("n1", 4), ("n2", 1)]);
    world.guarded("web", "n2");
    budgeted_gang(&mut world, "low");
    allow(&mut world, "web", 4);
    world.gang("high", Spec { members: 4, ..ONE });
    world.pass();
    assert!(world.intent("high").is_some());
    allow(&mut world, "web", 3);
    run(&mut world, 30);
    assert_eq!((world.running("low"), world.intent("high")), (4, None));
}
