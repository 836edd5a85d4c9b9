//! Stories of waiting gangs: for missing objects, for facts outside the engine, for other gangs.

use std::time::Duration;

use chrono::TimeDelta;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use lockstep_api::NodeHealthMode;
use lockstep_api::scheduling::AutoscalerMode;
use lockstep_sim::{Actor, Gangs, Key, Spec, WatchedKind};
use serde_json::{Value, json};

use super::gangs::{Story, lasts};
use crate::node_signals::label;
use crate::{HIGH, LOW};

pub(super) const STORIES: &[Story] = &[
    ("is not known to fit", not_known),
    (
        "waits for the end of work that has a deadline",
        waits_for_a_deadline,
    ),
    ("is over its quota", over_quota),
    ("grows when there is capacity", || {
        let mut world = Gangs::new(&[("n1", 1)]);
        let group = group(&json!({}), 2);
        world.gang_with("small", LOW, &json!({"groups": [group]}));
        world.wait(5);
        world
    }),
    ("wants a claim for a device", || {
        only_kube_scheduler_knows(&json!({"resourceClaims": [{"name": "gpu"}]}))
    }),
    ("wants to be near others", || {
        let near = json!([{"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "cache"}}}]);
        only_kube_scheduler_knows(
            &json!({"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": near}}}),
        )
    }),
    ("keeps away from others", || {
        only_kube_scheduler_knows(&keeps_from("web"))
    }),
    ("is kept away by the pod of another", || {
        let mut world = full(1);
        world.foreign_with(
            "hermit",
            "n0",
            1000,
            0,
            &json!({"spec": keeps_from("llama")}),
        );
        world.gang_with("high", HIGH, &json!({"groups": [group(&json!({}), 2)]}));
        lasts(&mut world, 120);
        world
    }),
    ("is spread", || {
        let spread =
            json!([{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]);
        only_kube_scheduler_knows(&json!({"topologySpreadConstraints": spread}))
    }),
    ("keeps away from its own kind", || {
        only_kube_scheduler_knows(&keeps_from("llama"))
    }),
    ("keeps away from its own kind in other gangs", || {
        let mut world = full(1);
        let gang = json!({"groups": [group(&keeps_from("llama"), 2)], "scheduling": {"gang": {"scope": "Replica"}}});
        world.gang_with("high", HIGH, &gang);
        lasts(&mut world, 30);
        world
    }),
    ("wants a port of each node", || {
        let ports = json!([{"containerPort": 29500, "hostPort": 29500}]);
        only_kube_scheduler_knows(
            &json!({"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}, "ports": ports}]}),
        )
    }),
    ("wants a resource that no node has", || {
        let mut world = Gangs::new(&[("n1", 2)]);
        let container = json!({"name": "c", "resources": {"limits": {"example.com/npu": "1"}}});
        let group =
            json!({"name": "g", "replicas": 1, "template": {"spec": {"containers": [container]}}});
        world.gang_with("other", LOW, &json!({"groups": [group]}));
        lasts(&mut world, 5);
        world
    }),
    ("has a pod that is larger than every node", || {
        let mut large = group(&json!({}), 1);
        large["name"] = json!("large");
        large["template"]["spec"]["containers"][0]["resources"]["limits"] =
            json!({"nvidia.com/gpu": "4"});
        never_fits(&json!({"groups": [group(&json!({}), 1), large]}))
    }),
    ("lacks nodes that are not faulty", || {
        let mut world = Gangs::new(&[("n0", 2), ("n1", 2)]);
        world.set_node_health(NodeHealthMode::Act);
        let quarantined = ("dgxc.nvidia.com/nvsentinel-state", "quarantined");
        label(&mut world, "n1", quarantined);
        world.gang_with("wide", LOW, &json!({"groups": [group(&json!({}), 4)]}));
        lasts(&mut world, 5);
        world
    }),
    ("stays on a node that ends", || {
        let mut world = Gangs::new(&[("n0", 2)]);
        world.set_node_health(NodeHealthMode::Act);
        world.gang("only", LOW);
        world.settle();
        world.announce_maintenance("n0", TimeDelta::minutes(3));
        for _ in 0..50 {
            world.round();
            world.advance(TimeDelta::seconds(5));
        }
        world
    }),
    ("is larger than the cluster", || {
        never_fits(&json!({"groups": [group(&json!({}), 3)]}))
    }),
    ("wants a rack, and no node has one", || {
        let topology = json!({"key": "example.com/rack", "mode": "Required"});
        never_fits(&json!({"groups": [group(&json!({}), 2)], "scheduling": {"topology": topology}}))
    }),
    ("gets the nodes that it demands", || {
        let mut world = demands(Duration::ZERO);
        world.gang("gang", LOW);
        lasts(&mut world, 5);
        world.node("n1", 2, true);
        lasts(&mut world, 5);
        world
    }),
    (
        "gets nodes in two racks where it wants one",
        nodes_in_two_racks,
    ),
    ("prefers new nodes to preemption", || {
        let mut world = demands(Duration::from_mins(5));
        world.node("n1", 2, true);
        world.gang("low", LOW);
        world.settle();
        world.gang("high", HIGH);
        lasts(&mut world, 5);
        world
    }),
    ("has a claim that has lost its volume", || {
        claims(|world| {
            world.make_claim("data");
            world
                .cluster
                .edit::<PersistentVolumeClaim>(&Key::new("ml", "data-data"), |c| {
                    c.status.get_or_insert_default().phase = Some("Lost".into());
                });
        })
    }),
    ("has a claim that is not bound", || {
        claims(|world| {
            let class = json!({"metadata": {"name": "now"}, "provisioner": "p", "volumeBindingMode": "Immediate"});
            create(world, WatchedKind::StorageClass, class);
            claim_of_class(world, "now");
        })
    }),
    ("has a claim of a class that is not there", || {
        claims(|world| claim_of_class(world, "none"))
    }),
    ("has a claim of a class that makes no volumes", || {
        claims(|world| {
            class_without_provisioner(world);
            claim_of_class(world, "local");
        })
    }),
    ("has a claim for one of the volumes that are there", || {
        mounts_and_may_preempt(2, |world| {
            class_without_provisioner(world);
            let claim = json!({"metadata": {"name": "data-high", "namespace": "ml"}, "spec": {"storageClassName": "local"}});
            create(world, WatchedKind::PersistentVolumeClaim, claim);
            let volume =
                json!({"metadata": {"name": "disk"}, "spec": {"storageClassName": "local"}});
            create(world, WatchedKind::PersistentVolume, volume);
        })
    }),
    ("has several members with a claim of one pod", || {
        mounts_and_may_preempt(2, |world| world.make_one_pod_claim("high"))
    }),
    ("has a claim of one pod that another pod mounts", || {
        mounts_and_may_preempt(1, |world| {
            world.make_one_pod_claim("high");
            let claim =
                json!({"name": "data", "persistentVolumeClaim": {"claimName": "data-high"}});
            world.foreign_with(
                "reader",
                "n0",
                1000,
                0,
                &json!({"spec": {"volumes": [claim]}}),
            );
        })
    }),
    (
        "has an ephemeral volume of a class that is not there",
        || {
            let claim = json!({"spec": {"storageClassName": "none", "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}});
            let volume = json!({"name": "scratch", "ephemeral": {"volumeClaimTemplate": claim}});
            let mut world = Gangs::new(&[("n1", 2)]);
            let group = group(&json!({"volumes": [volume]}), 2);
            world.gang_with("data", LOW, &json!({"groups": [group]}));
            lasts(&mut world, 10);
            world
        },
    ),
];

/// A cluster without nodes, with signal pods for an autoscaler.
fn demands(before_preemption: Duration) -> Gangs {
    let mut world = Gangs::new(&[]);
    let settings = world.scheduler_settings();
    settings.autoscaler = AutoscalerMode::Pods;
    settings.scale_up_before_preemption = before_preemption;
    world
}

fn nodes_in_two_racks() -> Gangs {
    let mut world = demands(Duration::ZERO);
    let key = "example.com/rack";
    let topology = json!({"scheduling": {"topology": {"key": key, "mode": "Required"}}});
    world.gang_with("gang", Spec { gpus: 2, ..LOW }, &topology);
    lasts(&mut world, 2);
    for (node, rack) in [("n1", "a"), ("n2", "b")] {
        world.zone(node, 2, &json!({key: rack}));
    }
    for back_off in [0, 10, 20] {
        world.later(60 * back_off);
        for _ in 0..14 {
            world.round();
            world.later(5);
        }
    }
    world
}

/// Waits beside a node of two accelerators.
fn never_fits(spec: &Value) -> Gangs {
    let mut world = Gangs::new(&[("n1", 2)]);
    world.gang_with("other", LOW, spec);
    lasts(&mut world, 5);
    world
}

/// A group of this number of members with one accelerator each, and further fields of its pods.
fn group(more: &Value, members: i32) -> Value {
    let mut spec =
        json!({"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]});
    for (field, value) in more.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    let labels = json!({"labels": {"app": "llama"}});
    json!({"name": "g", "replicas": members, "template": {"metadata": labels, "spec": spec}})
}

fn keeps_from(app: &str) -> Value {
    let selector = json!({"matchLabels": {"app": app}});
    json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        [{"topologyKey": "kubernetes.io/hostname", "labelSelector": selector}]}}})
}

/// This number of nodes with two accelerators, full of gangs of low priority.
fn full(nodes: usize) -> Gangs {
    let names: Vec<String> = (0..nodes).map(|n| format!("n{n}")).collect();
    let nodes: Vec<(&str, i64)> = names.iter().map(|name| (name.as_str(), 2)).collect();
    let mut world = Gangs::new(&nodes);
    for name in &names {
        world.gang(&format!("low-{name}"), LOW);
        world.settle();
    }
    world
}

/// A gang that may preempt, with this in its pods.
fn only_kube_scheduler_knows(more: &Value) -> Gangs {
    let mut world = full(1);
    world.gang_with("high", HIGH, &json!({"groups": [group(more, 2)]}));
    lasts(&mut world, 120);
    world
}

/// Two shapes that fit on nodes of seven and five accelerators in one way only, and no steps to
/// find it.
fn not_known() -> Gangs {
    let mut world = Gangs::new(&[("n1", 7), ("n2", 5), ("n3", 12)]);
    world.foreign("elsewhere", "n3", 1, 12);
    world.scheduler_settings().rules.placement_steps = 0;
    let group = |name: &str, replicas: i32, gpus: i32| {
        let container =
            json!({"name": "c", "resources": {"limits": {"nvidia.com/gpu": gpus.to_string()}}});
        json!({"name": name, "replicas": replicas, "template": {"spec": {"containers": [container]}}})
    };
    let groups = json!({"groups": [group("trainer", 2, 3), group("rollout", 3, 2)]});
    world.gang_with("mixed", HIGH, &groups);
    world.decide();
    world
}

/// Two nodes, half used by work that ends in ten minutes, and a gang that waits for both.
fn waits_for_a_deadline() -> Gangs {
    let mut world = Gangs::new(&[("n0", 2), ("n1", 2)]);
    let job = json!({"spec": {"restartPolicy": "Never", "activeDeadlineSeconds": 570}});
    for node in ["n0", "n1"] {
        world.foreign_with(&format!("on-{node}"), node, 1000, 1, &job);
    }
    world.settle();
    world.gang(
        "waits",
        Spec {
            members: 2,
            gpus: 2,
            ..LOW
        },
    );
    world.settle();
    world
}

fn over_quota() -> Gangs {
    let mut world = Gangs::new(&[("n1", 4)]);
    let spec = json!({"hard": {"requests.nvidia.com/gpu": "3"}});
    let quota = json!({"metadata": {"name": "compute", "namespace": "ml"}, "spec": spec});
    create(&mut world, WatchedKind::ResourceQuota, quota);
    world.run(&Actor::QuotaController);
    world.gang("low", LOW);
    world.settle();
    world.gang("more", LOW);
    lasts(&mut world, 30);
    world
}

/// A gang with a defective claim.
fn claims(amiss: impl FnOnce(&mut Gangs)) -> Gangs {
    let mut world = Gangs::new(&[("n1", 2)]);
    amiss(&mut world);
    world.gang_with_claim("data", LOW);
    lasts(&mut world, 10);
    world
}

/// A gang of this number of members with claim `data-high` that may preempt.
fn mounts_and_may_preempt(members: i32, there: impl FnOnce(&mut Gangs)) -> Gangs {
    let mut world = full(1);
    there(&mut world);
    let gpus = 2 / i64::from(members);
    world.gang_with_claim(
        "high",
        Spec {
            members,
            gpus,
            ..HIGH
        },
    );
    lasts(&mut world, 120);
    world
}

fn class_without_provisioner(world: &mut Gangs) {
    let class = json!({"metadata": {"name": "local"}, "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer"});
    create(world, WatchedKind::StorageClass, class);
}

fn claim_of_class(world: &mut Gangs, class: &str) {
    let claim = json!({"metadata": {"name": "data-data", "namespace": "ml"}, "spec": {"storageClassName": class}});
    create(world, WatchedKind::PersistentVolumeClaim, claim);
}

fn create(world: &mut Gangs, kind: WatchedKind, object: Value) {
    let made = world.store().create("user", kind, object, false);
    made.unwrap_or_else(|no| panic!("{}", no.message));
}
