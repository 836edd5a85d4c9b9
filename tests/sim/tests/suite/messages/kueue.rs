//! Stories of workloads with a queue of Kueue.

use lockstep_api::TrainingWorkload;
use lockstep_api::kueue::{AdmissionCheck, KueueWorkload, PRIORITY_LABEL};
use lockstep_sim::api::{Refused, Rule, Verb};
use lockstep_sim::solo::{gang, gang_with};
use lockstep_sim::{Solo, WatchedKind};
use serde_json::{Value, json};

use super::solo::{Story, settled};

pub(super) const STORIES: &[Story] = &[
    ("waits for quota", waits),
    ("is evicted by Kueue", evicted),
    ("is deactivated", deactivated),
    ("waits for a check", waits_for_a_check),
    ("has a flavor that does not exist", no_flavor),
    ("contradicts its admission", contradicts),
    ("has more groups than pod sets", many_groups),
    ("has no class of Kueue", no_class),
    ("cannot request quota", refused),
    ("finds no API of Kueue", not_served),
    ("requests other pods", resized),
    ("loses its nodes after it ran", loses_its_nodes),
];

fn admitted(spec: Value) -> Solo {
    let mut w = settled(Solo::kueue(spec));
    w.create_flavor("any", ("any", "any"));
    for node in w.node_names() {
        label(&mut w, &node);
    }
    let key = w.quota_key();
    w.admit(&key, "any");
    settled(w)
}

fn label(w: &mut Solo, node: &str) {
    let key = lockstep_sim::Key::new("", node);
    w.cluster
        .edit(&key, |n: &mut k8s_openapi::api::core::v1::Node| {
            let labels = n.metadata.labels.get_or_insert_default();
            labels.insert("any".into(), "any".into());
        });
}

fn waits() -> Solo {
    let mut w = settled(Solo::kueue(gang(2)));
    let key = w.quota_key();
    w.evict_quota(&key, "ClusterQueueStopped");
    settled(w)
}

fn evicted() -> Solo {
    let mut w = admitted(gang_with(
        2,
        &json!({"checkpoint": {"onRequest": {"timeoutSeconds": 5}}}),
    ));
    let key = w.quota_key();
    w.evict_quota(&key, "Preempted");
    settled(w)
}

fn deactivated() -> Solo {
    let mut w = admitted(gang(2));
    let key = w.quota_key();
    w.tell_quota(&key, |q| q.spec.active = Some(false));
    w.evict_quota(&key, "Deactivated");
    settled(w)
}

fn waits_for_a_check() -> Solo {
    let mut w = settled(Solo::kueue(gang(2)));
    let key = w.quota_key();
    w.admit(&key, "any");
    w.tell_quota(&key, |q| {
        q.status.conditions.retain(|c| c.type_ != "Admitted");
        q.status.admission_checks.push(AdmissionCheck {
            name: "prov".into(),
            message: "nodes are requested".into(),
            state: "Pending".into(),
            pod_set_updates: Vec::new(),
        });
    });
    settled(w)
}

fn no_flavor() -> Solo {
    let mut w = settled(Solo::kueue(gang(2)));
    let key = w.quota_key();
    w.admit(&key, "gone");
    settled(w)
}

fn contradicts() -> Solo {
    let mut spec = gang(2);
    spec["groups"][0]["template"]["spec"]["nodeSelector"] = json!({"any": "other"});
    admitted(spec)
}

fn many_groups() -> Solo {
    let one = gang(1)["groups"][0].clone();
    let groups = (0..9).map(|n| {
        let mut group = one.clone();
        group["name"] = json!(format!("g{n}"));
        group
    });
    let groups: Vec<Value> = groups.collect();
    settled(Solo::kueue(json!({"groups": groups})))
}

fn no_class() -> Solo {
    let mut w = Solo::kueue(gang(2));
    let key = w.key().clone();
    w.cluster.edit(&key, |w: &mut TrainingWorkload| {
        let labels = w.metadata.labels.get_or_insert_default();
        labels.insert(PRIORITY_LABEL.into(), "nobody".into());
    });
    settled(w)
}

fn refused() -> Solo {
    let mut w = Solo::kueue(gang(2));
    let rule = Rule {
        kind: WatchedKind::KueueWorkload,
        verb: Verb::Create,
        name: None,
        answer: Refused::invalid("Workload is invalid: spec.queueName: Invalid value"),
    };
    w.store().admission.rules.push(rule);
    w.rounds(60);
    w
}

fn not_served() -> Solo {
    let mut w = Solo::kueue(gang(2));
    w.serve_kueue(None);
    w.rounds(10);
    w.deliver_kueue_version(Some("v1beta2"));
    w.rounds(10);
    w.serve_kueue(Some("v1beta2"));
    settled(w)
}

fn resized() -> Solo {
    let mut w = admitted(gang(2));
    w.edit(|spec| spec.groups[0].replicas = Some(3));
    let settled = settled(w);
    let quota = settled.list::<KueueWorkload>();
    assert_eq!(quota[0].spec.pod_sets[0].count, 3);
    settled
}

fn loses_its_nodes() -> Solo {
    let policy = json!({"nodeLostSeconds": 30, "replacementTimeoutSeconds": 60});
    let mut w = admitted(gang_with(8, &json!({"failurePolicy": policy})));
    let node = w.node_of("g", 0);
    w.lose(&node);
    w.wait(400);
    w
}
