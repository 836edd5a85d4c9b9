//! A gang without its storage is held before it is placed.

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume};
use lockstep_api::condition::reasons;
use lockstep_sim::{Gangs, Key, Spec, WatchedKind};
use serde_json::{Value, json};

use crate::{HIGH, LOW, run};

fn full() -> Gangs {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
    for name in ["a", "b"] {
        world.gang(name, LOW);
    }
    world.settle();
    world
}

fn low_running(world: &Gangs) -> usize {
    world.running("a") + world.running("b")
}

/// Preemptions for the gang, number of its pods ever created, and running pods of other gangs.
fn harm(world: &Gangs) -> (usize, usize, usize) {
    let pods = world.pods_of("high").len();
    (world.preemptions("high"), pods, low_running(world))
}

fn create(world: &mut Gangs, kind: WatchedKind, object: Value) {
    let made = world.store().create("user", kind, object, false);
    made.unwrap_or_else(|no| panic!("{}", no.message));
}

#[test]
fn a_gang_with_a_missing_claim_is_held_and_evicts_no_pod() {
    let mut world = full();
    world.gang_with_claim("high", HIGH);
    run(&mut world, 600);
    assert_eq!(harm(&world), (0, 0, 4));
    let status = world.status("high");
    assert_eq!((status.placement, status.reservation), (None, None));
    let condition = world.condition("high");
    assert_eq!(condition.reason, reasons::VOLUME_MISSING);
    let expected = "persistentvolumeclaim \"data-high\" not found: create it";
    assert!(
        condition.message.contains(expected),
        "{}",
        condition.message
    );
    let conditions = world.workload("high").status.unwrap().conditions;
    let admitted = conditions.iter().find(|c| c.type_ == "Admitted").unwrap();
    assert_eq!(admitted.reason, reasons::VOLUME_MISSING);
    assert!(admitted.message.contains(expected), "{}", admitted.message);
}

#[test]
fn a_held_gang_is_placed_as_soon_as_its_claim_is_there() {
    let mut world = full();
    world.gang_with_claim("high", HIGH);
    run(&mut world, 600);
    world.make_claim("high");
    run(&mut world, 60);
    assert_eq!((world.preemptions("high"), world.running("high")), (1, 2));
}

#[test]
fn a_held_gang_keeps_no_capacity_from_other_gangs() {
    let mut world = Gangs::new(&[("n1", 2)]);
    world.gang_with_claim("high", HIGH);
    world.gang("a", LOW);
    world.pass();
    assert_eq!(world.assigned("a").len(), 2);
}

#[test]
fn a_claim_that_waits_for_its_volume_holds_unless_it_is_bound_with_the_first_pod() {
    for (class, held) in [("now", true), ("later", false), ("none", true)] {
        let mut world = Gangs::new(&[("n1", 2)]);
        let kind = WatchedKind::StorageClass;
        let later = json!({"metadata": {"name": "later"}, "provisioner": "p", "volumeBindingMode": "WaitForFirstConsumer"});
        let now = json!({"metadata": {"name": "now"}, "provisioner": "p", "volumeBindingMode": "Immediate"});
        create(&mut world, kind, later);
        create(&mut world, kind, now);
        let claim = json!({"metadata": {"name": "data-high", "namespace": "ml"}, "spec": {"storageClassName": class}});
        create(&mut world, WatchedKind::PersistentVolumeClaim, claim);
        world.gang_with_claim("high", HIGH);
        run(&mut world, 10);
        assert_eq!(world.placement("high").is_none(), held, "{class}");
        if held {
            let message = world.condition("high").message;
            assert!(message.contains("unbound immediate"), "{message}");
        } else {
            assert_eq!(world.running("high"), 2);
        }
    }
}

#[test]
fn a_gang_goes_where_its_volume_can_be_reached_and_evicts_there_only() {
    let mut world = Gangs::new(&[]);
    for (name, zone) in [("n1", "a"), ("n2", "b"), ("n3", "b")] {
        world.zone(name, 2, &json!({"zone": zone}));
    }
    for name in ["a", "b", "c"] {
        world.gang(name, LOW);
    }
    world.settle();
    world.make_claim("high");
    let terms = json!({"required": {"nodeSelectorTerms": [
        {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}]}});
    world
        .cluster
        .edit::<PersistentVolume>(&Key::new("", "ml-data-high"), |volume| {
            let spec = volume.spec.get_or_insert_default();
            spec.node_affinity = serde_json::from_value(terms).unwrap();
        });
    world.gang_with_claim("high", HIGH);
    run(&mut world, 60);
    assert_eq!((world.preemptions("high"), world.running("high")), (1, 2));
    assert!(world.nodes("high").iter().all(|node| node == "n1"));
}

#[test]
fn a_preemption_is_withdrawn_if_the_claim_is_deleted_before_the_first_eviction() {
    let mut world = full();
    world.make_claim("high");
    world.gang_with_claim("high", HIGH);
    world.pass();
    assert!(world.intent("high").is_some());
    let claim = Key::new("ml", "data-high");
    world.remove(WatchedKind::PersistentVolumeClaim, &claim);
    run(&mut world, 60);
    assert_eq!(harm(&world), (0, 0, 4));
    assert_eq!(world.condition("high").reason, reasons::VOLUME_MISSING);
}

#[test]
fn a_gang_that_runs_stays_when_its_claim_is_deleted() {
    let mut world = Gangs::new(&[("n1", 2)]);
    world.make_claim("high");
    world.gang_with_claim("high", HIGH);
    world.settle();
    let claim = Key::new("ml", "data-high");
    world.remove(WatchedKind::PersistentVolumeClaim, &claim);
    run(&mut world, 60);
    assert_eq!(world.running("high"), 2);
}

/// A gang of two groups. Pods of `late` name a claim that does not exist.
fn half_ready(world: &mut Gangs, name: &str, scheduling: &Value) {
    let container = json!({"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}});
    let claim =
        json!({"name": "data", "persistentVolumeClaim": {"claimName": format!("data-{name}")}});
    let groups = json!([
        {"name": "ready", "replicas": 2, "template": {"spec": {"containers": [container]}}},
        {"name": "late", "replicas": 2, "template": {"spec": {"containers": [container], "volumes": [claim]}}},
    ]);
    world.gang_with(
        name,
        HIGH,
        &json!({"groups": groups, "scheduling": scheduling}),
    );
}

#[test]
fn independent_members_do_not_wait_for_a_claim_that_only_other_members_lack() {
    for scheduling in [json!({"policy": "Basic"}), json!({"gang": {"minCount": 2}})] {
        let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
        half_ready(&mut world, "half", &scheduling);
        run(&mut world, 60);
        assert_eq!(world.running("half"), 2, "{scheduling}");
    }
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
    half_ready(&mut world, "half", &json!({"policy": "Basic"}));
    run(&mut world, 60);
    let message = world.condition("half").message;
    assert!(message.contains("data-half"), "{message}");
    world.make_claim("half");
    run(&mut world, 60);
    assert_eq!(world.running("half"), 4);
}

#[test]
fn a_gang_that_needs_all_its_members_waits_for_the_claim_of_one_group() {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
    half_ready(&mut world, "half", &json!({}));
    run(&mut world, 60);
    assert_eq!(world.pods_of("half").len(), 0);
    assert_eq!(world.condition("half").reason, reasons::VOLUME_MISSING);
}

/// A storage class with delayed binding.
fn class(world: &mut Gangs, name: &str, provisioner: &str, more: &Value) {
    let mut class = json!({"metadata": {"name": name}, "provisioner": provisioner,
        "volumeBindingMode": "WaitForFirstConsumer"});
    for (field, value) in more.as_object().into_iter().flatten() {
        class[field] = value.clone();
    }
    create(world, WatchedKind::StorageClass, class);
}

/// The unbound claim of gang `high`.
fn claim_of_class(world: &mut Gangs, class: &str) {
    let claim = json!({"metadata": {"name": "data-high", "namespace": "ml"}, "spec": {"storageClassName": class}});
    create(world, WatchedKind::PersistentVolumeClaim, claim);
}

/// A volume of class `local` that one node reaches.
fn local_volume(world: &mut Gangs, name: &str, zone: &str) {
    let terms =
        json!([{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}]);
    let volume = json!({"metadata": {"name": name}, "spec": {"storageClassName": "local",
        "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}});
    create(world, WatchedKind::PersistentVolume, volume);
}

/// A node in each of two zones, both full of gangs of low priority. The gang in zone b has just
/// started, so it costs less.
fn full_zones() -> Gangs {
    let mut world = Gangs::new(&[]);
    for (name, zone) in [("n1", "a"), ("n2", "b")] {
        world.zone(name, 2, &json!({"zone": zone}));
    }
    world.gang("a", LOW);
    world.settle();
    run(&mut world, 600);
    world.gang("b", LOW);
    world.settle();
    assert_eq!(world.nodes("b"), ["n2", "n2"]);
    world
}

const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

#[test]
fn a_gang_with_an_unbound_claim_that_no_node_can_serve_evicts_no_pod() {
    let mut world = full_zones();
    class(&mut world, "local", NO_PROVISIONER, &json!({}));
    claim_of_class(&mut world, "local");
    world.gang_with_claim("high", HIGH);
    run(&mut world, 600);
    assert_eq!(harm(&world), (0, 0, 4));
    let condition = world.condition("high");
    assert_eq!(condition.reason, reasons::VOLUME_MISSING);
    let expected = "didn't find available persistent volumes to bind: storageclass.storage.k8s.io \"local\" provisions no volumes";
    assert!(
        condition.message.contains(expected),
        "{}",
        condition.message
    );
}

#[test]
fn a_gang_whose_claim_fits_an_existing_volume_is_placed_without_evictions() {
    let mut world = full_zones();
    class(&mut world, "local", NO_PROVISIONER, &json!({}));
    claim_of_class(&mut world, "local");
    local_volume(&mut world, "disk", "a");
    world.gang_with_claim("high", HIGH);
    run(&mut world, 600);
    assert_eq!(harm(&world), (0, 0, 4));
    let message = world.condition("high").message;
    let expected =
        "only kube-scheduler can evaluate the claim for a volume of storageclass \"local\"";
    assert!(message.contains(expected), "{message}");
    let running = Key::new("ml", "a");
    world.remove(WatchedKind::TrainingWorkload, &running);
    run(&mut world, 60);
    assert_eq!(world.running("high"), 2);
}

#[test]
fn a_gang_that_waits_for_a_volume_is_placed_as_soon_as_one_is_made() {
    let mut world = Gangs::new(&[]);
    world.zone("n1", 2, &json!({"zone": "a"}));
    class(&mut world, "local", NO_PROVISIONER, &json!({}));
    claim_of_class(&mut world, "local");
    world.gang_with_claim("high", HIGH);
    run(&mut world, 60);
    assert_eq!(world.placement("high"), None);
    local_volume(&mut world, "disk", "a");
    run(&mut world, 10);
    assert_eq!(world.running("high"), 2);
}

#[test]
fn a_gang_that_waits_for_a_volume_is_placed_as_soon_as_one_of_several_is_free_again() {
    let mut world = Gangs::new(&[]);
    world.zone("n1", 2, &json!({"zone": "a"}));
    class(&mut world, "local", NO_PROVISIONER, &json!({}));
    claim_of_class(&mut world, "local");
    let give = |world: &mut Gangs, name: &str, claim: Option<&str>| {
        let of = |name: &str| ObjectReference {
            namespace: Some("ml".into()),
            name: Some(name.into()),
            ..ObjectReference::default()
        };
        let key = Key::new("", name);
        world.cluster.edit::<PersistentVolume>(&key, |volume| {
            volume.spec.get_or_insert_default().claim_ref = claim.map(of);
        });
    };
    for name in ["disk-1", "disk-2", "disk-3"] {
        local_volume(&mut world, name, "a");
        give(&mut world, name, Some("of-another"));
    }
    world.gang_with_claim("high", HIGH);
    run(&mut world, 60);
    assert_eq!(world.placement("high"), None);
    give(&mut world, "disk-2", None);
    run(&mut world, 10);
    assert_eq!(world.running("high"), 2);
}

#[test]
fn a_gang_evicts_only_where_a_volume_may_be_made_for_its_claim() {
    let mut world = full_zones();
    let zones = json!([{"matchLabelExpressions": [{"key": "zone", "values": ["a"]}]}]);
    class(
        &mut world,
        "zonal",
        "csi.example",
        &json!({"allowedTopologies": zones}),
    );
    claim_of_class(&mut world, "zonal");
    world.gang_with_claim("high", HIGH);
    run(&mut world, 60);
    assert_eq!((world.preemptions("high"), world.running("high")), (1, 2));
    assert_eq!(world.nodes("high"), ["n1", "n1"]);
}

#[test]
fn a_gang_whose_members_mount_a_claim_that_one_pod_may_mount_is_held() {
    let mut world = full();
    world.make_one_pod_claim("high");
    world.gang_with_claim("high", HIGH);
    run(&mut world, 60);
    assert_eq!(harm(&world), (0, 0, 4));
    let message = world.condition("high").message;
    assert!(
        message.contains("2 members mount persistentvolumeclaim"),
        "{message}"
    );
}

#[test]
fn a_gang_whose_claim_another_pod_mounts_evicts_no_pod_until_that_pod_is_gone() {
    let one = Spec {
        members: 1,
        gpus: 2,
        ..HIGH
    };
    let mut world = full();
    world.make_one_pod_claim("high");
    let volume = json!({"spec": {"volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data-high"}}]}});
    world.foreign_with("reader", "n1", 1000, 0, &volume);
    world.gang_with_claim("high", one);
    run(&mut world, 600);
    assert_eq!(harm(&world), (0, 0, 4));
    let message = world.condition("high").message;
    assert!(
        message.contains("ReadWriteOncePod claim that another pod mounts"),
        "{message}"
    );
    world.remove(WatchedKind::Pod, &Key::new("ml", "reader"));
    run(&mut world, 60);
    assert_eq!((world.preemptions("high"), world.running("high")), (1, 1));
}
