//! A gang beyond its namespace's quota is held before it is placed.

use k8s_openapi::api::core::v1::ResourceQuota;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use lockstep_api::condition::reasons;
use lockstep_sim::{Actor, Gangs, Key, Spec, WatchedKind};
use serde_json::{Value, json};

use crate::{HIGH, LOW, run};

/// Eight accelerators, and a quota.
fn world(spec: &Value) -> Gangs {
    let mut world = Gangs::new(&[("n1", 4), ("n2", 4)]);
    quota(&mut world, spec);
    world
}

fn quota(world: &mut Gangs, spec: &Value) {
    let quota = json!({"metadata": {"name": "compute", "namespace": "ml"}, "spec": spec});
    let made = world
        .store()
        .create("admin", WatchedKind::ResourceQuota, quota, false);
    made.unwrap_or_else(|no| panic!("{}", no.message));
    world.run(&Actor::QuotaController);
}

/// Changes the limit of a resource.
fn allow(world: &mut Gangs, resource: &str, amount: &str) {
    let key = Key::new("ml", "compute");
    world.cluster.edit::<ResourceQuota>(&key, |quota| {
        let spec = quota.spec.get_or_insert_default();
        let hard = spec.hard.get_or_insert_default();
        hard.insert(resource.into(), Quantity(amount.into()));
    });
}

fn gpus(amount: u32) -> Value {
    json!({"hard": {"requests.nvidia.com/gpu": amount.to_string()}})
}

#[test]
fn a_gang_over_its_quota_is_held_without_pods_and_evictions() {
    let mut world = world(&gpus(3));
    world.gang("low", LOW);
    world.settle();
    let elsewhere = json!({"metadata": {"namespace": "web"}});
    world.foreign_with("filler", "n2", 10, 4, &elsewhere);
    world.foreign_with("more", "n1", 10, 2, &elsewhere);
    world.gang("high", HIGH);
    run(&mut world, 300);
    assert_eq!(
        (world.preemptions("high"), world.pods_of("high").len()),
        (0, 0)
    );
    assert_eq!(
        (world.running("low"), world.status("high").reservation),
        (2, None)
    );
    let condition = world.condition("high");
    assert_eq!(condition.reason, reasons::QUOTA_EXCEEDED);
    let expected = "exceeded quota: compute, requested: requests.nvidia.com/gpu=2, used: requests.nvidia.com/gpu=2, \
                    limited: requests.nvidia.com/gpu=3";
    assert!(
        condition.message.contains(expected),
        "{}",
        condition.message
    );
}

#[test]
fn a_gang_held_by_quota_starts_once_the_quota_fits_it_and_delays_no_other_gang() {
    let mut world = world(&gpus(3));
    world.gang("high", Spec { members: 4, ..HIGH });
    world.pass();
    world.gang("low", LOW);
    world.settle();
    assert_eq!((world.running("high"), world.running("low")), (0, 2));
    allow(&mut world, "requests.nvidia.com/gpu", "6");
    world.settle();
    assert_eq!((world.running("high"), world.running("low")), (4, 2));
}

#[test]
fn gangs_that_are_placed_together_are_counted_together() {
    let mut world = world(&json!({"hard": {"pods": "3"}}));
    world.gang("a", LOW);
    world.gang("b", LOW);
    world.pass();
    assert_eq!(
        (world.assigned("a").len(), world.assigned("b").len()),
        (2, 0)
    );
    assert_eq!(world.condition("b").reason, reasons::QUOTA_EXCEEDED);
}

#[test]
fn a_gang_that_has_all_of_the_quota_replaces_its_pods() {
    let mut world = world(&gpus(2));
    world.gang("a", LOW);
    world.settle();
    let lost = world.pods_of("a").remove(0);
    world.delete(WatchedKind::Pod, &Key::of(&lost));
    run(&mut world, 120);
    assert_eq!(world.running("a"), 2);
}

#[test]
fn a_quota_with_unknown_scopes_holds_no_gang() {
    let mut spec = gpus(1);
    spec["scopes"] = json!(["CrossNamespacePodAffinity"]);
    let mut world = world(&spec);
    world.gang("a", LOW);
    world.settle();
    assert_eq!(world.running("a"), 2);
}

#[test]
fn an_elastic_gang_runs_with_the_members_that_the_quota_allows() {
    let mut world = world(&gpus(3));
    let scheduling = json!({"scheduling": {"gang": {"minCount": 2}}});
    world.gang_with("a", Spec { members: 4, ..LOW }, &scheduling);
    run(&mut world, 60);
    assert_eq!(world.running("a"), 3);
}

#[test]
fn an_elastic_gang_of_unlike_groups_runs_with_the_members_that_the_quota_allows() {
    let mut world = world(&gpus(2));
    let group = |name: &str, replicas: u8, gpus: &str| {
        let container = json!({"name": "c", "resources": {"limits": {"nvidia.com/gpu": gpus}}});
        json!({"name": name, "replicas": replicas, "template": {"spec": {"containers": [container]}}})
    };
    let groups = json!([group("large", 1, "2"), group("small", 3, "1")]);
    let spec = json!({"groups": groups, "scheduling": {"gang": {"minCount": 2}}});
    world.gang_with("a", LOW, &spec);
    run(&mut world, 60);
    let running: Vec<String> = world.assigned("a").into_keys().map(|m| m.group).collect();
    assert_eq!(
        (world.running("a"), running),
        (2, vec!["small".to_owned(); 2])
    );
}

#[test]
fn members_that_a_raised_quota_allows_run_while_previously_allowed_members_wait() {
    let mut world = Gangs::new(&[("n1", 4), ("n2", 4)]);
    let filler = Spec {
        priority: 1000,
        members: 8,
        gpus: 1,
    };
    world.gang("filler", filler);
    world.settle();
    quota(&mut world, &json!({"hard": {"requests.memory": "1000"}}));
    let group = |name: &str, limits: Value| {
        let container = json!({"name": "c", "resources": {"limits": limits}});
        json!({"name": name, "replicas": 1, "template": {"spec": {"containers": [container]}}})
    };
    let small = group("small", json!({"memory": "2000"}));
    let large = group("large", json!({"nvidia.com/gpu": "4", "memory": "1"}));
    let groups = json!([small, large]);
    let spec = json!({"groups": groups, "scheduling": {"gang": {"minCount": 1}}});
    world.gang_with("a", LOW, &spec);
    run(&mut world, 60);
    assert_eq!(world.running("a"), 0);
    assert!(world.status("a").reservation.is_some());
    allow(&mut world, "requests.memory", "4000");
    run(&mut world, 60);
    let placed: Vec<String> = world.assigned("a").into_keys().map(|m| m.group).collect();
    assert_eq!(placed, ["small"]);
}
