//! Forged intents and owners evict nothing and protect nothing.

use k8s_openapi::api::core::v1::{Node, Pod};
use lockstep_api::names::labels;
use lockstep_api::scheduling::{Preemption, Victim};
use lockstep_scheduler::intent_id;
use lockstep_sim::{Gangs, Key, Spec};
use serde_json::json;

use crate::run;

const LOW: Spec = Spec {
    priority: 10,
    members: 4,
    gpus: 1,
};
const HIGH: Spec = Spec {
    priority: 100,
    ..LOW
};

/// An intent that the scheduler has not written.
#[derive(Clone, Copy, Debug)]
struct Forgery {
    kind: &'static str,
    /// UIDs of victim and preemptor.
    victim: fn(&Gangs) -> String,
    preemptor: &'static str,
    /// True if its id matches its content.
    signed: bool,
}

const FORGERIES: [(&str, Forgery); 6] = [
    (
        "unsigned",
        Forgery {
            signed: false,
            ..OF_LOW
        },
    ),
    ("signed, but there is no need", OF_LOW),
    (
        "another preemptor",
        Forgery {
            preemptor: "equal",
            ..OF_LOW
        },
    ),
    (
        "equal priority",
        Forgery {
            victim: |w| w.group_uid("equal"),
            ..OF_LOW
        },
    ),
    (
        "protected pod",
        Forgery {
            kind: "Pod",
            victim: |_| "uid-guard".into(),
            ..OF_LOW
        },
    ),
    (
        "a member of a gang that goes whole",
        Forgery {
            kind: "Pod",
            victim: member_of_low,
            ..OF_LOW
        },
    ),
];

const OF_LOW: Forgery = Forgery {
    kind: "PodGroup",
    victim: |w| w.group_uid("low"),
    preemptor: "high",
    signed: true,
};

fn member_of_low(world: &Gangs) -> String {
    let pods = world.pods_of("low");
    pods.into_iter()
        .find_map(|p| p.metadata.uid)
        .expect("it runs")
}

impl Forgery {
    fn intent(&self, world: &Gangs) -> Preemption {
        let victim = Victim {
            kind: self.kind.into(),
            namespace: "ml".into(),
            name: "x".into(),
            uid: (self.victim)(world),
            ..Victim::default()
        };
        let mut intent = Preemption {
            id: "deadbeef".into(),
            preemptor_uid: world.group_uid(self.preemptor),
            decided_at: world.now(),
            placement: world.placement("high").map(|p| p.id).unwrap_or_default(),
            victims: vec![victim],
            ..Preemption::default()
        };
        if self.signed {
            intent.id = intent_id(&intent);
        }
        intent
    }
}

fn write(world: &mut Gangs, intent: Preemption) {
    world.edit_group("high", |group| {
        group.status.get_or_insert_default().preemption = Some(intent);
    });
}

#[test]
fn a_forged_intent_evicts_no_pod() {
    for (what, forgery) in FORGERIES {
        let mut world = Gangs::new(&[("n1", 4), ("n2", 4), ("n3", 4), ("n4", 4)]);
        world.gang("low", LOW);
        world.gang("equal", HIGH);
        world.settle();
        let mirror = json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}});
        world.foreign_with("guard", "n3", 1, 4, &mirror);
        world.gang("high", HIGH);
        world.settle();
        let intent = forgery.intent(&world);
        write(&mut world, intent);
        world.crash();
        world.settle();
        assert!(
            !world.disrupted("low") && !world.disrupted("equal") && world.evicted().is_empty(),
            "{what}"
        );
        assert_eq!(
            (world.running("low"), world.running("equal")),
            (4, 4),
            "{what}"
        );
        assert_eq!(world.intent("high"), None, "{what}");
        assert_eq!(world.preemptions("high"), 0, "{what}");
    }
}

#[test]
fn a_forged_intent_for_a_waiting_gang_evicts_no_unrelated_pod() {
    let mut world = Gangs::new(&[("n1", 2), ("n2", 2)]);
    world.gang("low", LOW);
    world.settle();
    world.gang("high", HIGH);
    world.pass();
    let mut intent = world.intent("high").expect("low is in its way");
    world.gang("bystander", Spec { members: 2, ..LOW });
    world.node("n9", 2, true);
    world.pass();
    world.control();
    world.bind();
    intent.victims.push(Victim {
        kind: "PodGroup".into(),
        uid: world.group_uid("bystander"),
        ..Victim::default()
    });
    intent.id = intent_id(&intent);
    write(&mut world, intent);
    world.crash();
    world.settle();
    assert_eq!((world.running("high"), world.running("bystander")), (4, 2));
    assert!(!world.disrupted("bystander"));
}

#[test]
fn a_pod_that_claims_a_gang_of_another_namespace_as_owner_is_still_evicted() {
    let mut world = Gangs::new(&[("n1", 1), ("n2", 1)]);
    world.gang("low", Spec { members: 1, ..LOW });
    world.settle();
    let free = if world.nodes("low") == ["n1"] {
        "n2"
    } else {
        "n1"
    };
    let owner = json!({"apiVersion": "training.lockstep.dev/v1alpha1", "kind": "TrainingWorkload", "name": "low",
        "uid": "w-low", "controller": true});
    let metadata = json!({"namespace": "tenant", "ownerReferences": [owner]});
    // The garbage collector, which would delete it, has not run yet.
    world.foreign_with("forged", free, 0, 1, &json!({"metadata": metadata}));
    world.gang("high", Spec { members: 1, ..HIGH });
    world.pass();
    let victims = world.intent("high").unwrap().victims;
    let uids: Vec<&str> = victims.iter().map(|v| v.uid.as_str()).collect();
    assert_eq!(uids, ["uid-forged"]);
}

#[test]
fn a_pod_with_the_labels_of_a_gang_keeps_no_node_that_the_gang_releases() {
    let mut world = Gangs::new(&[("n1", 4)]);
    world.gang("low", LOW);
    world.settle();
    let mut labels = world.pods_of("low")[0].metadata.labels.clone().unwrap();
    labels.retain(|key, _| [labels::WORKLOAD_UID, labels::POD_GROUP].contains(&key.as_str()));
    assert_eq!(labels.len(), 2);
    // As created by `kubectl debug --copy-to --keep-labels`.
    world.foreign_with("copy", "n1", 0, 0, &json!({"metadata": {"labels": labels}}));
    world.edit("low", |w| w.spec.suspend = true);
    world.gang("high", HIGH);
    run(&mut world, 60);
    assert_eq!(world.running("high"), 4);
}

#[test]
fn a_pod_whose_owner_is_no_workload_of_ours_is_evicted_whatever_uid_it_names() {
    let mut world = Gangs::new(&[("n1", 1), ("n2", 1)]);
    world.gang("low", Spec { members: 1, ..LOW });
    world.settle();
    let free = if world.nodes("low") == ["n1"] {
        "n2"
    } else {
        "n1"
    };
    let labels = world.pods_of("low")[0].metadata.labels.clone();
    let owner = json!({"apiVersion": "example.com/v1", "kind": "TrainingWorkload", "name": "low", "uid": "w-low",
        "controller": true});
    let metadata = json!({"labels": labels, "ownerReferences": [owner]});
    world.foreign_with("shielded", free, 0, 1, &json!({"metadata": metadata}));
    world.gang("high", Spec { members: 1, ..HIGH });
    world.pass();
    let victims = world.intent("high").unwrap().victims;
    let uids: Vec<&str> = victims.iter().map(|v| v.uid.as_str()).collect();
    assert_eq!(uids, ["uid-shielded"]);
}

#[test]
fn a_member_without_the_label_of_its_group_keeps_its_node_in_the_placement() {
    let mut world = Gangs::new(&[("n0", 1), ("n1", 1)]);
    world.gang(
        "one",
        Spec {
            priority: 10,
            members: 1,
            gpus: 1,
        },
    );
    world.settle();
    let node = world.nodes("one").remove(0);
    let key = Key::of(&world.pods_of("one")[0]);
    world.cluster.edit::<Pod>(&key, |pod| {
        pod.metadata
            .labels
            .as_mut()
            .unwrap()
            .remove(labels::POD_GROUP);
    });
    world.cluster.edit::<Node>(&Key::new("", &node), |n| {
        n.spec.get_or_insert_default().unschedulable = Some(true);
    });
    run(&mut world, 60);
    let placement = world.placement("one").unwrap();
    assert_eq!((world.nodes("one"), placement.members), (vec![node], 1));
}
