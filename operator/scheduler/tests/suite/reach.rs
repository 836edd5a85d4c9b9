//! Work that gangs may evict.

use k8s_openapi::api::core::v1::Pod;
use lockstep_api::key::Key;
use lockstep_api::names::labels;
use lockstep_model::VictimScope;
use lockstep_scheduler::SchedulerSettings;
use lockstep_scheduler::config::SchedulerConfig;
use lockstep_sim::{Gangs, Spec, WatchedKind};
use serde_json::json;

use crate::run;

const LOW: Spec = Spec {
    priority: 10,
    members: 2,
    gpus: 1,
};
const HIGH: Spec = Spec {
    priority: 100,
    members: 2,
    gpus: 2,
};

/// A cluster full of one foreign pod of low priority, and a gang that needs all of it.
fn contested(scope: VictimScope) -> Gangs {
    let mut world = Gangs::new(&[("n1", 4)]);
    world.scheduler_settings().rules.victims.scope = scope;
    world.foreign("trainer", "n1", 0, 4);
    world.gang("high", HIGH);
    for _ in 0..5 {
        world.round();
        world.later(1);
    }
    world
}

#[test]
fn a_pod_that_holds_a_requested_resource_may_be_evicted() {
    for scope in [VictimScope::Accelerators, VictimScope::Any] {
        assert_eq!(contested(scope).evicted().len(), 1, "{scope:?}");
    }
}

#[test]
fn a_pod_out_of_the_scope_is_not_evicted_and_the_condition_names_the_key_to_change() {
    let world = contested(VictimScope::Gangs);
    assert!(world.evicted().is_empty());
    let message = world.condition("high").message;
    let says = "of lower priority may not be evicted (scheduler.preemption.victims)";
    assert!(message.ends_with(says), "{message}");
}

#[test]
fn a_gang_never_evicts_what_holds_no_accelerator() {
    let mut world = Gangs::new(&[("n1", 4)]);
    let cpu =
        json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "100"}}}]}});
    world.foreign_with("database", "n1", 0, 0, &cpu);
    let both = json!({"nvidia.com/gpu": "2", "cpu": "2"});
    let container = json!({"name": "c", "resources": {"limits": both}});
    let group =
        json!({"name": "g", "replicas": 2, "template": {"spec": {"containers": [container]}}});
    world.gang_with("high", HIGH, &json!({"groups": [group]}));
    for _ in 0..5 {
        world.round();
        world.later(1);
    }
    assert!(world.evicted().is_empty());
    let message = world.condition("high").message;
    assert!(
        message.contains("scheduler.preemption.victims"),
        "{message}"
    );
}

#[test]
fn a_gang_without_accelerators_that_keeps_a_gang_off_their_nodes_may_be_evicted() {
    let mut world = Gangs::new(&[("n1", 4)]);
    let of = |limits: serde_json::Value| {
        let container = json!({"name": "c", "resources": {"limits": limits}});
        let spec = json!({"containers": [container]});
        json!({"groups": [{"name": "g", "replicas": 2, "template": {"spec": spec}}]})
    };
    world.gang_with("drivers", LOW, &of(json!({"cpu": "40"})));
    world.settle();
    assert_eq!(world.running("drivers"), 2);
    world.gang_with(
        "high",
        HIGH,
        &of(json!({"nvidia.com/gpu": "2", "cpu": "40"})),
    );
    world.settle();
    assert_eq!((world.running("drivers"), world.running("high")), (0, 2));
}

#[test]
fn a_pod_with_the_opt_out_label_is_not_evicted_and_the_condition_reports_it() {
    let mut world = Gangs::new(&[("n1", 4)]);
    let label = json!({"metadata": {"labels": {"training.lockstep.dev/evictable": "false"}}});
    world.foreign_with("trainer", "n1", 0, 4, &label);
    world.gang("high", HIGH);
    for _ in 0..5 {
        world.round();
        world.later(1);
    }
    assert!(world.evicted().is_empty());
    let message = world.condition("high").message;
    let says = "of lower priority may not be evicted (scheduler.preemption.victims)";
    assert!(message.ends_with(says), "{message}");
}

#[test]
fn the_opt_out_label_protects_no_pod_where_the_configuration_says_so() {
    let mut world = Gangs::new(&[("n1", 4)]);
    let mut config = SchedulerConfig::default();
    config.preemption.victims.opt_out = false;
    world.scheduler_settings().rules.victims = SchedulerSettings::from(&config).rules.victims;
    let label = json!({"metadata": {"labels": {"training.lockstep.dev/evictable": "false"}}});
    world.foreign_with("trainer", "n1", 0, 4, &label);
    world.gang("high", HIGH);
    world.settle();
    assert_eq!(world.evicted().len(), 1);
    assert_eq!(world.running("high"), 2);
}

#[test]
fn a_gang_of_which_a_pod_opts_out_is_not_evicted() {
    let mut world = Gangs::new(&[("n1", 4)]);
    world.gang("low", Spec { gpus: 2, ..LOW });
    world.settle();
    let member = Key::of(&world.pods_of("low")[0]);
    world.cluster.edit::<Pod>(&member, |pod| {
        let labels = pod.metadata.labels.get_or_insert_default();
        labels.insert(labels::EVICTABLE.to_owned(), "false".to_owned());
    });
    world.gang("high", HIGH);
    run(&mut world, 30);
    assert_eq!((world.running("low"), world.running("high")), (2, 0));
    let message = world.condition("high").message;
    assert!(
        message.contains("preemption cannot free enough"),
        "{message}"
    );
}

#[test]
fn a_gang_whose_template_opts_out_keeps_its_nodes_after_its_pods_are_recreated() {
    let mut world = Gangs::new(&[("n1", 4)]);
    let container = json!({"name": "c", "resources": {"limits": {"nvidia.com/gpu": "2"}}});
    let template = json!({"metadata": {"labels": {labels::EVICTABLE: "false"}},
        "spec": {"containers": [container]}});
    let groups = json!({"groups": [{"name": "g", "replicas": 2, "template": template}]});
    world.gang_with("low", LOW, &groups);
    world.settle();
    for pod in world.pods_of("low") {
        world.delete(WatchedKind::Pod, &Key::of(&pod));
    }
    world.gang("high", HIGH);
    run(&mut world, 120);
    assert_eq!((world.running("low"), world.running("high")), (2, 0));
    let label = |pod: &Pod| pod.metadata.labels.clone()?.remove(labels::EVICTABLE);
    let kept = world.pods_of("low").iter().filter_map(label).count();
    assert_eq!(kept, 2);
}

#[test]
fn labels_of_the_configuration_put_pods_and_gangs_out_of_reach_at_once() {
    let mut world = Gangs::new(&[("n1", 4)]);
    let label = json!({"metadata": {"labels": {"team": "infra"}}});
    world.foreign_with("trainer", "n1", 0, 4, &label);
    world.gang("high", HIGH);
    world.pass();
    assert!(world.intent("high").is_some());
    let excluded = ("team".to_owned(), "infra".to_owned());
    let rules = &mut world.scheduler_settings().rules.victims;
    rules.excluded_labels = [excluded].into();
    run(&mut world, 30);
    assert_eq!((world.intent("high"), world.evicted().len()), (None, 0));
    let message = world.condition("high").message;
    assert!(
        message.contains("scheduler.preemption.victims"),
        "{message}"
    );
}

#[test]
fn what_was_decided_is_withdrawn_when_the_scope_no_longer_allows_it() {
    let mut world = Gangs::new(&[("n1", 4)]);
    world.foreign("trainer", "n1", 0, 4);
    world.gang("high", HIGH);
    world.pass();
    assert!(world.intent("high").is_some());
    world.scheduler_settings().rules.victims.scope = VictimScope::Gangs;
    run(&mut world, 30);
    assert_eq!((world.intent("high"), world.evicted().len()), (None, 0));
}
